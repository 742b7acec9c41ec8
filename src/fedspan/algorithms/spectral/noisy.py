"""Eigenspaces under differential privacy: one noisy Gram matrix, or a few noisy products with a wide block.

`NoisyGram` is Analyze Gauss, with √2 less noise off the diagonal and at each client instead of at a curator:
    C. Dwork, K. Talwar, A. Thakurta, L. Zhang. Analyze Gauss: optimal bounds for privacy-preserving principal component
    analysis. STOC, 2014. https://doi.org/10.1145/2591796.2591883
`NoisyPower` is the noisy power method:
    M. Hardt, E. Price. The noisy power method: a meta algorithm with applications. NeurIPS, 2014.
    https://arxiv.org/abs/1311.2495

Notation: b a row after centering, shortened to norm C, M = Σ bbᵀ (d, d), G its triangle with what is off the diagonal
times √2, so that ‖G‖ = ‖M‖_F; Z (d, w) orthonormal, Y = M Z. One row more or less changes G by at most ‖bbᵀ‖_F ≤ C²
and Y by ‖bbᵀZ‖_F ≤ C², however wide Z is. The noise is not added here but at each client's door (privacy/guard.py);
in M it is σ(N + Nᵀ)/2 with N of independent standard normal entries, which is √2 less than with a triangle of σN.

What the server sees, all of it with noise: the number of rows and of those that were too long, the sum of the rows if
they are centered, and G; or for the block their energy tr(M), and Y in every round.

Why these: each release costs budget, so one exact release of M beats many of M Z where d² numbers can be sent; for
larger d the block is as wide as can be sent and takes two rounds. Rayleigh-Ritz over the pairs of several rounds
(krylov) mixes their noise and is worse than the last pair alone; power iterations with a narrow Z (ssi, fedpower) are
for comparison, with one local step: what more of them release has no known sensitivity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy.linalg

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import Moments, RowsClient, Shift
from fedspan.algorithms.spectral._eigenspace import Spectral
from fedspan.algorithms.spectral.oneshot import pack_triangle, unpack_triangle
from fedspan.algorithms.spectral.power import PowerState
from fedspan.core.protocol import Ask, Client, Release, Round, Sensitivity, Sum, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import orthonormalize, random_orthonormal


class PrivateClient(RowsClient):
    """A client whose rows are shortened to a public norm. Its tasks remember nothing: the mean comes with each."""

    def __init__(self, data: object, columns: int = 0, row_norm: float | None = None) -> None:
        super().__init__(data, columns)
        if row_norm is None:
            raise InputError(
                "A private run needs a public bound on the norm of a row. Give privacy=RowDP(epsilon, delta, row_norm)."
            )
        self.rows = Rows(data, row_norm)

    @task(
        releases={"n": Sensitivity(0), "longer": Sensitivity(0)},
        shows="its number of rows, and how many of them are longer than the bound",
    )
    def census(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """How many rows there are, and how many of them are longer than the bound."""
        return state, {"n": np.array(self.rows.n), "longer": np.array(self.rows.count_longer())}

    @task(releases={"total": Sensitivity(1)}, shows="its column sums")
    def add_up(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Σ b, before centering."""
        return state, {"total": self.check_finite(self.rows.sums())}

    @task(releases={"energy": Sensitivity(2)}, shows="its total sum of squares")
    def energy(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """tr(M)."""
        return state, {"energy": np.array(self.check_finite(self.rows.squares(arrays.get("mean"))).sum())}

    @task(releases={"G": Sensitivity(2)}, shows="its whole second-moment matrix")
    def triangle(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """G: the triangle of M, off the diagonal times √2."""
        M = self.rows.gram(arrays.get("mean"), None)
        M *= np.sqrt(2)
        M[np.diag_indices_from(M)] /= np.sqrt(2)
        return state, {"G": self.check_finite(pack_triangle(M))}

    @task(releases={"Y": Sensitivity(2)}, shows="products of its second-moment matrix with the server's blocks")
    def project(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """M Z, if Z is what the sensitivity holds for."""
        Z = arrays["Z"]
        if not np.linalg.norm(Z.T @ Z, 2) <= 1 + 1e-9:
            raise InputError(
                "The columns of Z must be orthonormal, because the noise is calibrated for that. Nothing was sent."
            )
        return state, {"Y": self.check_finite(self.rows.multiply(Z, arrays.get("mean"), None))}


@dataclass(frozen=True)
class NoisyState(PowerState):
    """An eigenspace, what was subtracted from the rows, and how many noisy rounds led to it."""

    n: float
    shift: dict[str, Array]
    t: int


@dataclass(frozen=True)
class _Noisy(Spectral[NoisyState]):
    """What the two share: about how many rows there are, and about where their mean is."""

    k: int = 2
    center: bool = True

    State = NoisyState
    client: ClassVar[type[Client[object]]] = PrivateClient

    def asks(self) -> frozenset[str]:
        return frozenset(release.task for release in self.planned())  # nothing else may leave a private run

    def measure(self) -> Round[tuple[float, dict[str, Array]]]:
        """Round 0: n, and the mean if rows are centered. Nobody is asked twice: it would cost."""
        n = float((yield Ask("census", want=Sum("n", "longer"))).total["n"])
        if not self.center:
            return max(n, 2.0), {}
        total = (yield Ask("add_up", want=Sum("total"))).total["total"]
        return max(n, 2.0), {"mean": total / max(n, 2.0)}

    def planned_opening(self) -> tuple[Release, ...]:
        """What `measure` releases, with its shares of the budget."""
        mean = (Release("add_up", "total", 1, 0.04),) if self.center else ()
        return (Release("census", "n", 1, 0.005), Release("census", "longer", 1, 0.005), *mean)

    def metrics(self, state: NoisyState) -> dict[str, float]:
        return {"objective": float(state.theta.sum())} if state.t else {}


def _noisy_moments(n: float, mean: Array, trace: float, clients: int) -> Moments:
    return Moments(round(n), mean, np.ones(len(mean)), max(trace, np.finfo(float).tiny), clients)


@dataclass(frozen=True)
class NoisyGram(_Noisy):
    """One round, d(d+1)/2 numbers from each client."""

    def planned(self) -> tuple[Release, ...]:
        return (*self.planned_opening(), Release("triangle", "G", 1, 0.95 if self.center else 0.99))

    def init(self, rng: Streams) -> Round[NoisyState]:
        n, shift = yield from self.measure()
        nothing = np.zeros((0, 0))
        moments = Moments(round(n), np.zeros(0), np.zeros(0), 0.0)
        return NoisyState(moments, nothing, np.zeros(0), np.inf, next=nothing, n=n, shift=shift, t=0)

    def round(self, state: NoisyState, rng: Streams) -> Round[NoisyState]:
        replies = yield Ask("triangle", state.shift, Sum("G"))
        M = unpack_triangle(replies.total["G"] / np.sqrt(2))
        M[np.diag_indices_from(M)] *= np.sqrt(2)
        d = len(M)
        if self.k > d:
            raise InputError(f"There are {d} features, so there can be at most {d} components, but k is {self.k}.")
        theta, Z = scipy.linalg.eigh(M, subset_by_index=[d - self.k, d - 1])
        moments = _noisy_moments(state.n, state.shift.get("mean", np.zeros(d)), float(np.trace(M)), len(replies.asked))
        return replace(state, moments=moments, Z=Z[:, ::-1], theta=theta[::-1], kkt=np.nan, t=1)

    def done(self, state: NoisyState) -> bool:
        return state.t == 1


@dataclass(frozen=True)
class NoisyPower(_Noisy):
    """`rounds` products with a block of `width` columns: a wide one for two rounds, or the papers' narrow one for many.

    The sensitivity does not depend on the width, and the noise on all columns is the same: so the wider the better.
    """

    d: int = 0  # the number of features: the start must be known before any data is seen
    width: int | None = None  # None: ten for each component
    rounds: int = 2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, but is {self.rounds!r}.")
        if self.width is not None and self.width < self.k:
            raise InputError(f"width must be at least the {self.k} components, but is {self.width!r}.")

    def planned(self) -> tuple[Release, ...]:
        main = 0.94 if self.center else 0.98
        products = Release("project", "Y", self.rounds, main)
        return (*self.planned_opening(), Release("energy", "energy", 1, 0.01), products)

    def init(self, rng: Streams) -> Round[NoisyState]:
        n, shift = yield from self.measure()
        trace = float((yield Ask("energy", shift, Sum("energy"))).total["energy"])
        Z = random_orthonormal(rng("start"), self.d, min(10 * self.k if self.width is None else self.width, self.d))
        moments = _noisy_moments(n, shift.get("mean", np.zeros(self.d)), trace, 1)
        return NoisyState(moments, Z[:, : self.k], np.zeros(self.k), np.inf, next=Z, n=n, shift=shift, t=0)

    def round(self, state: NoisyState, rng: Streams) -> Round[NoisyState]:
        Z = state.next
        Y = (yield Ask("project", {"Z": Z, **state.shift}, Sum("Y"))).total["Y"]
        U, s, _ = np.linalg.svd(Y, full_matrices=False)
        return replace(state, next=orthonormalize(Y), Z=U[:, : self.k], theta=s[: self.k], kkt=np.nan, t=state.t + 1)

    def done(self, state: NoisyState) -> bool:
        return state.t >= self.rounds
