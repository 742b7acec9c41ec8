"""Data of genomics made ready for a fit, and results in the forms that its tools read."""
