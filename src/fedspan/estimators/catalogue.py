"""All estimators and the algorithms of their methods by their names, for job files, run folders and federations."""

from __future__ import annotations

from fedspan.algorithms.registry import ALGORITHMS
from fedspan.core.protocol import AnyServer
from fedspan.estimators._options.classifier_methods import ROW_METHODS, VIEW_METHODS
from fedspan.estimators._options.maxvar_solvers import MAXVAR_SOLVERS
from fedspan.estimators._options.personalized_methods import METHODS
from fedspan.estimators._options.spectral_parameters import SOLVERS
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


def find_named_algorithms(estimator: str, name: str) -> tuple[type[AnyServer], ...] | None:
    """The algorithms of a solver or method; none if there is no such name, None if the estimator has no names."""
    if estimator in ("FederatedPCA", "FederatedSVD"):
        return (type(SOLVERS[name]()),) if name in SOLVERS else ()
    if estimator == "FederatedGCCA":
        kept = tuple(ALGORITHMS[other] for other in ("KeptMaxVar", "StudyViews"))  # missing entities; what it searches
        return (MAXVAR_SOLVERS[name], *kept) if name in MAXVAR_SOLVERS else ()
    if estimator == "PersonalizedPCA":
        return (METHODS[name], ALGORITHMS["PerPca"]) if name in METHODS else ()
    known = {"FederatedClassifier": ROW_METHODS, "VerticalFederatedClassifier": VIEW_METHODS}.get(estimator)
    if known is None:
        return None
    return (type(known[name]),) if name in known else ()
