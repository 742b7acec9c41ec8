"""Generalised canonical correlation analysis of views that stay at their clients, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from fedspan._types import Array
from fedspan.algorithms.gcca.entities import Entities
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.core.run import Result
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.tables import is_lazy
from fedspan.data.views import ViewSource, gather_views, match_columns, open_view
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import OF_RUN, ClientData, FitOptions
from fedspan.estimators._bases.view_estimator import OF_VIEWS, ViewEstimator
from fedspan.estimators._options.maxvar_solvers import (
    MaxVarParameters,
    build_maxvar_channel,
    check_not_secure,
    choose_maxvar_solver,
)
from fedspan.estimators.launch import warn_caller
from fedspan.estimators.matching.match_views import Match, Matching, match_views
from fedspan.estimators.parameters import about, check_parameters
from fedspan.secure.masking import Secure

NO_PRIVACY_OF_VIEWS = about(
    "Not available: what leaves a view has no known sensitivity.",
    reason="What leaves a view has no known sensitivity, so no noise would be enough; leave privacy out.",
    in_job=False,
)


@dataclass(eq=False, repr=False)
class FederatedGCCA(ViewEstimator, MaxVarParameters):
    """One common representation of entities whose features are spread over clients: MAX-VAR GCCA.

    Each client holds one view: other features of the same entities, row by row. The answer is what all views together
    predict best from their own features: G (J, k) with GᵀG = I that minimises Σ ½‖X_iQ_i - G‖² + (ridge/2)‖Q_i‖².

    Parameters:
        n_components: How many components to compute.
        solver: The method; "auto" is krylov unless other options decide (cutemaxvar if a number of bits is given,
            altmaxvar if a local solver is). "krylov" is exact in few rounds, "davidson" in fewer (but shows each view's
            own leading subspace to the server), "altmaxvar" is the alternation, "cutemaxvar" the same quantised on both
            links, "mvlsa" takes one round and cuts views to low rank (an approximation, which shows what davidson
            shows). An object of `fedspan.algorithms` sets options that only this solver has.
        local_solver: How a client's weights follow the common representation (altmaxvar, cutemaxvar): "exact",
            "gradient" or "sgd".
        local_steps: Steps of the gradient and sgd local solvers in each round.
        batch_size: Entities in a batch of the sgd local solver.
        bits: Bits per number on both links; "auto" takes just enough for tol. An integer from 2 to 16 is for cutemaxvar
            (3 is enough, 2 may diverge), "auto" for krylov and davidson. None sends float64, and 3 bits for cutemaxvar.
        first_bits: Bits of the first exchange of cutemaxvar; None: full precision, as in the paper.
        ridge: Added to the squared singular values of every view. Views with as many features as rows need one.
        center: Whether each client subtracts its features' means, which it does not show.
        scale: Whether each client divides its features by their deviations, which it does not show.
        tol: Stop when the scaled violation is at most this; 0 runs all rounds. It is the violation of the condition for
            a critical point, divided by views · components.
        max_rounds: Stop after this many rounds in any case.
        patience: Stop after this many rounds without a better alignment of the rows held out (see `fit`), and return to
            the best round. None: do not look at them.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Not available: the last exchange shows the server each view's weights.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is the current `common_`.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        common_: (J, k), orthonormal columns: the representation of the entities.
        weights_: [(N_i, k)], one array per view.
        offsets_: [(k,)]: `X_i @ weights_[i] - offsets_[i]` is what view i says of its rows.
        cost_: The cost (7) of the paper.
        eigenvalues_: (k,), of Σ X_iX_i†: how many views, in sum, a component is found in.
        correlations_: (views, k), of each view with `common_`.
        explained_variance_ratio_: (views,), the share of a view's variance that `common_` explains.
        view_names_, column_names_, n_features_, n_samples_, n_views_: What the model was fitted on.
        matched_: Where the entities' rows are in each view, if `fit` has matched them by their ids; else None.
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

    privacy: None = field(default=None, kw_only=True, metadata=NO_PRIVACY_OF_VIEWS)
    secure: bool | Secure = field(
        default=False,
        kw_only=True,
        metadata=about("Not available: the last exchange shows the server each view's weights.", in_job=False),
    )

    task: ClassVar[str] = "gcca"
    learned: ClassVar[tuple[str, ...]] = (
        "common_",
        "weights_",
        "offsets_",
        "cost_",
        "correlations_",
        "eigenvalues_",
        "explained_variance_ratio_",
        *OF_VIEWS,
        *OF_RUN,
    )

    def fit(
        self,
        views: ClientData,
        y: object = None,
        *,
        ids: Any = None,
        match: Match = None,
        secret: str = "",
        held_out: ClientData | None = None,
        min_clients: int | None = None,
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation until it has converged.

        Parameters:
            views: One entry per client; rows are the same entities in the same order, or have ids.
            y: Ignored, as in scikit-learn.
            ids: The ids of the rows, one list per view (or one for all), or the name of a column that every table has.
                Rows are then matched by their ids; those that not all views have are left out.
            match: How: "psi" blinds the ids, "digest" compares keyed digests, "order" only compares the clients' orders
                and refuses a difference. None: "digest" if the ids differ. See `match_entities`.
            secret: A text that all clients know and the server does not, which keys the digests.
            held_out: Further rows of other common entities, one table per view, for `patience`.
            min_clients: How many clients must answer at the first asking. In the end all must: a sum over some views
                answers another problem.
            retries: How often a client that did not answer is asked again.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        check_not_secure(self.secure)
        ledger = ledger if ledger is not None else Ledger()
        matching = Matching(match, secret, engine=self.engine, ledger=ledger, retries=retries)
        sources, matched = match_views(gather_views(views, ids, held_out), matching)
        here = not any(isinstance(view.source, RemoteTable) for view in sources.values())
        if self.patience is not None and held_out is None and here:
            raise InputError("patience looks at held-out rows, but none were given; call fit(views, held_out=…).")
        solver, bits, why = choose_maxvar_solver(self)
        result = self._run(
            solver,
            {name: _make_client_data(view, secret) for name, view in sources.items()},
            FitOptions(ledger, retries, min_clients),
            why=why,
            rounds=int(self.max_rounds),
            channel=build_maxvar_channel(solver, bits, self.first_bits),
        )
        self._learn(result, list(sources))
        self._keep_column_names(sources)
        self.matched_ = matched
        self._keep_run(result)
        self.converged_ = bool(result.converged)
        if not self.converged_ and self.tol > 0:
            self._warn_of_accuracy(result)
        return self

    def _learn(self, result: Result[Any], names: list[str]) -> None:
        """Set the attributes from the last state of the run."""
        answer = result.state.answer
        if answer is None:
            raise InputError(
                f"The checkpoint is at round {result.rounds}, past max_rounds={self.max_rounds}; raise max_rounds."
            )
        rank = int(np.sum(answer.theta > 1e-9 * len(names)))
        if rank < self.n_components:
            warn_caller(
                f"The views together have rank {rank}, so there are only {rank} components, not {self.n_components}; "
                f"lower n_components to {rank}."
            )
        self.view_names_ = names
        self.common_, self.eigenvalues_ = answer.G[:, :rank], answer.theta[:rank]
        self.weights_ = [answer.Q[name][:, :rank] for name in names]
        self.offsets_ = [answer.offset[name][:rank] for name in names]
        self.correlations_ = np.array([answer.correlations[name][:rank] for name in names])
        self.explained_variance_ratio_ = np.array([answer.explained[name] for name in names])
        self.cost_ = float(answer.cost)
        self.n_features_ = [len(Q) for Q in self.weights_]
        self.n_samples_, self.n_views_ = len(self.common_), len(names)

    def _warn_of_accuracy(self, result: Result[Any]) -> None:
        remedy = "raise max_rounds, give a ridge, or raise tol if this is enough (tol=0 runs all rounds)"
        if "gap" not in result.metrics:
            remedy = f"use solver='krylov', {remedy}"
        warn_caller(
            f"Stopped after {result.rounds} rounds at a violation of {result.metrics.get('kkt', np.nan):.2g}, above "
            f"tol={self.tol:g}; {remedy}.",
            ConvergenceWarning,
        )

    def transform(self, views: ClientData, ids: Any = None) -> Array:
        """The representation of new entities: the mean of what their views say, (n, k). A view may be None.

        With `ids`, as in `fit`, the rows of all views are taken in the order of the first one's.
        """
        return self._mean_over_views(views, ids)

    def transform_view(self, i: int | str, X: object) -> Array:
        """What view i (its number or name) says of new entities, (n, k)."""
        return self._say_of(self._find_view(i), X)

    def _say(self, at: int, X: Any) -> Array:
        Z = np.asarray((X if sp.issparse(X) else np.asarray(X, dtype=np.float64)) @ self.weights_[at])
        return np.asarray(Z - self.offsets_[at])


def _make_client_data(view: ViewSource, secret: str) -> object:
    """What the client is opened with: files stay closed until then."""
    if isinstance(view.source, RemoteTable):
        return view.source  # its site has the ids, the secret and the held-out rows
    open_entities: Callable[[], Entities] = partial(_open_entities, view, secret)
    return open_entities if is_lazy(view.source) else open_entities()


def _open_entities(given: ViewSource, secret: str) -> Entities:
    view = given.open()
    held = None if given.held_out is None else open_view(given.held_out)
    if held is None:
        return Entities(view.X, view.ids, secret)
    if held.X.shape[1] != view.X.shape[1]:
        raise InputError(f"The held_out rows have {held.X.shape[1]} features, but the view has {view.X.shape[1]}.")
    return Entities(view.X, view.ids, secret, match_columns(held.X, held.names, view.names, "held_out"))
