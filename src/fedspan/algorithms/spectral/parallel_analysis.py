"""Parallel analysis: how large the first component of rows is that have nothing in common but their sizes.

    J. L. Horn. A rationale and test for the number of factors in factor analysis. Psychometrika, 1965.
    https://doi.org/10.1007/BF02289447
    D. Hong, Y. Sheng, E. Dobriban. Selecting the number of components in PCA via random signflips. arXiv, 2020.
    https://arxiv.org/abs/2012.02985

Notation: B_i the rows of client i around their own mean, scaled; E_it random signs that client i keeps to itself;
N_t = Σ_i (E_it∘B_i)ᵀ(E_it∘B_i), (d, d), for t = 1 … T; φ_t the largest eigenvalue of N_t; Q_t (d, m) an orthonormal
basis, V_t (d, w) the next block.

Entries keep their sizes, so columns of different variance and clients that vary more than others are as they were. What
differs between the means of clients is not noise, so each subtracts its own: permuting the columns of commonly centred
rows within a client, Horn's way, would keep these differences, and hide components behind them.

Block Krylov runs for all T tables at once and ends when no φ_t grows by more than `tol`, relative to itself: relative
to tr(N), as `tol` is elsewhere, a flat spectrum would end it too early.

What the server sees: the opening (_moments.py), and sums over the clients of N_it V_t. The signs follow from the
client's own rows and the run's seed, so that a run repeats and yet the server does not know them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import Moments, RowsClient, Shift, measure, measure_tasks, measure_turns
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.numerics.orthonormal import orthonormalize
from fedspan.numerics.pca_model.sign_flips import FlippedRows
from fedspan.numerics.rayleigh_ritz import extension, rayleigh_ritz


class FlippedClient(RowsClient):
    """A client that flips the signs of its shifted rows."""

    def __init__(self, data: object, tables: int = 10) -> None:
        super().__init__(data)
        self.tables = tables
        self._flipped: FlippedRows | None = None

    @task(
        releases={"Y": None},
        shows="products of second moments of its rows under random signs, which it keeps to itself",
    )
    def multiply_flipped(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """N_it V_t for every t."""
        if self._flipped is None:
            key = self.rows.digest() + rng.seed.to_bytes(16, "little")
            self._flipped = FlippedRows(self.rows, self.tables, key)
        return state, {"Y": self._flipped.multiply(arrays["V"], state.mean, state.scale)}


@dataclass(frozen=True)
class NullState:
    """What flipped tables have: φ (T,), the largest sums of squares along one direction."""

    moments: Moments
    largest: Array
    exchanges: int


@dataclass(frozen=True)
class ParallelAnalysis(Server[NullState]):
    """The first eigenvalues of `tables` flipped tables, to about `tol`; the run ends with its opening."""

    tables: int = 10
    center: bool = True
    scale: bool = False
    tol: float = 1e-3
    width: int = 2
    most: int = 60

    State: ClassVar[type] = NullState
    client: ClassVar[type[Client[object]]] = FlippedClient
    family: ClassVar[str] = "spectral"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"tables": self.tables}

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {"multiply_flipped"}

    def course(self) -> Course:
        last = Turn("multiply_flipped", most=self.most, after=["settle"])
        return Course((*measure_turns(self.center, self.scale), last))

    def replay(self) -> Replay | str:
        return "its blocks are of many eigenvalues that nearly coincide, where rounding decides what is asked next"

    def init(self, rng: Streams) -> Round[NullState]:
        moments = yield from measure(self.center, self.scale)
        d = len(moments.mean)
        width, draw = min(self.width, d), rng("null")
        V = np.stack([orthonormalize(draw.normal(size=(d, width))) for _ in range(self.tables)])
        spans = [(np.zeros((d, 0)), np.zeros((d, 0))) for _ in range(self.tables)]
        largest = np.zeros(self.tables)
        exchanges = 0
        while exchanges < self.most:
            exchanges += 1
            Y = (yield from complete(Ask("multiply_flipped", {"V": V}, Sum("Y")))).total["Y"]
            before = largest
            spans = [(np.hstack([Q, v]), np.hstack([AQ, y])) for (Q, AQ), v, y in zip(spans, V, Y, strict=True)]
            largest = np.array([rayleigh_ritz(Q, AQ, 1).theta[0] for Q, AQ in spans])
            blocks = [extension(Q, y)[0] for (Q, _), y in zip(spans, Y, strict=True)]
            width = min(block.shape[1] for block in blocks)
            if np.all(largest - before <= self.tol * largest) or width == 0:
                break
            V = np.stack([block[:, :width] for block in blocks])
        return NullState(moments, largest, exchanges)

    def round(self, state: NullState, rng: Streams) -> Round[NullState]:
        yield from ()
        return state

    def done(self, state: NullState) -> bool:
        return True

    def estimate(self, state: NullState) -> Array:
        return state.largest

    def metrics(self, state: NullState) -> dict[str, float]:
        return {}
