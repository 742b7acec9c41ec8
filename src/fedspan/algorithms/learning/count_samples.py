"""How many samples there are, with noise: what a private classifier must know before it draws and averages.

What the server sees: the number of all clients' rows, with noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedspan.algorithms.learning._samples import SampleClient
from fedspan.algorithms.spectral.noisy import CENSUS_SHARE
from fedspan.algorithms.spectral.private_bounds import Bounds, NoisedOpening
from fedspan.core.protocol import Ask, Client, Release, Round, Sum
from fedspan.core.rng import Streams


@dataclass(frozen=True)
class CountSamples(NoisedOpening):
    """One exchange, for a hundredth of the budget."""

    client: ClassVar[type[Client[object]]] = SampleClient
    family: ClassVar[str] = "learning"

    def planned(self) -> tuple[Release, ...]:
        return (Release("tally", "n", 1, CENSUS_SHARE),)

    def init(self, rng: Streams) -> Round[Bounds]:
        return Bounds(max(float((yield Ask("tally", want=Sum("n"))).total["n"]), 2.0))
