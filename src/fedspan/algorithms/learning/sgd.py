"""The baselines of mini-batch SSCA: FedSGD, FedAvg, SCAFFOLD, FedAdam, and SSCA written as momentum SGD.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep Networks
    from Decentralized Data. AISTATS, 2017. https://arxiv.org/abs/1602.05629 (FedSGD, FedAvg)
    H. Yu, S. Yang, S. Zhu. Parallel Restarted SGD with Faster Convergence and Less Communication. AAAI, 2019.
    https://arxiv.org/abs/1807.06629 (FedAvg as PR-SGD)
    S. P. Karimireddy et al. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML, 2020.
    https://arxiv.org/abs/1910.06378 (Algorithm 1, option II)
    S. J. Reddi et al. Adaptive Federated Optimization. ICLR, 2021. https://arxiv.org/abs/2003.00295 (Algorithm 2)
    Y. Cui, Y. Li, C. Ye. Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
    Optimization via Mini-batch SSCA. arXiv, 2022. https://arxiv.org/abs/2104.06011 ((11), (12) and Remark 2)

Notation: ω (d,) the parameters, g the mean gradient of a batch, v the momentum, r = rate(t) the learning rate, β the
momentum parameter, E the local steps between two communications, γ, ρ, τ as in ssca.py.

What the server sees: how many rows the clients have in all, and the sums, weighted by N_i, of their losses and of their
gradients (FedSGD), or of ω and v after local steps (FedAvg, FedAdam), or of ω and of the change of c_i (SCAFFOLD); with
`clip` the sum of clipped gradients instead; in a private run nothing but that, with noise.

What differs from the papers: a client of FedAvg passes over all its rows before any comes again, and the momentum is
averaged with ω. In SCAFFOLD and FedAdam a client weighs N_i/N instead of 1/(number of clients).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.learning._labelled_rows import check_at_least
from fedspan.algorithms.learning._samples import (
    DEFAULT_NET,
    LocalMemory,
    Model,
    Opening,
    SampleBased,
    SampleClient,
    Sampling,
    Steps,
    can_be_squared,
    mark_finite,
    mean_loss,
)
from fedspan.algorithms.learning.scaling import EarlierModel, RowsMemory
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sensitivity, Server, Sum, Turn, task
from fedspan.core.replay import CLOSE
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish

_RATE, _MOMENTUM_STEPS, _STEADY = Steps(0.3, 0.3), Steps(0.3, 0.1), Steps(0.1, 0.0)


@dataclass(frozen=True)
class SgdState:
    """ω, and what moves it."""

    opening: Opening
    t: int
    omega: Array  # (d,)
    v: Array  # (d,)
    loss: float  # mean loss of the last batch
    last: Array  # (d,) the ω before, whose losses were finite
    failed: bool = False  # a loss was not finite
    square: Array | None = None  # (d,) the second moments of FedAdam


@dataclass(frozen=True)
class FedSgd(SampleBased, Server[SgdState]):
    """v ← βv + g, ω ← ω - r v, with the gradient of the mean loss + l2·‖ω‖². β = 0: FedSGD."""

    model: Swish | Model = DEFAULT_NET  # a site rebuilds the first from plain data
    batch: int = 100
    rounds: int = 1000
    l2: float = 1e-5
    rate: Steps = _RATE
    momentum: float = 0.0
    clip: float = 0.0
    private: Sampling | None = None
    standardize: bool = False
    prior: EarlierModel | None = None

    State = SgdState

    def __post_init__(self) -> None:
        if not self.rate.a > 0 or self.rate.alpha < 0:
            raise InputError(f"The learning rate must be above 0 and must not grow, but is {self.rate}.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be from 0 to below 1, but is {self.momentum!r}.")
        check_at_least("rounds", self.rounds, 1)
        for name, value in (("batch", self.batch), ("clip", self.clip), ("l2", self.l2)):
            check_at_least(name, value, 0)

    def init(self, rng: Streams) -> Round[SgdState]:
        opening, omega = yield from self.opening(rng)
        return SgdState(opening, 0, omega, np.zeros_like(omega), np.nan, omega)

    def round(self, state: SgdState, rng: Streams) -> Round[SgdState]:
        sums = yield from self.gather(state.omega, state.opening, rng)
        if not sums.good:
            return replace(state, t=state.t + 1, omega=state.last, failed=True)
        with np.errstate(over="ignore", invalid="ignore"):
            g = (sums.n / sums.n.sum()) @ sums.grad + 2 * self.l2 * state.omega
            v, step = self.direct(state.t + 1, state.v, g)
            omega = state.omega - step * v
        if not can_be_squared(omega, v):
            return replace(state, t=state.t + 1, failed=True)
        return replace(state, t=state.t + 1, omega=omega, v=v, loss=mean_loss(sums), last=state.omega)

    def direct(self, t: int, v: Array, g: Array) -> tuple[Array, float]:
        """The next v, and how far to go along it."""
        return self.momentum * v + g, self.rate(t)

    def done(self, state: SgdState) -> bool:
        return state.failed or state.t >= self.rounds

    def estimate(self, state: SgdState) -> Array:
        return state.omega

    def metrics(self, state: SgdState) -> dict[str, float]:
        with np.errstate(over="ignore"):
            return {"cost": state.loss, "norm2": float(state.omega @ state.omega)}


@dataclass(frozen=True)
class SscaMomentum(FedSgd):
    """Mini-batch SSCA without constraints, written as momentum SGD: (11), (12), Remark 2."""

    rho: Steps = _MOMENTUM_STEPS
    gamma: Steps = _MOMENTUM_STEPS
    tau: float = 0.05

    def direct(self, t: int, v: Array, g: Array) -> tuple[Array, float]:
        rho, before = (1.0, 0.0) if t == 1 else (self.rho(t), self.gamma(t - 1))
        return (1 - rho) * (1 - before) * v + rho / (2 * self.tau) * g, self.gamma(t)  # (12), (11)


class LocalStepsClient(SampleClient):
    """A client that takes steps of its own between two communications."""

    @task(
        releases={"n": Sensitivity(0), "loss": None, "omega": None, "v": None, "bad": None},
        shows="the model's parameters and momentum after its own local steps, its loss, and its number of rows",
    )
    def local(self, state: RowsMemory, arrays: Arrays, rng: Streams) -> tuple[RowsMemory, Arrays]:
        """E steps from the server's ω, and N_i times where they led. One pass over the rows before any comes again."""
        momentum = float(arrays["momentum"])
        omega, v, _, loss = self._step_locally(state, arrays, rng, arrays["v"], momentum, 0.0)
        n = self.rows.n
        with np.errstate(over="ignore", invalid="ignore"):
            sent = mark_finite(loss=np.array(n * loss), omega=n * omega, v=n * v)
        return state, {"n": np.array(n), **sent}

    def _step_locally(
        self, state: RowsMemory, arrays: Arrays, rng: Streams, v: Array, momentum: float, shift: Array | float
    ) -> tuple[Array, Array, Array, float]:
        """ω_i and v after E steps along g + shift, the mean of the gradients g, and the mean loss on the way."""
        omega, n, rows = arrays["omega"], self.rows.n, self.recall(state)
        rate, l2 = float(arrays["rate"]), float(arrays["l2"])
        E, B = int(arrays["steps"]), min(self.batch or n, n)
        passes = -(-E * B // n) + 1
        order = np.concatenate([rng(f"pass {k}").permutation(n) for k in range(passes)])
        mean, total = np.zeros_like(omega), 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(E):
                loss, grad = rows.sums(omega, order[k * B : (k + 1) * B])
                g = grad.sum(axis=0) / B + 2 * l2 * omega
                mean += g / E
                v = momentum * v + (g + shift)
                omega = omega - rate * v
                total += float(loss.sum()) / (B * E)
        return omega, v, mean, total


@dataclass(frozen=True)
class FedAvg(FedSgd):
    """E local steps, with momentum (Yu et al. 2019) or without, then the weighted mean of ω and v.

    With batch·steps = N_i it is the FedAvg of the paper's figures. `cost` is the mean loss along the local steps.
    """

    steps: int = 10

    client: ClassVar[type[Client[object]]] = LocalStepsClient

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise InputError(f"steps, the number of local steps, must be at least 1, but is {self.steps!r}.")
        if self.clip or self.private:
            raise InputError(
                "FedAvg cannot be combined with clip or private, because nothing bounds where local steps lead. "
                "Use Ssca or FedSgd."
            )

    def asks(self) -> frozenset[str]:
        return frozenset({"open", "local"}) | self.scaling_tasks()

    def course(self) -> Course:
        return Course(self.opening_turns(), (Turn("local", rounds=self.rounds, after=["open"]),))

    def replay(self) -> Replay | str:
        known = super().replay()
        told = ("omega", "v", "rate", "momentum", "l2", "steps")
        if isinstance(known, str):
            return known
        return {"open": {}, "local": dict.fromkeys(told, CLOSE), **self.scaling_replay()}

    def round(self, state: SgdState, rng: Streams) -> Round[SgdState]:
        t = state.t + 1
        numbers = {"rate": self.rate(t), "momentum": self.momentum, "l2": self.l2, "steps": self.steps}
        arrays = {"omega": state.omega, "v": state.v, **{name: np.array(value) for name, value in numbers.items()}}
        total = (yield Ask("local", arrays, Sum("n", "loss", "omega", "v", "bad"))).total
        if int(total["bad"]):
            return replace(state, t=t, omega=state.last, failed=True)
        n, loss = float(total["n"]), float(total["loss"])
        return replace(state, t=t, omega=total["omega"] / n, v=total["v"] / n, loss=loss / n, last=state.omega)


class ScaffoldClient(LocalStepsClient):
    """A client whose local steps are corrected by how its gradients differ from those of all."""

    State = LocalMemory

    def init(self) -> LocalMemory:
        return LocalMemory()

    @task(
        releases={"n": Sensitivity(0), "loss": None, "omega": None, "control": None, "bad": None},
        shows="the model's parameters after its own local steps, by how much its mean gradient on the way changed "
        "since it was asked last, its loss, and its number of rows",
    )
    def local_corrected(self, state: LocalMemory, arrays: Arrays, rng: Streams) -> tuple[LocalMemory, Arrays]:
        """E steps along g + c - c_i, and N_i times where they led and the change of c_i: lines 7 to 13, option II."""
        zero, n = np.zeros_like(arrays["omega"]), self.rows.n
        known = zero if state.control is None else state.control
        omega, _, mean, loss = self._step_locally(state, arrays, rng, zero, 0.0, arrays["control"] - known)
        with np.errstate(over="ignore", invalid="ignore"):
            sent = mark_finite(loss=np.array(n * loss), omega=n * omega, control=n * (mean - known))
        after = state if int(sent["bad"]) else replace(state, control=mean)
        return after, {"n": np.array(n), **sent}


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD: local steps along g + c - c_i, with c = Σ (N_i/N) c_i; ω moves by `server` times their mean change."""

    rate: Steps = _STEADY
    server: float = 1.0

    client: ClassVar[type[Client[object]]] = ScaffoldClient

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise InputError("SCAFFOLD has no momentum; leave it out, or use FedAvg or FedSgd.")
        if not self.server > 0:
            raise InputError(f"server, the server's step, must be above 0, but is {self.server!r}.")

    def asks(self) -> frozenset[str]:
        return frozenset({"open", "local_corrected"}) | self.scaling_tasks()

    def course(self) -> Course:
        return Course(self.opening_turns(), (Turn("local_corrected", rounds=self.rounds, after=["open"]),))

    def replay(self) -> Replay | str:
        known = super().replay()
        if isinstance(known, str):
            return known
        told = ("omega", "control", "rate", "l2", "steps")
        return {"open": {}, "local_corrected": dict.fromkeys(told, CLOSE), **self.scaling_replay()}

    def round(self, state: SgdState, rng: Streams) -> Round[SgdState]:
        """`v` is c here."""
        t = state.t + 1
        numbers = {"rate": self.rate(t), "l2": self.l2, "steps": self.steps}
        arrays = {"omega": state.omega, "control": state.v, **{name: np.array(x) for name, x in numbers.items()}}
        total = (yield Ask("local_corrected", arrays, Sum("n", "loss", "omega", "control", "bad"))).total
        if int(total["bad"]):
            return replace(state, t=t, omega=state.last, failed=True)
        n, everyone = float(total["n"]), self.count_rows(state.opening.n)
        omega = state.omega + self.server * (total["omega"] / n - state.omega)
        control = state.v + total["control"] / everyone
        return replace(state, t=t, omega=omega, v=control, loss=float(total["loss"]) / n, last=state.omega)


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg whose server takes the clients' mean change Δ as a gradient of Adam.

    m ← β₁m + (1-β₁)Δ, v ← β₂v + (1-β₂)Δ², ω ← ω + server·m/(√v + τ).
    """

    rate: Steps = _STEADY
    server: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise InputError("FedAdam has a momentum of its own, beta1; leave momentum out.")
        if not (self.server > 0 and self.tau > 0 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise InputError("FedAdam needs server and tau above 0, and beta1 and beta2 from 0 to below 1.")

    def round(self, state: SgdState, rng: Streams) -> Round[SgdState]:
        """`v` is m here."""
        zero = np.zeros_like(state.omega)
        after = yield from super().round(replace(state, v=zero), rng)
        if after.failed:
            return after
        change = after.omega - state.omega
        mean = self.beta1 * state.v + (1 - self.beta1) * change
        square = self.beta2 * (zero if state.square is None else state.square) + (1 - self.beta2) * change**2
        omega = state.omega + self.server * mean / (np.sqrt(square) + self.tau)
        return replace(after, omega=omega, v=mean, square=square)
