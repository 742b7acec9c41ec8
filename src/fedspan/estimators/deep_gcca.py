"""A common representation of entities whose features stay at several owners, by one network per view."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import DeepMaxVar
from fedspan.algorithms.gcca.deep import DeepView, NodeState, correlate
from fedspan.algorithms.gcca.networks import compute_outputs, load_parameters, make_network, use_torch_alone
from fedspan.channel import Channel
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES
from fedspan.data.remote_tables import is_remote
from fedspan.data.tables import is_lazy
from fedspan.data.views import ViewSource, gather_views
from fedspan.errors import FedspanError, InputError
from fedspan.estimators._bases.federated_estimator import OF_RUN, ClientData, FitOptions
from fedspan.estimators._bases.keeping_engine import KeepingEngine
from fedspan.estimators._bases.view_estimator import OF_VIEWS, ViewEstimator, count_features
from fedspan.estimators._options.common_parameters import ROUNDS
from fedspan.estimators._options.maxvar_solvers import quantize_both_links
from fedspan.estimators.gcca import NO_PRIVACY_OF_VIEWS
from fedspan.estimators.launch import make_engine, warn_caller
from fedspan.estimators.matching.match_views import Match, Matching, match_views
from fedspan.estimators.parameters import about, check_parameters


@dataclass(eq=False, repr=False)
class DeepParameters:
    """What can be asked of the training of networks."""

    networks: Sequence[Any] | Mapping[str, Any] | None = field(
        default=None,
        metadata=about(
            "One torch.nn.Module with n_components outputs per view, or a function that makes one.", in_job=False
        ),
    )
    n_components: int = field(default=2, metadata=about("The width K of the common representation.", least=1))
    _: KW_ONLY
    bits: int | None = field(
        default=None,
        metadata=about("Bits per number on both links (CuteMaxVar-Deep).", least=2, most=16, example=3),
    )
    first_bits: int | None = field(
        default=8, metadata=about("Bits of the first exchange if bits is given.", least=2, most=16)
    )
    local_steps: int = field(default=10, metadata=about("Steps of each network between two communications.", least=1))
    batch_size: int | None = field(default=1000, metadata=about("Entities per step.", least=1))
    lr: float = field(default=1e-3, metadata=about("The step size of the optimiser, if that is a class.", above=0))
    weight_decay: float = field(
        default=0.0, metadata=about("The weight decay of the optimiser, if that is a class.", least=0)
    )
    rounds: int = field(default=50, metadata=ROUNDS)
    optimizer: Callable[..., Any] | None = field(
        default=None,
        metadata=about("A class of torch.optim, or a function from parameters to an optimiser.", in_job=False),
    )
    alpha: float = field(
        default=math.inf, metadata=about("The weight of the proximal term of the common representation.", above=0)
    )
    tol: float = field(
        default=0.0,
        metadata=about(
            "Stop when the common representation changes by at most this in a round; 0 runs all rounds.", least=0
        ),
    )


@dataclass(eq=False, repr=False)
class DeepFederatedGCCA(ViewEstimator, DeepParameters):
    """Deep MAX-VAR generalised canonical correlation analysis: a network per view learns what all views share.

    Parameters:
        networks: One torch.nn.Module with n_components outputs per view, or a function that makes one (seeded by
            random_state): a list in the order of the views, or a mapping with their names. They are not changed.
            None in a federation, where each site's own file names its network.
        n_components: The width K of the common representation.
        bits: Bits per number on both links (CuteMaxVar-Deep), from 2 to 16; 3 is enough. None sends float32
            (AltMaxVar-Deep).
        first_bits: Bits of the first exchange if bits is given; None: full precision, as in the paper.
        local_steps: Steps of each network between two communications.
        batch_size: Entities per step; None: all.
        lr: The step size of the optimiser, if that is a class.
        weight_decay: The weight decay of the optimiser, if that is a class; 0 leaves it to the class (AdamW has 0.01).
        rounds: How many rounds to run.
        optimizer: A class of torch.optim, or a function from parameters to an optimiser; None: Adam.
        alpha: The weight of the proximal term of the common representation; infinite: none.
        tol: Stop when the common representation changes by at most this in a round; 0 runs all rounds.
        privacy: Not available: what leaves a view has no known sensitivity.
        secure: Whether the server may see only sums over the clients: True, or `Secure(threshold=…)`. It then sees sums
            over the views, the number of entities, and digests of their ids.
        engine: Where the clients run; None runs all of them in this process.
        callback: A function that is called after each round; `info.estimate` is the current `common_`.
        verbose: Whether to show the rounds as they come: a bar in terminals and notebooks, a line a second elsewhere.
        checkpoint: A folder in which the run is saved after every round. A `fit` that finds it continues from there.
        random_state: The seed of all random streams. None draws one, which is kept as `seed_`.

    Attributes:
        common_: (J, K), orthonormal and centred.
        cost_: The cost (7) of the paper.
        correlations_: (views, K), of each network's outputs with `common_`. One row, the mean over the views, in a
            federation.
        explained_variance_ratio_: (views,), the share of a view's variance that `common_` explains. Empty in a
            federation.
        parameters_: Of each network, as arrays. Empty in a federation, where the networks stay at their sites.
        mean_, gram_: Of the sum of the outputs: what `transform` needs.
        view_names_, column_names_, n_features_, n_samples_, n_views_: What the model was fitted on.
        matched_: Where the entities' rows are in each view, if `fit` has matched them by their ids; else None.
        n_rounds_, converged_, history_, ledger_, seed_: As in `FederatedPCA`.

    Examples:
        >>> import numpy as np
        >>> from torch import nn
        >>> from fedspan import DeepFederatedGCCA
        >>> rng = np.random.default_rng(0)
        >>> shared = rng.uniform(-1, 1, size=(200, 1))
        >>> views = {"cosine": np.cos(2 * shared), "square": shared**2}
        >>> networks = [lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))] * 2
        >>> gcca = DeepFederatedGCCA(networks, 1, bits=3, rounds=30, lr=0.01, random_state=0).fit(views)
        >>> gcca.transform(views).shape, bool(gcca.correlations_.min() > 0.99)
        ((200, 1), True)
    """

    privacy: None = field(default=None, kw_only=True, metadata=NO_PRIVACY_OF_VIEWS)

    task: ClassVar[str] = "deep-gcca"
    # What the report of GCCA shows besides, and networks do not have.
    eigenvalues_: ClassVar[Array] = np.zeros(0)
    eigenvalue_by_chance_: ClassVar[float] = math.nan
    held_out_correlations_: ClassVar[Array] = np.zeros(0)
    view_counts_: ClassVar[None] = None
    missing_: ClassVar[None] = None
    learned: ClassVar[tuple[str, ...]] = (
        "common_",
        "cost_",
        "correlations_",
        "explained_variance_ratio_",
        "parameters_",
        "mean_",
        "gram_",
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
        """Train the networks. The parameters are those of `FederatedGCCA.fit`; no rows are held out."""
        check_parameters(self)
        ledger = ledger if ledger is not None else Ledger()
        given = gather_views(views, ids)
        elsewhere = is_remote({name: view.source for name, view in given.items()})
        if elsewhere and self.networks is not None:
            raise InputError("The sites' own files name their networks; leave networks out.")
        networks = {} if elsewhere else self._match_networks(list(given))
        facts = {"networks": self._digest(networks)}  # which makes them, so that wrong ones are refused first
        matching = Matching(match, secret, engine=self.engine, ledger=ledger, retries=retries)
        sources, matched = match_views(given, matching)
        data: dict[str, object] = {}
        for name, view in sources.items():
            if elsewhere:
                data[name] = view.source
                continue
            open_data = partial(_open_deep_view, view, secret, networks[name], self.optimizer)
            data[name] = open_data if is_lazy(view.source) else open_data()
        engine = KeepingEngine(make_engine(self.engine, data))
        result = self._run(
            DeepMaxVar(
                int(self.n_components),
                int(self.local_steps),
                int(self.batch_size or 0),
                float(self.lr),
                float(self.weight_decay),
                float(self.alpha),
                float(self.tol),
            ),
            data,
            FitOptions(ledger, retries, min_clients),
            why="as requested",
            rounds=int(self.rounds),
            channel=self._make_channel(),
            facts=facts,
            engine=engine,
        )
        state = result.state
        self.common_, self.mean_, self.gram_ = state.G, state.mean, state.gram
        self.view_names_, self.n_samples_, self.n_views_ = list(sources), len(state.G), len(sources)
        self.parameters_ = [] if elsewhere else _read_parameters(engine.get_states(), self.view_names_)
        if elsewhere:
            self.n_features_ = count_features(sources, [])
            self.correlations_, self.cost_ = state.correlations[None, :], float(state.cost)
            self.explained_variance_ratio_ = np.zeros(0)
        else:
            self._measure_agreement([view.open().X for view in sources.values()])
        self._keep_column_names(sources)
        self.matched_ = matched
        self._keep_run(result)
        self.converged_ = result.converged
        if self.tol > 0 and not self.converged_:
            warn_caller(
                f"Stopped after {result.rounds} rounds, but the common representation still changes by "
                f"{state.change:.2g}, above tol={self.tol:g}; raise rounds or tol.",
                ConvergenceWarning,
            )
        return self

    def _measure_agreement(self, views: list[Any]) -> None:
        """How well the trained networks agree with the common representation."""
        self.n_features_ = [int(X.shape[1]) for X in views]
        with use_torch_alone(threads=1):
            each = [compute_outputs(self._make_trained(i), X) / math.sqrt(self.n_samples_) for i, X in enumerate(views)]
        self.correlations_ = np.array([correlate(M, self.common_) for M in each])
        self.cost_ = float(sum(0.5 * np.sum((M - self.common_) ** 2) for M in each))
        self.explained_variance_ratio_ = np.array([_measure_explained(X, self.common_) for X in views])

    def _digest(self, networks: Mapping[str, Any]) -> str:
        """What a checkpoint is good for: the same layers, trained in the same way."""
        with use_torch_alone():
            layers = {name: str(make_network(network)) for name, network in sorted(networks.items())}
        how = getattr(self.optimizer, "__qualname__", repr(self.optimizer))
        return blake2b(repr((layers, how)).encode(), digest_size=8).hexdigest()

    def _match_networks(self, names: list[str]) -> dict[str, Any]:
        """The networks by the names of their views."""
        given = self.networks
        if given is None:
            raise InputError("The networks are missing; give networks (to load, too), one for each view.")
        networks = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
        if len(given) != len(names) or set(networks) != set(names):
            found = f"the names are {list(given)}" if isinstance(given, Mapping) else f"there are {len(given)}"
            raise InputError(
                f"networks must hold one network for each of the {len(names)} views {names[:5]}, but {found}."
            )
        return dict(networks)

    def _make_channel(self) -> Channel:
        if self.bits is None:
            return Channel()
        if self.bits == 2:
            warn_caller(
                "2 bits leave one level on each side of zero: the rounding errors may grow instead of shrinking, and "
                "the run may diverge; use 3."
            )
        return quantize_both_links(self.bits, self.first_bits)

    def transform(self, views: ClientData, ids: object = None) -> Array:
        """The common representation of entities by all their views, (n, K), as `common_`. A view may be None.

        With `ids`, as in `fit`, the rows of all views are taken in the order of the first one's.
        """
        self._refuse_without_networks()
        M = self._mean_over_views(self._open_given(views, ids)) * self.n_views_
        w, U = np.linalg.eigh(self.gram_)
        return np.asarray((M - self.mean_) @ (U / np.sqrt(w * self.n_samples_)) @ U.T)

    def transform_view(self, i: int | str, X: object) -> Array:
        """What view i (its number or name) alone says of entities, (n, K)."""
        self._refuse_without_networks()
        said = self._say_of(self._find_view(i), X)
        return np.asarray(said / math.sqrt(self.n_samples_), dtype=np.float64)

    def get_network(self, i: int) -> Any:
        """A copy of the trained network of view i."""
        self._refuse_without_networks()
        with use_torch_alone():
            return self._make_trained(i)

    def _refuse_without_networks(self) -> None:
        check_is_fitted(self)
        if not self.parameters_:
            raise InputError("The networks stayed at the sites of the federation, so they can be used only there.")
        self._match_networks(self.view_names_)

    def _make_trained(self, i: int) -> Any:
        network = self._match_networks(self.view_names_)[self.view_names_[i]]
        return load_parameters(make_network(network), self.parameters_[i]).eval()

    def _say(self, at: int, X: Any) -> Array:
        return compute_outputs(self.get_network(at), X)

    @classmethod
    def load(cls, path: str | os.PathLike[str], networks: Sequence[Any] | Mapping[str, Any] | None = None) -> Self:
        """Read a model that `save` wrote; `networks` are those that it was made with, whatever their parameters.

        Without them, the model tells what was learned, but cannot transform new entities.
        """
        model = cls._load(path, networks=networks)
        for i in range(model.n_views_ if networks is not None and model.parameters_ else 0):
            model.get_network(i)  # refuses networks that do not fit
        return model


def _measure_explained(X: Any, G: Array) -> float:
    """The share of a view's variance in the span of G, whose columns are orthonormal and centred."""
    squares = X.multiply(X) if sp.issparse(X) else np.square(X, dtype=np.float64)
    total = float(squares.sum() - len(G) * np.square(X.mean(axis=0)).sum())
    return float(np.square(X.T @ G).sum()) / total if total > 0 else 0.0


def _read_parameters(states: Mapping[str, object], names: list[str]) -> list[dict[str, Array]]:
    """The trained networks of clients in this process, as arrays."""
    trained = {name: state for name, state in states.items() if isinstance(state, NodeState)}
    if any(name not in trained for name in names):
        raise FedspanError(
            "This engine leaves the networks at the clients; run fedspan.algorithms.DeepMaxVar, and use them there."
        )
    return [trained[name].theta for name in names]


def _open_deep_view(given: ViewSource, secret: str, network: Any, optimizer: Callable[..., Any] | None) -> DeepView:
    view = given.open()
    return DeepView(view.X, network, optimizer, ids=view.ids, secret=secret)
