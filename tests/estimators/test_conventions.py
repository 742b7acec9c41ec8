"""scikit-learn's own checks of its conventions, as far as they make sense for a list of clients."""

import pytest
from sklearn.utils import estimator_checks as checks

<<<<<<< HEAD
<<<<<<< HEAD
<<<<<<< HEAD
from fedspan import DeepFederatedGCCA, FederatedPCA, FederatedSVD
=======
from fedspan import FederatedPCA, FederatedSVD, PersonalizedPCA
>>>>>>> 8d43189b78f5716b8f6e37a761254ed5c12db2ed
=======
from fedspan import FederatedGCCA, FederatedPCA, FederatedSVD
>>>>>>> 6a587b3d8fb92663a93388b1017ba3566d235bd4
=======
from fedspan import FederatedClassifier, FederatedPCA, FederatedSVD, VerticalFederatedClassifier
>>>>>>> 7de1b21dff4fcdd281f8afb43759c5d9eb159f32

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
<<<<<<< HEAD
<<<<<<< HEAD
@pytest.mark.parametrize("estimator", [FederatedPCA, FederatedSVD, PersonalizedPCA])
=======
@pytest.mark.parametrize("estimator", [FederatedPCA, FederatedSVD, FederatedGCCA])
>>>>>>> 6a587b3d8fb92663a93388b1017ba3566d235bd4
=======
@pytest.mark.parametrize("estimator", [FederatedClassifier, FederatedPCA, FederatedSVD, VerticalFederatedClassifier])
>>>>>>> 7de1b21dff4fcdd281f8afb43759c5d9eb159f32
def test_convention(estimator, name):
    getattr(checks, name)(estimator.__name__, estimator())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "check_parameters_default_constructible"])
def test_convention_of_what_must_be_given_networks(name):
    getattr(checks, name)("DeepFederatedGCCA", DeepFederatedGCCA([]))
