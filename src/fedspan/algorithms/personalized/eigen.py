"""Personalized PCA: what its three methods share. Own components U_i for every client, drawn towards a shared part.

Notation: M_i = n_i S_i (d, d) the second moments of client i's rows (after clipping, centering, scaling), t_i = tr M_i,
(Q, w) the q leading eigenpairs of M = Σ M_i, T = tr M, N = Σ n_i, v = T/N, n̄ = N/m, r = k components, F folds.
Everything is one eigenproblem per client (PAPERS: the paper's prior and the rotation-invariant one have the same
minimisers): U_i = top_r(M_i + λ K_i), where the kinds of shared part K_i are

    0  (t_i + v) Q w Qᵀ / T                     as large as the client's own moments: λ is a ratio
    1  n̄ (t_i + v)/(n_i + 1) Q w Qᵀ / T         λ n̄ rows of the pooled distribution: large clients lean on it less
    2  n̄ v V Vᵀ / r                             the paper's prior, alike for all: λ n̄ v / r = σ_ε²(1+σ_ε²)/σ_U²

λ = 0 is local PCA, λ = ∞ global PCA; v is one row of average size, so that a client without any variance has a K_i.

λ by cross-validation: `sketch` (each client, for all rows and without each of F folds: the 2r leading eigenpairs of its
M_i, n_i, t_i), `validate` (losses on the held-out fold for 14 values of λ; every fold has its own Q, or the held-out
rows would have shaped it), and the server takes the λ of the least sum, if it is better than local and global PCA by
more than 2 %, or by more than two standard errors over the folds.

What the server sees. share="eigenpairs": of every client its leading 2r eigenpairs (of all rows, and without each
fold), sizes, traces and the squares of its columns; then sums of losses. share="sums": only sums over clients, of the
second moments themselves (d×d). collect=True: at the end every client's U_i and mean come back to the caller.
collect=False: they stay where they are made; the server learns the mean distance to the shared part only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.personalized.personal_client import LAMBDAS, PersonalClient, shares
from fedspan.algorithms.spectral.oneshot import unpack_triangle
from fedspan.core.protocol import Ask, Client, Each, Replies, Round, Server, Sum, complete
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.folds import leading_of, leading_of_sum
from fedspan.numerics.stiefel import random_point

_MOST = 1e4  # times the data's own size: λ of kind 2 for which all U_i are V


@dataclass(frozen=True)
class Shared:
    """What the opening told of all clients together; index 0 is of all rows, the others are without one fold."""

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
    """A run of any of the three methods."""

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


@dataclass(frozen=True)
class Personalized(Server[PersonalState]):
    """The options of all three methods, the opening, the choice of λ, and the closing exchange.

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
    center: Literal["client", "global", "none"] = "client"
    scale: bool = False
    clip: float = 0.0
    folds: int = 5
    share: Literal["eigenpairs", "sums"] = "eigenpairs"
    collect: bool = True
    count: int | None = None
    fraction: float | None = None
    start: Literal["global", "random"] = "global"

    State = PersonalState
    client: type[Client] = PersonalClient  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        lam = self.shrinkage
        if lam != "auto" and (isinstance(lam, bool | str) or not lam >= 0):
            raise InputError(f"need shrinkage to be 'auto' or a number from 0 (local) to inf (shared), got {lam!r}")
        if self.center not in ("client", "global", "none"):
            raise InputError(f"need center to be 'client', 'global' or 'none', got {self.center!r}")
        if self.share not in ("eigenpairs", "sums"):
            raise InputError(f"need share to be 'eigenpairs' or 'sums', got {self.share!r}")
        if not self.clip >= 0:
            raise InputError(f"need clip to be a number of MADs above 0, got {self.clip!r}")
        if self.folds < 2:
            raise InputError(f"need at least 2 folds, got {self.folds!r}")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"center": self.center, "clip": self.clip}

    def measure(self) -> Round[dict[str, Array]]:
        """The common mean and scale, as far as they are asked for: sums over all clients."""
        shift: dict[str, Array] = {}
        if self.center == "global" or (self.scale and self.center == "none"):
            total = (yield from complete(Ask("count", want=Sum("n", "total")))).total
            shift["mean"] = total["total"] / total["n"]
        if self.scale:
            total = (yield from complete(Ask("spread", dict(shift), Sum("n", "squares")))).total
            s = np.sqrt(total["squares"] / total["n"])
            floor = 10 * np.finfo(np.float64).eps * np.abs(shift.get("mean", np.zeros_like(s)))
            shift["scale"] = np.where(s > floor, s, 1.0)  # a constant column stays as it is
            if self.center == "none":
                del shift["mean"]
        return shift

    def everyone(self, shift: Mapping[str, Array]) -> Round[tuple[str, ...]]:
        """The names of all clients: where only some of them take part, the server must know whom to draw from."""
        if self.count is None and self.fraction is None:
            return ()
        return (yield from complete(Ask("size", shift, Sum("n")))).asked

    def draw(self, clients: tuple[str, ...], rng: Streams) -> tuple[str, ...] | None:
        """The cohort of this round, in the order of ids; None: everyone."""
        if not clients:
            return None
        m = len(clients)
        K = self.count if self.count is not None else max(1, math.ceil((self.fraction or 1.0) * m - 1e-9))
        if m < K:
            raise InputError(f"need a cohort of at most the {m} clients, got count={K}")
        return tuple(clients[i] for i in sorted(rng("cohort").choice(m, size=K, replace=False).tolist()))

    def survey(self, shift: Mapping[str, Array], to: tuple[str, ...] | None) -> Round[tuple[Shared, tuple[str, ...]]]:
        """(Q, w) of all rows, and without each fold if λ is to be found; and who answered."""
        F, r = self.folds if self.shrinkage == "auto" else 0, self.k
        ask = {**shift, "folds": np.array(F)}
        if self.share == "sums":
            replies = yield Ask("gram", ask, Sum("G", "n", "trace", "squares"), to)
            total = replies.total
            pairs = [leading_of(unpack_triangle(G), 3 * r) for G in total["G"]]
        else:
            replies = yield Ask("sketch", {**ask, "width": np.array(2 * r)}, Each(), to)
            each = list(replies.each.values())
            total = {name: np.sum([a[name] for a in each], axis=0) for name in ("n", "trace", "squares")}
            pairs = [leading_of_sum(np.hstack([a["S"][f] for a in each]), 3 * r) for f in range(1 + F)]
        came = _answered(replies)
        n, T = total["n"].astype(np.float64), total["trace"]
        rank = int(np.sum(pairs[0][1] > 1e-12 * max(pairs[0][1][0], 1e-300)))
        if rank < r:
            what = (
                "data that vary, all rows are equal (after centering)" if rank == 0 else f"data of rank {r}, got {rank}"
            )
            raise InputError(f"need {what}, over all clients together; lower n_components or give more rows")
        q = min(len(w) for _, w in pairs)
        Q, w = np.stack([Q[:, :q] for Q, _ in pairs]), np.stack([w[:q] for _, w in pairs])
        T = np.maximum(T, 1e-300)
        shared = Shared(
            Q, w / T[:, None], T / np.maximum(n, 1), n / len(came), int(n[0]), float(T[0]), total["squares"]
        )
        return shared, came

    def choose(self, state: PersonalState, kinds: tuple[int, ...]) -> Round[PersonalState]:
        """λ (and the kind of shared part) by held-out losses: see `decide`."""
        s = state.shared
        assert s is not None  # noqa: S101 - for the type checker
        r = self.k
        Q, w = (s.Q[1:], s.w[1:]) if kinds != (2,) else (s.Q[1:, :, :r], np.full((len(s.Q) - 1, r), 1.0 / r))
        ask = {
            **state.shift, "Q": Q, "w": w, "v": s.v[1:], "rows": s.rows[1:], "kinds": np.array(kinds), "r": np.array(r),
        }  # fmt: skip
        losses = (yield Ask("validate", ask, Sum("losses"), state.cohort)).total["losses"]
        row, column = decide(losses)
        kept = replace(s, Q=s.Q[:1], w=s.w[:1], v=s.v[:1], rows=s.rows[:1])  # the folds have done their work
        return replace(state, shared=kept, losses=losses.sum(axis=0), kind=kinds[row], shrinkage=LAMBDAS[column])

    def begin(self, rng: Streams) -> Round[PersonalState]:
        """The opening of the methods that iterate: scale of the data, λ of kind 2 if it is to be found, V₀."""
        shift = yield from self.measure()
        clients = yield from self.everyone(shift)
        shared, came = yield from self.survey(shift, self.draw(clients, rng))
        V = shared.Q[0, :, : self.k]
        if self.start == "random":
            V = random_point(rng("start"), *V.shape)
        state = replace(blank(shift, clients), shared=shared, cohort=came, V=V, kind=2)
        unit = float(shared.rows[0] * shared.v[0]) / self.k
        if self.shrinkage == "auto":
            state = yield from self.choose(state, (2,))
            state = replace(state, shrinkage=state.shrinkage * unit)
        else:
            state = replace(state, shrinkage=float(self.shrinkage))
        if state.shrinkage < _MOST * unit:
            return state
        return replace(state, shrinkage=_MOST * unit, V=shared.Q[0, :, : self.k], change=0.0)  # all U_i are V: solved

    def moved(self, state: PersonalState, V: Array, objective: float) -> PersonalState:
        """The state after an iteration."""
        change = abs(state.objective - objective) / max(abs(objective), 1e-300)
        return replace(state, t=state.t + 1, V=V, objective=objective, change=change)

    def told(self, state: PersonalState) -> dict[str, Array]:
        """What a client must know to work out its own components; also one that joins later."""
        s, lam = state.shared, state.shrinkage
        assert s is not None  # noqa: S101 - for the type checker
        Q, w = s.Q[0], s.w[0]
        if state.kind == 2:
            Q, w, lam = state.V, np.full(self.k, 1.0 / self.k), lam * self.k / float(s.rows[0] * s.v[0])
        omega = shares(np.array(lam))
        return {
            "Q": Q, "w": w, "v": s.v[0], "rows": s.rows[0], "kind": np.array(state.kind), "omega": omega,
            "r": np.array(self.k),
        }  # fmt: skip

    def close(self, state: PersonalState) -> Round[PersonalState]:
        """The last exchange: every client works out its components; they come back, or stay there."""
        ask, to = {**state.shift, **self.told(state)}, state.clients or None
        if not self.collect:
            replies = yield Ask("settle", ask, Sum("distance"), to)
            mean = float(replies.total["distance"]) / len(_answered(replies))
            return replace(state, closed=True, collected=Collected(mean_distance=mean))
        replies = yield Ask("collect", ask, Each(), to)
        each = list(replies.each.values())
        got = {name: np.stack([a[name] for a in each]) for name in ("U", "mean", "bounds", "distance", "n")}
        collected = Collected(
            tuple(replies.each), got["U"], got["mean"], got["bounds"], got["distance"], got["n"],
            float(got["distance"].mean()),
        )  # fmt: skip
        return replace(state, closed=True, collected=collected)

    def done(self, state: PersonalState) -> bool:
        return state.closed

    def estimate(self, state: PersonalState) -> Array:
        return state.V.T

    def metrics(self, state: PersonalState) -> dict[str, float]:
        return {
            "objective": state.objective, "change": state.change, "shrinkage": state.shrinkage,
            "distance": state.collected.mean_distance,
        }  # fmt: skip


def decide(losses: Array) -> tuple[int, int]:
    """(kind, λ) as indices into losses (F, kinds, 14): the least sum over the folds.

    But where that is better than the better of local and global by less than 2 %, and by less than two standard errors
    (over the folds), that one: a small gain which a few outlying rows of one fold make is none.
    """
    total = losses.sum(axis=0)
    row, column = (int(i) for i in np.unravel_index(int(np.argmin(total)), total.shape))
    end = 0 if total[0, 0] <= total[0, -1] else total.shape[1] - 1
    gain = losses[:, 0, end] - losses[:, row, column]
    if gain.sum() <= min(0.02 * total[0, end], 2 * gain.std(ddof=1) * np.sqrt(len(gain))):
        return 0, end
    return row, column


def blank(shift: Mapping[str, Array], clients: tuple[str, ...]) -> PersonalState:
    """A state that knows nothing yet."""
    nothing = np.zeros((0, 0))
    return PersonalState(
        0, shift, clients, (), None, nothing, math.nan, 0, nothing, math.nan, math.nan, False, Collected()
    )


def _answered(replies: Replies) -> tuple[str, ...]:
    missing = set(replies.missing)
    return tuple(client for client in replies.asked if client not in missing)
