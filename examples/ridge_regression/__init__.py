"""Federated ridge regression: an algorithm that is not in fedspan, written from docs/sixth-algorithm.md."""

from ridge_regression.ridge import Ridge

__all__ = ["Ridge"]
