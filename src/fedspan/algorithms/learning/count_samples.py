"""How many samples there are: with noise, for a private classifier; by class, for weights that balance the classes.

What the server sees: the number of all clients' rows, with noise; or how many of them each class has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._samples import SampleClient
from fedspan.algorithms.spectral.noisy import CENSUS_SHARE
from fedspan.algorithms.spectral.private_bounds import Bounds, NoisedOpening
from fedspan.core.protocol import Ask, Client, Needs, Release, Replay, Round, Server, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError

MOST_CLASSES = 100_000


@dataclass(frozen=True)
class CountSamples(NoisedOpening):
    """One exchange, for a hundredth of the budget."""

    client: ClassVar[type[Client[object]]] = SampleClient
    family: ClassVar[str] = "learning"

    def planned(self) -> tuple[Release, ...]:
        return (Release("tally", "n", 1, CENSUS_SHARE),)

    def init(self, rng: Streams) -> Round[Bounds]:
        return Bounds(max(float((yield Ask("tally", want=Sum("n"))).total["n"]), 2.0))


class LabelClient(Client[None]):
    """A client that counts its labels. `data` is (X, y, …), of which y are the numbers of classes."""

    State: ClassVar[type] = type(None)
    needs: ClassVar[Needs] = "labelled"

    def __init__(self, data: tuple[object, ...], classes: int = 0) -> None:
        self.y, self.classes = np.asarray(data[1], dtype=np.int64), classes

    def init(self) -> None:
        return None

    @task(releases={"counts": None}, shows="how many of its rows each class has")
    def count_labels(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The rows of each class, (L,)."""
        known = self.y[self.y < self.classes]  # so that the shape says nothing of the labels
        return state, {"counts": np.bincount(known, minlength=self.classes)}


@dataclass(frozen=True)
class ClassCounts:
    """What was found."""

    counts: Array  # (L,)


@dataclass(frozen=True)
class CountClasses(Server[ClassCounts]):
    """One sum: how many rows of all clients each class has. Nothing else is asked."""

    classes: int = 2

    State: ClassVar[type] = ClassCounts
    client: ClassVar[type[Client[object]]] = LabelClient
    family: ClassVar[str] = "learning"

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= MOST_CLASSES:
            raise InputError(f"There must be from 1 to {MOST_CLASSES} classes, but there are {self.classes}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"classes": self.classes}

    def asks(self) -> frozenset[str]:
        return frozenset({"count_labels"})

    def replay(self) -> Replay | str:
        """Nothing is sent with the question."""
        return {"count_labels": {}}

    def init(self, rng: Streams) -> Round[ClassCounts]:
        return ClassCounts((yield from complete(Ask("count_labels", want=Sum("counts")))).total["counts"])

    def round(self, state: ClassCounts, rng: Streams) -> Round[ClassCounts]:
        yield from ()
        return state

    def done(self, state: ClassCounts) -> bool:
        return True

    def estimate(self, state: ClassCounts) -> Array:
        return state.counts

    def metrics(self, state: ClassCounts) -> dict[str, float]:
        return {}
