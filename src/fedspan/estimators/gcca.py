"""Generalised canonical correlation analysis of views that stay at their clients, with scikit-learn's conventions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.gcca.entities import Entities
from fedspan.core.ledger import Ledger
from fedspan.core.run import Info
from fedspan.data.remote_table import RemoteTable
from fedspan.data.views import is_lazy, open_view, view_sources
from fedspan.errors import InputError
from fedspan.estimators._options.maxvar_solvers import channel_for, check, choose
from fedspan.estimators.base import load_model, save_model
from fedspan.estimators.launch import launch, seed_from, whole

_LEARNED = (
    "common_", "weights_", "offsets_", "cost_", "correlations_", "eigenvalues_", "explained_variance_ratio_",
    "view_names_", "n_features_", "n_samples_", "n_views_", "n_rounds_", "converged_", "seed_",
)  # fmt: skip


class FederatedGCCA(BaseEstimator):  # type: ignore[misc]
    """One common representation of entities whose features are spread over clients: MAX-VAR GCCA.

    Each client holds one view: other features of the same entities, row by row. The answer is what all views together
    predict best from their own features: G (J, k) with GᵀG = I that minimises Σ ½‖X_iQ_i - G‖² + (ridge/2)‖Q_i‖².

    Parameters:
        n_components: How many components.
        solver: "krylov" (few rounds, exact), "davidson" (fewer, exact, but it shows each view's own leading subspace
            to the server), "altmaxvar" (the alternation), "cutemaxvar" (the same, quantised on both links), "mvlsa"
            (one round, views cut to low rank: an approximation, and it shows what davidson shows), "auto" (krylov;
            cutemaxvar if a number of bits or a local solver is asked for), or an object of `fedspan.algorithms` with
            options that only this solver knows.
        local_solver: How a client's weights follow G (altmaxvar, cutemaxvar): "exact", "gradient" or "sgd".
        local_steps: Steps of "gradient" and "sgd" in each round.
        batch_size: Entities in a batch of "sgd".
        bits: Bits per number on both links: an integer from 2 to 16 (cutemaxvar; 3 is enough, 2 may diverge), or
            "auto" (krylov and davidson: just fine enough for tol). None: float64, and 3 for cutemaxvar.
        first_bits: Bits of the first exchange of cutemaxvar; None: full precision, as in the paper.
        ridge: Added to the squared singular values of every view. Views with as many features as rows need one.
        center: Take off each feature's mean, at the client; it is not shown.
        scale: Divide each feature by its deviation, at the client; it is not shown.
        tol: Stop when the violation of the critical point condition, divided by views · components, is at most this.
        max_rounds: Stop after this many rounds.
        patience: With rows held out (see `fit`): stop after so many rounds without a better alignment of them, and
            return to the best. None: do not look at them.
        privacy: What leaves a view has no known sensitivity: anything but None is refused.
        secure: Anything but False is refused: the last exchange shows the server each view's weights.
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (the current `common_`) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    Attributes:
        common_: (J, k), orthonormal columns: the representation of the entities.
        weights_: [(N_i, k)], one array per view.
        offsets_: [(k,)]: `X_i @ weights_[i] - offsets_[i]` is what view i says of its rows.
        cost_: The cost (7) of the paper.
        eigenvalues_: (k,), of Σ X_iX_i†: how many views, in sum, a component is found in.
        correlations_: (views, k), of each view with `common_`.
        explained_variance_ratio_: (views,), the share of a view's variance that `common_` explains.
        view_names_, n_features_, n_samples_, n_views_: What was learned from.
        n_rounds_, converged_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import FederatedGCCA
        >>> rng = np.random.default_rng(0)
        >>> topic = rng.normal(size=(100, 2))
        >>> views = [topic @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(100, 6)) for _ in range(3)]
        >>> gcca = FederatedGCCA(n_components=2, random_state=0).fit(views)
        >>> gcca.common_.shape, bool(gcca.correlations_.min() > 0.99)
        ((100, 2), True)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: Any = "auto",
        local_solver: str = "exact",
        local_steps: int = 10,
        batch_size: int | None = None,
        bits: int | str | None = None,
        first_bits: int | None = 8,
        ridge: float = 0.0,
        center: bool = True,
        scale: bool = False,
        tol: float = 1e-6,
        max_rounds: int = 200,
        patience: int | None = None,
        privacy: Any = None,
        secure: Any = False,
        engine: Any = None,
        callback: Callable[[Info], None] | None = None,
        checkpoint: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.local_solver = local_solver
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.bits = bits
        self.first_bits = first_bits
        self.ridge = ridge
        self.center = center
        self.scale = scale
        self.tol = tol
        self.max_rounds = max_rounds
        self.patience = patience
        self.privacy = privacy
        self.secure = secure
        self.engine = engine
        self.callback = callback
        self.checkpoint = checkpoint
        self.random_state = random_state

    def fit(
        self,
        views: Mapping[str, Any] | Sequence[Any],
        y: Any = None,
        *,
        ids: Any = None,
        secret: str = "",
        held_out: Mapping[str, Any] | Sequence[Any] | None = None,
        min_clients: int | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation until it has converged.

        `views`: one entry per client, rows are the same entities in the same order. `ids`: the ids of the rows, one
        list per view (or one for all), or the name of a column that every table has: the clients' orders are then
        compared by keyed digests, and a difference is refused. `secret`: a text that all clients know and the server
        does not, which keys the digests. `held_out`: further rows of other common entities, one table per view, for
        `patience`. All clients must answer: a sum over some views answers another problem (`min_clients`: how many
        must answer at the first asking; the others are asked again).
        """
        check(self)
        sources = view_sources(views, ids, held_out)
        here = not any(isinstance(source, RemoteTable) for source, _, _ in sources.values())
        if self.patience is not None and held_out is None and here:
            raise InputError("need held_out rows for patience to look at; give fit(views, held_out=...)")
        solver, bits, why = choose(self)
        seed = seed_from(self.random_state)
        result = launch(
            solver, {name: _data(*entry, secret) for name, entry in sources.items()}, why=why, seed=seed,
            rounds=int(self.max_rounds), channel=channel_for(solver, bits, self.first_bits), engine=self.engine,
            callback=self.callback, checkpoint=self.checkpoint, ledger=ledger, min_clients=min_clients,
        )  # fmt: skip
        answer = result.state.answer
        if answer is None:
            raise InputError(f"the checkpoint is at round {result.rounds}, past max_rounds={self.max_rounds}; raise it")
        rank = int(np.sum(answer.theta > 1e-9 * len(sources)))
        if rank < self.n_components:
            warnings.warn(
                f"need views of rank {self.n_components} together, got rank {rank}: there are only {rank} components; "
                f"lower n_components to {rank}",
                UserWarning,
                stacklevel=2,
            )
        self.view_names_ = list(sources)
        self.common_, self.eigenvalues_ = answer.G[:, :rank], answer.theta[:rank]
        self.weights_ = [answer.Q[name][:, :rank] for name in sources]
        self.offsets_ = [answer.offset[name][:rank] for name in sources]
        self.correlations_ = np.array([answer.correlations[name][:rank] for name in sources])
        self.explained_variance_ratio_ = np.array([answer.explained[name] for name in sources])
        self.cost_ = float(answer.cost)
        self.n_features_ = [len(Q) for Q in self.weights_]
        self.n_samples_, self.n_views_, self.seed_ = len(self.common_), len(sources), seed
        self.n_rounds_ = result.rounds
        self.converged_ = bool(result.converged)
        self.ledger_, self.history_ = result.ledger, result.ledger.history()
        if not self.converged_ and self.tol > 0:
            warnings.warn(
                f"need tol={self.tol:g}, reached {self.history_[-1].get('kkt', np.nan):.2g} in {result.rounds} rounds; "
                + ("" if "gap" in self.history_[-1] else "use solver='krylov', ")
                + "raise max_rounds, give a ridge, or raise tol if this is enough (tol=0 runs all rounds)",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def transform(self, views: Mapping[str, Any] | Sequence[Any]) -> Array:
        """The representation of new entities: the mean of what their views say, (n, k). A view may be None."""
        check_is_fitted(self)
        given = views if isinstance(views, Mapping) else dict(zip(self.view_names_, views, strict=False))
        if len(views) != self.n_views_ or set(given) != set(self.view_names_):
            raise InputError(f"need the {self.n_views_} views of the fit, got {len(views)}; give None for missing ones")
        parts = [self.transform_view(name, X) for name, X in given.items() if X is not None]
        if not parts or len({len(part) for part in parts}) > 1:
            raise InputError("need at least one view, and the same entities in each, got different numbers of rows")
        return np.asarray(sum(parts[1:], parts[0]) / len(parts))

    def transform_view(self, i: int | str, X: Any) -> Array:
        """What view i (its number or name) says of new entities, (n, k)."""
        check_is_fitted(self)
        at: Any = self.view_names_.index(i) if i in self.view_names_ else i
        if not whole(at) or not 0 <= at < self.n_views_:
            raise InputError(f"need a view from 0 to {self.n_views_ - 1} or one of {self.view_names_}, got {i!r}")
        X = open_view(X).X
        if X.shape[1] != self.n_features_[at]:
            raise InputError(f"need the {self.n_features_[at]} features of view {i!r}, got {X.shape[1]}")
        Z = np.asarray((X if sp.issparse(X) else np.asarray(X, dtype=np.float64)) @ self.weights_[at])
        if not np.isfinite(Z).all():
            raise InputError(f"need finite numbers in view {i!r}, got NaN or infinity")
        return np.asarray(Z - self.offsets_[at])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file; equal models give equal files."""
        save_model(self, path, _LEARNED)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote, ready to transform; its ledger is in the run's own file."""
        return load_model(cls, path)


def _data(source: Any, ids: Any, held_out: Any, secret: str) -> Any:
    """What the client is opened with: files stay closed until then."""
    if isinstance(source, RemoteTable):
        return source  # its site has the ids, the secret and the held-out rows
    make = partial(_entities, source, ids, held_out, secret)
    return make if is_lazy(source) else make()


def _entities(source: Any, ids: Any, held_out: Any, secret: str) -> Entities:
    view = open_view(source, ids)
    held = None if held_out is None else open_view(held_out).X
    if held is not None and held.shape[1] != view.X.shape[1]:
        raise InputError(f"need the {view.X.shape[1]} features of the view in its held_out rows, got {held.shape[1]}")
    return Entities(view.X, view.ids, secret, held)
