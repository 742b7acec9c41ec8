"""What job files say of data of genomics."""
