"""Eigenspaces under differential privacy: a noisy Gram matrix, refined or not, or noisy products with a wide block.

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
from fedspan.core.protocol import Ask, Client, Course, Release, Replay, Round, Sensitivity, Sum, Turn, task
from fedspan.core.replay import CLOSE, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError, PrivacyError
from fedspan.numerics.operators import Rows, WeightedRows
from fedspan.numerics.orthonormal import orthonormalize, random_orthonormal
from fedspan.privacy.quantile import count_in_bins, find_quantile
from fedspan.privacy.release import HISTOGRAM

CENSUS_SHARE, MEAN_SHARE = 0.01, 0.04  # of the budget μ²
WIDE_BLOCK = 40  # columns for each component
_CUT = 0.5  # of the rows' parts are cut by `refine`
_FAR = 1e12  # row norms: a noised mean of few rows may be long


class PrivateClient(RowsClient):
    """A client whose rows are shortened to a public norm; with `unit`, all of them get it.

    Its tasks remember nothing: the mean comes with each. No sensitivity depends on `unit`: it is the server's choice.
    """

    def __init__(self, data: object, columns: int = 0, row_norm: float | None = None, unit: bool = False) -> None:
        super().__init__(data, columns)
        if row_norm is None:
            raise InputError(
                "A private run needs a public bound on the norm of a row. Give privacy=RowDP(epsilon, delta, row_norm)."
            )
        self.rows, self.norm = Rows(_cut_weights(data), row_norm, unit=unit), row_norm

    @task(
        releases={"n": Sensitivity(0), "longer": Sensitivity(0)},
        shows="its number of rows, and how many of them are longer than the bound",
    )
    def census(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """How many rows there are (with weights, their sum), and how many of them are longer than the bound."""
        return state, {"n": np.array(self.rows.total), "longer": np.array(self.rows.count_longer())}

    @task(releases={"n": Sensitivity(0)}, shows="its number of rows")
    def tally(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """How many rows there are, where no bound is known yet."""
        return state, {"n": np.array(self.rows.total)}

    @task(releases={"bins": HISTOGRAM}, shows="how many of its rows have which length")
    def lengths(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """A histogram of ‖b‖ before rows are shortened."""
        return state, {"bins": count_in_bins(self.rows.norms(self.check_mean(arrays)))}

    @task(releases={"bins": HISTOGRAM}, shows="how many of its rows contribute how much to the components")
    def reach(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """A histogram of ‖b‖·‖Zᵀb‖/C²."""
        reaches = self.rows.reaches(self.check_block(arrays), self.check_mean(arrays))
        return state, {"bins": count_in_bins(reaches / self.norm**2)}

    @task(
        releases={"Y": Sensitivity(2, replaced=2.0)},
        shows="products of its second-moment matrix with the server's block, each row's part cut to a bound",
    )
    def refine(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Σ s·bbᵀZ / cut with ‖s·bbᵀZ‖ ≤ cut·C²: so one row changes it by at most C²."""
        cut = float(arrays["cut"]) if arrays["cut"].ndim == 0 else 0.0
        if not 1e-9 <= cut <= 1:
            raise PrivacyError("The cut must be a number from 1e-9 to 1. Nothing was sent.")
        Z, mean = self.check_block(arrays), self.check_mean(arrays)
        return state, {"Y": self.rows.multiply_clipped(Z, mean, cut * self.norm**2) / cut}

    @task(releases={"total": Sensitivity(1)}, shows="its column sums")
    def add_up(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Σ b, before centering."""
        return state, {"total": self.rows.sums()}

    @task(releases={"energy": Sensitivity(2)}, shows="its total sum of squares")
    def energy(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """tr(M)."""
        return state, {"energy": np.array(self.rows.squares(self.check_mean(arrays)).sum())}

    @task(releases={"G": Sensitivity(2)}, shows="its whole second-moment matrix")
    def triangle(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """G: the triangle of M, off the diagonal times √2."""
        M = self.rows.gram(self.check_mean(arrays), None)
        M *= np.sqrt(2)
        M[np.diag_indices_from(M)] /= np.sqrt(2)
        return state, {"G": pack_triangle(M)}

    @task(releases={"Y": Sensitivity(2)}, shows="products of its second-moment matrix with the server's blocks")
    def project(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """M Z, if Z is what the sensitivity holds for."""
        Z = self.check_block(arrays)
        return state, {"Y": self.rows.multiply(Z, self.check_mean(arrays), None)}

    def check_mean(self, arrays: Arrays) -> Array | None:
        """The mean that the server sent, if it can be computed with, whatever the rows are."""
        mean = arrays.get("mean")
        if mean is not None and (mean.shape != (self.rows.d,) or not np.linalg.norm(mean) <= _FAR * self.norm):
            raise PrivacyError("The mean must have an entry for each column, and not be far longer than a row may be.")
        return mean

    def check_block(self, arrays: Arrays) -> Array:
        """Z, if it is what the sensitivity of M Z holds for."""
        Z = arrays["Z"]
        if Z.dtype != np.float64 or Z.ndim != 2 or len(Z) != self.rows.d or not 0 < Z.shape[1] <= len(Z):
            raise PrivacyError("Z must be a block of float64 columns, one entry for each feature. Nothing was sent.")
        if not np.linalg.norm(Z.T @ Z, 2) <= 1 + 1e-9:
            raise PrivacyError(
                "The columns of Z must be orthonormal, because the noise is calibrated for that. Nothing was sent."
            )
        return Z


def _cut_weights(data: object) -> object:
    """Rows of which none counts more than once: so one row changes a number of rows by 1, and a sum by the bound."""
    if not isinstance(data, WeightedRows):
        return data
    return WeightedRows(data.rows, np.clip(data.weights, 0.0, 1.0))


@dataclass(frozen=True)
class NoisyState(PowerState):
    """An eigenspace, what was subtracted from the rows, and how many noisy rounds led to it."""

    n: float
    shift: dict[str, Array]
    t: int


@dataclass(frozen=True)
class Known:
    """What earlier parts of a private run have found: about how many rows there are, and about where their mean is.

    Plain data, so that it is in what a site is told when a run begins: a verified site compares the mean of each
    question with it. A server that begins with another mean is not found out, but one row says no more for that: rows
    are shortened after any mean is subtracted.
    """

    n: float
    mean: tuple[float, ...] | None = None


@dataclass(frozen=True)
class _Noisy(Spectral[NoisyState]):
    """What they share: about how many rows there are, and about where their mean is.

    `counted` and `located` say that earlier parts of the run have found these, and hold them in `prior`; `spent` is the
    share of the budget μ² that those parts have used. `unit`: rows count by their directions, not by their lengths.
    """

    k: int = 2
    center: bool = True
    counted: bool = False
    located: bool = False
    spent: float = 0.0
    prior: Known | None = None
    unit: bool = False

    State = NoisyState
    client: ClassVar[type[Client[object]]] = PrivateClient

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"unit": True} if self.unit else {}

    def asks(self) -> frozenset[str]:
        return frozenset(release.task for release in self.planned())  # nothing else may leave a private run

    def course(self) -> Course:
        """What is planned, in this order: in the opening, or in as many rounds as releases are planned."""
        before = ["add_up"] if self.center and not self.located else []
        planned = {release.task: release.times for release in self.planned()}

        def take_turn(task: str, rounds: int | None = None) -> Turn:
            return Turn(task, rounds=rounds, after=before, tells=["mean"] if self.center else [])

        opening = (Turn("census"), Turn("add_up"), take_turn("energy"))
        rounds = tuple(take_turn(task, planned.get(task)) for task in ("triangle", "reach", "refine", "project"))
        return Course(*(tuple(turn for turn in part if turn.tasks[0] in planned) for part in (opening, rounds)))

    def replay(self) -> Replay | str:
        told: dict[str, Comparison] = {"mean": CLOSE}
        kinds: dict[str, dict[str, Comparison]] = {"census": {}, "add_up": {}, "energy": told, "triangle": told}
        return {task: {**kinds.get(task, {"Z": Basis(), "cut": CLOSE, **told})} for task in self.asks()}

    def measure(self) -> Round[tuple[float, dict[str, Array]]]:
        """Round 0: n, and the mean if rows are centered."""
        known = self.prior or Known(0.0)
        n = known.n if self.counted else float((yield Ask("census", want=Sum("n", "longer"))).total["n"])
        n = max(n, 2.0)
        if not self.center:
            return n, {}
        if self.located and known.mean is not None:
            return n, {"mean": np.array(known.mean)}
        total = (yield Ask("add_up", want=Sum("total"))).total["total"]
        return n, {"mean": total / n}

    def planned_opening(self) -> tuple[Release, ...]:
        """What `measure` releases, with its shares of the budget."""
        mean = (Release("add_up", "total", 1, MEAN_SHARE),) if self.center and not self.located else ()
        return (*(() if self.counted else planned_census()), *mean)

    def main_share(self) -> float:
        """What is left of the budget for the components."""
        return max(1.0 - self.spent - sum(release.share for release in self.planned_opening()), 1e-3)

    def metrics(self, state: NoisyState) -> dict[str, float]:
        return {"objective": float(state.theta.sum())} if state.t else {}


def planned_census() -> tuple[Release, ...]:
    """The number of rows, and of those that are too long."""
    return Release("census", "n", 1, CENSUS_SHARE / 2), Release("census", "longer", 1, CENSUS_SHARE / 2)


def _noisy_moments(n: float, mean: Array, trace: float, clients: int) -> Moments:
    return Moments(round(n), mean, np.ones(len(mean)), max(trace, np.finfo(float).tiny), clients)


def leading_components(M: Array, k: int) -> tuple[Array, Array]:
    """(values, vectors) of the k leading eigenpairs, the largest first."""
    d = len(M)
    if k > d:
        raise InputError(f"There are {d} features, so there can be at most {d} components, but k is {k}.")
    theta, Z = scipy.linalg.eigh(M, subset_by_index=[d - k, d - 1])
    return theta[::-1], np.ascontiguousarray(Z[:, ::-1])


@dataclass(frozen=True)
class NoisyGram(_Noisy):
    """One round, d(d+1)/2 numbers from each client."""

    def planned(self) -> tuple[Release, ...]:
        return (*self.planned_opening(), Release("triangle", "G", 1, self.main_share()))

    def init(self, rng: Streams) -> Round[NoisyState]:
        n, shift = yield from self.measure()
        nothing = np.zeros((0, 0))
        moments = Moments(round(n), np.zeros(0), np.zeros(0), 0.0)
        return NoisyState(moments, nothing, np.zeros(0), np.inf, next=nothing, n=n, shift=shift, t=0)

    def round(self, state: NoisyState, rng: Streams) -> Round[NoisyState]:
        replies = yield Ask("triangle", state.shift, Sum("G"))
        M = unpack_triangle(replies.total["G"] / np.sqrt(2))
        M[np.diag_indices_from(M)] *= np.sqrt(2)
        theta, Z = leading_components(M, self.k)
        mean = state.shift.get("mean", np.zeros(len(M)))
        moments = _noisy_moments(state.n, mean, float(np.trace(M)), len(replies.asked))
        return replace(state, moments=moments, Z=Z, theta=theta, kkt=np.nan, t=1)

    def done(self, state: NoisyState) -> bool:
        return state.t == 1


@dataclass(frozen=True)
class NoisyRefine(NoisyGram):
    """A noisy Gram matrix with half of the budget, then one product with its components, of rows that are cut tightly.

    A row changes M Z by ‖b‖·‖Zᵀb‖, which is far less than C² where the components hold a small part of a row: with very
    many features, after centering. So each row's part is cut to R, about the middle of these numbers by a noised
    histogram, and the noise is R instead of C². Two more rounds, in which d·k numbers are sent.
    """

    def planned(self) -> tuple[Release, ...]:
        main = self.main_share()
        return (
            *self.planned_opening(),
            Release("triangle", "G", 1, 0.5 * main),
            Release("reach", "bins", 1, 0.1 * main),
            Release("refine", "Y", 1, 0.4 * main),
        )

    def round(self, state: NoisyState, rng: Streams) -> Round[NoisyState]:
        if state.t == 0:
            return (yield from super().round(state, rng))
        question = {"Z": state.Z, **state.shift}
        bins = (yield Ask("reach", question, Sum("bins"))).total["bins"]
        far = bins[bins < 0]
        deviation = float(np.sqrt(np.mean(far**2))) if len(far) else 0.0  # empty bins show the noise
        cut = min(find_quantile(bins, deviation, _CUT), 1.0)
        Y = (yield Ask("refine", {**question, "cut": np.array(cut)}, Sum("Y"))).total["Y"]
        # Y = Σ s·bbᵀZ / cut: the directions count; the variances are those of the noisy Gram matrix.
        return replace(state, Z=np.linalg.svd(Y, full_matrices=False)[0], t=2)

    def done(self, state: NoisyState) -> bool:
        return state.t == 2


@dataclass(frozen=True)
class NoisyPower(_Noisy):
    """`rounds` products with a block of `width` columns: a wide one for two rounds, or the papers' narrow one for many.

    The sensitivity does not depend on the width, and the noise on all columns is the same: so the wider the better.
    """

    d: int = 0  # the number of features: the start must be known before any data is seen
    width: int | None = None  # None: forty for each component
    rounds: int = 2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, but is {self.rounds!r}.")
        if self.width is not None and self.width < self.k:
            raise InputError(f"width must be at least the {self.k} components, but is {self.width!r}.")

    def planned(self) -> tuple[Release, ...]:
        products = Release("project", "Y", self.rounds, self.main_share() - 0.01)
        return (*self.planned_opening(), Release("energy", "energy", 1, 0.01), products)

    def init(self, rng: Streams) -> Round[NoisyState]:
        n, shift = yield from self.measure()
        trace = float((yield Ask("energy", shift, Sum("energy"))).total["energy"])
        Z = random_orthonormal(
            rng("start"), self.d, min(WIDE_BLOCK * self.k if self.width is None else self.width, self.d)
        )
        moments = _noisy_moments(n, shift.get("mean", np.zeros(self.d)), trace, 1)
        return NoisyState(moments, Z[:, : self.k], np.zeros(self.k), np.inf, next=Z, n=n, shift=shift, t=0)

    def round(self, state: NoisyState, rng: Streams) -> Round[NoisyState]:
        Z = state.next
        Y = (yield Ask("project", {"Z": Z, **state.shift}, Sum("Y"))).total["Y"]
        U, s, _ = np.linalg.svd(Y, full_matrices=False)
        return replace(state, next=orthonormalize(Y), Z=U[:, : self.k], theta=s[: self.k], kkt=np.nan, t=state.t + 1)

    def done(self, state: NoisyState) -> bool:
        return state.t >= self.rounds
