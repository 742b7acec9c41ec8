"""What all views together say of new entities, as a sum over the clients: each multiplies its own rows and weights.

Notation: X_i (n, N_i) the rows of client i, W_i (N_i, k) and c_i (k,) its own weights and offsets from an earlier run;
T = Σ (X_iW_i - c_i) (n, k). If clients may lack entities, they add zeros for these, and D (n,) is how many clients have
each entity.

What the server sees: how many rows each client has, and T and D (without secure sums, each client's part of them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms.gcca.entities import MATCH_TASKS, Entities, EntitiesClient, match_entities
from fedspan.algorithms.gcca.kept_maxvar import select_rows, spread_rows
from fedspan.core.protocol import Ask, Client, Replay, Round, Server, Sum, complete, task
from fedspan.core.replay import CLOSE
from fedspan.core.rng import Streams


@dataclass(frozen=True)
class WeightedView:
    """A client's new rows, and what it learned for itself."""

    X: Matrix
    weights: Array  # (N_i, k)
    offset: Array  # (k,)
    present: Array | None = None  # (n,) which entities the client has; None: all


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
        return state, {"T": self._combine(self.data.X)}

    @task(
        releases={"T": None, "D": None},
        shows="for each new entity k combinations of its features, and which entities it lacks",
    )
    def say_located(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """X_iW_i - c_i where the client has the entity, else zeros; and where that is."""
        J, given = self.data.X.shape[0], self.data.present
        present = np.ones(J, dtype=bool) if given is None else np.asarray(given, dtype=bool)
        rows = np.flatnonzero(present)
        T = spread_rows(self._combine(select_rows(self.data.X, rows)), rows, J)
        return state, {"T": T, "D": present.astype(np.int64)}

    def _combine(self, X: Matrix) -> Array:
        return np.asarray(X @ self.data.weights - self.data.offset, dtype=np.float64)


@dataclass(frozen=True)
class ViewsSum:
    """T, and D if clients may lack entities."""

    T: Array
    D: Array | None = None


@dataclass(frozen=True)
class SumViews(Server[ViewsSum]):
    """One sum over the clients, once it is clear that they have as many rows. `partial`: they may lack entities."""

    partial: bool = False

    State = ViewsSum
    client: ClassVar[type[Client[object]]] = WeightedClient
    family: ClassVar[str] = "gcca"

    @property
    def say_task(self) -> str:
        return "say_located" if self.partial else "say"

    def asks(self) -> frozenset[str]:
        return MATCH_TASKS | {self.say_task}

    def replay(self) -> Replay | str:
        return {**{name: {"key": CLOSE} for name in MATCH_TASKS}, self.say_task: {}}

    def init(self, rng: Streams) -> Round[ViewsSum]:
        yield from match_entities(rng)
        want = Sum("T", "D") if self.partial else Sum("T")
        total = (yield from complete(Ask(self.say_task, want=want))).total
        return ViewsSum(total["T"], np.asarray(total["D"], dtype=np.int64) if self.partial else None)

    def round(self, state: ViewsSum, rng: Streams) -> Round[ViewsSum]:
        yield from ()
        return state

    def done(self, state: ViewsSum) -> bool:
        return True

    def estimate(self, state: ViewsSum) -> Array:
        return state.T

    def metrics(self, state: ViewsSum) -> dict[str, float]:
        return {}
