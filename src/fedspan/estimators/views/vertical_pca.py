"""Principal components of one table whose columns are spread over clients, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import ColumnsKrylov
from fedspan.algorithms.spectral.columns_krylov import ColumnsKrylovState, ColumnsState
from fedspan.algorithms.spectral.krylov import KrylovState
from fedspan.channel import Channel, pack
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.core.run import Result
from fedspan.data.views import gather_views
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import OF_RUN, ClientData, FitOptions
from fedspan.estimators._bases.keeping_engine import KeepingEngine
from fedspan.estimators._bases.view_estimator import OF_VIEWS, ViewEstimator, count_features, prepare_view
from fedspan.estimators._options.common_parameters import MAX_ROUNDS, N_COMPONENTS
from fedspan.estimators.launch import make_engine, warn_caller
from fedspan.estimators.matching.match_views import Match, Matching, match_views
from fedspan.estimators.parameters import about, check_parameters


@dataclass(eq=False, repr=False)
class ColumnsParameters:
    """What can be asked of components of columns that are spread over clients."""

    n_components: int = field(default=2, metadata=N_COMPONENTS)
    _: KW_ONLY
    solver: str = field(
        default="krylov", metadata=about("The method: krylov is exact in few rounds.", choices=("krylov",))
    )
    center: bool = field(
        default=True, metadata=about("Whether each client subtracts its columns' means, which it does not show.")
    )
    scale: bool = field(
        default=False,
        metadata=about("Whether each client divides its columns by their deviations, which it does not show."),
    )
    hide_scores: bool = field(
        default=False,
        metadata=about("Whether the clients turn the rows by a secret transform, so that the server has no scores."),
    )
    bits: str | None = field(
        default=None,
        metadata=about('"auto" rounds what is sent to just enough bits for tol.', choices=("auto",), example="auto"),
    )
    tol: float = field(
        default=1e-6,
        metadata=about("Stop when the scaled violation is at most this; 0 runs all rounds.", least=0, below=1),
    )
    max_rounds: int = field(default=200, metadata=MAX_ROUNDS)


@dataclass(eq=False, repr=False)
class VerticalPCA(ViewEstimator, ColumnsParameters):
    """Principal component analysis of one table whose columns are at different clients, as if they were in one place.

    Each client holds some columns of the same rows. The answer is that of the pooled table: the scores of every row,
    and for each client the part of the components that belongs to its columns, which stays there.

    Parameters:
        n_components: How many components to compute.
        solver: The method: krylov is exact in few rounds.
        center: Whether each client subtracts its columns' means, which it does not show.
        scale: Whether each client divides its columns by their deviations, which it does not show. Constant columns
            stay as they are.
        hide_scores: Whether the clients turn the rows by a secret transform, so that the server has no scores. It
            is a shield against a curious server, not a proof: see the documentation. In a federation the sites need
            a common secret.
        bits: "auto" rounds what is sent to just enough bits for tol; None sends float64.
        tol: Stop when the scaled violation is at most this; 0 runs all rounds. It is ‖(I - ZZᵀ)MZ‖_F / tr(M), with M
            the Gram matrix of the rows.
        max_rounds: Stop after this many rounds in any case.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is what the server has of the scores.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        scores_: (J, k), the coordinates of the rows in the components. None in a federation with hide_scores: each
            site has them, and the server has not.
        components_: [(k, N_i)], one array per view; side by side they have orthonormal rows. Empty in a federation,
            where each site keeps its own.
        explained_variance_: (k,), the variance along each component.
        explained_variance_ratio_: (k,), the same as a share of the variance of all columns.
        singular_values_: (k,), of all centred columns together.
        shares_: (views, k), how much of each component's loadings (squared) belongs to each view. Empty in a
            federation.
        means_, scales_: [(N_i,)], what each client subtracts and divides by. Empty in a federation.
        view_names_, column_names_, n_features_, n_samples_, n_views_: What the model was fitted on.
        matched_: Where the rows are in each view, if `fit` has matched them by their ids; else None.
        n_rounds_, converged_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import VerticalPCA
        >>> X = np.random.default_rng(0).normal(size=(60, 5)) * [3, 2, 1, 1, 1]
        >>> pca = VerticalPCA(n_components=2, random_state=0).fit({"bank": X[:, :3], "shop": X[:, 3:]})
        >>> pca.scores_.shape, [part.shape for part in pca.components_]
        ((60, 2), [(2, 3), (2, 2)])
    """

    privacy: None = field(
        default=None,
        kw_only=True,
        metadata=about(
            "Not available: what leaves a view has no known sensitivity.",
            reason="What leaves a view has no known sensitivity, so no noise would be enough; leave privacy out.",
            in_job=False,
        ),
    )

    task: ClassVar[str] = "vertical-pca"
    learned: ClassVar[tuple[str, ...]] = (
        "scores_",
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "shares_",
        "means_",
        "scales_",
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
        min_clients: int | None = None,
        retries: int = RETRIES,
        ledger: Ledger | None = None,
    ) -> Self:
        """Run the federation until it has converged.

        Parameters:
            views: One entry per client: some columns of the same rows, in the same order.
            y: Ignored, as in scikit-learn.
            ids: The ids of the rows, one list per view (or one for all), or the name of a column that every table has.
                Rows are then matched by their ids; those that not all views have are left out.
            match: How: "psi", "digest" or "order" (which only compares the orders), as in `FederatedGCCA.fit`.
            secret: A text that all clients know and the server does not: it keys the digests of ids, and the transform
                of hide_scores. Without one, clients of one process draw one.
            min_clients: How many clients must answer at the first asking. In the end all must.
            retries: How often a client that did not answer is asked again.
            ledger: Where to write what happens; by default a new `Ledger`.
        """
        check_parameters(self)
        ledger = ledger if ledger is not None else Ledger()
        matching = Matching(match, secret, engine=self.engine, ledger=ledger, retries=retries)
        sources, matched = match_views(gather_views(views, ids), matching)
        data: dict[str, object] = {name: prepare_view(source, secret) for name, source in sources.items()}
        engine = KeepingEngine(make_engine(self.engine, data))
        solver = ColumnsKrylov(
            k=int(self.n_components),
            tol=self.tol,
            center=bool(self.center),
            scale=bool(self.scale),
            rounded=self.bits == "auto",
            hide=bool(self.hide_scores),
            last=int(self.max_rounds),
        )
        result = self._run(
            solver,
            data,
            FitOptions(ledger, retries, min_clients),
            why="it is exact and needs few rounds",
            rounds=int(self.max_rounds),
            channel=Channel(up=pack(), down=pack()),
            engine=engine,
        )
        self.view_names_, self.n_views_ = list(sources), len(sources)
        self._learn(result, engine.get_states())
        self.n_features_ = count_features(sources, self.components_)
        self._keep_column_names(sources)
        self.matched_ = matched
        self._keep_run(result)
        self.converged_ = bool(result.converged)
        if not self.converged_ and self.tol > 0:
            warn_caller(
                f"Stopped after {result.rounds} rounds at a violation of {result.metrics.get('kkt', np.nan):.2g}, "
                f"above tol={self.tol:g}; raise max_rounds, or raise tol if this is enough.",
                ConvergenceWarning,
            )
        elif self.converged_:
            self._warn_if_tied(result)
        return self

    def _learn(self, result: Result[KrylovState], states: Mapping[str, object]) -> None:
        """Set the attributes from the last state of the run, and from what the clients kept if they are here."""
        state, moments = result.state, result.state.moments
        if not isinstance(state, ColumnsKrylovState) or state.basis is None or state.along is None:
            raise InputError(
                f"The checkpoint is at round {result.rounds}, past max_rounds={self.max_rounds}; raise max_rounds."
            )
        theta = np.asarray(state.along, dtype=np.float64)
        if len(theta) < self.n_components:
            warn_caller(
                f"The columns together have rank {len(theta)}, so there are only {len(theta)} components, not "
                f"{self.n_components}; lower n_components to {len(theta)}."
            )
        kept = [state for state in (states.get(name) for name in self.view_names_) if isinstance(state, ColumnsState)]
        here = [k for k in kept if k.loadings is not None and k.mean is not None and k.scale is not None]
        self.components_: list[Array] = []
        self.means_: list[Array] = []
        self.scales_: list[Array] = []
        self.scores_ = None if self.hide_scores else state.basis * np.sqrt(theta)
        if len(here) == self.n_views_:
            self._take_home(here, theta)
        squares = [np.sum(part**2, axis=1) for part in self.components_]
        self.shares_ = np.array(squares) / np.sum(squares, axis=0) if squares else np.zeros((0, len(theta)))
        self.n_samples_ = moments.n
        self.explained_variance_ = theta / max(moments.n - 1, 1)
        self.explained_variance_ratio_ = theta / moments.trace
        self.singular_values_ = np.sqrt(theta)

    def _take_home(self, kept: list[ColumnsState], theta: Array) -> None:
        """What the clients of this process kept, with the sign of each component as its largest score has it."""
        Z = np.asarray(kept[0].basis, dtype=np.float64)
        signs = np.where(Z[np.argmax(np.abs(Z), axis=0), np.arange(Z.shape[1])] < 0, -1.0, 1.0)
        self.scores_ = Z * (signs * np.sqrt(theta))
        self.components_ = [np.asarray(k.loadings).T * signs[:, None] for k in kept]
        self.means_ = [np.asarray(k.mean) for k in kept]
        self.scales_ = [np.asarray(k.scale) for k in kept]

    def _warn_if_tied(self, result: Result[KrylovState]) -> None:
        """The last component is not determined if the next one has the same variance, as far as can be told."""
        gap, theta = result.metrics.get("gap", np.nan), result.state.theta
        if gap <= max(2 * result.state.kkt * result.state.moments.trace, 1e-9 * float(theta[-1])) and theta[-1] > 0:
            warn_caller(
                f"Component {len(theta)} is not determined: the next one has the same variance as far as tol="
                f"{self.tol:g} can tell, so any mixture of them would do as well. Use fewer components, or more."
            )

    def transform(self, views: ClientData, ids: object = None) -> Array:
        """The scores of new rows, (n, k): a sum over the clients of what their columns add. All views are needed.

        With `ids`, as in `fit`, the rows of all views are taken in the order of the first one's.
        """
        check_is_fitted(self)
        if not self.components_:
            raise InputError(
                "The loadings stayed at the sites of the federation, so new rows can be transformed only there."
            )
        missing = [name for name, source in self._match_views(views).items() if source is None]
        if missing:
            raise InputError(f"The scores are a sum over all views, but view {missing[0]!r} is missing.")
        return self._sum_over_views(self._open_given(views, ids))[0]

    def _find_weights(self, at: int) -> tuple[Array, Array]:
        W = (self.components_[at] / self.scales_[at]).T
        return W, self.means_[at] @ W

    def transform_view(self, i: int | str, X: object) -> Array:
        """What the columns of view i (its number or name) add to the scores of new rows, (n, k)."""
        at = self._find_view(i)
        if not self.components_:
            raise InputError(
                "The loadings stayed at the sites of the federation, so new rows can be transformed only there."
            )
        return self._say_of(at, X)

    def _say(self, at: int, X: Any) -> Array:
        W, offset = self._find_weights(at)
        return np.asarray(X @ W - offset, dtype=np.float64)

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        check_is_fitted(self)
        return len(self.explained_variance_)


@dataclass(eq=False, repr=False)
class VerticalSVD(VerticalPCA):
    """The truncated singular value decomposition of one table whose columns are at different clients.

    As `VerticalPCA`, but nothing is subtracted from the columns: `scores_` are the left singular vectors times the
    singular values, and `components_` side by side the right singular vectors.

    Parameters:
        n_components: How many components to compute.
        solver: The method: krylov is exact in few rounds.
        scale: Whether each client divides its columns by their deviations, which it does not show. Constant columns
            stay as they are.
        hide_scores: Whether the clients turn the rows by a secret transform, so that the server has no scores. It
            is a shield against a curious server, not a proof: see the documentation.
        bits: "auto" rounds what is sent to just enough bits for tol; None sends float64.
        tol: Stop when the scaled violation is at most this; 0 runs all rounds.
        max_rounds: Stop after this many rounds in any case.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is what the server has of the scores.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Examples:
        >>> import numpy as np
        >>> from fedspan import VerticalSVD
        >>> X = np.random.default_rng(0).normal(size=(60, 5))
        >>> svd = VerticalSVD(n_components=2, random_state=0).fit({"bank": X[:, :3], "shop": X[:, 3:]})
        >>> bool(np.allclose(svd.singular_values_, np.linalg.svd(X)[1][:2]))
        True
    """

    task: ClassVar[str] = "vertical-svd"
    center: ClassVar[bool] = False  # type: ignore[misc]  # a constant of the class, not a parameter
