"""Which solver, and why: a small cost model in seconds.

A round costs its latency, its bytes divided by the bandwidth, and the clients' arithmetic. The rates are those of two
ordinary cores; only their ratios matter. Solvers that show the server more than a sum over clients (davidson, uda, wda)
are never chosen automatically: people must decide that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedspan.algorithms import FedPower, Gram, Krylov
from fedspan.algorithms.spectral.oneshot import lanczos_vectors, prefers_lanczos
from fedspan.algorithms.spectral.wide_blocks import first_width, later_width
from fedspan.core.protocol import Server
from fedspan.errors import InputError
from fedspan.numerics.operators import FILLED

_GEMM, _THIN, _EIGH = 7e10, 2.7e10, 1.5e10  # flop/s: Gram matrices, products with few columns, eigendecompositions
_VECTOR, _SPARSE, _SPARSE_GRAM = 4e9, 1e9, 2e8  # the same of single vectors, sparse products and sparse Gram matrices
_KRYLOV_ROUNDS = 6  # seen on hard and easy spectra at tol = 1e-6: 4 to 7, and the opening
_LANCZOS_RESTARTS = 3
_OPENING_BLOCKS, _OPENING_MORE = 4, 8  # a client's products for its part of the opening: that many, of k + 8 columns


@dataclass(frozen=True)
class ProblemSize:
    """What is known before the first message: features, components, clients, rows of all clients (estimated)."""

    d: int
    k: int
    clients: int
    rows: int
    partial: bool = False  # some clients take part in each round
    local_steps: bool = False  # local iterations between communications were requested
    density: float = 1.0  # the share of entries that are stored, if rows are sparse

    @property
    def krylov_columns(self) -> int:
        """What krylov multiplies in all."""
        return first_width("auto", self.d, self.k) + (_KRYLOV_ROUNDS - 2) * later_width(self.k)


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
        whole, thin = problem.d * (problem.d + 1) // 2, problem.d * later_width(problem.k)
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
        arithmetic = _price_gram_matrices(p) + _price_eigenpairs(p)
        return arithmetic + self._estimate_transfer(p.clients * p.d * (p.d + 1) / 2, 1)

    def _estimate_krylov(self, p: ProblemSize) -> float:
        columns = p.krylov_columns
        searched = columns + _OPENING_BLOCKS * (p.k + _OPENING_MORE)  # by each client, at home
        rate = _THIN if p.density == 1 else _SPARSE
        by_rows = 4 * p.rows * p.d * p.density * searched / rate
        by_gram = _price_gram_matrices(p) + 2 * p.clients * p.d**2 * searched / _THIN
        at_server = 0.0
        for t in range(_KRYLOV_ROUNDS - 1):
            m = min(first_width("auto", p.d, p.k) + t * later_width(p.k), p.d)
            at_server += (10 * p.d * m**2 + 9 * m**3) / _EIGH  # Nyström's vectors, and those of T
        return (
            min(by_rows, by_gram) + at_server + self._estimate_transfer(2 * p.clients * p.d * columns, _KRYLOV_ROUNDS)
        )


def _price_gram_matrices(p: ProblemSize) -> float:
    if p.density > FILLED:
        return p.rows * p.d**2 / _GEMM
    return p.rows * (p.d * p.density) ** 2 / _SPARSE_GRAM + p.clients * p.d**2 / _VECTOR


def _price_eigenpairs(p: ProblemSize) -> float:
    """As the server of gram finds them: Lanczos and a Cholesky factor as the proof, or all of the decomposition."""
    if prefers_lanczos(p.d, p.k):
        return 2 * p.d**2 * lanczos_vectors(p.k) * _LANCZOS_RESTARTS / _VECTOR + p.d**3 / 3 / _GEMM
    return 4 / 3 * p.d**3 / _EIGH
