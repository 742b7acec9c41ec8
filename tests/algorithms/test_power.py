"""SSI, LocalPower and FedPower against direct transcriptions of the papers' listings, and against the exact answer."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms.spectral.fedpower import FedPower, FedPowerClient, FedPowerState
from fedspan.algorithms.spectral.power import LocalPower, Ssi
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Exchange, Ledger
from fedspan.core.protocol import Array, Each, Replies, Sensitivity, Server, Sum, tasks_of
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import Result, run
from fedspan.engines.inprocess import InProcess
from fedspan.errors import ClientError, InputError
from fedspan.numerics.orthonormal import largest_angle, orthonormalize, polar, projection_distance

D, K = 9, 3
RNG = np.random.default_rng(5)
MIX = np.linalg.qr(RNG.normal(size=(D, D)))[0] * 0.6 ** np.arange(D)
CLIENTS = {name: RNG.normal(size=(n, D)) @ MIX.T for name, n in {"a": 20, "b": 60, "c": 11, "d": 35}.items()}
SIZES = {name: len(A) for name, A in CLIENTS.items()}
N = sum(SIZES.values())
POOLED = np.vstack(list(CLIENTS.values()))
VALUES, V = (x[..., ::-1] for x in np.linalg.eigh(POOLED.T @ POOLED))
PLAIN = FedPower(K, center=False, width=K)


def solve(method: Server[Any], rounds: int = 1, clients: Any = CLIENTS, **more: Any) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=rounds, seed=more.pop("seed", 3), **more)


def streams(round: int) -> Streams:
    return Streams(3, round, 0, SERVER)


def asked(result: Result[Any], task: str) -> list[Exchange]:
    return [e for e in result.ledger.events if isinstance(e, Exchange) and e.task == task]


# --- SSI and LocalPower


def test_a_round_of_ssi_by_hand() -> None:
    Q = solve(Ssi(K, center=False), 0).state.next
    state = solve(Ssi(K, center=False), 1).state
    Y = POOLED.T @ POOLED @ Q
    np.testing.assert_allclose(state.next, polar(Y), atol=1e-12)
    np.testing.assert_allclose(state.theta, np.linalg.eigvalsh(Q.T @ Y)[::-1], rtol=1e-12)
    np.testing.assert_allclose(state.kkt, np.linalg.norm(Y - Q @ (Q.T @ Y)) / np.trace(POOLED.T @ POOLED), rtol=1e-12)


def test_local_power_halves_its_steps_every_round_until_one() -> None:
    method = LocalPower(K, tol=0, center=False, q=8)
    Z = solve(method, 0).state.next
    for t, q in enumerate((8, 4, 2, 1, 1), 1):
        total = np.zeros((D, K))
        for A in CLIENTS.values():
            X = Z
            for _ in range(q - 1):
                X = orthonormalize(A.T @ A @ X)
            total += A.T @ A @ X
        before, Z = Z, orthonormalize(total) if q > 1 else polar(total)
        state = solve(method, t).state
        np.testing.assert_allclose(state.next, Z, atol=1e-9)
        ritz = np.linalg.eigvalsh(before.T @ POOLED.T @ POOLED @ before)[::-1]
        np.testing.assert_allclose(state.theta, ritz, rtol=1e-9)
        assert np.isnan(state.kkt) == (q > 1)


def test_local_power_reaches_the_exact_eigenspace_of_centered_and_scaled_rows(hospitals: dict[str, Array]) -> None:
    A = np.vstack(list(hospitals.values()))
    B = (A - A.mean(axis=0)) / A.std(axis=0)
    exact = np.linalg.eigh(B.T @ B)[1][:, ::-1][:, :2]
    result = solve(LocalPower(2, tol=1e-11, scale=True), 2000, hospitals)
    assert result.converged
    assert projection_distance(result.state.Z, exact) < 1e-8


# --- FedPower, full participation


def algorithm_2(Z: Array, I_T: list[int], align: str) -> Array:
    """The listing, without noise: Z after the last communication."""
    T, clients = max(I_T), list(CLIENTS.values())
    p_i = [len(A) / N for A in clients]
    base = int(np.argmax(p_i))
    Z_i = [Z] * len(clients)
    for t in range(1, T + 1):
        Y_i = [A.T @ A / len(A) @ X for A, X in zip(clients, Z_i, strict=True)]  # line 4
        if t in I_T:
            D_i = []
            for X in Z_i:
                W1, _, W2t = np.linalg.svd(X.T @ Z_i[base])
                signs = np.diag(np.sign(np.diagonal(X.T @ Z_i[base])))
                D_i.append({"opt": W1 @ W2t, "sign": signs, "none": np.eye(K)}[align])  # (3.2), (3.16)
            Y = sum(p * X @ turn for p, X, turn in zip(p_i, Y_i, D_i, strict=True))  # lines 6, 7
            Y_i = [Y] * len(clients)  # line 8
        Z_i = [orthonormalize(Y) for Y in Y_i]  # line 10
    return Z_i[0]


@pytest.mark.parametrize("align", ["opt", "sign", "none"])
@pytest.mark.parametrize("decay", [True, False])
def test_rounds_are_those_of_algorithm_2(align: Any, decay: bool) -> None:
    method = replace(PLAIN, p=3, decay=decay, align=align, tol=0)
    Z = solve(method, 0).state.next
    I_T = [3, 5, 6, 7] if decay else [3, 6, 9, 12]
    for rounds in range(1, 5):
        assert largest_angle(solve(method, rounds).state.next, algorithm_2(Z, I_T[:rounds], align)) < 1e-9


def test_steps_decay_as_in_3_15() -> None:
    p = [FedPower(p=4, decay=True).steps(t) for t in range(6)]
    assert p == [4, 3, 2, 1, 1, 1]
    assert np.cumsum(p).tolist() == [sum(max(4 - i, 1) for i in range(last + 1)) for last in range(6)]
    assert [FedPower(p=4, decay=False).steps(t) for t in range(3)] == [4, 4, 4]


def test_one_step_per_round_is_the_distributed_power_method() -> None:
    for rounds in (1, 2, 7):
        ours = solve(replace(PLAIN, p=1, align="opt", tol=0), rounds).state
        ssi = solve(Ssi(K, center=False, tol=0), rounds).state
        assert largest_angle(ours.next, ssi.next) < 1e-10
        np.testing.assert_allclose(ours.theta, ssi.theta, rtol=1e-11)
        np.testing.assert_allclose(ours.kkt, ssi.kkt, rtol=1e-9)


def with_client(method: FedPower, client: type[FedPowerClient]) -> FedPower:
    """The same method with another client's half."""
    kind = type("FedPower", (FedPower,), {"client": client})
    return kind(**{option.name: getattr(method, option.name) for option in fields(method)})


class Turned(FedPowerClient):
    """Its local basis comes out turned by some rotation, as another QR might give it."""

    def local(self, state: Any, Z: Array, steps: int) -> tuple[Array, Array, Array]:
        Z, Y, T = super().local(state, Z, steps)
        turn = orthonormalize(np.random.default_rng(self.rows.n).normal(size=(Z.shape[1], Z.shape[1])))
        return Z @ turn, Y @ turn, T


class Flipped(FedPowerClient):
    """Its local basis comes out with other signs."""

    def local(self, state: Any, Z: Array, steps: int) -> tuple[Array, Array, Array]:
        Z, Y, T = super().local(state, Z, steps)
        signs = np.random.default_rng(self.rows.n).choice([-1.0, 1.0], Z.shape[1])
        return Z * signs, Y * signs, T


@pytest.mark.parametrize(("align", "client"), [("opt", Turned), ("opt", Flipped), ("sign", Flipped)])
def test_alignment_takes_out_how_a_client_wrote_its_basis(align: Any, client: type) -> None:
    method = replace(PLAIN, p=4, decay=False, align=align, tol=0)
    want, got = solve(method, 3).state, solve(with_client(method, client), 3).state
    assert largest_angle(want.Z, got.Z) < 1e-7
    lost = solve(with_client(replace(method, align="none"), client), 3).state
    assert largest_angle(want.Z, lost.Z) > 1e-2


def test_decaying_steps_reach_the_exact_eigenspace_where_fixed_ones_stop_at_a_floor() -> None:
    decaying = solve(replace(PLAIN, decay=True, tol=1e-13), 300)
    assert decaying.converged
    assert projection_distance(decaying.state.Z, V[:, :K]) < 1e-10
    fixed = solve(replace(PLAIN, decay=False, tol=1e-8), 300)
    assert fixed.state.closed
    assert fixed.state.kkt > 1e-8  # it says so
    assert 1e-4 < projection_distance(fixed.state.Z, V[:, :K]) < 0.3


def test_wider_iterates_converge_in_fewer_rounds_and_keep_the_best_k() -> None:
    narrow = solve(replace(PLAIN, p=1, tol=1e-9), 500)
    wide = solve(replace(PLAIN, p=1, tol=1e-9, width=2 * K), 500)
    assert wide.rounds < narrow.rounds
    assert wide.state.Z.shape == (D, K)
    assert wide.state.next.shape == (D, 2 * K)
    np.testing.assert_allclose(wide.state.theta, VALUES[:K], rtol=1e-9)


# --- partial participation


@pytest.mark.parametrize("scheme", [1, 2])
def test_cohorts_and_weights_are_the_schemes(scheme: int) -> None:
    """E w_i = p_i. The mean over 1500 draws may be off by five standard deviations at most (p < 1e-5 for all)."""
    draws, K_t, m = 1500, 3, len(SIZES)
    method, means = replace(PLAIN, count=K_t, scheme=scheme), dict.fromkeys(SIZES, 0.0)
    repeated = False
    for t in range(draws):
        S_t = method.cohort(SIZES, streams(t))
        assert sum(S_t.values()) == K_t
        repeated |= max(S_t.values()) > 1
        w = method.weights(Replies(tuple(S_t)), S_t, SIZES)
        for client, w_i in w.items():
            assert w_i == pytest.approx(S_t[client] / K_t if scheme == 1 else m / K_t * SIZES[client] / N)
            means[client] += w_i / draws
    assert repeated == (scheme == 1)
    for client, s_i in SIZES.items():
        p_i = s_i / N
        variance = p_i * (1 - p_i) / K_t if scheme == 1 else p_i**2 * (m / K_t - 1)
        assert abs(means[client] - p_i) < 5 * np.sqrt(variance / draws)


@pytest.mark.parametrize("scheme", [1, 2])
@pytest.mark.parametrize("p", [1, 3])
def test_a_partial_round_by_hand(scheme: int, p: int) -> None:
    method = replace(PLAIN, p=p, decay=False, count=3, scheme=scheme)
    start, result = solve(method, 0).state, solve(method, 1)
    S_t = method.cohort(SIZES, streams(1))
    base = max(S_t, key=lambda client: SIZES[client])
    Z_i: dict[str, Array] = {}
    for client in S_t:
        Z_i[client] = start.next
        for _ in range(p - 1):
            Z_i[client] = orthonormalize(CLIENTS[client].T @ CLIENTS[client] @ Z_i[client])
    Y = np.zeros((D, K))
    for client, times in S_t.items():
        W1, _, W2t = np.linalg.svd(Z_i[client].T @ Z_i[base])
        Y_i = CLIENTS[client].T @ CLIENTS[client] / SIZES[client] @ Z_i[client] @ W1 @ W2t
        Y += Y_i * (times / 3 if scheme == 1 else len(SIZES) / 3 * SIZES[client] / N)
    assert largest_angle(result.state.next, Y) < 1e-10
    (exchange,) = asked(result, "multiply" if p == 1 else "iterate_aligned")
    assert exchange.clients == tuple(S_t)


def test_the_baseline_device_is_the_largest_that_takes_part() -> None:
    result = solve(replace(PLAIN, p=3, decay=False, fraction=0.5, tol=0), 8)
    shown, cohorts = asked(result, "show"), asked(result, "iterate_aligned")
    assert len(shown) == len(cohorts) == 8
    for show, cohort in zip(shown, cohorts, strict=True):
        assert show.clients == (max(cohort.clients, key=lambda client: SIZES[client]),)
    assert len({show.clients for show in shown}) > 1


class Shy(FedPowerClient):
    """The largest client does not answer as a baseline."""

    def local(self, state: Any, Z: Array, steps: int) -> tuple[Array, Array, Array]:
        if self.rows.n == max(SIZES.values()):
            raise RuntimeError("gone")
        return super().local(state, Z, steps)


def test_a_baseline_device_that_dropped_out_is_replaced_and_the_rest_is_aggregated() -> None:
    result = solve(with_client(replace(PLAIN, p=3), Shy), 1, min_clients=2)
    assert [e.clients for e in asked(result, "show")] == [("b",), ("d",)]
    assert asked(result, "iterate_aligned")[0].missing == ("b",)
    left = {name: A for name, A in CLIENTS.items() if name != "b"}
    want = solve(replace(PLAIN, p=3), 1, left).state
    np.testing.assert_allclose(result.state.next, want.next, atol=1e-10)
    assert np.isnan(result.state.kkt)


def test_a_sum_over_a_subset_has_no_kkt_and_variances_of_the_right_size() -> None:
    method = replace(PLAIN, p=1)
    state = solve(method, 30).state
    step = method.round(state, streams(31))
    next(step)
    came = [c for c in SIZES if c != "c"]
    total = {"Y": sum(CLIENTS[c].T @ CLIENTS[c] @ state.next for c in came)}
    with pytest.raises(StopIteration) as stop:
        step.send(Replies(tuple(SIZES), ("c",), {}, total))
    assert np.isnan(stop.value.value.kkt)
    np.testing.assert_allclose(stop.value.value.theta, state.theta, rtol=0.3)


class Gone(FedPowerClient):
    """No client answers after the opening."""

    def product(self, state: Any, V: Array) -> Array:
        raise RuntimeError("gone")


@pytest.mark.parametrize("p", [1, 3])
def test_when_nobody_answers_it_says_so(p: int) -> None:
    method = with_client(replace(PLAIN, p=p, fraction=0.5), Gone)
    with pytest.raises(ClientError, match=r"no baseline to align with|'multiply' needs answers from 1 client"):
        solve(method, 1, min_clients=1)


@pytest.mark.parametrize("scheme", [1, 2])
def test_partial_participation_reaches_its_floor_and_says_what_it_is(scheme: int) -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(n, D)) @ MIX.T for n in rng.integers(15, 60, 40)]
    A = np.vstack(clients)
    method = FedPower(2, center=False, fraction=0.25, scheme=scheme, width=2)
    result = solve(method, 200, clients)
    error = projection_distance(result.state.Z, np.linalg.eigh(A.T @ A)[1][:, ::-1][:, :2])
    floor = method.metrics(result.state)["floor"]
    assert result.state.closed
    assert 20 < result.rounds < 200
    assert floor / 4 < error < 4 * floor  # 24 runs: 0.3 to 1.6
    assert result.state.kkt > method.tol
    Z = result.state.Z  # the closing round asked all clients: variances of the answer are exact
    np.testing.assert_allclose(result.state.theta, np.diagonal(Z.T @ A.T @ A @ Z), rtol=1e-10)


# --- what it asks and releases


def test_one_sum_is_enough_but_under_scheme_1() -> None:
    wants = {
        Sum("Y"): (replace(PLAIN, p=1), replace(PLAIN, p=1, fraction=0.5)),
        Sum("Y", "T"): (replace(PLAIN, align="none"), replace(PLAIN, align="none", count=2)),
        Each(): (replace(PLAIN, p=1, count=2, scheme=1), replace(PLAIN, align="none", count=2, scheme=1)),
    }
    for want, methods in wants.items():
        for method in methods:
            assert next(method.round(solve(method, 0).state, streams(1))).want == want


def test_declared_sensitivities_are_true_and_local_steps_have_none() -> None:
    releases = {name: task.releases for name, task in tasks_of(FedPowerClient).items()}
    assert releases["multiply"] == {"Y": Sensitivity(2)}
    assert releases["iterate"] == releases["iterate_aligned"] == {"Y": None, "T": Sensitivity(2)}
    assert releases["show"] == {"Z1": None}
    Z, row = V[:, :K], RNG.normal(size=D)
    row *= 2.0 / np.linalg.norm(row)  # one more row of norm C = 2
    with_it = np.vstack([CLIENTS["a"], row])
    T = [FedPowerClient(A).local(FedPowerClient(A).init(), Z, 2)[2] for A in (CLIENTS["a"], with_it)]
    assert np.linalg.norm(T[1] - T[0]) <= 2.0**2


@dataclass(frozen=True)
class Crash(FedPower):
    """Fails once, in round 4."""

    def round(self, state: FedPowerState, rng: Streams) -> Any:
        if rng.round == 4:
            raise RuntimeError("power cut")
        return (yield from super().round(state, rng))

    def __repr__(self) -> str:
        return "the same run"


@dataclass(frozen=True)
class Whole(FedPower):
    def __repr__(self) -> str:
        return "the same run"


@pytest.mark.parametrize("options", [{"scheme": 1, "count": 3}, {"scheme": 2, "fraction": 0.5}, {}])
def test_a_run_that_is_resumed_is_the_run_that_was_not_cut(tmp_path: Path, options: Any) -> None:
    """To the bit: the rounds before are in the checkpoint, those after it are the same operations."""
    whole = Whole(2, tol=0, p=3, **options)
    with pytest.raises(RuntimeError, match="power cut"):
        solve(Crash(2, tol=0, p=3, **options), 7, checkpoint=Checkpoint(tmp_path))
    ledger = Ledger()
    resumed = solve(whole, 7, checkpoint=Checkpoint(tmp_path), ledger=ledger).state
    assert "resumed after round 3" in ledger.notes
    want = solve(whole, 7).state
    np.testing.assert_array_equal(resumed.Z, want.Z)
    np.testing.assert_array_equal(resumed.changes, want.changes)
    assert resumed.sizes == want.sizes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"p": 0}, "local iterations, must be at least 1"),
        ({"align": "procrustes"}, "'opt', 'sign' or 'none'"),
        ({"scheme": 3}, "scheme must be 1"),
        ({"count": 2, "fraction": 0.5}, "either count or fraction"),
        ({"fraction": 1.5}, "above 0 and at most 1"),
        ({"width": K - 1}, "width must be from the 3 components to the 9 features, but is 2"),
        ({"width": D + 1}, "width must be from"),
        ({"count": 5}, "count must be from 1 to the 4 clients"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        solve(FedPower(K, **options))


def test_local_power_needs_a_local_step() -> None:
    with pytest.raises(InputError, match="q, the number of local iterations, must be at least 1, but is 0"):
        LocalPower(q=0)
