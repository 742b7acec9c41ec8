"""Which solver, and why: a small cost model in seconds.

A round costs its latency, its bytes over the bandwidth, and the clients' arithmetic. Rates are those of two ordinary
cores; only ratios matter here. Solvers that show the server more than a sum over clients (davidson, uda, wda) are
never chosen: that is for people to decide.
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
class Problem:
    """What is known before the first message: features, components, clients, rows of all clients (estimated)."""

    d: int
    k: int
    clients: int
    rows: int
    partial: bool = False  # some clients take part in each round
    local_steps: bool = False  # asked for local iterations between communications


@dataclass(frozen=True)
class Auto:
    """Choose the solver by expected time. Left out, messages are free, as they are inside this process.

    Parameters:
        bandwidth: Bytes per second at the server; None: without limit.
        latency: Seconds per round.
    """

    bandwidth: float | None = None
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise InputError(f"need a bandwidth above 0 bytes per second, got {self.bandwidth!r}")
        if not self.latency >= 0:
            raise InputError(f"need a latency of 0 seconds or more, got {self.latency!r}")

    def choose(self, problem: Problem) -> tuple[Server[Any], str]:
        """A solver, and one sentence on why it was taken."""
        if problem.partial or problem.local_steps:
            what = "only some clients take part in a round" if problem.partial else "local steps are asked for"
            return FedPower(), f"{what}, which is what fedpower is for"
        gram, krylov = self._gram(problem), self._krylov(problem)
        d, k = problem.d, problem.k
        if gram <= krylov:
            return Gram(), (
                f"one exact round of d(d+1)/2 = {d * (d + 1) // 2:,} numbers per client should take {gram:.2g} s, "
                f"krylov's rounds of d·k = {d * k:,} numbers {krylov:.2g} s"
            )
        return Krylov(), (
            f"about {_KRYLOV_ROUNDS} rounds of d·k = {d * k:,} numbers per client should take {krylov:.2g} s, "
            f"one round of gram with d(d+1)/2 = {d * (d + 1) // 2:,} numbers {gram:.2g} s"
        )

    def _transfer(self, numbers: float, rounds: int) -> float:
        return rounds * self.latency + (8 * numbers / self.bandwidth if self.bandwidth else 0.0)

    def _gram(self, p: Problem) -> float:
        arithmetic = p.rows * p.d**2 / _GEMM + 4 / 3 * p.d**3 / _EIGH
        return arithmetic + self._transfer(p.clients * p.d * (p.d + 1) / 2, 1)

    def _krylov(self, p: Problem) -> float:
        columns = _KRYLOV_ROUNDS * p.k
        by_rows = 4 * p.rows * p.d * columns / _THIN
        by_gram = p.rows * p.d**2 / _GEMM + 2 * p.clients * p.d**2 * columns / _THIN
        basis = 4 * p.d * (12 * p.k) ** 2 * _KRYLOV_ROUNDS / _GEMM
        return min(by_rows, by_gram) + basis + self._transfer(2 * p.clients * p.d * columns, _KRYLOV_ROUNDS)
