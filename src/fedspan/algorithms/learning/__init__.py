"""Classifiers, trained on samples or on features that are spread over clients."""

from fedspan.algorithms.learning._samples import Sampling, Steps
from fedspan.algorithms.learning.constraints.limits import Limit
from fedspan.algorithms.learning.scaling import EarlierModel

__all__ = ["EarlierModel", "Limit", "Sampling", "Steps"]
