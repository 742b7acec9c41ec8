"""Principal components of each client's own, drawn towards what all clients share; scikit-learn's conventions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.personalized.eigen import Personalized, PersonalState
from fedspan.algorithms.personalized.personal_client import LAMBDAS, personal_basis
from fedspan.core.ledger import Ledger
from fedspan.core.participation import Participation
from fedspan.core.run import Info
from fedspan.data.clients import named, open_clients
from fedspan.data.table import open_table
from fedspan.errors import InputError, nearest
from fedspan.estimators._options.personalized_methods import CENTER, solver_for
from fedspan.estimators.base import load_model, save_model
from fedspan.estimators.export import personal_to_sklearn
from fedspan.estimators.launch import launch, secure_from, seed_from
from fedspan.numerics.folds import Folded, Prep
from fedspan.numerics.stiefel import span_distance
from fedspan.reports.distances import distances_svg

_LEARNED = (
    "components_", "shared_components_", "client_names_", "means_", "scale_", "bounds_", "distances_",
    "mean_distance_", "shrinkage_", "shrinkage_share_", "shrinkage_in_words_", "cv_shrinkages_", "cv_losses_",
    "shared_part_", "n_features_in_", "n_samples_", "n_clients_", "n_rounds_", "converged_", "seed_",
)  # fmt: skip
_WORDS = ((0.01, "local"), (0.4, "mostly local"), (0.6, "half local, half shared"), (0.99, "mostly shared"))


class PersonalizedPCA(BaseEstimator):  # type: ignore[misc]
    """Components for every client: better than from its few rows alone, better than one set for all.

    Parameters:
        n_components: How many components each client gets.
        method: "auto" (three exchanges: sketches, held-out losses, the result), "eigen" (the exact alternation between
            clients and shared components) or "paper" (alternating Stiefel gradient descent, Ozkara et al.).
        shrinkage: λ, how strongly clients are drawn together: 0 is each client alone, inf one set for all; "auto" finds
            it by 5-fold cross-validation on the clients' own rows. For "auto" λ is the weight of the shared second
            moments beside the client's own; for "eigen" and "paper" it is σ_ε²(1+σ_ε²)/σ_U² of the paper.
        center: True or "client" (each client's own mean), "global" (the mean of all rows) or False.
        scale: Divide by the standard deviation over all clients (around each client's own mean, if so centered).
        tol: Stop "eigen" and "paper" when the objective changes by at most this, relative to it.
        max_rounds: Stop them after so many rounds.
        local_steps: Steps of "paper" at the client per round.
        step: Of "paper": "safe", "lemmas" or a pair (α, β).
        clip: Cut every column of a client at its median ± clip·MAD (of that client's rows) before anything else.
        collect: Whether the clients' components and means come back to the caller. False: they stay where they are made
            (`components_` is None; each site calls `personalize` on its own rows), and no client shows them to anyone.
        participation: A `Participation`: how many clients take part in a round (auto, paper). The last exchange, in
            which components are made, reaches all.
        privacy: Components have no known sensitivity: anything but None is refused.
        secure: True, or `Secure(threshold=…)`: the server sees sums over the clients only. It needs collect=False,
            since collected components are those of single clients.
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (the shared components) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    What the server sees: of each client the leading 2k eigenpairs of its second moments (of all rows, and without each
    of five folds), sizes, traces and column squares; sums of held-out losses; then, if `collect`, components and mean.
    Where d < 4k second moments are shorter than eigenpairs, and only their sums over clients are shown.

    Attributes:
        components_: (m, k, d) in the order of `client_names_`, each turned towards the shared ones, so that coordinates
            of different clients can be compared.
        shared_components_: (k, d).
        means_, scale_, bounds_: (m, d), (d,) and, if clipped, (m, 2, d).
        distances_: (m,), from 0 (the client's components span what the shared ones do) to 1 (nothing in common).
        shrinkage_: λ; `shrinkage_share_` the same from 0, local, to 1, shared; `shrinkage_in_words_` says it.
        cv_shrinkages_, cv_losses_: (14,) and (kinds, 14), the held-out loss per row for each λ.
        shared_part_: What `personalize` needs.
        client_names_, n_features_in_, feature_names_in_, n_samples_, n_clients_: What was learned from.
        n_rounds_, converged_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import PersonalizedPCA
        >>> rng = np.random.default_rng(0)
        >>> clients = {name: rng.normal(size=(20, 3)) @ rng.normal(size=(3, 8)) for name in ("ann", "ben", "cleo")}
        >>> model = PersonalizedPCA(n_components=3, random_state=0).fit(clients)
        >>> model.components_.shape, model.shrinkage_in_words_
        ((3, 3, 8), 'local')
        >>> model.transform(clients["ben"], client="ben").shape
        (20, 3)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        method: str = "auto",
        shrinkage: float | str = "auto",
        center: bool | str = True,
        scale: bool = False,
        tol: float = 1e-8,
        max_rounds: int = 500,
        local_steps: int | None = None,
        step: Any = None,
        clip: float | None = None,
        collect: bool = True,
        participation: Participation | None = None,
        privacy: Any = None,
        secure: Any = False,
        engine: Any = None,
        callback: Callable[[Info], None] | None = None,
        checkpoint: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.shrinkage = shrinkage
        self.center = center
        self.scale = scale
        self.tol = tol
        self.max_rounds = max_rounds
        self.local_steps = local_steps
        self.step = step
        self.clip = clip
        self.collect = collect
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
        min_clients: int | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation. `min_clients`: go on if at least this many answer; by default all must."""
        data, schema = open_clients(clients)
        solver = solver_for(self, schema)
        seed = seed_from(self.random_state)
        result = launch(
            solver, data, why="it was asked for" if self.method != "auto" else "it needs three exchanges",
            rounds=getattr(solver, "rounds", 3) + 1, seed=seed, engine=self.engine, callback=self.callback,
            checkpoint=self.checkpoint, ledger=ledger, min_clients=min_clients, about={"features": schema.n_features},
            secure=secure_from(self.secure),
        )  # fmt: skip
        state: PersonalState = result.state
        self._learn(solver, state)
        self.preparation_ = schema.preparation
        if schema.names is not None:
            self.feature_names_in_ = np.array(schema.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.n_features_in_, self.n_clients_, self.seed_ = schema.n_features, len(data), seed
        self.n_rounds_, self.ledger_, self.history_ = result.rounds, result.ledger, result.ledger.history()
        self.converged_ = self.method == "auto" or self.tol == 0 or bool(state.change <= self.tol)
        if not self.converged_:
            warnings.warn(
                f"need tol={self.tol:g}, the objective still changed by {state.change:.2g} after {state.t} rounds; "
                "raise max_rounds or tol, or use method='auto'",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _learn(self, solver: Personalized, state: PersonalState) -> None:
        """The attributes, from where the run ended."""
        shared, got, k = state.shared, state.collected, solver.k
        if shared is None or not state.closed:
            raise InputError("the run did not come to its end; raise max_rounds")
        V = state.V
        signs = np.where(V[np.abs(V).argmax(axis=0), np.arange(k)] < 0, -1.0, 1.0)
        self.shared_components_ = (V * signs).T
        self.components_: Any = (got.U * signs).transpose(0, 2, 1) if solver.collect else None
        self.client_names_ = list(got.names)
        self.means_: Any = got.means if solver.collect else None
        self.bounds_: Any = got.bounds if solver.collect and solver.clip else None
        self.distances_: Any = got.distances if solver.collect else None
        self.mean_distance_ = got.mean_distance
        self.scale_ = state.shift.get("scale", np.ones(len(V)))
        self.n_samples_ = int(got.sizes.sum()) if solver.collect else shared.n
        told = solver.told(state)
        self.shared_part_ = {**told, "signs": signs} | dict(state.shift)
        self.shrinkage_ = float(state.shrinkage)
        self.shrinkage_share_ = float(told["omega"])
        self.shrinkage_in_words_ = next((word for top, word in _WORDS if self.shrinkage_share_ < top), "shared")
        self.cv_shrinkages_ = np.array(LAMBDAS)
        if state.kind == 2:
            self.cv_shrinkages_ = self.cv_shrinkages_ * float(shared.rows[0] * shared.v[0]) / k
        self.cv_losses_ = state.losses / shared.n
        if state.losses.size == 0:
            self.cv_shrinkages_ = np.zeros(0)
        largest = np.sort(shared.squares)[::-1]
        if not self.scale and len(largest) > 2 * k and largest[:k].sum() > 0.9 * largest.sum():
            warnings.warn(
                f"{k} of the {len(largest)} features hold {largest[:k].sum() / largest.sum():.0%} of the variance, so "
                "the components are hardly more than these features; if the features have different units, use "
                "scale=True",
                UserWarning,
                stacklevel=3,
            )

    def personalize(self, X: Any, client: str | None = None) -> Array:
        """The components (k, d) of a client that joins later, from its own rows and the shared part: no new run.

        With a name the client is added to the model, so that `transform(X, client=name)` knows it.
        """
        check_is_fitted(self)
        part = self.shared_part_
        rows = self._rows_of(X)
        own = CENTER[self.center] == "client"
        prep = Prep(own, part.get("mean"), part.get("scale"), float(self.clip or 0.0))
        folded = Folded(rows, prep)
        if not np.isfinite(folded.squares()).all():
            raise InputError("need finite numbers, got NaN or infinity; drop those rows or impute the values")
        k = len(self.shared_components_)
        U = (personal_basis(folded.whole, part, k) * part["signs"]).T
        if client is not None:
            if self.components_ is None:
                raise InputError("this model holds no client's components (collect=False); leave client out")
            if client in self.client_names_:
                raise InputError(f"need a new name, the model has a client {client!r} already")
            self.client_names_ = [*self.client_names_, client]
            self.components_ = np.concatenate([self.components_, U[None]])
            self.means_ = np.vstack([self.means_, folded.mean])
            self.distances_ = np.append(self.distances_, span_distance(self.shared_components_.T, U.T))
            if self.bounds_ is not None:
                self.bounds_ = np.concatenate([self.bounds_, np.asarray(folded.bounds)[None]])
        return U

    def transform(self, X: Any, client: str | int | None = None) -> Array:
        """Coordinates (n, k) of a client's rows in its own components."""
        i = self._index(client)
        return self._prepared(X, i) @ self.components_[i].T

    def inverse_transform(self, X: Any, client: str | int | None = None) -> Array:
        """The rows (n, d) with those coordinates."""
        i = self._index(client)
        Z = np.asarray(X, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != self.components_.shape[1]:
            raise InputError(f"need {self.components_.shape[1]} coordinates per row, got an array of shape {Z.shape}")
        return Z @ self.components_[i] * self.scale_ + self.means_[i]

    def reconstruction_error(self, clients: Mapping[str, Any] | Sequence[Any]) -> float:
        """Mean of ‖z - UUᵀz‖² over the rows of these clients (after clipping, centering, scaling), as in the paper."""
        lost, n = 0.0, 0
        for name, X in named(clients).items():
            i = self._index(name)
            Z = self._prepared(X, i)
            lost += float((Z**2).sum() - ((Z @ self.components_[i].T) ** 2).sum())
            n += len(Z)
        return lost / n

    def plot_distances(self) -> str:
        """How far each client is from the shared components, as an SVG picture."""
        check_is_fitted(self)
        if self.distances_ is None:
            raise InputError("the clients' distances were not collected (collect=False)")
        return distances_svg(self.client_names_, self.distances_)

    def _index(self, client: str | int | None) -> int:
        check_is_fitted(self)
        if self.components_ is None:
            raise InputError(
                "this model holds no client's components (collect=False); at the client, use personalize(X)"
            )
        known = self.client_names_
        if isinstance(client, int | np.integer) and not isinstance(client, bool) and 0 <= client < len(known):
            return int(client)
        if client not in known:
            hint = nearest(str(client), known[:20]) if client is not None else f"known: {', '.join(known[:20])}"
            raise InputError(
                f"need client=… to say whose rows these are, got {client!r}; {hint}; "
                "for a client that was not in fit, call personalize(X, client=name) first"
            )
        return known.index(str(client))

    def _rows_of(self, X: Any) -> Any:
        rows = open_table(X).X
        if rows.shape[1] != self.n_features_in_:
            raise InputError(f"need {self.n_features_in_} features as in fit, got {rows.shape[1]}")
        return rows

    def _prepared(self, X: Any, i: int) -> Array:
        rows = self._rows_of(X)
        rows = np.asarray(rows.toarray() if sp.issparse(rows) else rows, dtype=np.float64)
        if not np.isfinite(rows).all():
            raise InputError("need finite numbers, got NaN or infinity; drop those rows or impute the values")
        if self.bounds_ is not None:
            rows = np.clip(rows, *self.bounds_[i])
        return (rows - self.means_[i]) / self.scale_

    def to_sklearn(self, client: str | int | None = None) -> Any:
        """A client's own components as a fitted scikit-learn `PCA` (behind a `StandardScaler` if `scale` was asked)."""
        return personal_to_sklearn(self, self._index(client))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file; equal models give equal files."""
        save_model(self, path, _LEARNED)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote; its ledger is in the run's own file."""
        return load_model(cls, path)
