"""What a site remembers over runs, and demands of them: groups of sums, refusals, verified runs."""
