"""A common representation of entities whose features stay at several owners, by one network per view."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms import DeepMaxVar
from fedspan.algorithms.gcca.deep import DeepView, correlation
from fedspan.algorithms.gcca.networks import alone, made, outputs, with_parameters
from fedspan.channel import IDENTITY, Channel, delta, only, quantize
from fedspan.core.ledger import Ledger
from fedspan.core.protocol import Server
from fedspan.core.run import Engine, Info, Session
from fedspan.data.views import is_lazy, open_view, view_sources
from fedspan.engines.inprocess import InProcess
from fedspan.errors import FedspanError, InputError
from fedspan.estimators.base import load_model, save_model
from fedspan.estimators.launch import launch, secure_from, seed_from, whole

_LEARNED = (
    "common_", "cost_", "correlations_", "parameters_", "mean_", "gram_", "view_names_", "n_features_",
    "n_samples_", "n_views_", "n_rounds_", "converged_", "seed_",
)  # fmt: skip


class DeepFederatedGCCA(BaseEstimator):  # type: ignore[misc]
    """Deep MAX-VAR generalised canonical correlation analysis: a network per view learns what all views share.

    Parameters:
        networks: One `torch.nn.Module` with n_components outputs per view, or a function that makes one (seeded by
            random_state): a list in the order of the views, or a mapping with their names. They are not changed.
        n_components: Width K of the common representation.
        bits: Bits per number on both links, 2 to 16 (CuteMaxVar-Deep; 3 is enough); None: float32 (AltMaxVar-Deep).
        first_bits: Bits of the first exchange if `bits` is given; None: full precision, as in the paper.
        local_steps: Steps of each network between two communications.
        batch_size: Entities per step; None: all.
        lr: Step size of the optimiser, if that is a class.
        weight_decay: Of the optimiser, if that is a class; 0 is left to the class (AdamW has 0.01).
        rounds: How many rounds.
        optimizer: A class of torch.optim (None: Adam), or a function from parameters to an optimiser.
        alpha: Weight of the proximal term of the common representation; infinite: none.
        tol: Stop when the common representation changes by at most this in a round; 0 runs all rounds.
        privacy: What leaves a view has no known sensitivity: anything but None is refused.
        secure: True, or `Secure(threshold=…)`: the server sees sums over the views only (and the number of entities,
            and digests of their ids).
        engine: An engine, or a function from the clients' data to one; None: all clients in this process.
        callback: Called after each round with `info.round`, `info.estimate` (the current `common_`) and `info.metrics`.
        checkpoint: A folder. After every round the run is saved there; a `fit` that finds it goes on from it.
        random_state: Seed of all random streams; None: drawn, and kept as `seed_`.

    Attributes:
        common_: (J, K), orthonormal and centred.
        cost_: The cost (7) of the paper.
        correlations_: (views, K), of each network's outputs with `common_`.
        parameters_: Of each network, as arrays.
        mean_, gram_: Of the sum of the outputs: what `transform` needs.
        view_names_, n_features_, n_samples_, n_views_: What was learned from.
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

    def __init__(
        self,
        networks: Sequence[Any] | Mapping[str, Any],
        n_components: int = 2,
        *,
        bits: int | None = None,
        first_bits: int | None = 8,
        local_steps: int = 10,
        batch_size: int | None = 1000,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        rounds: int = 50,
        optimizer: Callable[..., Any] | None = None,
        alpha: float = math.inf,
        tol: float = 0.0,
        privacy: Any = None,
        secure: Any = False,
        engine: Any = None,
        callback: Callable[[Info], None] | None = None,
        checkpoint: Any = None,
        random_state: Any = None,
    ) -> None:
        self.networks = networks
        self.n_components = n_components
        self.bits = bits
        self.first_bits = first_bits
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.rounds = rounds
        self.optimizer = optimizer
        self.alpha = alpha
        self.tol = tol
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
        min_clients: int | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Train the networks. `views`: one entry per client; row j is the same entity in all of them.

        `ids` and `secret`: as in `FederatedGCCA.fit`, by which the clients' orders are compared. `min_clients`: how
        many must answer at the first asking; the others are asked again.
        """
        sources = view_sources(views, ids)
        networks = self._networks(list(sources))
        solver, channel = self._solver(), self._channel()
        data: dict[str, Any] = {}
        for name, (source, own_ids, _) in sources.items():
            make = partial(_view, source, own_ids, secret, networks[name], self.optimizer)
            data[name] = make if is_lazy(source) else make()
        given, seed = self.engine, seed_from(self.random_state)
        engine = _Kept(InProcess(data) if given is None else given(data) if callable(given) else given)
        result = launch(
            solver, data, why="it was asked for", rounds=int(self.rounds), seed=seed, channel=channel, engine=engine,
            callback=self.callback, checkpoint=self.checkpoint, ledger=ledger, min_clients=min_clients,
            secure=secure_from(self.secure),
            about={"networks": self._digest(networks)},
        )  # fmt: skip
        state = result.state
        self.common_, self.mean_, self.gram_ = state.G, state.mean, state.gram
        self.view_names_, self.n_samples_, self.n_views_ = list(sources), len(state.G), len(sources)
        self.parameters_ = engine.parameters(self.view_names_)
        self._weigh([open_view(source, own_ids).X for source, own_ids, _ in sources.values()])
        self.n_rounds_, self.converged_, self.seed_ = result.rounds, result.converged, seed
        self.ledger_, self.history_ = result.ledger, result.ledger.history()
        if self.tol > 0 and not self.converged_:
            warnings.warn(
                f"need tol={self.tol:g}, the common representation still changes by {state.change:.2g} after "
                f"{result.rounds} rounds; raise rounds or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _weigh(self, views: list[Any]) -> None:
        """How well the trained networks agree with the common representation."""
        self.n_features_ = [int(X.shape[1]) for X in views]
        with alone(threads=1):
            each = [outputs(self._trained(i), X) / math.sqrt(self.n_samples_) for i, X in enumerate(views)]
        self.correlations_ = np.array([correlation(M, self.common_) for M in each])
        self.cost_ = float(sum(0.5 * np.sum((M - self.common_) ** 2) for M in each))

    def _digest(self, networks: Mapping[str, Any]) -> str:
        """What a checkpoint is good for: the same layers, trained in the same way."""
        with alone():
            layers = {name: str(made(network)) for name, network in sorted(networks.items())}
        how = getattr(self.optimizer, "__qualname__", repr(self.optimizer))
        return blake2b(repr((layers, how)).encode(), digest_size=8).hexdigest()

    def _networks(self, names: list[str]) -> dict[str, Any]:
        given = self.networks
        if not isinstance(given, Mapping | Sequence):
            raise InputError(f"need a list or mapping with one network per view, got one {type(given).__name__}")
        networks = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
        if len(given) != len(names) or set(networks) != set(names):
            found = list(given) if isinstance(given, Mapping) else len(given)
            raise InputError(f"need one network for each of the {len(names)} views {names[:5]}, got {found}")
        return dict(networks)

    def _solver(self) -> DeepMaxVar:
        for name in ("n_components", "rounds", "local_steps", "batch_size"):
            count = getattr(self, name)
            if (not whole(count) or count < 1) and not (name == "batch_size" and count is None):
                raise InputError(f"need {name} to be an integer of at least 1, got {count!r}")
        for name in ("lr", "alpha", "weight_decay", "tol"):
            value, least = getattr(self, name), name in ("weight_decay", "tol")
            if not isinstance(value, int | float | np.floating) or not (value >= 0 if least else value > 0):
                raise InputError(f"need {name} to be a number {'of at least' if least else 'above'} 0, got {value!r}")
        if self.privacy is not None:
            raise InputError("what leaves a view has no known sensitivity; leave privacy out")
        return DeepMaxVar(
            int(self.n_components), int(self.local_steps), int(self.batch_size or 0), float(self.lr),
            float(self.weight_decay), float(self.alpha), float(self.tol),
        )  # fmt: skip

    def _channel(self) -> Channel:
        if self.bits is None:
            return Channel()
        if self.bits == 2:
            warnings.warn(
                "2 bits are one level on each side of zero: the rounding errors may grow instead of shrinking, and "
                "the run diverge; use 3",
                UserWarning,
                stacklevel=3,
            )
        first = IDENTITY if self.first_bits is None else quantize(self.first_bits)
        stage = delta(quantize(self.bits), first=first)
        return Channel(up=only(["M"], stage), down=only(["G"], stage))

    def transform(self, views: Mapping[str, Any] | Sequence[Any]) -> Array:
        """The common representation of entities by all their views, (n, K), as `common_`. A view may be None."""
        check_is_fitted(self)
        given = views if isinstance(views, Mapping) else dict(zip(self.view_names_, views, strict=False))
        if len(views) != self.n_views_ or set(given) != set(self.view_names_):
            raise InputError(f"need the {self.n_views_} views of the fit, got {len(views)}; give None for missing ones")
        parts = [self._outputs(i, given[name]) for i, name in enumerate(self.view_names_) if given[name] is not None]
        if not parts or len({len(part) for part in parts}) > 1:
            raise InputError("need at least one view, and the same entities in each, got different numbers of rows")
        M = self.n_views_ * np.mean(parts, axis=0, dtype=np.float64)
        w, U = np.linalg.eigh(self.gram_)
        return np.asarray((M - self.mean_) @ (U / np.sqrt(w * self.n_samples_)) @ U.T)

    def transform_view(self, i: int | str, X: Any) -> Array:
        """What view i (its number or name) alone says of entities, (n, K)."""
        check_is_fitted(self)
        at: Any = self.view_names_.index(i) if i in self.view_names_ else i
        if not whole(at) or not 0 <= at < self.n_views_:
            raise InputError(f"need a view from 0 to {self.n_views_ - 1} or one of {self.view_names_}, got {i!r}")
        return np.asarray(self._outputs(at, X) / math.sqrt(self.n_samples_), dtype=np.float64)

    def trained(self, i: int) -> Any:
        """The trained network of view i, as a module of its own."""
        check_is_fitted(self)
        with alone():
            return self._trained(i)

    def _trained(self, i: int) -> Any:
        network = self._networks(self.view_names_)[self.view_names_[i]]
        return with_parameters(made(network), self.parameters_[i]).eval()

    def _outputs(self, i: int, X: Any) -> Array:
        X = open_view(X).X
        if X.shape[1] != self.n_features_[i]:
            raise InputError(f"need the {self.n_features_[i]} features of view {i}, got {X.shape[1]}")
        if not np.isfinite(X.data if sp.issparse(X) else X).all():
            raise InputError(f"need finite numbers in view {i}, got NaN or infinity; impute them, or give None")
        return outputs(self.trained(i), X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model with the networks' parameters as one safetensors file; not the networks' code."""
        save_model(self, path, _LEARNED)

    @classmethod
    def load(cls, path: str | os.PathLike[str], networks: Sequence[Any] | Mapping[str, Any]) -> Self:
        """The model that `save` wrote; `networks` are those that were given to it (their parameters do not matter)."""
        model = load_model(cls, path, networks=networks)
        for i in range(model.n_views_):
            model.trained(i)  # refuses networks that do not fit
        return model


class _Kept:
    """An engine that can be asked, when the run is over, for the networks: in one process they can be had."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session: Session | None = None

    @property
    def clients(self) -> Sequence[str]:
        return self.engine.clients

    def start(self, server: Server[Any], channel: Channel, seed: int, *more: Any) -> Session:
        self.session = self.engine.start(server, channel, seed, *more)
        return self.session

    def parameters(self, names: list[str]) -> list[dict[str, Array]]:
        sites = self.session.snapshot().get("sites", {}) if self.session else {}
        if any(name not in sites for name in names):
            raise FedspanError("this engine leaves the networks at the clients; run DeepMaxVar, and use them there")
        return [sites[name]["state"].theta for name in names]


def _view(source: Any, ids: Any, secret: str, network: Any, optimizer: Any) -> DeepView:
    view = open_view(source, ids)
    return DeepView(view.X, network, optimizer, ids=view.ids, secret=secret)
