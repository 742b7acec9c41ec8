"""Generalised canonical correlation analysis of views that stay at their clients, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.gcca.kept_maxvar import KeptState, Missing
from fedspan.algorithms.gcca.study import StudyState
from fedspan.algorithms.spectral.krylov import KrylovState
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.core.run import Result
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.views import ViewSource, gather_views, give_each, open_view
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import OF_RUN, ClientData, FitOptions
from fedspan.estimators._bases.keeping_engine import KeepingEngine
from fedspan.estimators._bases.view_estimator import OF_VIEWS, ViewEstimator, count_features, prepare_view
from fedspan.estimators._options.gcca_study import study_views
from fedspan.estimators._options.maxvar_solvers import (
    MaxVarParameters,
    Settled,
    build_maxvar_channel,
    check_kept_options,
    choose_maxvar_solver,
)
from fedspan.estimators.launch import make_engine, warn_caller
from fedspan.estimators.matching.match_views import Match, Matching, match_views
from fedspan.estimators.parameters import about, check_parameters
from fedspan.numerics.alignment import measure_agreement
from fedspan.numerics.maxvar import edge_by_chance
from fedspan.secure.masking import Secure

_STUDY_ROUNDS = 1000  # it ends by itself long before

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
        n_components: How many components to compute. "auto" takes as many as are above what chance makes of views whose
            entities were permuted at home; that may be none, and then the model has none.
        solver: The method; "auto" is krylov unless other options decide (altmaxvar or cutemaxvar if a local solver is
            given). "krylov" is exact in few rounds, "davidson" in fewer (but shows each view's own leading subspace to
            the server), "altmaxvar" is the alternation, "cutemaxvar" the same quantised on both links, "mvlsa" takes
            one round and cuts views to low rank (an approximation, which shows what davidson shows). An object of
            `fedspan.algorithms` sets options that only this solver has.
        local_solver: How a client's weights follow the common representation (altmaxvar, cutemaxvar): "exact",
            "gradient" or "sgd".
        local_steps: Steps of the gradient and sgd local solvers in each round.
        batch_size: Entities in a batch of the sgd local solver.
        bits: Bits per number on both links; "auto" takes just enough for tol. With krylov and davidson an integer from
            2 to 16 is that of the server's blocks, and what clients send is rounded just finely enough for tol; with
            cutemaxvar it is that of both links (3 is enough, 2 may diverge). None sends float64, and 3 bits for
            cutemaxvar.
        first_bits: Bits of the first exchange of cutemaxvar; None: full precision, as in the paper.
        start: Where altmaxvar and cutemaxvar begin: random weights, or the paper's start by mvlsa (which shows each
            view's own leading subspace to the server); None: random weights.
        ridge: Added to the squared singular values of every view. Views with as many features as rows need one. "auto"
            finds it by entities held out, in units of the mean squared singular value of each view.
        folds: Parts of the entities that are held out in turn, to see how well views agree about entities that they did
            not learn from; None: 5 where something is "auto", else nobody looks.
        center: Whether each client subtracts its features' means, which it does not show.
        scale: Whether each client divides its features by their deviations, which it does not show.
        tol: Stop when the scaled violation is at most this; 0 runs all rounds. It is the violation of the condition for
            a critical point, divided by views · components.
        max_rounds: Stop after this many rounds in any case.
        patience: Stop after this many rounds without a better alignment of the rows held out (see `fit`), and return to
            the best round. None: do not look at them.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`. The weights then
            stay at the clients.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is the current `common_`.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        n_components_: How many components there are; 0 if nothing is shared.
        common_: (J, k), orthonormal columns: the representation of the entities. With missing entities GᵀDG is the
            number of views times the identity, D saying how many views each entity has; rows are NaN where it has none.
        weights_: [(N_i, k)], one array per view. Empty in a federation if they stayed at the sites.
        offsets_: [(k,)]: `X_i @ weights_[i] - offsets_[i]` is what view i says of its rows.
        cost_: The cost (7) of the paper.
        eigenvalues_: (k,), of Σ X_iX_i†: how many views, in sum, a component is found in.
        eigenvalue_by_chance_: About what views that have nothing in common would show; nan if it is not known.
        correlations_: (views, k), of each view with `common_`, in the sample. One row, the mean over the views, if the
            weights stayed at sites elsewhere.
        held_out_correlations_: (k,), how well the views agree about entities that they did not learn from; empty if
            nobody looked (see `folds`).
        explained_variance_ratio_: (views,), the share of a view's variance that `common_` explains; as correlations_.
        ridge_: The ridge; with ridge="auto" in units of each view's mean squared singular value.
        view_counts_: (J,), how many views have each entity; None if none lacks one.
        missing_: (J, views), who is missing where: whether a view lacks an entity. None if none lacks one, or if only
            the sites of a federation know.
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
        metadata=about("Whether the server may see only sums over the clients.", in_job=False),
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
        "eigenvalue_by_chance_",
        "held_out_correlations_",
        "ridge_",
        "view_counts_",
        "missing_",
        *OF_VIEWS,
        *OF_RUN,
    )

    def fit(
        self,
        views: ClientData,
        y: object = None,
        *,
        ids: object = None,
        match: Match = None,
        secret: str = "",
        held_out: ClientData | None = None,
        missing: Literal["drop", "mask"] | None = None,
        masks: Any = None,
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
            missing: What becomes of entities that a view lacks: rows of NaN only, or rows that `masks` leaves out.
                "mask" learns from every entity by the views that have it, "drop" only from those that all views have.
                None refuses them.
            masks: For each view which of its rows are there, one list of booleans per view; for `missing`.
            held_out: Further rows of other common entities, one table per view, for `patience`.
            min_clients: How many clients must answer at the first asking. In the end all must: a sum over some views
                answers another problem.
            retries: How often a client that did not answer is asked again.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        lacking: Missing = _read_missing(missing, masks)
        kept = check_kept_options(self, self.secure, lacking)
        ledger = ledger if ledger is not None else Ledger()
        how: Literal["union", "intersection"] = "union" if lacking == "mask" else "intersection"
        gaps = lacking != "none"
        matching = Matching(match, secret, how, engine=self.engine, ledger=ledger, retries=retries, gaps=gaps)
        sources, matched = match_views(gather_views(views, ids, held_out), matching)
        here = not any(isinstance(view.source, RemoteTable) for view in sources.values())
        if self.patience is not None and held_out is None and here:
            raise InputError("patience looks at held-out rows, but none were given; call fit(views, held_out=…).")
        given = give_each("masks", masks, sources) if masks is not None else dict.fromkeys(sources)
        data = {name: prepare_view(entry, secret, gaps=gaps, present=given[name]) for name, entry in sources.items()}
        options = FitOptions(ledger, retries, min_clients)
        why = "the ridge, the number of components or how well views agree is to be found out first"
        found = study_views(
            self,
            lacking,
            lambda study, part: self._run(study, data, options, why=why, rounds=_STUDY_ROUNDS, part=part),
        )
        self.view_names_, self.n_views_ = list(sources), len(sources)
        self.ridge_, self.held_out_correlations_ = found.ridge, found.held_out
        self.eigenvalue_by_chance_ = found.by_chance
        self._keep_column_names(sources)
        self.matched_ = matched
        if found.k == 0 and found.last is not None:
            self._learn_nothing(found.last, sources)
            return self
        settled = Settled(found.k, found.ridge, found.relative, kept, lacking)
        solver, bits, why = choose_maxvar_solver(self, settled)
        engine = KeepingEngine(make_engine(self.engine, data))
        result = self._run(
            solver,
            data,
            options,
            why=why,
            rounds=int(self.max_rounds),
            channel=build_maxvar_channel(solver, bits, self.first_bits),
            engine=engine,
        )
        self._learn(result, settled, engine.get_states())
        self.n_features_ = count_features(sources, [Q.T for Q in self.weights_])
        self._keep_run(result)
        self.converged_ = bool(result.converged)
        if not self.converged_ and self.tol > 0:
            self._warn_of_accuracy(result)
        else:
            self._warn_if_undetermined(result)
        return self

    def _learn(self, result: Result[Any], settled: Settled, states: Mapping[str, object]) -> None:
        """Set the attributes from the last state of the run, and from what the clients kept if they are here."""
        names, answer, k = self.view_names_, result.state.answer, settled.k
        if answer is None:
            raise InputError(
                f"The checkpoint is at round {result.rounds}, past max_rounds={self.max_rounds}; raise max_rounds."
            )
        rank = int(np.sum(answer.theta > 1e-9 * len(names)))
        if rank < k:
            warn_caller(
                f"The views together have rank {rank}, so there are only {rank} components, not {k}; lower "
                f"n_components to {rank}."
            )
        self.common_, self.eigenvalues_ = answer.G[:, :rank], answer.theta[:rank]
        self.held_out_correlations_ = self.held_out_correlations_[:rank]
        self.view_counts_, self.missing_ = None, _find_lacking([states.get(name) for name in names])
        if answer.Q:
            self.weights_ = [answer.Q[name][:, :rank] for name in names]
            self.offsets_ = [answer.offset[name][:rank] for name in names]
        else:
            self._take_home([states.get(name) for name in names], rank)
        if answer.Q or not self.weights_:
            told = names if answer.Q else [*answer.correlations]  # the answer has them in the order of the names
            self.correlations_ = np.array([answer.correlations[name][:rank] for name in told])
            self.explained_variance_ratio_ = np.array([answer.explained[name] for name in told])
        roots = result.state.moments.scale if isinstance(result.state, KrylovState) else np.zeros(0)
        if len(roots):
            self.view_counts_ = np.where(np.isfinite(roots), np.rint(np.where(np.isfinite(roots), roots, 0.0) ** 2), 0)
            self.common_ = np.where(self.view_counts_[:, None] > 0, self.common_, np.nan)
            without = int(np.sum(self.view_counts_ == 0))
            if without and settled.missing == "mask":
                warn_caller(f"No view has {without} of the {len(roots)} entities, so their rows of common_ are NaN.")
        self.cost_ = float(answer.cost)
        self.n_samples_ = len(self.common_)

    def _take_home(self, states: list[object], rank: int) -> None:
        """What the clients of this process kept for themselves."""
        kept = [state for state in states if isinstance(state, KeptState) and state.weights is not None]
        if len(kept) < self.n_views_:
            self.weights_, self.offsets_ = [], []
            return
        self.weights_ = [np.asarray(state.weights)[:, :rank] for state in kept]
        self.offsets_ = [np.asarray(state.offset)[:rank] for state in kept]
        self.correlations_ = np.array([np.asarray(state.correlations)[:rank] for state in kept])
        self.explained_variance_ratio_ = np.array([state.explained for state in kept])

    def _learn_nothing(self, result: Result[StudyState], sources: Mapping[str, ViewSource]) -> None:
        """The model of views that share nothing: it has no components, and says so."""
        J, views = len(result.state.r), self.n_views_
        self.common_, self.eigenvalues_, self.cost_ = np.zeros((J, 0)), np.zeros(0), 0.0
        self.weights_, self.offsets_ = [], []
        if not any(isinstance(one.source, RemoteTable) for one in sources.values()):
            self.weights_ = [np.zeros((open_view(one.source, one.ids).X.shape[1], 0)) for one in sources.values()]
            self.offsets_ = [np.zeros(0) for _ in sources]
        self.n_features_ = count_features(sources, [Q.T for Q in self.weights_])
        self.correlations_, self.explained_variance_ratio_ = np.zeros((views, 0)), np.zeros(views)
        self.view_counts_, self.missing_, self.n_samples_ = None, None, J
        self._keep_run(result)
        self.converged_ = True
        warn_caller(
            "Nothing is shared: no component of these views is above what chance makes of views whose entities were "
            "permuted. The model has no components."
        )

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        check_is_fitted(self)
        return int(self.common_.shape[1])

    def _warn_if_undetermined(self, result: Result[Any]) -> None:
        """Say which components any mixture would replace, and which are no more than unrelated views would show."""
        theta, k = self.eigenvalues_, len(self.eigenvalues_)
        gap = result.metrics.get("gap", np.nan)
        unit = self.n_views_ if self.view_counts_ is not None else 1
        if k and unit * gap <= max(2 * result.metrics.get("kkt", 0.0) * self.n_views_ * k, 1e-9 * float(theta[-1])):
            warn_caller(
                f"Component {k} is not determined: the next one is shared as much as far as tol={self.tol:g} can tell, "
                "so any mixture of them would do as well. Use fewer components, or more."
            )
        if self.ridge_ == 0 and self.view_counts_ is None and min(self.n_features_) > 0:
            ranks = np.minimum(self.n_features_, self.n_samples_ - 1)
            self.eigenvalue_by_chance_ = edge_by_chance(ranks, self.n_samples_ - 1)
            low = np.flatnonzero(theta <= self.eigenvalue_by_chance_)
            if len(low) and not len(self.held_out_correlations_):
                which = f"component {low[0] + 1}" if low[0] == k - 1 else f"components {low[0] + 1} to {k}"
                warn_caller(
                    f"Views of these sizes that have nothing in common would show {which}, too: eigenvalues up to "
                    f"about {self.eigenvalue_by_chance_:.3g} come by chance, and that of component {low[0] + 1} is "
                    f"{theta[low[0]]:.3g}. Use ridge='auto', n_components='auto' or folds=5 to see what is shared."
                )

    def _warn_of_accuracy(self, result: Result[Any]) -> None:
        remedy = "raise max_rounds, give a ridge, or raise tol if this is enough (tol=0 runs all rounds)"
        if "gap" not in result.metrics:
            remedy = f"use solver='krylov', {remedy}"
        warn_caller(
            f"Stopped after {result.rounds} rounds at a violation of {result.metrics.get('kkt', np.nan):.2g}, above "
            f"tol={self.tol:g}; {remedy}.",
            ConvergenceWarning,
        )

    def transform(self, views: ClientData, ids: object = None) -> Array:
        """The representation of new entities: the mean of what their views say, (n, k).

        A view may be None. With secure sums the clients' parts are summed as in the fit. With `ids`, as in `fit`, the
        rows of all views are taken in the order of the first one's. If the model was fitted with `missing`, entities
        may be missing in a view: rows of NaN, or ids that only other views have (these entities come last). What the
        other views say is then the mean, and NaN if no view has the entity; see `find_missing`.
        """
        self._refuse_without_weights()
        opened = self._open_given(views, ids)
        if not self.secure or self.n_components_ == 0:
            return self._mean_over_views(opened)
        if len(opened) < 2:
            raise InputError("A secure sum needs at least two views; give more of them, or use transform_view.")
        total, count = self._sum_over_views(opened)
        return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)

    def find_missing(self, views: ClientData, ids: object = None) -> Array:
        """Who is missing where: which views lack each of the entities that `transform` describes, (n, views)."""
        opened = self._open_given(views, ids)
        n = len(next(iter(opened.values())).present) if opened else 0
        none = np.ones(n, dtype=bool)
        return np.column_stack([~opened[name].present if name in opened else none for name in self.view_names_])

    def score(self, views: ClientData, y: object = None, ids: object = None) -> float:
        """How well the views agree about entities, mean over the components: 1 fully, about 0 if by chance.

        It is the mean correlation between what two views say of the same entities, (‖ΣM_i‖² - Σ‖M_i‖²) / ((I - 1)
        Σ‖M_i‖²), which needs only sums over the views. Give entities that the model was not fitted to; only those that
        all given views have count. `ids` as in `transform`.
        """
        self._refuse_without_weights()
        said = self._say_each(self._open_given(views, ids))
        if len(said) < 2:
            raise InputError("Agreement is between views, so at least two must be given.")
        everywhere = ~np.isnan(np.hstack(said)).any(axis=1)
        if not everywhere.any():
            raise InputError("No entity is in all of these views, so how well they agree is not known.")
        return measure_agreement([part[everywhere] for part in said])

    def _refuse_without_weights(self) -> None:
        check_is_fitted(self)
        if not self.weights_:
            raise InputError(
                "The weights stayed at the sites of the federation, so new entities can be transformed only there."
            )

    def _may_lack_entities(self) -> bool:
        return self.view_counts_ is not None

    def _find_weights(self, at: int) -> tuple[Array, Array]:
        return self.weights_[at], self.offsets_[at]

    def transform_view(self, i: int | str, X: object) -> Array:
        """What view i (its number or name) says of new entities, (n, k)."""
        self._refuse_without_weights()
        return self._say_of(self._find_view(i), X)

    def _say(self, at: int, X: Any) -> Array:
        Z = np.asarray((X if sp.issparse(X) else np.asarray(X, dtype=np.float64)) @ self.weights_[at])
        return np.asarray(Z - self.offsets_[at])


def _find_lacking(states: list[object]) -> Array | None:
    """Who is missing where, (J, views), as the clients of this process know it; None if they were not asked."""
    known = [state.present for state in states if isinstance(state, KeptState) and state.present is not None]
    return ~np.column_stack(known).astype(bool) if known and len(known) == len(states) else None


def _read_missing(missing: object, masks: object) -> Missing:
    """What is asked for, checked."""
    if missing not in (None, "mask", "drop"):
        raise InputError(f"missing must be 'mask', 'drop' or None, but is {missing!r}.")
    if masks is not None and missing is None:
        raise InputError("masks say which entities views lack; also give missing='mask' or missing='drop'.")
    return "none" if missing is None else missing
