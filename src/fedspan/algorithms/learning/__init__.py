"""Classifiers, trained on samples or on features that are spread over clients."""

from fedspan.algorithms.learning._samples import Limit, Sampling, Steps

__all__ = ["Limit", "Sampling", "Steps"]
