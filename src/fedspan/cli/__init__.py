"""The command line: `fedspan demo`, `run`, `resume`, `report`, `doctor`. Nothing else in fedspan imports it."""
