"""MAX-VAR GCCA of views that stay apart: AltMaxVar, CuteMaxVar and MVLSA.

    S. Shrestha, X. Fu. Communication-Efficient Federated Linear and Deep Generalized Canonical Correlation Analysis.
    IEEE Trans. Signal Process., 2023. https://arxiv.org/abs/2109.12400 (Algorithm 1)
AltMaxVar is from X. Fu, K. Huang, M. Hong, N. D. Sidiropoulos, A. M.-C. So, Scalable and flexible multiview MAX-VAR
canonical correlation analysis, IEEE Trans. Signal Process., 2017, https://arxiv.org/abs/1605.09459; MVLSA from
P. Rastogi, B. Van Durme, R. Arora, Multiview LSA: Representation learning via generalized CCA, NAACL, 2015,
https://aclanthology.org/N15-1058.

Notation: J entities, K components, I views; B_i (J, N_i) the view of client i, ε the ridge, Q_i (N_i, K) its weights,
M_i = B_i Q_i (J, K), M = Σ M_i; P_i = B_i(B_iᵀB_i + εI)†B_iᵀ; G (J, K) the common representation, GᵀG = I, 1ᵀG = 0;
α the proximal weight α_G; the cost (7) is Σ f_i, f_i = ½‖M_i - G‖² + (ε/2)‖Q_i‖². For given G its least value is
½(I·K - tr GᵀPG), P = Σ P_i: the best G spans the K leading eigenvectors of P, with eigenvalues θ.

The stopping measure is ‖(∇_Q f_1, …, ∇_Q f_I, (I - GGᵀ)M)‖ / (I·K), the critical point condition (23) with each block
in the units of G. It is not divided by tr(P) as in PCA: that is the number of features, and says nothing of G.

What the server sees: see _view.py; of MVLSA, and of a start by it, also every view's leading subspace (`reduce`).

Under a quantised channel (`delta(quantize(b))` on "M" and "G") the exchange is CuteMaxVar's: the channel's memories are
the paper's M̂_i and Ĝ, kept on both sides, and coding against them *is* its error feedback, because what was lost is
part of the next difference (12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.gcca._view import ViewClient, open_views, view_opening, view_options, view_rounds, view_tasks
from fedspan.algorithms.gcca._weigh import (
    NOT_SUMS_OF_VIEWS,
    Answer,
    Watch,
    ask_weights,
    is_out_of_patience,
    view_metrics,
    watch_held_out,
)
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Server, Sum, complete
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid
from fedspan.numerics.maxvar import common_step, projected_residual
from fedspan.numerics.precondition import low_rank_sum_at_once

Local = Literal["exact", "gradient", "sgd"]
Start = Literal["random", "mvlsa"]


@dataclass(frozen=True)
class MaxVarState:
    """The common representation, and how far it is."""

    J: int
    views: int
    t: int
    G: Array  # (J, K) what will be sent next
    cost: float  # (7), with the weights of this round and the G that they were made for
    kkt: float
    watch: Watch | None
    answer: Answer | None


@dataclass(frozen=True)
class _MaxVar(Server[MaxVarState]):
    """What AltMaxVar and MVLSA share."""

    State = MaxVarState
    client: ClassVar[type[Client[object]]] = ViewClient
    family: ClassVar[str] = "gcca"

    def replay(self) -> Replay | str:
        return NOT_SUMS_OF_VIEWS

    def estimate(self, state: MaxVarState) -> Array:
        return state.answer.G if state.answer else state.G


@dataclass(frozen=True)
class AltMaxVar(_MaxVar):
    """Alternate (8a) and (8b) until the critical point condition is met to `tol`.

    `local`: "exact" (least squares), "gradient" (`steps` full gradient steps) or "sgd" (`steps` steps with batches of
    `batch` entities). `start`: "random" weights, or "mvlsa" of rank `rank` (0: 2K). `alpha` is α_G of the proximal term
    (14). `patience`: stop after so many rounds without a better alignment of the rows held out, and return to the best
    (0: nothing is held out). `last`: the round after which the weights are asked for though tol is not met.
    """

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    ridge: float = 0.0
    local: Local = "exact"
    steps: int = 10
    batch: int = 0
    start: Start = "random"
    rank: int = 0
    alpha: float = math.inf
    patience: int = 0
    last: int = field(default=0, repr=False)
    relative: bool = False  # whether the ridge is in units of each view's mean eigenvalue

    def __post_init__(self) -> None:
        if self.local not in get_args(Local):
            raise InputError(f"local must be 'exact', 'gradient' or 'sgd', but is {self.local!r}.")
        if self.start not in get_args(Start):
            raise InputError(f"start must be 'random' or 'mvlsa', but is {self.start!r}.")
        if self.local == "sgd" and self.batch < 1:
            raise InputError(f"Local steps by 'sgd' need batch_size of at least 1 entity, but it is {self.batch!r}.")
        if self.steps < 1:
            raise InputError(f"steps must be at least 1, but is {self.steps!r}.")
        if not self.alpha > 0:
            raise InputError(f"alpha must be above 0, but is {self.alpha!r}.")
        if not self.ridge >= 0:
            raise InputError(f"ridge must be at least 0, but is {self.ridge!r}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        view = view_options(self.center, self.scale, self.ridge, self.tol, self.relative)
        return {**view, "local": self.local, "steps": self.steps, "batch": self.batch}

    def asks(self) -> frozenset[str]:
        first = "reduce" if self.start == "mvlsa" else "begin"
        return view_tasks(self.patience) | {first, "update"}

    def course(self) -> Course:
        first = "reduce" if self.start == "mvlsa" else "begin"
        return Course(view_opening(first), view_rounds("update", self.patience))

    def init(self, rng: Streams) -> Round[MaxVarState]:
        J, views = yield from open_views(self.k, self.center, rng)
        if self.start == "mvlsa":
            G = yield from ask_mvlsa(self.k, self.rank or 2 * self.k, self.center)
        else:
            M = (yield from complete(Ask("begin", {"k": np.array(self.k)}, Sum("M")))).total["M"]  # lines 1 to 6
            G = common_step(M, None, center=self.center)  # line 7
        return MaxVarState(J, views, 0, G, np.inf, np.inf, None, None)

    def round(self, state: MaxVarState, rng: Streams) -> Round[MaxVarState]:
        G, t = state.G, state.t + 1
        total = (yield from complete(Ask("update", {"G": G}, Sum("M", "cost", "slope")))).total
        M = total["M"]  # lines 12 to 28
        slope = math.sqrt(max(float(total["slope"]), 0.0)) / (state.views * self.k)
        kkt = math.hypot(projected_residual(M, G, state.views), slope)  # (23)
        G_next = common_step(M, G, self.alpha, self.center)  # line 29
        watch = state.watch
        if self.patience:
            watch = yield from watch_held_out(watch, G, {}, t)
        state = MaxVarState(state.J, state.views, t, G_next, float(total["cost"]), kkt, watch, None)
        if self.done(state) or t == self.last:
            answer = yield from ask_weights(watch.G if watch else G_next)
            state = replace(state, answer=answer)
        return state

    def done(self, state: MaxVarState) -> bool:
        return state.kkt <= self.tol or is_out_of_patience(state.watch, state.t, self.patience)

    def metrics(self, state: MaxVarState) -> dict[str, float]:
        return view_metrics(state.cost, state.kkt, state.watch)


@dataclass(frozen=True)
class CuteMaxVar(AltMaxVar):
    """Algorithm 1: AltMaxVar through a channel that quantises differences on both links.

    What differs from the paper: the first exchange goes at 8 bits (the channel's choice; full precision is selectable),
    and there is no proximal term unless `alpha` is given: it makes the iteration one on P + I/α, which is slower.
    """


def ask_low_rank(k: int, m: int) -> Round[tuple[Array, Array]]:
    """(vectors, values) of P for views cut to rank m. One exchange: the server sees each view's leading subspace."""
    replies = yield from complete(Ask("reduce", {"m": np.array(max(m, k))}))
    factors = [from_grid(arrays["U"], arrays["scale"]) for arrays in replies.each.values()]
    vectors, values = low_rank_sum_at_once(factors)
    if len(values) < k:
        raise InputError(
            f"The leading parts of the views together have rank {len(values)}, but {k} is needed. Raise rank."
        )
    return vectors, values


def ask_mvlsa(k: int, m: int, center: bool) -> Round[Array]:
    """G of the views cut to rank m (Rastogi et al.)."""
    vectors, _ = yield from ask_low_rank(k, m)
    return common_step(vectors[:, :k], center=center)  # rounding may have left a little of the mean


@dataclass(frozen=True)
class Mvlsa(_MaxVar):
    """One round: the answer for views cut to rank `rank` (0: 2K), as good as that rank; the baseline of the paper."""

    k: int = 2
    center: bool = True
    scale: bool = False
    ridge: float = 0.0
    rank: int = 0
    relative: bool = False

    def client_options(self) -> dict[str, float | int | str | bool]:
        return view_options(self.center, self.scale, self.ridge, 0.0, self.relative)

    def asks(self) -> frozenset[str]:
        return view_tasks() | {"reduce"}

    def course(self) -> Course:
        return Course(view_opening(), view_rounds("reduce"))

    def init(self, rng: Streams) -> Round[MaxVarState]:
        J, views = yield from open_views(self.k, self.center, rng)
        return MaxVarState(J, views, 0, np.zeros((J, 0)), np.inf, np.inf, None, None)

    def round(self, state: MaxVarState, rng: Streams) -> Round[MaxVarState]:
        G = yield from ask_mvlsa(self.k, self.rank or 2 * self.k, self.center)
        answer = yield from ask_weights(G)
        return replace(state, t=1, G=G, cost=answer.cost, answer=answer)

    def done(self, state: MaxVarState) -> bool:
        return state.t > 0

    def metrics(self, state: MaxVarState) -> dict[str, float]:
        return {"cost": state.cost}
