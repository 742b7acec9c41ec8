"""What a private run finds out first, for a small part of its budget: how many rows there are, and how long they are.

Notation: C the norm to which rows are shortened. `Census` counts the rows, and those that are longer than C; or, if C
is to be found, it takes a noised histogram of the lengths. `PrivateMean` finds the mean of rows that are shortened to a
bound of their own, and then how far the rows are from it.

What the server sees, all of it with noise: these numbers and histograms, and the sum of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.spectral.noisy import CENSUS_SHARE, MEAN_SHARE, PrivateClient, planned_census
from fedspan.core.protocol import Ask, Client, Course, Release, Replay, Round, Server, Sum, Turn
from fedspan.core.replay import CLOSE, Comparison
from fedspan.core.rng import Streams
from fedspan.privacy.quantile import find_quantile

LENGTHS_SHARE = 0.03  # of the budget μ², for each histogram
QUANTILE = 0.9  # of the rows' lengths: the others are shortened


@dataclass(frozen=True)
class Bounds:
    """What was found. `norm` is infinite if it was not asked for, and `longer` not a number if it is not known."""

    n: float
    longer: float = np.nan
    norm: float = np.inf
    mean: Array | None = None
    by_class: Array | None = None  # about how many rows each class has


def find_bound(bins: Array) -> float:
    """The length that most rows do not exceed, from a noised histogram; empty bins show how large the noise is."""
    below = bins[bins < 0]
    return find_quantile(bins, float(np.sqrt(np.mean(below**2))) if len(below) else 0.0, QUANTILE)


class NoisedOpening(Server[Bounds]):
    """A run that ends with its opening."""

    State: ClassVar[type] = Bounds
    client: ClassVar[type[Client[object]]] = PrivateClient
    family: ClassVar[str] = "spectral"

    def asks(self) -> frozenset[str]:
        return frozenset(release.task for release in self.planned())

    def course(self) -> Course:
        return Course(tuple(Turn(task) for task in dict.fromkeys(release.task for release in self.planned())))

    def replay(self) -> Replay | str:
        """All that is sent is the mean, which follows from a sum and from the number of rows in the options."""
        told: dict[str, Comparison] = {"mean": CLOSE}
        return {task: told if task == "lengths" else {} for task in self.asks()}

    def round(self, state: Bounds, rng: Streams) -> Round[Bounds]:
        yield from ()
        return state

    def done(self, state: Bounds) -> bool:
        return True

    def estimate(self, state: Bounds) -> Array:
        return np.array([state.n])

    def metrics(self, state: Bounds) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Census(NoisedOpening):
    """The number of rows, and of those that are too long, if there is a bound; a histogram of lengths, if `search`."""

    search: bool = False
    bounded: bool = True

    def planned(self) -> tuple[Release, ...]:
        if self.bounded and not self.search:
            return planned_census()
        tally = Release("tally", "n", 1, CENSUS_SHARE)
        return (tally, Release("lengths", "bins", 1, LENGTHS_SHARE)) if self.search else (tally,)

    def init(self, rng: Streams) -> Round[Bounds]:
        if self.bounded and not self.search:
            total = (yield Ask("census", want=Sum("n", "longer"))).total
            return Bounds(max(float(total["n"]), 2.0), float(total["longer"]))
        n = float((yield Ask("tally", want=Sum("n"))).total["n"])
        if not self.search:
            return Bounds(max(n, 2.0))
        bins = (yield Ask("lengths", want=Sum("bins"))).total["bins"]
        return Bounds(max(n, 2.0), norm=find_bound(bins))


@dataclass(frozen=True)
class PrivateMean(NoisedOpening):
    """The mean of rows that are shortened to a bound of their own; and how far rows are from it, if `search`."""

    search: bool = False
    prior: float = 2.0  # about how many rows there are

    def planned(self) -> tuple[Release, ...]:
        mean = Release("add_up", "total", 1, MEAN_SHARE)
        return (mean, Release("lengths", "bins", 1, LENGTHS_SHARE)) if self.search else (mean,)

    def course(self) -> Course:
        lengths = (Turn("lengths", after=["add_up"], tells=["mean"]),) if self.search else ()
        return Course((Turn("add_up"), *lengths))

    def init(self, rng: Streams) -> Round[Bounds]:
        mean = (yield Ask("add_up", want=Sum("total"))).total["total"] / self.prior
        if not self.search:
            return Bounds(self.prior, mean=mean)
        bins = (yield Ask("lengths", {"mean": mean}, Sum("bins"))).total["bins"]
        return Bounds(self.prior, norm=find_bound(bins), mean=mean)
