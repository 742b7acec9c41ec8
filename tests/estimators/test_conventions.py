"""scikit-learn's own checks of its conventions, as far as they make sense for a list of clients."""

import inspect

import pytest
from sklearn.utils import estimator_checks as checks

from fedspan import DeepFederatedGCCA
from fedspan.estimators.catalogue import ESTIMATORS, find_round_limit

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
@pytest.mark.parametrize("estimator", [kind for kind in ESTIMATORS.values() if kind is not DeepFederatedGCCA])
def test_convention(estimator, name):
    getattr(checks, name)(estimator.__name__, estimator())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "check_parameters_default_constructible"])
def test_convention_of_an_estimator_that_needs_networks(name):
    getattr(checks, name)("DeepFederatedGCCA", DeepFederatedGCCA([]))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_limit_of_rounds_that_sites_hold_an_order_to_is_the_estimators_own(name):
    signature = inspect.signature(ESTIMATORS[name]).parameters
    (key,) = signature.keys() & {"max_rounds", "rounds"}
    assert find_round_limit(name, {}) == signature[key].default
    assert find_round_limit(name, {key: 7}) == 7
    assert find_round_limit(name, {key: "many"}) is None
