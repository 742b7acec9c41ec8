"""What the server could work out about one client from its answers: the attacks of audit/attacks.py, round by round.

This module says how each task's arrays read as equations in M_i = A_iᵀA_i (of the client's shifted rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Arrays
from fedspan.algorithms.spectral.oneshot import unpack_triangle
from fedspan.audit.attacks import Pairs, error, faps_fit, faps_leak
from fedspan.engines.transcript import Talk
from fedspan.numerics.grid import from_grid
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import draw_mix, turn_back

MOST_FEATURES = 3000  # features: beyond, d×d matrices of several clients would fill the memory
WORK = 3e8  # entries times columns times rounds: about 20 s
NEAR = 0.05  # a relative error that is called known
# The algorithms whose answers can be read here.
ATTACKED = frozenset(["Gram", "Krylov", "Davidson", "Ssi", "LocalPower", "FedPower", "Faps", "Uda", "Wda", "DrSvd"])


@dataclass(frozen=True)
class Point:
    """How far the reconstruction had come after a round. Errors are relative; nan if the truth is not here."""

    round: int
    share: float  # of the entries of M_i that the answers determine; nan if they were masked by FAPS
    misfit: float  # how badly one matrix explains all answers
    error: float


@dataclass(frozen=True)
class FapsPoint:
    """What a round of FAPS showed besides. Errors are relative; nan if the truth is not here."""

    round: int
    off_diagonal: float  # error of P⊥M_iZ
    beta: float  # as read
    error: float  # of M_i from the blocks that are shown


@dataclass
class Evidence:
    """All that was heard from one client. `truth` is M_i, if its rows can be read here."""

    client: str
    rows: Array | sp.sparray | None = None  # (n, d)
    truth: Array | None = None
    given: Array | None = None  # M_i itself, or the part of it that was sent as eigenpairs
    whole: bool = False  # whether `given` is M_i itself
    exact: Pairs | None = None  # products with M_i
    masked: Pairs | None = None  # those of FAPS
    energy: float = math.nan  # tr(M_i)
    n: float = math.nan
    shown: set[int] = field(default_factory=set)  # rounds in which it was FedPower's baseline device
    splits: list[tuple[Array, Array, float]] = field(default_factory=list)  # (Z, Y, objective) of FAPS's rounds
    blocks: Array | None = None  # M_i as far as the last of them shows it
    fitted: float = math.nan  # the error of M_i from all of them
    course: list[Point] = field(default_factory=list)
    faps: list[FapsPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def hear(self, talk: Talk) -> None:
        """Take in one answer."""
        read = _READERS.get(talk.task)
        if read and all(map(_is_small, talk.answer.values())):
            read(self, talk, talk.question, talk.answer)

    def add_pair(self, Z: Array, Y: Array) -> None:
        self.exact = self.exact or Pairs(len(Z))
        self.exact.add(Z, Y)

    @property
    def d(self) -> int:
        return next((p.d for p in (self.exact, self.masked) if p), 0 if self.given is None else len(self.given))

    @property
    def trace(self) -> float | None:
        """tr(M_i), which every opening tells; not used if it was masked."""
        return self.energy if self.energy > 0 else None

    @property
    def guess(self) -> float:
        """The error of a guess that needs no attack: the trace, spread evenly."""
        if self.truth is None:
            return math.nan
        return error(np.eye(self.d) * (np.trace(self.truth) / self.d), self.truth)

    def attack(self, round: int) -> None:
        """Attack with all that was heard so far."""
        if not self.d:
            return
        pairs = self.exact or (self.masked if self.given is None else None) or Pairs(self.d)
        share = 1.0 if self.whole else math.nan if pairs is self.masked else pairs.share()
        misfit = pairs.misfit(pairs.solve(prior=self.given))
        found = math.nan
        if self.truth is not None:
            found = min(pairs.best(self.truth, self.given, trace) for trace in (None, self.trace))
        self.course.append(Point(round, share, misfit, found))

    def fit(self) -> None:
        """The attack on all rounds of FAPS together, the best of its steps; left out if it would take minutes."""
        if self.truth is None or self.blocks is None:
            return
        d, k = self.splits[0][0].shape
        if len(self.splits) * d * d * k > WORK:
            self.notes.append(
                f"Client {self.client!r} is too large for the attack on all rounds of FAPS, which was left out."
            )
            return
        start = self.exact.solve(prior=self.blocks) if self.exact else self.blocks
        self.fitted = min(error(M, self.truth) for M in chain([start], faps_fit(self.splits, start)))

    @property
    def least(self) -> float:
        """The error of the best attack, after the last round; nan if it could not be measured."""
        errors = [self.fitted, *(p.error for p in self.course[-1:]), *(p.error for p in self.faps[-1:])]
        return min((e for e in errors if not math.isnan(e)), default=math.nan)

    def verdict(self) -> str:
        """The result in words. What could not be measured is not called safe."""
        if not self.course:
            return "not attacked: its answers are not linear equations in its second-moment matrix"
        last, name = self.course[-1], "its second-moment matrix"
        if self.whole:
            return f"the server received {name} itself"
        if self.truth is None:
            if math.isnan(last.share):
                return f"{name} is masked, which obscures it but does not protect it; the error is not known"
            if last.misfit > 1e-2:
                return f"masked or noisy: no single matrix explains the answers (misfit {last.misfit:.0%})"
            return f"the answers determine {last.share:.0%} of {name}"
        first = next((p.round for p in self.course if p.error <= 1e-3), None)
        if first is not None:
            return f"{name} is known to the server from round {first} on"
        if self.least <= NEAR:
            return f"{name} is known to the server with an error of {self.least:.1%}"
        if self.least < 0.9 * self.guess:
            return f"{name} is partly known (error {self.least:.2g}; a blind guess has {self.guess:.2g})"
        return f"not reconstructed (error {self.least:.2g}; a blind guess has {self.guess:.2g})"


def _is_small(array: Array) -> bool:
    """Whether a matrix with as many features as this array fits in memory, if the array is a matrix or a triangle."""
    triangle = MOST_FEATURES * (MOST_FEATURES + 1) // 2
    return len(array) <= MOST_FEATURES if array.ndim > 1 else array.size <= triangle


def _hear_settle(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    e.n, e.energy = float(answer["n"]), float(answer["energy"])
    if e.rows is None:
        return
    rows = Rows(e.rows)
    if rows.d > MOST_FEATURES:
        e.notes.append(f"Client {e.client!r} has {rows.d} features; more than {MOST_FEATURES} are not attacked.")
        return
    mean, scale = question.get("mean"), question.get("scale")
    truth = rows.gram(mean, scale)
    plain = answer["energy"].dtype.kind == "f" and answer["n"].dtype.kind == "i"
    if plain and (rows.n != e.n or abs(float(np.trace(truth)) - e.energy) > 1e-6 * e.energy):
        e.notes.append(
            f"Client {e.client!r}: the rows in its file are no longer those of the run, so errors are not known."
        )
        e.rows = None
        return
    e.truth = truth


def _hear_multiply(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    e.add_pair(question["Z"], answer["Y"].astype(np.float64))


def _hear_multiply_on_grid(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    e.add_pair(from_grid(question["Z"], question["scale"]), answer["Y"] * question["step"])


def _hear_gram(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    e.given, e.whole = unpack_triangle(answer["G"]), True


def _hear_show(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    e.shown.add(talk.round)


def _hear_iterate_aligned(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    """The baseline device is aligned with itself: its Y is M_i Z_1, and Z_1 was shown (FedPower, Example 1)."""
    if talk.round in e.shown:
        e.add_pair(question["Z1"], answer["Y"])


def _hear_leading(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    U = from_grid(answer["U"], answer["scale"])
    e.given = (U * answer["w"]) @ U.T


def _hear_blend(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    """F Ω with Ω known: its columns span the client's leading subspace, and F on it follows; M_i is near t·F⁴."""
    d, width, count = (int(x) for x in question["shape"])
    seed = int(question["seed"])
    S = turn_back(answer["S"] * question["step"], seed)
    U = np.linalg.svd(S, full_matrices=False)[0][:, :count]
    F = np.linalg.lstsq((U.T @ draw_mix(seed, d, width)).T, (U.T @ S).T, rcond=None)[0]
    w, V = np.linalg.eigh((F + F.T) / 2)
    e.given = float(question["unit"]) * (U @ V * np.maximum(w, 0.0) ** 4) @ (U @ V).T


def _hear_weigh(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    e.given = answer["V"] @ answer["V"].T * e.n


def _hear_span(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    """The directions alone: their variances are guessed, all alike."""
    e.given = answer["V"] @ answer["V"].T * (e.energy / max(answer["V"].shape[1], 1))


def _hear_split(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    Z, Y = question["Z"], answer["Y"]
    e.masked = e.masked or Pairs(len(Z))
    e.masked.add(Z, Y)
    f = float(answer["objective"])
    e.splits.append((Z, Y, f))
    _add_faps_point(e, talk.round, Z, Y, np.eye(Z.shape[1]) * (f / Z.shape[1]))


def _hear_variances(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    """At its end FAPS shows ZᵀM_iZ. Z has hardly moved since the last split, but may have turned."""
    if e.splits:
        Z, Y, _ = e.splits[-1]
        e.faps = e.faps[:-1]
        _add_faps_point(e, talk.round, question["Z"], Y @ (Z.T @ question["Z"]), answer["T"])


def _hear_confirm(e: Evidence, talk: Talk, question: Arrays, answer: Arrays) -> None:
    """M_iV as it is, which proves the end of a run; FAPS masks what it says of M_i in all other exchanges."""
    V, MV = question["V"], answer["MV"].astype(np.float64)
    e.add_pair(V, MV)
    if e.splits:
        Z, Y, _ = e.splits[-1]
        e.faps = e.faps[:-1]
        T = V.T @ MV
        _add_faps_point(e, talk.round, V, MV + V @ (V.T @ Y @ (Z.T @ V) - T), T)  # β as the last split shows it


def _add_faps_point(e: Evidence, round: int, Z: Array, Y: Array, T: Array) -> None:
    leak = faps_leak(Z, Y, T, e.trace)
    e.blocks = leak.M
    off = whole = math.nan
    if e.truth is not None:
        MZ = e.truth @ Z
        off, whole = error(leak.off_diagonal, MZ - Z @ (Z.T @ MZ)), error(leak.M, e.truth)
    e.faps.append(FapsPoint(round, off, leak.beta, whole))


_READERS: dict[str, Callable[[Evidence, Talk, Arrays, Arrays], None]] = {
    "settle": _hear_settle,
    "multiply": _hear_multiply,
    "confirm": _hear_confirm,
    "multiply_on_grid": _hear_multiply_on_grid,
    "gram": _hear_gram,
    "show": _hear_show,
    "iterate_aligned": _hear_iterate_aligned,
    "leading": _hear_leading,
    "blend": _hear_blend,
    "weigh": _hear_weigh,
    "span": _hear_span,
    "split": _hear_split,
    "variances": _hear_variances,
}


def choose_milestones(rounds: int, most: int = 16) -> set[int]:
    """The rounds after which the attack is tried: all, or `most` of them that grow apart, and the last."""
    if rounds <= most:
        return set(range(1, rounds + 1))
    return {round(x) for x in np.geomspace(1, rounds, most)} | set(range(1, most // 2))
