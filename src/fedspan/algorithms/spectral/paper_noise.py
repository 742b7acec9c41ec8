"""FedPower with the noise of its Algorithm 2, as the paper has it: to reproduce its Table 3, not to protect rows.

Notation as in fedpower.py; c₁ = √(2 ln(1.25/δ))/ε₁ and c₂ the same with ε₂, for one communication. A client sends
s_i(Y_i D_i + ‖Z_i‖_max·c₁/s_i·N), the server goes on with Y + ‖Z‖_max·c₂/n·N', N and N' of standard normal entries.

Why it is not sound, and PaperDP warns of it: (a) the proof holds Z_i fixed, but with p > 1 it depends on the private
rows since the last synchronisation; (b) it bounds one column of the release and stacks r of them, which is up to √r
more; its neighbours differ in one entry of AᵀA, not in one row; ‖Z_i‖_max is itself read from private iterates; and
the baseline device shows its Z_1 without noise. The ledger's ε for such a run is infinite.

Differs from the paper: ε₁ and ε₂ are per communication, as in its experiments, instead of divided by the rounds; the
server scales by ‖Z‖_max of what it broadcast, since it does not see Z_i D_i. The noise is drawn from the run's keyed
streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import Shift
from fedspan.algorithms.spectral.fedpower import FedPower, FedPowerClient
from fedspan.core.protocol import Client, task
from fedspan.core.rng import Streams
from fedspan.numerics.orthonormal import orthonormal


def paper_deviation(epsilon: float, delta: float) -> float:
    """c = √(2 ln(1.25/δ))/ε."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


class PaperNoiseClient(FedPowerClient):
    """A FedPower client that adds the paper's noise to what it sends. No sensitivity is declared: none is known."""

    def __init__(self, data: Any, columns: int = 0, align: str = "opt", c1: float = 0.0) -> None:
        super().__init__(data, columns, align)
        self.c1 = c1

    def perturb(self, Y: Array, Z_i: Array, rng: Streams) -> Array:
        return Y + rng("paper noise").normal(size=Y.shape) * (float(np.abs(Z_i).max()) * self.c1)  # Alg. 2, line 6

    @task(releases={"Y": None})
    def multiply(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        return state, {"Y": self.perturb(self.product(state, arrays["Z"]), arrays["Z"], rng)}


@dataclass(frozen=True)
class PaperNoise(FedPower):
    """FedPower with noise at the clients (ε₁) and at the server (ε₂), δ for both."""

    epsilon1: float = 1.0
    epsilon2: float = 1.0
    delta: float = 0.01

    client: type[Client] = PaperNoiseClient  # type: ignore[type-arg]

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {**super().client_options(), "c1": paper_deviation(self.epsilon1, self.delta)}

    def orth(self, Y: Array) -> Array:
        return orthonormal(Y)  # the paper's: ‖Z‖_max, which scales the noise, depends on the basis

    def perturb(self, Y: Array, Z: Array, n: int, rng: Streams) -> Array:
        deviation = float(np.abs(Z).max()) * paper_deviation(self.epsilon2, self.delta) / n
        return Y + rng("paper noise").normal(size=Y.shape) * deviation  # Alg. 2, line 7
