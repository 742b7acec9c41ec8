"""Mini-batch SSCA, sample-based: learn under constraints.

    Y. Cui, Y. Li, C. Ye. Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
    Optimization via Mini-batch SSCA. arXiv, 2022. https://arxiv.org/abs/2104.06011 (Algorithms 1 and 2)

    min F_0(ω)  subject to  F_m(ω) ≤ 0, m = 1..M

Notation: ω (d,) the parameters, F̄_m the running convex surrogate of F_m (numerics/surrogate.py), ρ the weight of the
newest batch in it, γ the step towards its minimiser ω̄, τ the curvature of a sample's surrogate, c the price of a
slack s_m, ν_m the multiplier of constraint m, U_m the bound, t the round.

What the server sees: sums over the clients, of their numbers of rows, and of the losses and gradients of a batch (in
closing rounds, of all rows); with `clip` the sum of clipped gradients instead; in a private run nothing but that, with
noise. A client sees ω.

What differs from the paper, unless paper=True:
- ρ(1) = 1 (here always), as Remark 2 needs. The constant below (31) carries the loss, not minus the loss.
- The paper's step sizes a/t^0.1 break its own condition (6). After `hold` rounds ours fall faster, and keep it.
- Limit control (limit_control.py). Mini-batch noise leaves F above U: the running surrogate lags behind, and averaging
  gives F - U = [(1-ρ)τγ(1-γ)‖ω̄-ω‖² + e(ρ+γ-ργ)]/ρ with e = F̄(ω) - U. So the bound that is asked of F̄ is lowered
  until the batch losses are below U, and batches grow where their noise is too large for the limit.
- Exact closing rounds. The last rounds take all rows, ρ = γ = 1, and a τ that is doubled until F(ω̄) ≤ F̄(ω̄), which is
  verified: so ω is feasible when F̄ is, and stays so while the objective falls. Of the verified ω the best is kept:
  that of least violation, and among feasible ones that of least objective.
- c is raised, as in Theorem 2, when slacks stay positive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.learning._labelled_rows import check_at_least
from fedspan.algorithms.learning._samples import (
    DEFAULT_NET,
    Model,
    Opening,
    SampleBased,
    Sampling,
    Steps,
    Sums,
    can_be_squared,
    check_steps,
    mean_loss,
)
from fedspan.algorithms.learning.constraints.limit_control import LimitControl, follow_limits
from fedspan.algorithms.learning.constraints.limits import Limit, PartSums
from fedspan.algorithms.learning.held_out import count_held_out
from fedspan.algorithms.learning.scaling import EarlierModel
from fedspan.core.protocol import Course, Round, Server, Turn
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.surrogate import Surrogate, blend_surrogate, minimise, zero_surrogate
from fedspan.numerics.swish import Swish

_RHO, _GAMMA = Steps(0.3, 0.1, hold=800, tail=0.5), Steps(0.3, 0.1, hold=800, tail=0.8)
_HELD = 0.8  # of the rounds on batches: with limits, steps fall faster after that part at the latest
_SMALL = 0.3  # where the least ‖ω‖² is sought, the usual start is too large by that
_WAIT, _FALLS = 50, 0.95  # rounds with a slack until c is raised, unless the slack fell to that part of itself,
_RAISE, _DEAREST = 10.0, 1e9  # by how much, and up to what
DOUBLINGS = 40  # of τ in one closing round
_LOSS_ROUNDING = 1e-6  # what a closing round leaves to the rounding of a mean loss
_STALLED = 1e-3  # relative fall of the objective in a closing round that ends them


@dataclass(frozen=True)
class SscaState:
    """ω, its surrogates, and what is known of the constraints. `best` is the best of the verified ω."""

    opening: Opening
    t: int
    omega: Array  # (d,)
    surrogate: Surrogate
    nu: Array  # (M,)
    slack: Array  # (M,)
    c: float
    late: int  # rounds in a row with a positive slack,
    mark: float  # and how large the slacks were when they began
    control: LimitControl
    values: Array  # (M+1,) F_0 .. F_M, of the last batch, or of all rows in closing rounds
    loss: float  # mean loss of the last batch, or of all rows
    last: Array  # (d,) the ω before, whose losses were finite
    tau: float  # of the closing rounds
    best: Array  # (d,), empty while nothing is verified
    verified: Array  # (M+1,) F_0 .. F_M of best, over all rows
    closed: bool = False
    failed: bool = False  # a loss was not finite
    gap: float = 0.0  # the largest relative duality gap with which a round's problem was left
    held_out: PartSums | None = None  # what rows that were held out say in the end


@dataclass(frozen=True)
class Ssca(SampleBased, Server[SscaState]):
    """Algorithm 1 (no limits) and 2. `objective` "norm" is ‖ω‖², as in (40); "loss" is the mean loss + l2·‖ω‖² (32).

    `weights` are the objective's coefficients on the parts' mean losses, as those of a `Limit`. `batch` 0 takes all
    rows. With limits, the last `closing` of the `rounds` are exact, and `validation` is the share of the rows that are
    held out of training, to say in the end whether the limits hold for other rows, too. `clip` shortens the gradient of
    every row, so that one row has a bounded say (unconstrained only: losses have no bound).
    """

    model: Swish | Model = DEFAULT_NET  # a site rebuilds the first from plain data
    batch: int = 100
    rounds: int = 1000
    l2: float = 1e-5
    tau: float = 0.05
    rho: Steps = _RHO
    gamma: Steps = _GAMMA
    objective: Literal["loss", "norm"] = "loss"
    weights: tuple[float, ...] = ()
    limits: tuple[Limit, ...] = ()
    c: float = 1e5
    closing: int = 30
    paper: bool = False
    clip: float = 0.0
    private: Sampling | None = None
    standardize: bool = False
    prior: EarlierModel | None = None
    validation: float = 0.0

    State = SscaState

    def __post_init__(self) -> None:
        check_steps(self.rho, self.gamma, limits=not self.paper)
        for name, value in (("tau", self.tau), ("c", self.c)):
            if not value > 0:
                raise InputError(f"{name} must be above 0, but is {value!r}.")
        if self.objective not in ("loss", "norm"):
            raise InputError(f"objective must be 'loss' or 'norm', but is {self.objective!r}.")
        if self.objective == "norm" and not self.limits:
            raise InputError("objective='norm' needs a limit: without one the least norm is 0. Give limits.")
        check_at_least("rounds", self.rounds, 1)
        for name, value in (("l2", self.l2), ("batch", self.batch), ("closing", self.closing), ("clip", self.clip)):
            check_at_least(name, value, 0)
        if (self.clip or self.private) and (self.limits or self.objective == "norm"):
            raise InputError("clip works without limits only, because the losses that limits need have no bound.")
        if not 0 <= self.validation < 1 or (self.validation and (self.paper or not self.limits)):
            raise InputError(
                "validation, the share of rows that are held out to check limits, must be at least 0 and below 1 (0 "
                f"without limits or as printed), but is {self.validation!r}."
            )

    @property
    def taus(self) -> Array:
        """τ_m: ‖ω‖² as objective is its own surrogate, with τ_0 = 1."""
        return np.array([1.0 if self.objective == "norm" else self.tau, *[self.tau] * len(self.limits)])

    @property
    def stochastic(self) -> int:
        """Rounds on batches; those that are left are closing rounds."""
        return self.rounds - (0 if self.paper or not self.limits else min(self.closing, self.rounds // 2))

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {**super().client_options(), **({"validation": self.validation} if self.validation else {})}

    def held_out_rows(self, rows: int) -> int:
        return count_held_out(rows, self.validation)

    def asks(self) -> frozenset[str]:
        closing = {"losses"} if self.stochastic < self.rounds else set()
        return super().asks() | closing | ({"measure_parts"} if self.validation else set())

    def course(self) -> Course:
        course, closing = super().course(), self.rounds - self.stochastic
        if not closing:
            return course
        verify = Turn("losses", most=DOUBLINGS, rounds=closing, after=["open"])
        measure = (Turn("measure_parts", rounds=1, after=["open"]),) if self.validation else ()
        return replace(course, round=(*course.round, verify, *measure))

    def init(self, rng: Streams) -> Round[SscaState]:
        opening, omega = yield from self.opening(rng)
        parts, M = len(opening.n), len(self.limits)
        for row in (self.weights, *(limit.coefficients for limit in self.limits if not limit.sets)):
            if row and len(row) != parts:
                raise InputError(
                    f"There must be a coefficient for each of the {parts} parts, but there are {len(row)}."
                )
        if self.objective == "norm" and not self.paper and (self.prior is None or not len(self.prior.omega)):
            omega = _SMALL * omega
        zero, unknown = np.zeros(M), np.full(M + 1, np.nan)
        return SscaState(
            opening,
            t=0,
            omega=omega,
            surrogate=zero_surrogate(M, len(omega)),
            nu=zero,
            slack=zero,
            c=self.c,
            late=0,
            mark=0.0,
            control=self.begin_control(opening),
            values=unknown,
            loss=np.nan,
            last=omega,
            tau=self.tau,
            best=np.zeros(0),
            verified=unknown,
        )

    def round(self, state: SscaState, rng: Streams) -> Round[SscaState]:
        if state.t < self.stochastic:
            return (yield from self.improve(state, rng))
        state = yield from self.close(state)
        if not self.validation or not self.done(state):
            return state
        return replace(state, held_out=(yield from self.measure_held_out(self.estimate(state), state.opening)))

    def improve(self, state: SscaState, rng: Streams) -> Round[SscaState]:
        """A round on batches: Algorithms 1 and 2."""
        t, omega = state.t + 1, state.omega
        sums = yield from self.gather(omega, state.opening, rng, state.control.batch)  # lines 3, 4
        if not sums.good:
            return replace(state, t=t, omega=state.last, failed=True)
        rho, gamma = 1.0 if t == 1 else self.shorten(self.rho)(t), self.shorten(self.gamma)(t)
        with np.errstate(over="ignore", invalid="ignore"):
            values, slopes = self.evaluate(sums, omega)
            F = blend_surrogate(state.surrogate, rho, values, slopes, omega, self.taus)  # (3), (14)
        if not can_be_squared(F.linear, F.constant[1:]):
            return replace(state, t=t, failed=True)
        control = state.control
        asked = replace(F, constant=F.constant + np.concatenate([[0.0], control.lowered]))
        least = minimise(asked, state.c)  # line 5
        omega_next = (1 - gamma) * omega + gamma * least.omega  # line 6, (5)
        c, late, mark = self.price(state, least.slack)
        if not self.paper and self.limits:
            control = follow_limits(control, values[1:], least.nu, state.c)
        return replace(
            state,
            t=t,
            omega=omega_next,
            surrogate=F,
            nu=least.nu,
            slack=least.slack,
            c=c,
            late=late,
            mark=mark,
            control=control,
            values=values,
            loss=mean_loss(sums),
            last=omega,
            gap=max(state.gap, least.relative_gap),
        )

    def evaluate(self, sums: Sums, omega: Array) -> tuple[Array, Array]:
        """F_0 .. F_M (M+1,) and their gradients (M+1, d) from the parts' means."""
        n = sums.n
        objective = np.array(self.weights) if self.weights else n / n.sum()
        A = np.stack([objective, *(limit.row(n) for limit in self.limits)])
        bounds = np.array([0.0, *(limit.bound for limit in self.limits)])
        values = A @ sums.loss - bounds
        slopes = A @ sums.grad if sums.grad.size else np.zeros((0, 0))
        ridge = 1.0 if self.objective == "norm" else self.l2
        data = 0.0 if self.objective == "norm" else 1.0
        values[0] = data * values[0] + ridge * (omega @ omega)
        if slopes.size:
            slopes[0] = data * slopes[0] + 2 * ridge * omega
        return values, slopes

    def begin_control(self, opening: Opening) -> LimitControl:
        """The bounds as they are, and batches of the size that was asked for."""
        bound = np.array([limit.bound for limit in self.limits])
        on_loss = np.array([limit.on_loss for limit in self.limits], dtype=bool)
        return LimitControl.begin(bound, on_loss, self.batch, self.most_rows(opening))

    def shorten(self, steps: Steps) -> Steps:
        """With limits, the steps must have become small before the closing rounds, however few rounds there are."""
        if self.paper or not self.limits:
            return steps
        return replace(steps, hold=min(steps.hold, round(_HELD * self.stochastic)))

    def price(self, state: SscaState, slack: Array) -> tuple[float, int, float]:
        """c_j of Theorem 2: raised when slacks have stayed positive, and do not fall."""
        total = float(slack.sum())
        if self.paper or total <= 1e-9 or state.late == 0:
            return state.c, int(total > 1e-9), total
        if state.late < _WAIT:
            return state.c, state.late + 1, state.mark
        stuck = total > _FALLS * state.mark and state.c < _DEAREST
        return state.c * (_RAISE if stuck else 1.0), 1, total

    def close(self, state: SscaState) -> Round[SscaState]:
        """An exact round: a surrogate of all rows that is verified to lie above the functions where it is least."""
        omega, opening = state.omega, state.opening
        sums = yield from self.gather_all(omega, opening)
        if not sums.good:
            return replace(state, t=state.t + 1, omega=state.last, failed=True)
        values, slopes = self.evaluate(sums, omega)
        state = self.keep(replace(state, t=state.t + 1, values=values, loss=mean_loss(sums)), omega, values)
        start, tau = values, state.tau / 2  # half of what held last time: it may hold again
        room = _LOSS_ROUNDING * np.maximum(1.0, np.abs(values))  # losses of float32 rows are known to about this
        for _ in range(DOUBLINGS):
            tau *= 2
            taus = np.full(len(values), tau)
            taus[0] = 1.0 if self.objective == "norm" else tau
            F = blend_surrogate(state.surrogate, 1.0, values, slopes, omega, taus)
            F.constant[1:] += room[1:]
            least = minimise(F, state.c)
            omega_bar = least.omega
            trial = yield from self.gather_all(omega_bar, opening, gradients=False)
            found, _ = self.evaluate(trial, omega_bar)
            if trial.good and (found <= F(omega_bar) + room / 2).all():
                break
        else:
            return replace(state, closed=True)  # no surrogate holds: ω comes no further
        state = self.keep(state, omega_bar, found)
        feasible = (found[1:] <= 0).all() and (start[1:] <= 0).all()
        stalled = feasible and start[0] - found[0] <= _STALLED * abs(start[0])
        return replace(
            state,
            omega=omega_bar,
            nu=least.nu,
            slack=least.slack,
            values=found,
            loss=mean_loss(trial),
            tau=tau / 2,
            closed=bool(stalled),
            gap=max(state.gap, least.relative_gap),
        )

    def keep(self, state: SscaState, omega: Array, values: Array) -> SscaState:
        """The better one of `best` and ω by their verified values."""
        if len(state.best) and _rank(state.verified) <= _rank(values):
            return state
        return replace(state, best=omega, verified=values)

    def done(self, state: SscaState) -> bool:
        return state.failed or state.closed or state.t >= self.rounds

    def estimate(self, state: SscaState) -> Array:
        return state.best if len(state.best) and self.done(state) else state.omega

    def metrics(self, state: SscaState) -> dict[str, float]:
        out = {"cost": state.loss, "objective": float(state.values[0]), "norm2": float(state.omega @ state.omega)}
        for m in range(len(self.limits)):
            out[f"constraint_{m + 1}"] = float(state.values[m + 1])
            out[f"slack_{m + 1}"] = float(state.slack[m])
            out[f"multiplier_{m + 1}"] = float(state.nu[m])
            out[f"verified_{m + 1}"] = float(state.verified[m + 1])
        if not self.limits:
            return out
        return out | {"penalty": state.c, "duality_gap": state.gap, "rows_of_batch": float(state.control.batch)}


def _rank(values: Array) -> tuple[float, float]:
    """How good verified values are, less is better: first the violation, then the objective."""
    return max(0.0, float(values[1:].max())), float(values[0])
