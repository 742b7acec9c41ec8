"""How many samples there are, with noise: what a private classifier must know before it draws, weighs and averages.

What the server sees: the number of all clients' rows, and of those of each class if classes are to be weighed by it;
with noise in private runs, as exact sums in others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspan._types import Array
from fedspan.algorithms.learning._samples import SampleClient
from fedspan.algorithms.spectral.noisy import CENSUS_SHARE
from fedspan.algorithms.spectral.private_bounds import Bounds, NoisedOpening
from fedspan.core.protocol import Ask, Client, Course, Release, Replay, Round, Server, Sum, Turn, complete
from fedspan.core.rng import Streams
from fedspan.errors import InputError

MOST_CLASSES = 100_000
CLASSES_SHARE = 0.01  # of the budget μ²


@dataclass(frozen=True)
class CountSamples(NoisedOpening):
    """One exchange, for a hundredth of the budget; a second one for as much, if there are `classes` to count."""

    classes: int = 0

    client: ClassVar[type[Client[object]]] = SampleClient
    family: ClassVar[str] = "learning"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"classes": self.classes}

    def planned(self) -> tuple[Release, ...]:
        total = Release("tally", "n", 1, CENSUS_SHARE)
        return (total, Release("count_classes", "rows", 1, CLASSES_SHARE)) if self.classes else (total,)

    def init(self, rng: Streams) -> Round[Bounds]:
        n = max(float((yield Ask("tally", want=Sum("n"))).total["n"]), 2.0)
        if not self.classes:
            return Bounds(n)
        return Bounds(n, by_class=(yield Ask("count_classes", want=Sum("rows"))).total["rows"])


@dataclass(frozen=True)
class ClassCounts:
    """What was found."""

    counts: Array  # (L,)


@dataclass(frozen=True)
class CountClasses(Server[ClassCounts]):
    """One sum: how many rows of all clients each class has. Nothing else is asked."""

    classes: int = 2

    State: ClassVar[type] = ClassCounts
    client: ClassVar[type[Client[object]]] = SampleClient
    family: ClassVar[str] = "learning"

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= MOST_CLASSES:
            raise InputError(f"There must be from 1 to {MOST_CLASSES} classes, but there are {self.classes}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"classes": self.classes}

    def asks(self) -> frozenset[str]:
        return frozenset({"count_classes"})

    def course(self) -> Course:
        return Course((Turn("count_classes"),))

    def replay(self) -> Replay | str:
        """Nothing is sent with the question."""
        return {"count_classes": {}}

    def init(self, rng: Streams) -> Round[ClassCounts]:
        return ClassCounts((yield from complete(Ask("count_classes", want=Sum("rows")))).total["rows"])

    def round(self, state: ClassCounts, rng: Streams) -> Round[ClassCounts]:
        yield from ()
        return state

    def done(self, state: ClassCounts) -> bool:
        return True

    def estimate(self, state: ClassCounts) -> Array:
        return state.counts

    def metrics(self, state: ClassCounts) -> dict[str, float]:
        return {}
