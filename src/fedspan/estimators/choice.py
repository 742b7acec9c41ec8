"""Which solver, and why: a small cost model in seconds.

A round costs its latency, its bytes divided by the bandwidth, and the clients' arithmetic. The rates are those of two
ordinary cores; only their ratios matter. Solvers that show the server more than a sum over clients (davidson, uda, wda)
are never chosen automatically: people must decide that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedspan.algorithms import FedPower, Gram, Krylov
from fedspan.core.protocol import Server
from fedspan.errors import InputError

_GEMM, _THIN, _EIGH = 7e10, 2.7e10, 1.5e10  # flop/s: Gram matrices, products with few columns, eigendecompositions
_KRYLOV_ROUNDS = 14  # seen on hard and easy spectra at tol = 1e-6: 8 to 14


@dataclass(frozen=True)
class ProblemSize:
    """What is known before the first message: features, components, clients, rows of all clients (estimated)."""

    d: int
    k: int
    clients: int
    rows: int
    partial: bool = False  # some clients take part in each round
    local_steps: bool = False  # local iterations between communications were requested


@dataclass(frozen=True)
class Auto:
    """Choose the solver by its expected time. By default messages cost nothing, as inside one process.

    Parameters:
        bandwidth: Bytes per second at the server, or None for no limit.
        latency: Seconds per round.
    """

    bandwidth: float | None = None
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise InputError(f"bandwidth must be above 0 bytes per second, but is {self.bandwidth!r}.")
        if not self.latency >= 0:
            raise InputError(f"latency must be 0 seconds or more, but is {self.latency!r}.")

    def choose(self, problem: ProblemSize) -> tuple[Server[Any], str]:
        """A solver, and a phrase on why it was chosen."""
        if problem.partial:
            return FedPower(), "only some clients take part in each round"
        if problem.local_steps:
            return FedPower(), "local steps were requested"
        gram, krylov = self._estimate_gram(problem), self._estimate_krylov(problem)
        whole, thin = problem.d * (problem.d + 1) // 2, problem.d * problem.k
        if gram <= krylov:
            return Gram(), (
                f"one exact round of {whole:,} numbers per client should be faster ({gram:.2g} s) than about "
                f"{_KRYLOV_ROUNDS} krylov rounds of {thin:,} ({krylov:.2g} s)"
            )
        return Krylov(), (
            f"about {_KRYLOV_ROUNDS} rounds of {thin:,} numbers per client should be faster ({krylov:.2g} s) than one "
            f"exact round of {whole:,} ({gram:.2g} s)"
        )

    def _estimate_transfer(self, numbers: float, rounds: int) -> float:
        return rounds * self.latency + (8 * numbers / self.bandwidth if self.bandwidth else 0.0)

    def _estimate_gram(self, p: ProblemSize) -> float:
        arithmetic = p.rows * p.d**2 / _GEMM + 4 / 3 * p.d**3 / _EIGH
        return arithmetic + self._estimate_transfer(p.clients * p.d * (p.d + 1) / 2, 1)

    def _estimate_krylov(self, p: ProblemSize) -> float:
        columns = _KRYLOV_ROUNDS * p.k
        by_rows = 4 * p.rows * p.d * columns / _THIN
        by_gram = p.rows * p.d**2 / _GEMM + 2 * p.clients * p.d**2 * columns / _THIN
        basis = 4 * p.d * (12 * p.k) ** 2 * _KRYLOV_ROUNDS / _GEMM
        return min(by_rows, by_gram) + basis + self._estimate_transfer(2 * p.clients * p.d * columns, _KRYLOV_ROUNDS)
