"""Sections of the report for kinds of models, one file each."""
