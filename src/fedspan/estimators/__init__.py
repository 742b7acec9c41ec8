"""Estimators: one file per model that users import, and what their parameters come to."""
