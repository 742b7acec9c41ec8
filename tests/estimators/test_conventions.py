"""scikit-learn's own checks of its conventions, as far as they make sense for a list of clients."""

import pytest
from sklearn.utils import estimator_checks as checks

from fedspan import FederatedClassifier, FederatedPCA, FederatedSVD, VerticalFederatedClassifier

NAMES = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_mixin_order",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("estimator", [FederatedClassifier, FederatedPCA, FederatedSVD, VerticalFederatedClassifier])
def test_convention(estimator, name):
    getattr(checks, name)(estimator.__name__, estimator())
