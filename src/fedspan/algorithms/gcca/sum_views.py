"""What all views together say of new entities, as a sum over the clients: each multiplies its own rows and weights.

Notation: X_i (n, N_i) the rows of client i, W_i (N_i, k) and c_i (k,) its own weights and offsets from an earlier run;
T = Σ (X_iW_i - c_i) (n, k).

What the server sees: how many rows each client has, and T (without secure sums, each client's part of it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms.gcca.entities import MATCH_TASKS, Entities, EntitiesClient, match_entities
from fedspan.core.protocol import Ask, Client, Replay, Round, Server, Sum, complete, task
from fedspan.core.replay import CLOSE
from fedspan.core.rng import Streams


@dataclass(frozen=True)
class WeightedView:
    """A client's new rows, and what it learned for itself."""

    X: Matrix
    weights: Array  # (N_i, k)
    offset: Array  # (k,)


class WeightedClient(EntitiesClient[None]):
    """A client that has weights of its own."""

    State = type(None)

    def __init__(self, data: WeightedView) -> None:
        self.entities, self.data = Entities(data.X), data

    def init(self) -> None:
        return None

    @task(releases={"T": None}, shows="for each new entity k combinations of its features")
    def say(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """X_iW_i - c_i."""
        return state, {"T": np.asarray(self.data.X @ self.data.weights - self.data.offset, dtype=np.float64)}


@dataclass(frozen=True)
class ViewsSum:
    """T."""

    T: Array


@dataclass(frozen=True)
class SumViews(Server[ViewsSum]):
    """One sum over the clients, once it is clear that they have as many rows."""

    State = ViewsSum
    client: ClassVar[type[Client[object]]] = WeightedClient
    family: ClassVar[str] = "gcca"

    def asks(self) -> frozenset[str]:
        return MATCH_TASKS | {"say"}

    def replay(self) -> Replay | str:
        return {**{name: {"key": CLOSE} for name in MATCH_TASKS}, "say": {}}

    def init(self, rng: Streams) -> Round[ViewsSum]:
        yield from match_entities(rng)
        return ViewsSum((yield from complete(Ask("say", want=Sum("T")))).total["T"])

    def round(self, state: ViewsSum, rng: Streams) -> Round[ViewsSum]:
        yield from ()
        return state

    def done(self, state: ViewsSum) -> bool:
        return True

    def estimate(self, state: ViewsSum) -> Array:
        return state.T

    def metrics(self, state: ViewsSum) -> dict[str, float]:
        return {}
