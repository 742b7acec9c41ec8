"""scikit-learn's PCA on the outside, three clients on the inside: for scikit-learn's own tests of PCA."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin

from fedspan import FederatedPCA

SOLVERS = {"full": "gram", "covariance_eigh": "gram", "arpack": "gram", "randomized": "krylov", "auto": "auto"}


class PCA(FederatedPCA):
    """Takes pooled rows, cuts them into three clients, and fits FederatedPCA; options of SVDs have no meaning."""

    def __init__(
        self,
        n_components: Any = None,
        *,
        copy: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        tol: float = 0.0,
        iterated_power: Any = "auto",
        n_oversamples: int = 10,
        power_iteration_normalizer: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.copy, self.svd_solver, self.iterated_power = copy, svd_solver, iterated_power
        self.n_oversamples, self.power_iteration_normalizer = n_oversamples, power_iteration_normalizer
        solver = SOLVERS[svd_solver]
        super().__init__(n_components, whiten=whiten, solver=solver, tol=tol or 1e-12, random_state=random_state)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        names = ["n_components", "copy", "whiten", "svd_solver", "tol", "iterated_power", "n_oversamples"]
        return sorted([*names, "power_iteration_normalizer", "random_state"])

    def fit(self, X: Any, y: Any = None, **options: Any) -> PCA:  # type: ignore[override]
        rows = X.tocsr() if sp.issparse(X) else X
        n = rows.shape[0] if sp.issparse(rows) else len(rows)
        cuts = np.linspace(0, n, min(3, n) + 1).astype(int)
        clients = [rows[a:b] for a, b in pairwise(cuts)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of rank-deficient tables, and of tol below rounding
            super().fit(clients, **options)
        return self

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
        return self.fit(X).transform(X)

    get_feature_names_out = ClassNamePrefixFeaturesOutMixin.get_feature_names_out
