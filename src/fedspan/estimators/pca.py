"""Principal components of rows that stay at their clients, with scikit-learn's conventions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import Prior
from fedspan.core.ledger import Ledger
from fedspan.core.participation import Participation
from fedspan.core.run import Info
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_solvers import Request, solve
from fedspan.estimators.base import load_model, save_model
from fedspan.estimators.export import pca_to_sklearn, projection_to_onnx
from fedspan.estimators.launch import seed_from
from fedspan.estimators.prepare import as_fitted
from fedspan.numerics.orthonormal import with_signs
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz

_LEARNED = (
    "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "scale_",
    "noise_variance_", "basis_", "basis_variance_ratio_",
    "n_features_in_", "n_samples_", "n_clients_", "n_rounds_", "converged_", "seed_",
)  # fmt: skip

_SHOWN = ("kkt", "change", "floor")  # what a solver may know of its own accuracy


class FederatedPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis of rows that are spread over clients, as if they were in one place.

    Parameters:
        n_components: How many components to compute.
        solver: "gram" (exact, one round, d×d numbers), "krylov" (few rounds of d×k), "davidson" (fewer, but shows each
            client's own subspace to the server), "faps", "ssi", "localpower", "fedpower", "uda", "wda", "drsvd" (the
            papers' methods), "auto" (the fastest by a cost model; `ledger_.notes` says why), or an object of
            `fedspan.algorithms` with options that only this solver knows; `fedspan.Auto` takes bandwidth and latency.
        center: Take off the mean of all clients' rows together (each client's own mean is not shown).
        scale: Divide by the standard deviation over all clients' rows together; constant columns stay as they are.
        tol: Stop when the scaled KKT violation ‖(I - ZZᵀ)MZ‖_F / tr(M) is at most this, where the server can see it;
            else the solver's own measure. 0 runs all rounds.
        max_rounds: Stop after this many rounds.
        local_steps: Iterations at the clients between two communications (fedpower, localpower).
        bits: Bits per number on both links: an integer from 2 to 16 (against memories on both sides; for ssi,
            localpower and fedpower), or "auto" (krylov, davidson: just fine enough for tol). None: float64.
        participation: A `Participation`, the part of the clients that is asked in each round (fedpower).
        privacy: `RowDP(epsilon, delta, row_norm)` for a guarantee to every single row, or `PaperDP` (FedPower's own
            noise, to reproduce its tables). None: no noise.
        secure: True, or `Secure(threshold=…)`: the server sees only sums over the clients. With RowDP the clients then
            share the noise, which is √(number of clients) less.
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (the components so far) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    Attributes:
        components_: (k, d), orthonormal rows, the one of most variance first.
        explained_variance_: (k,), the variance along each component.
        explained_variance_ratio_: (k,), the same as a share of the variance of all features.
        singular_values_: (k,), of all centred rows together.
        mean_: (d,), what is taken off the rows.
        scale_: (d,), what they are divided by; ones without `scale`.
        noise_variance_: The mean variance of what is left out.
        basis_, basis_variance_ratio_: What a warm start needs.
        n_features_in_, feature_names_in_, n_samples_, n_clients_: What was learned from.
        n_rounds_, converged_: How the run ended.
        history_: A dict for every round.
        ledger_: Bytes, seconds, rounds, who took part, ε spent: see `Ledger`.
        seed_: The seed that repeats the run.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedPCA
        >>> rng = np.random.default_rng(0)
        >>> hospitals = {"north": rng.normal(size=(80, 5)), "south": rng.normal(size=(50, 5))}
        >>> pca = FederatedPCA(n_components=2, random_state=0).fit(hospitals)
        >>> pca.components_.shape, pca.n_samples_
        ((2, 5), 130)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: Any = "auto",
        center: bool = True,
        scale: bool = False,
        tol: float = 1e-6,
        max_rounds: int = 200,
        local_steps: int | None = None,
        bits: int | str | None = None,
        participation: Participation | None = None,
        privacy: Any = None,
        secure: Any = False,
        engine: Any = None,
        callback: Callable[[Info], None] | None = None,
        checkpoint: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.center = center
        self.scale = scale
        self.tol = tol
        self.max_rounds = max_rounds
        self.local_steps = local_steps
        self.bits = bits
        self.participation = participation
        self.privacy = privacy
        self.secure = secure
        self.engine = engine
        self.callback = callback
        self.checkpoint = checkpoint
        self.random_state = random_state

    def fit(
        self,
        clients: Mapping[str, Any] | Sequence[Any],
        y: Any = None,
        *,
        warm_start: FederatedPCA | None = None,
        min_clients: int | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation until it has converged.

        `clients`: one entry per client, rows are samples. `warm_start`: a model of nearly the same data, from which
        krylov and davidson need a few rounds only. `min_clients`: go on if at least this many answer (the others are
        asked again, or left out by fedpower); by default all must. `ledger`: where to write what happens.
        """
        request = Request(
            self.n_components, self.solver, self.center, self.scale, self.tol, self.max_rounds, self.local_steps,
            self.bits, self.participation, self.privacy, self.secure, warm_start._prior() if warm_start else None,
        )  # fmt: skip
        seed = seed_from(self.random_state)
        result, schema = solve(
            request, clients, engine=self.engine, callback=self.callback, checkpoint=self.checkpoint,
            seed=seed, ledger=ledger, min_clients=min_clients,
        )  # fmt: skip
        state, moments = result.state, result.state.moments
        if moments.n < 2:
            raise InputError(f"need at least 2 rows over all clients, got {moments.n}")
        theta, Z = self._without_null_space(np.maximum(state.theta, 0.0), state.Z, moments)
        d, k = len(moments.mean), len(theta)
        self.components_ = with_signs(Z.T)
        self.explained_variance_ = theta / (moments.n - 1)
        total = max(moments.trace, float(theta.sum())) or 1.0  # a noised trace may be below what is explained, even 0
        self.explained_variance_ratio_ = theta / total
        self.singular_values_ = np.sqrt(theta)
        self.noise_variance_ = max(moments.trace - theta.sum(), 0.0) / (moments.n - 1) / (d - k) if d > k else 0.0
        self.mean_, self.scale_ = moments.mean, moments.scale
        self.basis_, self.basis_variance_ratio_ = _basis(state, Z, theta)
        self.n_features_in_ = d
        self.preparation_ = schema.preparation
        if schema.names is not None:
            self.feature_names_in_ = np.array(schema.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.n_samples_, self.n_clients_, self.seed_ = moments.n, len(clients), seed
        self.n_rounds_ = result.rounds
        # A solver may stop because it comes no further; converged is what met the tol, if the violation is known.
        self.converged_ = result.converged and (self.tol == 0 or not state.kkt > self.tol)
        self.ledger_, self.history_ = result.ledger, result.ledger.history()
        if not self.converged_ and self.tol > 0:
            reached = ", ".join(f"{name} {value:.2g}" for name, value in self.history_[-1].items() if name in _SHOWN)
            warnings.warn(
                f"need tol={self.tol:g}, reached {reached} in {result.rounds} rounds; "
                + ("this solver comes no further: use krylov or gram" if result.converged else "raise max_rounds")
                + ", or raise tol if this accuracy is enough",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _prior(self) -> Prior:
        """What this model knows of the data, for a run on nearly the same data."""
        check_is_fitted(self)
        total = self.explained_variance_.sum() / self.explained_variance_ratio_.sum() * (self.n_samples_ - 1)
        return Prior(self.basis_.T, self.basis_variance_ratio_ * total)

    def _without_null_space(self, theta: Array, Z: Array, moments: Any) -> tuple[Array, Array]:
        """Only components that the data determine: those of zero variance could be any."""
        tiny = max(moments.n, len(moments.mean)) * np.finfo(np.float64).eps * (theta[0] if len(theta) else 0.0)
        rank = int(np.sum(theta > tiny))
        if rank == 0:
            raise InputError("need data that vary, all rows are equal (after centering); there is no component")
        if rank < self.n_components:
            warnings.warn(
                f"need data of rank {self.n_components}, got rank {rank}: there are only {rank} components; "
                f"lower n_components to {rank}",
                UserWarning,
                stacklevel=3,
            )
        return theta[:rank], Z[:, :rank]

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Not there: the rows of a federation are not in one place."""
        raise InputError(
            "a federation has no pooled rows: call fit(clients), then transform(X) where the rows are; "
            "inside a Pipeline, wrap the fitted model: sklearn.frozen.FrozenEstimator(model)"
        )

    def transform(self, X: Any) -> Any:
        """Coordinates of rows in the components, (n, k). Sparse rows stay sparse."""
        check_is_fitted(self)
        X = as_fitted(self, X, accept_sparse="csr", dtype=np.float64)
        W = self.components_.T / self.scale_[:, None]
        return (X @ W if sp.issparse(X) else (X - self.mean_) @ W) - (self.mean_ @ W if sp.issparse(X) else 0.0)

    def inverse_transform(self, X: Any) -> Any:
        """Rows with those coordinates, (n, d)."""
        check_is_fitted(self)
        Z = np.asarray(X, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != len(self.components_):
            raise InputError(f"need {len(self.components_)} coordinates per row, got an array of shape {Z.shape}")
        return Z @ self.components_ * self.scale_ + self.mean_

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of rows under probabilistic PCA, as scikit-learn's PCA.score."""
        check_is_fitted(self)
        if self.noise_variance_ <= 0:
            raise InputError("need a positive noise variance for a likelihood; use fewer components than features")
        Z = self.transform(X)
        X = as_fitted(self, X, accept_sparse="csr", dtype=np.float64)
        rest = _square_distances(X, self.mean_, self.scale_) - (Z**2).sum(axis=1)
        d, k, noise = self.n_features_in_, len(self.components_), self.noise_variance_
        logdet = np.log(self.explained_variance_).sum() + (d - k) * np.log(noise) + 2 * np.log(self.scale_).sum()
        inside = (Z**2 / self.explained_variance_).sum(axis=1)
        return float(np.mean(-0.5 * (d * np.log(2 * np.pi) + logdet + inside + rest / noise)))

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file; equal models give equal files."""
        save_model(self, path, _LEARNED)

    def to_sklearn(self) -> Any:
        """A fitted scikit-learn `PCA`, or if `scale` was asked for a `Pipeline` of a `StandardScaler` and a `PCA`."""
        return pca_to_sklearn(self)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write `transform` as an ONNX graph of float64: input X (n, d), output transformed (n, k)."""
        projection_to_onnx(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote, ready to transform; its ledger is in the run's own file."""
        return load_model(cls, path)


def _basis(state: Any, Z: Array, theta: Array) -> tuple[Array, Array]:
    """All that the server knows of the spectrum, (m, d) and (m,): krylov has seen more than the k components."""
    total = max(state.moments.trace, float(theta.sum())) or 1.0
    if not hasattr(state, "AQt") or len(state.Qt) == 0:
        return Z.T, theta / total
    values, S, _ = rayleigh_ritz(state.Qt.T, state.AQt.T, 1)
    known = values > 0
    return S[:, known].T @ state.Qt, values[known] / total


def _square_distances(X: Any, mean: Array, scale: Array) -> Array:
    """‖(x - mean)/scale‖² of each row, sparse rows unspread."""
    if not sp.issparse(X):
        return np.asarray((((X - mean) / scale) ** 2).sum(axis=1))
    W = 1.0 / scale**2
    return np.asarray(X.multiply(X) @ W - 2 * (X @ (mean * W)) + (mean**2 * W).sum())
