"""Reports: one HTML page about a run, and its charts; from Python it is `model.report(path)`."""
