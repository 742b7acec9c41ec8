"""FedPower: power iterations at the clients, aligned when they meet; and the paper's noise, as `PaperNoise`.

    X. Guo, X. Li, X. Chang, S. Wang, Z. Zhang. Privacy-Preserving Distributed SVD via Federated Power.
    arXiv, 2021. https://arxiv.org/abs/2103.00704 (Algorithms 1 to 3)

Notation: A_i (s_i, d) the shifted rows of client i, n = Σ s_i, p_i = s_i/n, M_i = A_iᵀA_i/s_i, M = Σ p_i M_i;
Z (d, r) orthonormal, r ≥ k; p local iterations between two communications; Z_i (d, r) the last local basis before a
communication, Y_i = M_i Z_i, Z_1 that of the baseline device, D_i (r, r) = argmin ‖Z_i D - Z_1‖_F;
S_t the K of the m clients that take part in a round.

A round: Z → each client p times Y_i = M_i Z_i, Z_i = orth(Y_i), → Y = Σ w_i Y_i D_i → Z⁺ = orth(Y). With p = 1 all Z_i
are Z, nothing has to be aligned, and it is the distributed power method (Algorithm 1).

What the server sees: the opening (_moments.py) and the size s_i of every client; Z_1 of the baseline device in rounds
of p > 1 steps that are aligned (the server passes it on to the others, which align themselves, as in line 6); the sum
of Y_i D_i, and with p > 1 of ZᵀM_iZ (r, r), which tells it the Ritz values of Z. Under Scheme 1 clients count as often
as they are drawn, so it sees every client's part by itself: no secure sum. A release of p > 1 steps has no known
sensitivity (the paper's proof holds Z_i fixed, but it depends on the private rows since the last synchronisation); with
p = 1 it is that of M_i Z.

What differs from the paper: "1 = argmin p_i" is a slip for the largest; the baseline is the largest client that takes
part and answers. Z_0 is orthonormal from the start, and the server sends orth(Y), not Y: the same iterates.

`PaperNoise` adds the noise of Algorithms 2 and 3, to reproduce the paper's Table 3, not to protect rows. With
c(x) = √(2 ln(1.25 x/δ)), for one communication, a client sends s_i(Y_i D_i + ‖Z_i‖_max·σ·N), and the server goes on
with Y + ‖Z‖_max·σ'·N', N and N' of standard normal entries, where
    full participation      σ = c(1)/(ε₁ min s_i)          σ' = max p_i · c(1)/(ε₂ min s_i)
    partial, Scheme 1       σ = c(max p_i)/(ε₁ min s_i)    σ' = c(1)/(K ε₂ min s_i)
    partial, Scheme 2       σ = c(1/m)/(ε₁ min s_i)        σ'' = max p_i · c(1)/(K ε₂ min s_i)
Why it is not sound, and PaperDP warns of it: (a) the proof holds Z_i fixed, but with p > 1 it depends on the private
rows since the last synchronisation; (b) it bounds one column of the release and stacks r of them, which is up to √r
more; its neighbours differ in one entry of AᵀA, not in one row; ‖Z_i‖_max is itself read from private iterates; and
the baseline device shows its Z_1 without noise. The ledger's ε for such a run is infinite. What differs from the
paper: ε₁ and ε₂ are per communication, as in its experiments, instead of divided by the rounds; the server scales by
‖Z‖_max of what it broadcast, since it does not see Z_i D_i. The noise is drawn from the run's keyed streams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import SHOWS_PRODUCTS, Shift, ask_sizes, measure, measure_tasks, measure_turns
from fedspan.algorithms.spectral._eigenspace import Spectral
from fedspan.algorithms.spectral.power import LocalPowerClient, PowerState
from fedspan.core.participation import cohort_size
from fedspan.core.protocol import Ask, Client, Course, Each, Replay, Replies, Round, Sensitivity, Sum, Turn, task
from fedspan.core.rng import Streams
from fedspan.errors import ClientError, InputError
from fedspan.numerics.orthonormal import orthonormalize, polar, projection_distance, random_orthonormal
from fedspan.numerics.procrustes import procrustes, sign_fixing
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz

_FLOOR_ROUNDS = 10  # rounds over which the floor of a run with partial participation is measured
_ALIGN = {"opt": procrustes, "sign": sign_fixing}


class FedPowerClient(LocalPowerClient):
    """A client that can turn its basis towards that of the baseline device. It sends s_i·Y_i: the server knows s_i."""

    def __init__(self, data: object, columns: int = 0, align: str = "opt") -> None:
        super().__init__(data, columns)
        self.align = align

    @task(releases={"Z1": None}, shows="of the largest client of the round, its own basis after local steps")
    def show(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """As the baseline device: Z_1."""
        return state, {"Z1": self.local(state, arrays["Z"], int(arrays["steps"]))[0]}

    @task(
        releases={"Y": None, "T": Sensitivity(2)},
        shows="its estimate after local steps, turned towards the largest client's, and its share of the variances",
    )
    def iterate_aligned(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Alg. 2, lines 4 to 6; also ZᵀM_iZ."""
        Z_i, Y_i, T = self.local(state, arrays["Z"], int(arrays["steps"]))
        D = _ALIGN[self.align](Z_i, arrays["Z1"])  # (3.2) or (3.16)
        return state, {"Y": self.perturb(Y_i @ D, Z_i, arrays, rng), "T": T}

    @task(
        releases={"Y": None, "T": Sensitivity(2)},
        shows="its estimate after local steps, and its share of the variances",
    )
    def iterate(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Alg. 2, line 4, without alignment; also ZᵀM_iZ."""
        Z_i, Y_i, T = self.local(state, arrays["Z"], int(arrays["steps"]))
        return state, {"Y": self.perturb(Y_i, Z_i, arrays, rng), "T": T}

    def perturb(self, Y: Array, Z_i: Array, arrays: Arrays, rng: Streams) -> Array:
        """What is sent in place of Y; `PaperNoiseClient` adds noise."""
        return Y


@dataclass(frozen=True)
class FedPowerState(PowerState):
    """An eigenspace (`next` has r columns, Z the best k), and what led to it."""

    sizes: Mapping[str, float]  # s_i
    t: int  # communications so far
    changes: Array  # ‖(I - Z⁺Z⁺ᵀ) Z‖₂ of the last rounds, the latest last
    closed: bool = False


@dataclass(frozen=True)
class FedPower(Spectral[FedPowerState]):
    """FedPower with full participation, or with K of m clients per round: `count` = K, or `fraction` = K/m.

    Parameters:
        p: Local iterations between two communications; `decay` takes one off after every round until it is 1 (3.15).
        align: "opt" (orthogonal Procrustes, (3.2)), "sign" (3.16), or "none" (one exchange less; as our QR has a
            positive diagonal, signs seldom differ: on a9a the error is that of "sign", where LAPACK's own signs make
            it ten times).
        width: r, the columns that are iterated, of which the best k are kept; None: 2k, as in the paper's Table 3.
        scheme: 1 (with replacement, probability p_i, weight 1/K) or 2 (uniform, without replacement, weight m·p_i/K).

    It stops when the scaled KKT violation is at most `tol`, which the server can see in rounds with p = 1 in which all
    clients answered. Where it cannot see it, it goes on until Z comes no further: with a fixed p > 1, until Z moves by
    at most `tol` in a round; with partial participation or replies that are missing, until Z moves in ten rounds as
    much as in the ten before: the metrics report that level as "floor", which is about the distance to the eigenspace
    that the sampling leaves. Then one round of the distributed power method with all clients closes the run: so the
    variances are right, and the KKT violation, which may be far above `tol`, is known. (A run that ends before, by its
    number of rounds, has the variances of its last cohort.)
    """

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    p: int = 4
    decay: bool = True
    align: Literal["opt", "sign", "none"] = "opt"
    width: int | None = None
    count: int | None = None
    fraction: float | None = None
    scheme: int = 2

    State = FedPowerState
    client: ClassVar[type[Client[object]]] = FedPowerClient

    def __post_init__(self) -> None:
        if self.p < 1:
            raise InputError(f"p, the number of local iterations, must be at least 1, but is {self.p!r}.")
        if self.align not in (*_ALIGN, "none"):
            raise InputError(f"align must be 'opt', 'sign' or 'none', but is {self.align!r}.")
        if self.scheme not in (1, 2):
            raise InputError(f"scheme must be 1 (with replacement) or 2 (without), but is {self.scheme!r}.")
        if self.count is not None and self.fraction is not None:
            raise InputError("Give either count or fraction of the clients that take part, not both.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise InputError(f"fraction must be above 0 and at most 1, but is {self.fraction!r}.")

    @property
    def partial(self) -> bool:
        return self.count is not None or self.fraction is not None

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 100 * (self.width or 2 * self.k), "align": self.align}

    def asks(self) -> frozenset[str]:
        tasks = {"size"}
        if self.p > 1:
            tasks |= {"iterate"} if self.align == "none" else {"show", "iterate_aligned"}
        if self.p == 1 or self.decay or self.tol > 0:  # the last: the closing round
            tasks.add("multiply")
        return measure_tasks(self.center, self.scale) | tasks

    def course(self) -> Course:
        opening = (*measure_turns(self.center, self.scale), Turn("size"))
        rounds = (Turn("show"), Turn("iterate_aligned"), Turn("iterate"), Turn("multiply"))
        asked = self.asks()
        return Course(
            opening, tuple(Turn(*turn.tasks, after=["settle"]) for turn in rounds if asked.issuperset(turn.tasks))
        )

    def replay(self) -> Replay | str:
        return "it asks for every client's number of rows, and for the largest client's own basis, not for sums"

    def init(self, rng: Streams) -> Round[FedPowerState]:
        moments = yield from measure(self.center, self.scale)
        s = yield from ask_sizes()
        d = len(moments.mean)
        r = min(2 * self.k, d) if self.width is None else self.width
        if not self.k <= r <= d:
            raise InputError(f"width must be from the {self.k} components to the {d} features, but is {r}.")
        if self.count is not None and not 1 <= self.count <= len(s):
            raise InputError(f"count must be from 1 to the {len(s)} clients, but is {self.count!r}.")
        Z = random_orthonormal(rng("start"), d, r)
        return FedPowerState(
            moments, Z[:, : self.k], np.zeros(self.k), np.inf, next=Z, sizes=s, t=0, changes=np.zeros(0)
        )

    def round(self, state: FedPowerState, rng: Streams) -> Round[FedPowerState]:
        if self.has_stalled(state):
            closing = replace(self, p=1, count=None, fraction=None)
            return replace((yield from closing.communicate(state, rng)), changes=state.changes, closed=True)
        return (yield from self.communicate(state, rng))

    def communicate(self, state: FedPowerState, rng: Streams) -> Round[FedPowerState]:
        """p local iterations and one aggregation: lines 4 to 7 of Algorithm 2, 4 to 10 of Algorithm 3."""
        Z, p, k, n = state.next, self.steps(state.t), self.k, state.moments.n
        S_t = self.cohort(state.sizes, rng)  # Alg. 3, line 6
        to = tuple(S_t) if self.partial else None
        apart = self.partial and self.scheme == 1  # weights that differ: the server must see each reply
        draws = int(sum(S_t.values()))
        noise = self.ask_for_noise(state.sizes, draws)
        if p == 1:
            replies = yield Ask("multiply", {"Z": Z, **noise}, Each() if apart else Sum("Y"), to)
        else:
            arrays: dict[str, Array] = {"Z": Z, "steps": np.array(p), **noise}
            name = "iterate"
            if self.align != "none":
                name, arrays["Z1"] = "iterate_aligned", (yield from _ask_baseline(S_t, state.sizes, arrays))
            replies = yield Ask(name, arrays, Each() if apart else Sum("Y", "T"), to)
        w = self.weights(replies, S_t, state.sizes)
        Y = _aggregate(replies, "Y", w, state.sizes)  # (d, r)
        Y = self.perturb(Y, Z, state.sizes, int(sum(S_t[client] for client in w)), rng)
        kkt = np.nan
        if p == 1:
            theta, S, R = rayleigh_ritz(Z, Y, k)
            if not apart and len(w) == len(state.sizes):
                kkt = n * float(np.linalg.norm(R)) / (state.moments.trace or 1.0)
            Z_next = self.orth(Y)
        else:
            T = _aggregate(replies, "T", w, state.sizes)  # (r, r)
            theta, S, _ = rayleigh_ritz(np.eye(len(T)), T, k)
            Z_next = orthonormalize(Y)
        Z_k = Z @ S[:, :k]
        changes = np.append(state.changes, projection_distance(Z_next, Z_k))[-2 * _FLOOR_ROUNDS :]
        whole = sum(w.values())  # 1, but for Scheme 2, where it is so on average
        theta = theta[:k] * (n / whole)
        return FedPowerState(
            state.moments, Z_k, theta, kkt, next=Z_next, sizes=state.sizes, t=state.t + 1, changes=changes
        )

    def orth(self, Y: Array) -> Array:
        """An orthonormal basis of Y, when no local steps are taken: see power.py."""
        return polar(Y)

    def ask_for_noise(self, s: Mapping[str, float], K: int) -> dict[str, Array]:
        """What the clients must know to add noise; `PaperNoise` says it."""
        return {}

    def perturb(self, Y: Array, Z: Array, s: Mapping[str, float], K: int, rng: Streams) -> Array:
        """What the server goes on with in place of Y; `PaperNoise` adds noise."""
        return Y

    def steps(self, t: int) -> int:
        """Local iterations before the next communication, after t of them."""
        return max(self.p - t, 1) if self.decay else self.p  # (3.15), (3.1)

    def cohort(self, s: Mapping[str, float], rng: Streams) -> dict[str, float]:
        """S_t: how often each of the clients that take part is in it, in the order of client ids."""
        clients = list(s)
        m = len(clients)
        if not self.partial:
            return dict.fromkeys(clients, 1)
        K = self.count if self.count is not None else cohort_size(self.fraction or 1.0, m)
        if self.scheme == 1:
            p_i = np.array(list(s.values())) / sum(s.values())
            drawn = rng("cohort").choice(m, size=K, replace=True, p=p_i)
        else:
            drawn = rng("cohort").choice(m, size=K, replace=False)
        times = np.bincount(drawn, minlength=m)
        return {client: int(c) for client, c in zip(clients, times, strict=True) if c}

    def weights(self, replies: Replies, S_t: Mapping[str, float], s: Mapping[str, float]) -> dict[str, float]:
        """w_i of those that answered, in Y = Σ w_i Y_i; K counts those only."""
        missing = set(replies.missing)
        came = [client for client in replies.asked if client not in missing]
        K = sum(S_t[client] for client in came)
        if self.partial and self.scheme == 1:
            return {client: S_t[client] / K for client in came}
        share = K / len(s) * sum(s.values()) if self.partial else sum(s[client] for client in came)
        return {client: s[client] / share for client in came}

    def has_stalled(self, state: FedPowerState) -> bool:
        """Whether Z comes no further, as far as the server can tell without a KKT violation."""
        c = state.changes
        if self.tol == 0 or not np.isnan(state.kkt):
            return False
        still = not self.decay and bool(c[-1] <= self.tol)
        return still or (len(c) == 2 * _FLOOR_ROUNDS and bool(c[_FLOOR_ROUNDS:].mean() >= c[:_FLOOR_ROUNDS].mean()))

    def done(self, state: FedPowerState) -> bool:
        return state.kkt <= self.tol or state.closed

    def metrics(self, state: FedPowerState) -> dict[str, float]:
        change = float(state.changes[-1]) if len(state.changes) else np.inf
        out = super().metrics(state) | {"change": change}
        if self.partial and len(state.changes):
            out["floor"] = float(state.changes[-_FLOOR_ROUNDS:].mean())
        return out


def _ask_baseline(S_t: Mapping[str, float], s: Mapping[str, float], arrays: Arrays) -> Round[Array]:
    """Z_1 of the largest client that takes part; if it does not answer, of the next one."""
    for client in sorted(S_t, key=lambda client: -s[client]):
        replies = yield Ask("show", arrays, to=(client,), optional=True)
        if replies.each:
            return replies.each[client]["Z1"]
    raise ClientError(
        f"None of the {len(S_t)} clients of this round answered 'show', so there is no baseline to align with. "
        "Bring the clients back and resume from the checkpoint."
    )


def _aggregate(replies: Replies, name: str, w: Mapping[str, float], s: Mapping[str, float]) -> Array:
    """Σ w_i Y_i from s_i·Y_i, as a sum if the server was given one (then w_i/s_i is the same for all)."""
    if replies.total:
        client = next(iter(w))
        return replies.total[name] * (w[client] / s[client])
    return np.asarray(sum(replies.each[client][name] * (w_i / s[client]) for client, w_i in w.items()))


class PaperNoiseClient(FedPowerClient):
    """A FedPower client that adds the paper's noise to what it sends. No sensitivity is declared: none is known."""

    def perturb(self, Y: Array, Z_i: Array, arrays: Arrays, rng: Streams) -> Array:
        """s_i·(Y_i D_i + ‖Z_i‖_max·σ·N): Alg. 2, line 6; Alg. 3, line 8. Y holds s_i·Y_i D_i."""
        deviation = self.rows.n * float(np.abs(Z_i).max()) * float(arrays["sigma"])
        return Y + rng("paper noise").normal(size=Y.shape) * deviation

    @task(releases={"Y": None}, shows=SHOWS_PRODUCTS)
    def multiply(self, state: Shift, arrays: Arrays, rng: Streams) -> tuple[Shift, Arrays]:
        """Alg. 2, lines 4 to 6, for p = 1."""
        return state, {"Y": self.perturb(self.product(state, arrays["Z"]), arrays["Z"], arrays, rng)}


@dataclass(frozen=True)
class PaperNoise(FedPower):
    """FedPower with noise at the clients (ε₁) and at the server (ε₂), δ for both; as printed, for one communication."""

    epsilon1: float = 1.0
    epsilon2: float = 1.0
    delta: float = 0.01

    client: ClassVar[type[Client[object]]] = PaperNoiseClient

    def orth(self, Y: Array) -> Array:
        return orthonormalize(Y)  # the paper's: ‖Z‖_max, which scales the noise, depends on the basis

    def client_deviation(self, s: Mapping[str, float]) -> float:
        """σ of Algorithm 2, or of Algorithm 3, where the sampling of devices (q_i) makes it smaller."""
        n, m = sum(s.values()), len(s)
        largest = 1.0
        if self.partial:
            largest = max(s.values()) / n if self.scheme == 1 else 1.0 / m  # max q_i
        inside = max(math.log(1.25 * largest / self.delta), 0.0)
        return math.sqrt(2 * inside) / (self.epsilon1 * min(s.values()))

    def server_deviation(self, s: Mapping[str, float], K: int) -> float:
        """σ' of Algorithm 2; of Algorithm 3 σ' (Scheme 1) or σ'' (Scheme 2)."""
        one = math.sqrt(2 * math.log(1.25 / self.delta)) / (self.epsilon2 * min(s.values()))
        largest = max(s.values()) / sum(s.values())  # max p_i
        if not self.partial:
            return largest * one
        return one / K if self.scheme == 1 else largest * one / K

    def ask_for_noise(self, s: Mapping[str, float], K: int) -> dict[str, Array]:
        return {"sigma": np.array(self.client_deviation(s))}

    def perturb(self, Y: Array, Z: Array, s: Mapping[str, float], K: int, rng: Streams) -> Array:
        """Alg. 2, line 7; Alg. 3, line 10."""
        deviation = float(np.abs(Z).max()) * self.server_deviation(s, K)
        return Y + rng("paper noise").normal(size=Y.shape) * deviation
