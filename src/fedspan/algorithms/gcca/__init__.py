"""Generalized canonical correlation analysis (MAX-VAR): what several views of the same entities have in common."""
