"""Reports: one HTML page about a run, and its charts; also from Python, with `reports.report.write_report`."""
