"""How many samples there are, with noise: what a private classifier must know before it draws, weighs and averages.

What the server sees, all of it with noise: the number of all clients' rows, and of those of each class if classes are
to be weighed by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspan.algorithms.learning._samples import SampleClient
from fedspan.algorithms.spectral.noisy import CENSUS_SHARE
from fedspan.algorithms.spectral.private_bounds import Bounds, NoisedOpening
from fedspan.core.protocol import Ask, Client, Release, Round, Sum
from fedspan.core.rng import Streams

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
