"""All estimators and the algorithms of their methods by their names, for job files, run folders and federations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from fedspan.algorithms.registry import ALGORITHMS
from fedspan.core.protocol import AnyServer
from fedspan.estimators._options.classifier_methods import ROW_METHODS, VIEW_METHODS
from fedspan.estimators._options.maxvar_solvers import MAXVAR_SOLVERS
from fedspan.estimators._options.personalized_methods import METHODS
from fedspan.estimators._options.spectral_parameters import SOLVERS

if TYPE_CHECKING:
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

    Estimator: TypeAlias = (
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

_WHERE = {
    "FederatedPCA": "pca",
    "FederatedSVD": "svd",
    "FederatedGCCA": "gcca",
    "DeepFederatedGCCA": "deep_gcca",
    "PersonalizedPCA": "personalized",
    "FederatedClassifier": "classifier",
    "VerticalFederatedClassifier": "vertical_classifier",
    "FederatedRegressor": "regressor",
    "VerticalPCA": "views.vertical_pca",
    "VerticalSVD": "views.vertical_pca",
    "VerticalFederatedRegressor": "views.vertical_regressor",
}
_DEFAULT_ROUNDS = {  # how many rounds an estimator takes at most where its parameters do not say so
    "FederatedPCA": 200,
    "FederatedSVD": 200,
    "FederatedGCCA": 200,
    "DeepFederatedGCCA": 50,
    "PersonalizedPCA": 500,
    "FederatedClassifier": 1000,
    "VerticalFederatedClassifier": 1000,
    "FederatedRegressor": 100,
    "VerticalPCA": 200,
    "VerticalSVD": 200,
    "VerticalFederatedRegressor": 500,
}


class _Estimators(Mapping[str, "type[Estimator]"]):
    """The estimators by name. Each is imported when it is asked for: sites look up names only."""

    def __getitem__(self, name: str) -> type[Estimator]:
        return vars(import_module(f"fedspan.estimators.{_WHERE[name]}"))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


ESTIMATORS = _Estimators()


def find_round_limit(estimator: str, parameters: Mapping[str, object]) -> int | None:
    """How many rounds an estimator takes at most with these parameters; None if it does not say so in numbers."""
    found = parameters.get("max_rounds", parameters.get("rounds", _DEFAULT_ROUNDS.get(estimator)))
    return found if type(found) is int else None


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
