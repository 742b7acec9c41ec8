"""The row of ridge regression for tests/conformance/table.py: all that the properties of every algorithm need."""

from __future__ import annotations

from table import Row, labelled

from ridge_regression import Ridge

ROW = Row(Ridge(alpha=0.5), rounds=2, clients=labelled, angle=None)
