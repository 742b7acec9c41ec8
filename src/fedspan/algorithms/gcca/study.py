"""What a GCCA should be: which ridge, and how many components are shared, found by entities held out and by chance.

In none of the papers implemented here. Two parts, each a few rounds of sums:

1. Folds. The entities are cut into folds by a public shuffle. For each fold and each ridge (in units of the mean
   eigenvalue of a view's B_iᵀB_i) a GCCA is fitted to the other folds, and the views then say what they think of the
   entities held out. How well they agree is
       r = (‖ΣM_i‖² - Σ‖M_i‖²) / (c Σ‖M_i‖²),
   with M_i the columns of what view i says, centred, and c = I - 1 (or, if views lack entities, the mean number of
   other views that have an entity). The measure of a ridge is Σ max(r, 0) over the components, mean over the folds;
   taken is the largest ridge whose measure is within one standard error of the best. All problems of a round travel in
   one question.
2. Chance. At the best ridge, each client permutes its own entities, by a permutation that nobody is told: views that
   share nothing, but are otherwise the same. The largest eigenvalue of such a problem, over `shuffles` of them, says
   what chance makes; components count whose eigenvalues are above the largest of these, and above their mean by
   three deviations.

Both run block Krylov for a fixed number of rounds on a coarse grid, with blocks as wide for the permuted problems as
for the true one: what is not yet converged is so for all of them alike, so they can be compared.

What the server sees: how many rows each client has and a digest of their ids, sums of projections of its blocks as in
maxvar_krylov.py (of some of the entities, and of permuted ones), and for each entity and ridge the sum of what the
views that did not learn from it say of it. Without secure sums, each client's part of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms._operator import round_product
from fedspan.algorithms.gcca._view import open_views, view_options
from fedspan.algorithms.gcca.entities import MATCH_TASKS, MATCH_TURNS, Entities
from fedspan.algorithms.gcca.kept_maxvar import (
    KeptState,
    KeptView,
    Missing,
    ask_locations,
    select_rows,
    spread_rows,
)
from fedspan.core.protocol import Ask, Client, Course, Narrow, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.numerics.grid import from_grid, to_grid
from fedspan.numerics.orthonormal import orthonormalize
from fedspan.numerics.rayleigh_ritz import extension, rayleigh_ritz
from fedspan.numerics.view_projector import View

_STEPS_OF_KRYLOV = 7  # of block Krylov, for each part
_COLUMNS_MORE = 2  # columns of a block beyond the components
_BITS_OF_BLOCKS = 8  # of the blocks
_STEP_OF_PRODUCTS = 2.0**-9  # of the products, over the root mean square of a block's entries
_DEVIATIONS_ABOVE = 3.0
_SPIKES = 32.0  # how many times the root mean square entries may be, in the fewer bits of a secure sum


@dataclass(frozen=True)
class StudyMemory(KeptState):
    """What a client remembers besides: where its secret permutations come from."""

    shuffle_seed: int = -1


class StudiedView(KeptView):
    """A view that is asked for parts of its entities, and for its entities in other orders."""

    State = StudyMemory

    def __init__(
        self,
        data: Entities | Matrix,
        center: bool = True,
        scale: bool = False,
        ridge: float = 0.0,
        accuracy: float = 1e-10,
        relative: bool = False,
        missing: str = "none",
        folds: int = 5,
    ) -> None:
        super().__init__(data, center, scale, ridge, accuracy, relative, missing)
        self.folds = folds
        self.trained: dict[tuple[bytes, int], tuple[View, Array]] = {}

    def init(self) -> StudyMemory:
        return StudyMemory()

    @task(
        releases={"Y": None},
        shows="the server's blocks projected on the span of its features, for parts of the entities, rounded",
    )
    def fit_folds(self, state: StudyMemory, arrays: Arrays, rng: Streams) -> tuple[StudyMemory, Arrays]:
        """P V for every fold (rows of one array under each other) and every ridge (columns side by side)."""
        return state, {"Y": round_product(lambda V: self._project_folds(state, V, arrays), arrays)}

    def _project_folds(self, state: StudyMemory, V: Array, arrays: Arrays) -> Array:
        ridges, fold_of = arrays["ridges"], arrays["fold"]
        out, begin = np.zeros(V.shape), 0
        for fold in range(self.folds):
            rest = np.flatnonzero(fold_of != fold)
            block = V[begin : begin + len(rest)]
            view, rows = self._train(state, fold_of, fold)
            at = np.searchsorted(rest, rows)
            for ridge, columns in zip(ridges, np.array_split(np.arange(V.shape[1]), len(ridges)), strict=True):
                said = view.vary_ridge(float(ridge)).project(block[np.ix_(at, columns)])
                out[np.ix_(begin + at, columns)] = said
            begin += len(rest)
        return out

    def _train(self, state: StudyMemory, fold_of: Array, fold: int) -> tuple[View, Array]:
        """The view of those of its entities that are not in that fold, and where they stand."""
        _, rows = self._open(state)
        key = (rows.tobytes() + fold_of.tobytes(), fold)
        if key not in self.trained:
            own = rows[fold_of[rows] != fold]
            given = self.view
            X = select_rows(self.entities.X, own)
            self.trained[key] = (View(X, given.center, given.scale, 1.0, given.accuracy, relative=True), own)
        return self.trained[key]

    @task(
        releases={"H": None, "squares": None},
        shows="what its features say of entities that it did not learn from, by every ridge that was tried",
    )
    def hold_out(self, state: StudyMemory, arrays: Arrays, rng: Streams) -> tuple[StudyMemory, Arrays]:
        """M_i of every fold's entities by the weights that the other folds gave, centred; Σ M_i² by fold and column."""
        G, ridges, fold_of = from_grid(arrays["Z"], arrays["scale"]), arrays["ridges"], arrays["fold"]
        _, rows = self._open(state)
        H, squares, begin = np.zeros((self.view.J, G.shape[1])), np.zeros((self.folds, G.shape[1])), 0
        for fold in range(self.folds):
            rest = np.flatnonzero(fold_of != fold)
            view, own = self._train(state, fold_of, fold)
            block = G[begin : begin + len(rest)][np.searchsorted(rest, own)]
            test = rows[fold_of[rows] == fold]
            X = select_rows(self.entities.X, test)
            for ridge, columns in zip(ridges, np.array_split(np.arange(G.shape[1]), len(ridges)), strict=True):
                W = view.vary_ridge(float(ridge)).solve(block[:, columns])
                said = np.asarray(X @ (W if view.s is None else W / view.s[:, None]), dtype=np.float64)
                said = said - said.mean(axis=0) if len(said) else said
                H[np.ix_(test, columns)] = said
                squares[fold, columns] = np.sum(said**2, axis=0)
            begin += len(rest)
        return state, {"H": H, "squares": squares}

    @task(
        releases={"Y": None},
        shows="the server's blocks projected on the span of its features, some in orders of its own, rounded",
    )
    def fit_shuffled(self, state: StudyMemory, arrays: Arrays, rng: Streams) -> tuple[StudyMemory, Arrays]:
        """P V for the columns of the true problem; Π P Πᵀ V for those of each permuted one."""
        if state.shuffle_seed < 0:
            state = replace(state, shuffle_seed=int(rng("shuffles").integers(2**62)))
        return state, {"Y": round_product(lambda V: self._project_shuffled(state, V, arrays), arrays)}

    def _project_shuffled(self, state: StudyMemory, V: Array, arrays: Arrays) -> Array:
        view, rows = self._open(state)
        view = view.vary_ridge(float(arrays["ridge"]))
        width = int(arrays["width"])
        inner = np.array(V[rows])
        orders = []
        for number, begin in enumerate(range(width, V.shape[1], width)):  # the first block is the true problem's
            order = np.random.default_rng([state.shuffle_seed, number]).permutation(len(rows))
            inner[:, begin : begin + width] = inner[np.argsort(order), begin : begin + width]
            orders.append((begin, order))
        Y = view.project(inner)
        for begin, order in orders:
            Y[:, begin : begin + width] = Y[order, begin : begin + width]
        return spread_rows(Y, rows, self.view.J)


@dataclass(frozen=True)
class Span:
    """One problem's span: Q and M Q (j, m), and the next block (j, w)."""

    Q: Array
    AQ: Array
    next: Array


@dataclass(frozen=True)
class StudyState:
    """Where the study stands. `agreement` (K,) held out, at `ridge`; `theta` (K,) and `chance` (shuffles,)."""

    views: int
    r: Array  # (J,) √D, infinite where an entity has no part
    fold: Array  # (J,)
    spans: tuple[Span, ...]
    t: int  # rounds of this part
    agreement: Array
    ridge: float
    theta: Array
    chance: Array
    finished: bool


@dataclass(frozen=True)
class StudyViews(Server[StudyState]):
    """The study: `k` components by folds (0 folds: the ridge is known), then chance (0 shuffles: K is known).

    `ridges` are in units of a view's mean eigenvalue, if `relative`.
    """

    k: int = 2
    ridges: tuple[float, ...] = (1.0,)
    folds: int = 5
    shuffles: int = 0
    center: bool = True
    scale: bool = False
    relative: bool = True
    missing: Missing = "none"

    State = StudyState
    client: ClassVar[type[Client[object]]] = StudiedView
    family: ClassVar[str] = "gcca"

    def client_options(self) -> dict[str, float | int | str | bool]:
        view = view_options(self.center, self.scale, max(self.ridges), 1e-6, relative=self.relative)
        return {**view, "missing": self.missing, "folds": self.folds}

    def _list_opening(self) -> tuple[str, ...]:
        if self.missing == "none":
            return ("open_view",)
        return ("locate", "restrict") if self.missing == "drop" else ("locate",)

    def asks(self) -> frozenset[str]:
        by_folds = {"fit_folds", "hold_out"} if self.folds else set()
        by_chance = {"fit_shuffled"} if self.shuffles else set()
        return MATCH_TASKS | {*self._list_opening()} | by_folds | by_chance

    def course(self) -> Course:
        names = self._list_opening()
        opening = [Turn(name, after=[before]) for before, name in zip(("identify", *names), names, strict=False)]
        rounds: list[Turn] = []
        if self.folds:
            rounds += [Turn("fit_folds", after=[names[-1]]), Turn("hold_out", rounds=1, after=[names[-1]])]
        if self.shuffles:
            rounds.append(Turn("fit_shuffled", after=[names[-1]]))
        return Course((*MATCH_TURNS, *opening), tuple(rounds))

    def replay(self) -> Replay | str:
        return "it asks for many problems at once, whose blocks no site can compare"

    def init(self, rng: Streams) -> Round[StudyState]:
        if self.missing == "none":
            J, views = yield from open_views(1, self.center, rng)
            r = np.full(J, np.sqrt(views))
        else:
            r, views = yield from ask_locations(1, self.center, self.missing, rng)
        J = len(r)
        fold = rng("folds").permutation(J) % max(self.folds, 1)
        state = StudyState(
            views,
            r,
            fold,
            (),
            0,
            np.zeros(0),
            float(self.ridges[0]),
            np.zeros(0),
            np.zeros(0),
            not (self.folds or self.shuffles),
        )
        return self._begin_folds(state, rng) if self.folds else self._begin_chance(state, rng)

    def _begin_folds(self, state: StudyState, rng: Streams) -> StudyState:
        sizes = [int(np.sum(state.fold != fold)) for fold in range(self.folds)]
        width = min(self.k + _COLUMNS_MORE, min(sizes) - 1)
        draw = rng("fold blocks")
        spans = [_start(draw, state.r[state.fold != f], width) for f in range(self.folds) for _ in self.ridges]
        return replace(state, spans=tuple(spans), t=0)

    def _begin_chance(self, state: StudyState, rng: Streams) -> StudyState:
        if not self.shuffles:
            return replace(state, finished=True)
        draw, J = rng("chance blocks"), len(state.r)
        width = min(
            self.k + _COLUMNS_MORE, J - 1
        )  # the same for all: else one would have converged further than the others
        spans = [_start(draw, state.r, width) for _ in range(self.shuffles + 1)]
        return replace(state, spans=tuple(spans), t=0)

    def round(self, state: StudyState, rng: Streams) -> Round[StudyState]:
        if self.folds and not len(state.agreement):
            return (yield from self._round_of_folds(state, rng))
        return (yield from self._round_of_chance(state))

    def _round_of_folds(self, state: StudyState, rng: Streams) -> Round[StudyState]:
        R = len(self.ridges)
        roots = [state.r[state.fold != fold][:, None] for fold in range(self.folds)]
        by_fold = [state.spans[f * R : (f + 1) * R] for f in range(self.folds)]
        V = np.vstack([np.hstack([s.next for s in own]) / r for own, r in zip(by_fold, roots, strict=True)])
        more = {"ridges": np.array(self.ridges), "fold": state.fold.astype(np.int64)}
        V, Y = yield from _ask_products("fit_folds", V, state.views, more)
        spans: list[Span] = []
        begin = 0
        for own, r in zip(by_fold, roots, strict=True):
            rows = slice(begin, begin + len(r))
            blocks = zip(
                np.array_split(_times(V[rows], r), R, axis=1), np.array_split(Y[rows] / r, R, axis=1), strict=True
            )
            spans += [_extend(span, *block) for span, block in zip(own, blocks, strict=True)]
            begin += len(r)
        state = replace(state, spans=tuple(spans), t=state.t + 1)
        if state.t < _STEPS_OF_KRYLOV:
            return state
        found = yield from self._hold_out(state)
        best = choose_ridge(found, self.ridges)
        return self._begin_chance(
            replace(state, agreement=found[:, best].mean(axis=0), ridge=float(self.ridges[best])), rng
        )

    def _hold_out(self, state: StudyState) -> Round[Array]:
        """r of every fold, ridge and component."""
        R, k = len(self.ridges), self.k
        stacked = []
        for f in range(self.folds):
            own = state.spans[f * R : (f + 1) * R]
            stacked.append(np.hstack([_leading(s, k) for s in own]) / state.r[state.fold != f][:, None])
        codes, scale = to_grid(np.vstack(stacked), 12)
        more = {"ridges": np.array(self.ridges), "fold": state.fold.astype(np.int64)}
        total = (yield from complete(Ask("hold_out", {"Z": codes, "scale": scale, **more}, Sum("H", "squares")))).total
        D = np.where(np.isfinite(state.r), state.r, 0.0) ** 2
        others = float(np.sum(D * (D - 1)) / np.sum(D))
        found = np.zeros((self.folds, codes.shape[1]))
        for f in range(self.folds):
            own = total["squares"][f]
            across = np.sum(total["H"][state.fold == f] ** 2, axis=0) - own
            found[f] = np.divide(across, others * own, out=np.zeros_like(own), where=own > 0)
        return found.reshape(self.folds, R, k)

    def _round_of_chance(self, state: StudyState) -> Round[StudyState]:
        r = state.r[:, None]
        V = np.hstack([s.next for s in state.spans]) / r
        width = state.spans[0].next.shape[1]
        more = {"ridge": np.array(state.ridge), "width": np.array(width)}
        V, Y = yield from _ask_products("fit_shuffled", V, state.views, more)
        parts = len(state.spans)
        blocks = zip(np.split(_times(V, r), parts, axis=1), np.split(Y / r, parts, axis=1), strict=True)
        spans = [_extend(span, *block) for span, block in zip(state.spans, blocks, strict=True)]
        state = replace(state, spans=tuple(spans), t=state.t + 1)
        if state.t < _STEPS_OF_KRYLOV:
            return state
        theta = state.views * rayleigh_ritz(spans[0].Q, spans[0].AQ, 0).theta[: self.k]
        chance = np.array([state.views * rayleigh_ritz(s.Q, s.AQ, 0).theta[0] for s in spans[1:]])
        return replace(state, theta=theta, chance=chance, finished=True)

    def done(self, state: StudyState) -> bool:
        return state.finished

    def estimate(self, state: StudyState) -> Array:
        return state.agreement

    def metrics(self, state: StudyState) -> dict[str, float]:
        return {}


def choose_ridge(found: Array, ridges: tuple[float, ...]) -> int:
    """The number of the largest ridge that is within one standard error of the best; `found` (folds, ridges, K)."""
    measure = np.maximum(found, 0.0).sum(axis=2)
    mean = measure.mean(axis=0)
    best = int(np.argmax(mean))
    error = float(measure[:, best].std(ddof=1)) / np.sqrt(len(measure)) if len(measure) > 1 else 0.0
    enough = [i for i in range(len(ridges)) if mean[i] >= mean[best] - error]
    return max(enough, key=lambda i: ridges[i])


def chance_level(chance: Array) -> float:
    """What eigenvalues must be above to count: the largest by chance, and three deviations above their mean."""
    return float(max(chance.max(), chance.mean() + _DEVIATIONS_ABOVE * chance.std(ddof=1)))


def _start(draw: np.random.Generator, r: Array, width: int) -> Span:
    V = orthonormalize(draw.normal(size=(len(r), width)) / r[:, None])
    return Span(np.zeros((len(r), 0)), np.zeros((len(r), 0)), V)


def _times(V: Array, r: Array) -> Array:
    """V·r, and zero where r is infinite."""
    return np.asarray(np.where(np.isfinite(r), V * np.where(np.isfinite(r), r, 0.0), 0.0))


def _ask_products(name: str, V: Array, views: int, more: Arrays) -> Round[tuple[Array, Array]]:
    """What was multiplied, as the clients had it, and the sums of their products."""
    codes, scale = to_grid(V, _BITS_OF_BLOCKS)
    step = _STEP_OF_PRODUCTS * float(np.sqrt(np.mean(V**2)))
    arrays = {"Z": codes, "scale": scale, "step": np.array(step), **more}
    bits = int(np.ceil(np.log2(_SPIKES * views / _STEP_OF_PRODUCTS))) + 1  # of either sign
    near = Narrow(
        np.zeros(V.shape, dtype=np.int64), np.zeros(len(V), dtype=np.int8), np.full(V.shape[1], bits, np.int8)
    )
    ask = Ask(name, arrays, Sum("Y"))
    replies = yield from complete(replace(ask, narrow={"Y": near}))
    if any(np.any(wrapped) for wrapped in replies.wrapped.values()):  # an entity stands out: take all bits
        replies = yield from complete(ask)
    Y = replies.total["Y"]
    return from_grid(codes, scale), Y * step


def _extend(span: Span, V: Array, Y: Array) -> Span:
    """The span with one block more; the next block is the residual of its leading Ritz vectors."""
    w = V.shape[1]
    U, L = extension(span.Q, V)
    m = span.Q.shape[1]
    AU = span.AQ @ L[:m] + Y @ L[m:]
    Q, AQ = np.hstack([span.Q, U]), np.hstack([span.AQ, AU])
    _, _, R = rayleigh_ritz(Q, AQ, w)
    return Span(Q, AQ, orthonormalize(R))


def _leading(span: Span, k: int) -> Array:
    """The k leading Ritz vectors."""
    _, S, _ = rayleigh_ritz(span.Q, span.AQ, k)
    return span.Q @ S[:, :k]
