"""Matching the rows of several clients by their ids, before a model is fitted and for new rows."""
