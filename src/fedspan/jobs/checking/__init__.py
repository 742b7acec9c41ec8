"""`fedspan check`: everything that is wrong with the tables of a job, at once, and the lines that would help."""
