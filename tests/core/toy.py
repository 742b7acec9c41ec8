"""The smallest algorithm: every round the clients' numbers are added. Its clients can also misbehave, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from fedspan.core.protocol import Array, Arrays, Ask, Client, Each, Round, Server, Sum, Want, complete, task, tasks_of
from fedspan.core.rng import Streams
from fedspan.errors import InputError


@dataclass(frozen=True)
class Asked:
    """How often a client was asked."""

    times: int = 0


class Giver(Client[Asked]):
    State = Asked

    def __init__(self, data: float) -> None:
        self.data = data

    def init(self) -> Asked:
        return Asked()

    @task(releases={"x": None, "times": None}, shows="its number, and how often it was asked")
    def give(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        state = replace(state, times=state.times + 1)
        return state, {"x": np.array([self.data, rng("noise").random()]), "times": np.array(state.times)}

    @task(releases={"x": None}, shows="its number")
    def leak(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        return state, {"x": np.ones(2), "secret": np.array(self.data)}

    @task(releases={"x": None}, shows="its number")
    def forget(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        return state, {}

    @task(releases={"x": None}, shows="its number")
    def poison(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        return state, {"x": np.array([1.0, np.nan if self.data > 2 else 1.0])}

    @task(releases={"x": None}, shows="its number")
    def write(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        return state, {"x": np.array(["words"])}

    @task(releases={"x": None}, shows="its number")
    def fail(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        if self.data > 2:
            raise RuntimeError("the disk is gone")
        return state, {"x": np.array([self.data, 0.0])}

    @task(releases={"x": None}, shows="its number")
    def complain(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        if self.data > 2:
            raise InputError("need rows, got none")
        return state, {"x": np.array([self.data, 0.0])}

    @task(releases={"x": None}, shows="its number")
    def grow(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        return state, {"x": np.ones(3 if self.data > 2 else 2)}

    def peek(self, state: Asked, arrays: Arrays, rng: Streams) -> tuple[Asked, Arrays]:
        """Not declared: cannot be called over the wire."""
        return state, {"x": np.array(self.data)}


@dataclass(frozen=True)
class Sofar:
    total: Array
    t: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adder(Server[Sofar]):
    """Asks one task per round, `exchanges` times, and adds what comes."""

    task: str = "give"
    exchanges: int = 1
    stop: int = 1000
    every_client: bool = False
    want: Want = field(default_factory=Each)

    State = Sofar
    client = Giver
    family = "toy"

    def asks(self) -> frozenset[str]:
        return frozenset(tasks_of(Giver))  # its tests send messages of their own

    def init(self, rng: Streams) -> Round[Sofar]:
        return Sofar(np.zeros(2), 0)
        yield

    def round(self, state: Sofar, rng: Streams) -> Round[Sofar]:
        total, missing = state.total, ()
        for _ in range(self.exchanges):
            ask = Ask(self.task, {"t": np.array(state.t)}, self.want)
            replies = (yield from complete(ask)) if self.every_client else (yield ask)
            found = [replies.total] if isinstance(self.want, Sum) else replies.each.values()
            total, missing = sum((arrays["x"] for arrays in found), total), replies.missing
        return Sofar(total, state.t + 1, missing)

    def done(self, state: Sofar) -> bool:
        return state.t >= self.stop

    def estimate(self, state: Sofar) -> Array:
        return state.total

    def metrics(self, state: Sofar) -> dict[str, float]:
        return {"t": float(state.t)}


CLIENTS = {"ada": 1.0, "bo": 2.0, "cy": 3.0}
