"""All estimators by their names, for those who are told a name: job files, run folders, a federation's server."""

from __future__ import annotations

from fedspan.estimators.classifier import FederatedClassifier
from fedspan.estimators.deep_gcca import DeepFederatedGCCA
from fedspan.estimators.gcca import FederatedGCCA
from fedspan.estimators.pca import FederatedPCA
from fedspan.estimators.personalized import PersonalizedPCA
from fedspan.estimators.regressor import FederatedRegressor
from fedspan.estimators.svd import FederatedSVD
from fedspan.estimators.vertical_classifier import VerticalFederatedClassifier
from fedspan.estimators.views.vertical_pca import VerticalPCA, VerticalSVD
from fedspan.estimators.views.vertical_regressor import VerticalFederatedRegressor

Estimator = (
    FederatedPCA
    | FederatedSVD
    | FederatedGCCA
    | DeepFederatedGCCA
    | PersonalizedPCA
    | FederatedClassifier
    | VerticalFederatedClassifier
    | FederatedRegressor
    | VerticalPCA
    | VerticalSVD
    | VerticalFederatedRegressor
)
ESTIMATORS: dict[str, type[Estimator]] = {
    "FederatedPCA": FederatedPCA,
    "FederatedSVD": FederatedSVD,
    "FederatedGCCA": FederatedGCCA,
    "DeepFederatedGCCA": DeepFederatedGCCA,
    "PersonalizedPCA": PersonalizedPCA,
    "FederatedClassifier": FederatedClassifier,
    "VerticalFederatedClassifier": VerticalFederatedClassifier,
    "FederatedRegressor": FederatedRegressor,
    "VerticalPCA": VerticalPCA,
    "VerticalSVD": VerticalSVD,
    "VerticalFederatedRegressor": VerticalFederatedRegressor,
}
