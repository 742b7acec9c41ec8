"""Personalized PCA: what its methods share. Own components U_i for every client, drawn towards a shared part.

    K. Ozkara, B. Huang, S. Diggavi. Personalized PCA for Federated Heterogeneous Data. IEEE ISIT, 2023.

Notation: M_i = n_i S_i (d, d) the second moments of client i's rows (after clipping, centering, scaling), t_i = tr M_i,
(Q, w) the q leading eigenpairs of M = Σ M_i, T = tr M, N = Σ n_i, v = T/N, n̄ = N/m, r = k components, F folds, V (d, r)
the shared components. Everything is one eigenproblem per client, U_i = top_r(M_i + λ K_i): shrinkage.py has the kinds
of shared part K_i (the paper's prior and the rotation-invariant one have the same minimisers).

λ by cross-validation: `factor` (each client, for all rows and without each of F folds: the 2r leading eigenpairs of its
M_i, n_i, t_i) or `fold` (all of M_i, to be summed), `validate` (losses on the held-out fold for 14 values of λ; every
fold has its own Q, or the held-out rows would have shaped it), and the server takes the λ of the least sum, if it is
better than local and global PCA by more than 2 %, or by more than two standard errors over the folds.

What the server sees: sums of the rows and of their squares, as far as global centering and scaling need them; then with
share="eigenpairs" of every client its leading 2r eigenpairs (of all rows, and without each fold), sizes, traces and the
squares of its columns, with share="sums" only sums over the clients of sizes, traces, squares and second moments
(d×d); then sums of losses. collect=True: at the end every client's U_i, mean, number of rows, distance to the
shared part and, if it clips, the bounds of its columns come back to the caller. collect=False: they stay where they are
made; the server learns the mean distance to the shared part only.

What differs from the paper: auto.py, eigen.py, paper.py and perpca.py say so, each for its method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.personalized._client import PersonalClient
from fedspan.algorithms.personalized.shrinkage import LAMBDAS, choose_shrinkage, to_shares
from fedspan.algorithms.spectral.oneshot import unpack_triangle
from fedspan.core.participation import Participation
from fedspan.core.protocol import Ask, Client, Course, Each, Replay, Replies, Round, Server, Sum, Turn, complete
from fedspan.core.replay import CLOSE, TOGETHER, Comparison, WeightedBasis
from fedspan.core.rng import Streams
from fedspan.errors import InputError, ProtocolError
from fedspan.numerics.folds import leading_eigenpairs, leading_eigenpairs_of_sum
from fedspan.numerics.stiefel import random_point

_SHARED_FROM = 1e4  # times the data's own size: λ of kind 2 for which all U_i are V


@dataclass(frozen=True)
class Shared:
    """What the opening found of all clients together; index 0 is of all rows, the others are without one fold."""

    Q: Array  # (1 + F, d, q)
    w: Array  # (1 + F, q), over T
    v: Array  # (1 + F,)
    rows: Array  # (1 + F,), n̄
    n: int
    trace: float
    squares: Array  # (d,) of every column


@dataclass(frozen=True)
class Collected:
    """What came back from the clients at the end, in the order of their ids."""

    names: tuple[str, ...] = ()
    U: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))  # (m, d, r)
    means: Array = field(default_factory=lambda: np.zeros((0, 0)))  # (m, d)
    bounds: Array = field(default_factory=lambda: np.zeros((0, 2, 0)))  # (m, 2, d), or (m, 0, d) without clipping
    distances: Array = field(default_factory=lambda: np.zeros(0))  # (m,)
    sizes: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    mean_distance: float = math.nan


@dataclass(frozen=True)
class PersonalState:
    """A run of any of the methods."""

    t: int  # iterations, or exchanges of "auto"
    shift: Mapping[str, Array]  # the common mean and scale, sent along with every question
    clients: tuple[str, ...]  # all of them, where that had to be known
    cohort: tuple[str, ...]  # those that drew folds
    shared: Shared | None
    V: Array  # (d, r), the shared components
    shrinkage: float  # λ, in the units of the kind
    kind: int
    losses: Array  # (kinds, 14)
    objective: float
    change: float  # of the objective in the last round, relative
    closed: bool
    collected: Collected


Center = Literal["client", "global", "none"]
Share = Literal["eigenpairs", "sums"]


@dataclass(frozen=True)
class Personalized(Server[PersonalState]):
    """The options of all methods, the opening, the choice of λ, and the closing exchange.

    Parameters:
        shrinkage: λ, or "auto" (cross-validation).
        center: "client" (each part of a client's rows by its own mean), "global" (the mean of all rows) or "none".
        clip: Cut every column of a client at its median ± clip·MAD; 0: not.
        start: V₀ of the methods that iterate: the r leading eigenvectors of M, or a random point.
        count: How many clients take part in a round (the closing exchange reaches all of them).
        fraction: The same as a part of all clients.
    """

    k: int = 2
    shrinkage: float | str = "auto"
    center: Center = "client"
    scale: bool = False
    clip: float = 0.0
    folds: int = 5
    share: Share = "eigenpairs"
    collect: bool = True
    count: int | None = None
    fraction: float | None = None
    start: Literal["global", "random"] = "global"

    State = PersonalState
    client: ClassVar[type[Client[object]]] = PersonalClient
    family: ClassVar[str] = "personalized"

    @property
    def rounds(self) -> int:
        """The most rounds before the closing one."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        lam = self.shrinkage
        if lam != "auto" and (isinstance(lam, bool | str) or not lam >= 0):
            raise InputError(f"shrinkage must be 'auto' or a number from 0 (local) to inf (shared), but is {lam!r}.")
        if self.center not in get_args(Center):
            raise InputError(f"center must be 'client', 'global' or 'none', but is {self.center!r}.")
        if self.share not in get_args(Share):
            raise InputError(f"share must be 'eigenpairs' or 'sums', but is {self.share!r}.")
        if not self.clip >= 0:
            raise InputError(f"clip must be a number of MADs of at least 0, but is {self.clip!r}.")
        if self.folds < 2:
            raise InputError(f"folds must be at least 2, but is {self.folds!r}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"center": self.center, "clip": self.clip}

    @property
    def needs_mean(self) -> bool:
        """Whether the mean of all rows must be known."""
        return self.center == "global" or (self.scale and self.center == "none")

    @property
    def partial(self) -> bool:
        """Whether only some clients take part in a round."""
        return self.count is not None or self.fraction is not None

    def asks(self) -> frozenset[str]:
        """The opening, the choice of λ, and the closing exchange; methods that iterate add the task of a round."""
        tasks = {"fold" if self.share == "sums" else "factor"}
        tasks.add("collect" if self.collect else "retain")
        if self.needs_mean:
            tasks.add("count")
        if self.scale:
            tasks.add("square")
        if self.partial:
            tasks.add("scan")
        if self.shrinkage == "auto":
            tasks.add("validate")
        return frozenset(tasks)

    @property
    def told(self) -> list[str]:
        """Which of mean and scale all questions but those that find them bring."""
        return [name for name, tells in (("mean", self.center == "global"), ("scale", self.scale)) if tells]

    def course(self) -> Course:
        """The opening of the methods that iterate, and the closing exchange; they add the task of a round."""
        return Course((*self.measure_turns(), *self.survey_turns()), (self.closing_turn(),))

    def measure_turns(self) -> tuple[Turn, ...]:
        """Those of the opening of all methods."""
        turns = [Turn("count")] if self.needs_mean else []
        if self.scale:
            mean = ["mean"] if self.needs_mean else []
            turns.append(Turn("square", after=["count"] if mean else [], tells=mean))
        if self.partial:
            turns.append(self.turn("scan"))
        return tuple(turns)

    def survey_turns(self) -> tuple[Turn, ...]:
        """The shared part, and λ if it is to be found: once in a run."""
        first = "fold" if self.share == "sums" else "factor"
        choice = (self.turn("validate", rounds=1),) if self.shrinkage == "auto" else ()
        return (self.turn(first, rounds=1), *choice)

    def closing_turn(self) -> Turn:
        """The last exchange."""
        return self.turn("collect" if self.collect else "retain", rounds=1)

    def turn(self, task: str, rounds: int | None = None) -> Turn:
        """A task that is told mean and scale, once they are known."""
        before = ["square"] if self.scale else ["count"] if self.needs_mean else []
        return Turn(task, rounds=rounds, after=before, tells=self.told)

    def round_course(self, task: str) -> Course:
        """The course of a method that asks for `task` in every round but the last."""
        course = Personalized.course(self)
        return replace(course, round=(*map(self.turn, self.round_asks(task)), *course.round))

    def replay(self) -> Replay | str:
        """What is asked for are sums, and what is told follows from them; `own_replay` adds the task of a round."""
        if self.share != "sums":
            return "with share='eigenpairs' every client's own eigenpairs are asked for, not sums"
        if self.collect:
            return "with collect=True every client's own components come back at the end"
        if self.partial:
            return "only some of the clients take part in a round"
        shift: dict[str, Comparison] = {"mean": CLOSE, "scale": CLOSE}
        prior: dict[str, Comparison] = {
            **shift,
            "Q": WeightedBasis("w"),
            "w": TOGETHER,
            **dict.fromkeys(("v", "rows", "kinds", "kind", "r", "omega"), CLOSE),
        }
        kinds: dict[str, dict[str, Comparison]] = {"validate": prior, "retain": prior | self.own_replay("Q")}
        kinds["fold"] = {**shift, "folds": CLOSE}
        return {task: kinds.get(task, shift | self.own_replay("V")) for task in self.asks()}

    def own_replay(self, name: str) -> dict[str, Comparison]:
        """How the shared components of methods that iterate are compared, and what goes with them."""
        return {}

    def round_asks(self, task: str) -> frozenset[str]:
        """`task`, if these options iterate at all: with an infinite λ all U_i are V, and the opening has solved it."""
        return frozenset({task}) if self.rounds > 0 and self.shrinkage != math.inf else frozenset()

    def measure(self) -> Round[dict[str, Array]]:
        """The common mean and scale, as far as they are asked for: sums over all clients."""
        shift: dict[str, Array] = {}
        if self.needs_mean:
            total = (yield from complete(Ask("count", want=Sum("n", "total")))).total
            shift["mean"] = total["total"] / total["n"]
        if self.scale:
            total = (yield from complete(Ask("square", dict(shift), Sum("n", "squares")))).total
            s = np.sqrt(total["squares"] / total["n"])
            floor = 10 * np.finfo(np.float64).eps * np.abs(shift.get("mean", np.zeros_like(s)))
            shift["scale"] = np.where(s > floor, s, 1.0)  # a constant column stays as it is
            if self.center == "none":
                del shift["mean"]
        return shift

    def list_clients(self, shift: Mapping[str, Array]) -> Round[tuple[str, ...]]:
        """The names of all clients: where only some of them take part, the server must know whom to draw from."""
        if not self.partial:
            return ()
        return (yield from complete(Ask("scan", shift, Sum("n")))).asked

    def draw(self, clients: tuple[str, ...], rng: Streams) -> tuple[str, ...] | None:
        """The cohort of this round, in the order of ids; None: everyone."""
        if not clients:
            return None
        return Participation(self.fraction, self.count).cohort(clients, rng)

    def survey(self, shift: Mapping[str, Array], to: tuple[str, ...] | None) -> Round[tuple[Shared, tuple[str, ...]]]:
        """(Q, w) of all rows, and without each fold if λ is to be found; and who answered."""
        F, r = self.folds if self.shrinkage == "auto" else 0, self.k
        ask = {**shift, "folds": np.array(F)}
        if self.share == "sums":
            replies = yield Ask("fold", ask, Sum("G", "n", "trace", "squares"), to)
            total = replies.total
            pairs = [leading_eigenpairs(unpack_triangle(G), 3 * r) for G in total["G"]]
        else:
            replies = yield Ask("factor", {**ask, "width": np.array(2 * r)}, Each(), to)
            each = list(replies.each.values())
            total = {name: np.sum([a[name] for a in each], axis=0) for name in ("n", "trace", "squares")}
            pairs = [leading_eigenpairs_of_sum(np.hstack([a["S"][f] for a in each]), 3 * r) for f in range(1 + F)]
        came = _list_answered(replies)
        n, T = total["n"].astype(np.float64), total["trace"]
        rank = int(np.sum(pairs[0][1] > 1e-12 * max(pairs[0][1][0], 1e-300)))
        if rank < r:
            found = (
                "All rows are equal (after centering), so there is no component"
                if rank == 0
                else f"The rows of all clients together have rank {rank}, so there are no {r} components"
            )
            raise InputError(f"{found}. Lower n_components, or give more rows.")
        q = min(len(w) for _, w in pairs)
        Q, w = np.stack([Q[:, :q] for Q, _ in pairs]), np.stack([w[:q] for _, w in pairs])
        T = np.maximum(T, 1e-300)
        shared = Shared(
            Q, w / T[:, None], T / np.maximum(n, 1), n / len(came), int(n[0]), float(T[0]), total["squares"]
        )
        return shared, came

    def choose(self, state: PersonalState, kinds: tuple[int, ...]) -> Round[PersonalState]:
        """λ (and the kind of shared part) by held-out losses: see `choose_shrinkage`."""
        s, r = require_shared(state), self.k
        Q, w = (s.Q[1:], s.w[1:]) if kinds != (2,) else (s.Q[1:, :, :r], np.full((len(s.Q) - 1, r), 1.0 / r))
        prior = {"Q": Q, "w": w, "v": s.v[1:], "rows": s.rows[1:]}
        ask = {**state.shift, **prior, "kinds": np.array(kinds), "r": np.array(r)}
        losses = (yield Ask("validate", ask, Sum("losses"), state.cohort)).total["losses"]
        row, column = choose_shrinkage(losses)
        kept = replace(s, Q=s.Q[:1], w=s.w[:1], v=s.v[:1], rows=s.rows[:1])  # the folds have done their work
        return replace(state, shared=kept, losses=losses.sum(axis=0), kind=kinds[row], shrinkage=LAMBDAS[column])

    def begin(self, rng: Streams) -> Round[PersonalState]:
        """The opening of the methods that iterate: scale of the data, λ of kind 2 if it is to be found, V₀."""
        shift = yield from self.measure()
        clients = yield from self.list_clients(shift)
        shared, came = yield from self.survey(shift, self.draw(clients, rng))
        V = shared.Q[0, :, : self.k]
        if self.start == "random":
            V = random_point(rng("start"), *V.shape)
        state = replace(blank_state(shift, clients), shared=shared, cohort=came, V=V, kind=2)
        unit = float(shared.rows[0] * shared.v[0]) / self.k
        if self.shrinkage == "auto":
            state = yield from self.choose(state, (2,))
            state = replace(state, shrinkage=state.shrinkage * unit)
        else:
            state = replace(state, shrinkage=float(self.shrinkage))
        if state.shrinkage < _SHARED_FROM * unit:
            return state
        return replace(
            state, shrinkage=_SHARED_FROM * unit, V=shared.Q[0, :, : self.k], change=0.0
        )  # all U_i are V: solved

    def advance(self, state: PersonalState, V: Array, objective: float) -> PersonalState:
        """The state after an iteration."""
        change = abs(state.objective - objective) / max(abs(objective), 1e-300)
        return replace(state, t=state.t + 1, V=V, objective=objective, change=change)

    def describe_shared(self, state: PersonalState) -> dict[str, Array]:
        """What a client must know to work out its own components; also one that joins later."""
        s, lam = require_shared(state), state.shrinkage
        Q, w = s.Q[0], s.w[0]
        if state.kind == 2:
            Q, w, lam = state.V, np.full(self.k, 1.0 / self.k), lam * self.k / float(s.rows[0] * s.v[0])
        omega = to_shares(np.array(lam))
        prior = {"Q": Q, "w": w, "v": s.v[0], "rows": s.rows[0]}
        return {**prior, "kind": np.array(state.kind), "omega": omega, "r": np.array(self.k)}

    def close(self, state: PersonalState) -> Round[PersonalState]:
        """The last exchange: every client works out its components; they come back, or stay there."""
        ask, to = {**state.shift, **self.describe_shared(state)}, state.clients or None
        if not self.collect:
            replies = yield Ask("retain", ask, Sum("distance"), to)
            mean = float(replies.total["distance"]) / len(_list_answered(replies))
            return replace(state, closed=True, collected=Collected(mean_distance=mean))
        replies = yield Ask("collect", ask, Each(), to)
        each = list(replies.each.values())
        got = {name: np.stack([a[name] for a in each]) for name in ("U", "mean", "bounds", "distance", "n")}
        collected = Collected(
            names=tuple(replies.each),
            U=got["U"],
            means=got["mean"],
            bounds=got["bounds"],
            distances=got["distance"],
            sizes=got["n"],
            mean_distance=float(got["distance"].mean()),
        )
        return replace(state, closed=True, collected=collected)

    def done(self, state: PersonalState) -> bool:
        return state.closed

    def estimate(self, state: PersonalState) -> Array:
        return state.V.T

    def metrics(self, state: PersonalState) -> dict[str, float]:
        progress = {"objective": state.objective, "change": state.change}
        return progress | {"shrinkage": state.shrinkage, "distance": state.collected.mean_distance}


def require_shared(state: PersonalState) -> Shared:
    """What the opening found, or a refusal: it must have been asked before."""
    if state.shared is None:
        raise ProtocolError("The shared part is not known yet: the opening round comes first.")
    return state.shared


def blank_state(shift: Mapping[str, Array], clients: tuple[str, ...]) -> PersonalState:
    """A state that knows nothing yet."""
    nothing = np.zeros((0, 0))
    return PersonalState(
        t=0,
        shift=shift,
        clients=clients,
        cohort=(),
        shared=None,
        V=nothing,
        shrinkage=math.nan,
        kind=0,
        losses=nothing,
        objective=math.nan,
        change=math.nan,
        closed=False,
        collected=Collected(),
    )


def _list_answered(replies: Replies) -> tuple[str, ...]:
    missing = set(replies.missing)
    return tuple(client for client in replies.asked if client not in missing)
