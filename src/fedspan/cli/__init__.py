"""The command line: `fedspan demo`, `new`, `run`, `resume`, `report`, `audit`, `doctor`. Nothing imports it."""
