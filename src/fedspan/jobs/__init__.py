"""The job file: what it says, how it is run, and the folder that a run leaves."""
