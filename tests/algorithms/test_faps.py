"""FAPS against a dense transcription of Algorithm 1, against the exact answer, and where it could go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms.spectral.faps import (
    Faps,
    FapsClient,
    FapsMemory,
    FapsState,
    consensus_multiplier,
    projector_distance,
)
from fedspan.algorithms.spectral.power import Ssi
from fedspan.core.checkpoint import Checkpoint, flatten
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array, Round, Server, tasks_of
from fedspan.core.rng import Streams
from fedspan.core.run import Result, run
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.errors import InputError
from fedspan.numerics.anderson import combine_bases
from fedspan.numerics.orthonormal import largest_angle, orthonormalize, random_orthonormal


def federation(d: int, sizes: list[int], decay: float, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    mix = np.linalg.qr(rng.normal(size=(d, d)))[0] * decay ** np.arange(d)
    return {f"c{i}": rng.normal(size=(n, d)) @ mix.T for i, n in enumerate(sizes)}


K = 2
TINY = federation(7, [12, 30, 9], 0.7, 1)
SMALL = federation(40, [40, 80, 120, 160, 200], 0.93, 2)


def leading(clients: Mapping[str, Array], k: int) -> tuple[Array, Array]:
    A = np.vstack(list(clients.values()))
    w, V = np.linalg.eigh(A.T @ A)
    return w[::-1][:k], V[:, ::-1][:, :k]


def solve(method: Server[Any], clients: Any = SMALL, rounds: int = 300, **more: Any) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=rounds, seed=more.pop("seed", 3), **more)


def streams() -> Streams:
    return Streams(3, 1, 0, "c0")


# --- Algorithm 1, with every d×d matrix formed


def dense_multiplier(M: Array, X: Array) -> Array:
    P = X @ X.T
    I = np.eye(len(M))  # noqa: E741
    return -P @ M @ (I - P) - (I - P) @ M @ P  # (8)


def dense_step(M: Array, X: Array, Z: Array, beta: float, rule: str, delta: float, cap: int) -> Array:
    """Line 5, by subspace iteration."""
    H = M + dense_multiplier(M, X) + beta * Z @ Z.T  # (12)

    def kkt(V: Array) -> float:
        return float(np.linalg.norm((np.eye(len(V)) - V @ V.T) @ H @ V))

    def h(V: Array) -> float:
        return -float(np.trace(V.T @ H @ V)) / 2  # (11)

    if rule == "residual" and kkt(X) < 1e-13 * np.linalg.norm(H):
        return X
    V = X
    for _ in range(cap):
        old, V = V, orthonormalize(H @ V)
        if rule == "change":
            if np.linalg.norm(V - old) <= 1e-2 * np.linalg.norm(V):  # (26)
                break
        else:
            reduction = 0.1 / (np.linalg.norm(M, 2) + beta) * kkt(X) ** 2
            if h(X) - h(V) >= reduction and kkt(V) <= delta * kkt(X):  # (13), (14)
                break
    return V


def dense_faps(Ms: list[Array], Z: Array, rounds: int, method: Faps) -> tuple[Array, Array, list[Array]]:
    """Z, the β_i and the last Y_i after so many rounds of Algorithm 1."""
    d, n, norms = len(Z), len(Ms), np.array([np.linalg.norm(M, 2) for M in Ms])
    Xs = [Z if method.start == "paper" else orthonormalize(M @ Z) for M in Ms]
    growth, used, seen = np.ones(n), np.zeros(n), []
    for k in range(rounds):
        distances = np.array([np.linalg.norm(X @ X.T - Z @ Z.T) for X in Xs])  # (21)
        seen.append(distances)
        raised, Ys = growth.copy(), []
        for i, M in enumerate(Ms):
            used[i] = growth[i] * 0.15 * norms[i]
            if method.penalty == "local" and k >= 10:
                away = np.eye(d) - Z @ Z.T
                l_i = np.linalg.eigvalsh(away @ M @ away)[-1] - np.linalg.eigvalsh(Z.T @ M @ Z)[0]
                used[i] = growth[i] * max(0.1 * norms[i], 1.25 * l_i)
            X = dense_step(M, Xs[i], Z, used[i], method.rule, method.delta, method.cap)
            if method.penalty == "paper":
                if k > 0 and k % 5 == 0 and seen[k - 5][i] <= 1.01 * distances[i]:  # (25)
                    raised[i] *= 1.1
            elif k >= 10 and np.linalg.norm(X @ X.T - Z @ Z.T) > distances[i]:
                raised[i] *= 1.1
            Xs[i] = X
            Ys.append((used[i] * X @ X.T - dense_multiplier(M, X)) @ Z)  # (18), (19)
        Z, growth = orthonormalize(sum(Ys)), raised  # line 9
    return Z, used, Ys


@pytest.mark.parametrize("rule", ["residual", "change"])
@pytest.mark.parametrize("start", ["local", "paper"])
@pytest.mark.parametrize("penalty", ["local", "paper"])
def test_rounds_are_those_of_the_listing(rule: Any, start: Any, penalty: Any) -> None:
    method = Faps(K, tol=0, center=False, rule=rule, start=start, penalty=penalty)
    Ms = [A.T @ A for A in TINY.values()]
    Z0 = solve(method, TINY, 0).state.Z
    for rounds in (1, 2, 15):
        result = solve(method, TINY, rounds)
        Z, _, _ = dense_faps(Ms, Z0, rounds, method)
        np.testing.assert_allclose(result.state.Z @ result.state.Z.T, Z @ Z.T, atol=1e-8)
    before = solve(method, TINY, 14).state.Z
    np.testing.assert_allclose(result.state.objective, np.trace(before.T @ sum(Ms) @ before), rtol=1e-12)


def test_low_rank_multipliers_are_the_dense_ones() -> None:
    M = TINY["c0"].T @ TINY["c0"]
    X = random_orthonormal(np.random.default_rng(0), 7, K)
    W = consensus_multiplier(X, M @ X)
    np.testing.assert_allclose(X @ W.T + W @ X.T, dense_multiplier(M, X), atol=1e-12)  # (15) is (8)
    Z = random_orthonormal(np.random.default_rng(1), 7, K)
    np.testing.assert_allclose(projector_distance(X, Z), np.linalg.norm(X @ X.T - Z @ Z.T), rtol=1e-12)


def test_the_penalty_rule_of_the_paper_by_hand() -> None:
    """(25): looked at every fifth iteration, against d_i five before, and used from the next one on."""
    client = FapsClient(TINY["c0"], penalty="paper", beta=0.15)
    norm = np.linalg.norm(TINY["c0"], 2) ** 2
    Z = random_orthonormal(np.random.default_rng(0), 7, K)
    X = orthonormalize(Z + 0.1 * random_orthonormal(np.random.default_rng(1), 7, K))
    d_i, L = projector_distance(X, Z), client.leading_part(FapsMemory(), K, streams())

    def growth(k: int, mark: float) -> float:
        state = FapsMemory(t=k, X=X, L=L, mark=mark)
        new, _ = client.split(state, {"Z": Z, "t": np.array(k + 1)}, streams())
        np.testing.assert_allclose(new.beta, 0.15 * norm, rtol=1e-10)  # β^(k), not yet β^(k+1)
        assert new.mark == (d_i if k % 5 == 0 else mark)
        return float(new.growth)

    assert growth(5, d_i) == pytest.approx(1.1)
    assert growth(10, 1.009 * d_i) == pytest.approx(1.1)
    assert growth(5, 1.02 * d_i) == 1.0
    assert growth(6, d_i) == growth(0, 0.0) == 1.0


# --- against the exact answer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start": "paper"},
        {"rule": "change"},
        {"penalty": "paper", "beta": 0.5},
        {"rule": "change", "start": "paper", "penalty": "paper", "beta": 0.5, "cap": 200},
        {"center": True, "scale": True},
        {"accelerate": True, "tol": 1e-8},
    ],
    ids=str,
)
def test_it_finds_the_leading_eigenspace(options: dict[str, Any]) -> None:
    method = Faps(**{"k": 3, "tol": 1e-13, "center": False} | options)
    result = solve(method, rounds=600)
    clients: Mapping[str, Array] = SMALL
    if method.center:
        A = np.vstack(list(SMALL.values()))
        clients = {"pooled": (A - A.mean(axis=0)) / A.std(axis=0)}
    w, V = leading(clients, 3)
    assert result.converged
    assert largest_angle(result.state.Z, V) < 1e-4
    np.testing.assert_allclose(result.state.theta, w, rtol=1e-7)
    assert np.isnan(result.state.kkt) != method.accelerate


class There(Exception):
    """In this round."""


@pytest.mark.parametrize("seed", range(2))
def test_it_needs_at_most_two_fifths_of_the_rounds_of_subspace_iteration(seed: int) -> None:
    """Table 4 in small: (23), (24) with its ξ=1.01 and 8 uneven clients, half as many rows, 120 features."""
    rng = np.random.default_rng(seed)
    U, V = (orthonormalize(rng.uniform(-1, 1, (n, 120))) for n in (120, 18000))
    A = V * 1.01 ** -np.arange(120.0) @ U.T
    clients = np.split(A, np.cumsum([500 * i for i in range(1, 8)]))
    M = A.T @ A

    def rounds(method: Server[Any]) -> int:
        """In which it gets there; the run is not watched further."""

        def watch(info: Any) -> None:
            Z = info.estimate.T
            if np.linalg.norm(M @ Z - Z @ (Z.T @ M @ Z)) / np.trace(M) <= 1e-6:
                raise There(info.round)

        with pytest.raises(There) as there:
            solve(method, clients, 500, seed=seed, callback=watch)
        return int(there.value.args[0])

    ssi = rounds(Ssi(10, 1e-7, center=False))
    assert rounds(Faps(10, 1e-11, center=False)) <= 0.4 * ssi
    assert rounds(Faps(10, 1e-6, center=False, accelerate=True)) <= 0.3 * ssi


# --- what the server sees


def seen_outside(start: str, rounds: int) -> tuple[Array, Array]:
    """P⊥Y_i of a client, and P⊥M_iZ, in that round of a run on its own."""
    client = FapsClient(SMALL["c1"], start=start)
    Z, state = random_orthonormal(np.random.default_rng(5), 40, 3), client.init()
    for t in range(1, rounds + 1):
        state, reply = client.split(state, {"Z": Z, "t": np.array(t)}, streams())
    MZ = client.product(state, Z)
    return reply["Y"] - Z @ (Z.T @ reply["Y"]), MZ - Z @ (Z.T @ MZ)


def test_the_first_round_is_masked_unless_the_start_is_the_papers() -> None:
    shown, secret = seen_outside("paper", 1)
    assert np.linalg.norm(shown - secret) <= 1e-6 * np.linalg.norm(secret)
    for rounds in (1, 5):
        shown, secret = seen_outside("local", rounds)
        best = np.sum(shown * secret) / np.sum(shown**2)  # even if the server knew by how much to scale it
        assert np.linalg.norm(best * shown - secret) >= 0.5 * np.linalg.norm(secret)


def test_the_mask_wears_off_as_clients_agree() -> None:
    """So it is obscurity, not a guarantee, and the docstring says so."""
    shown, secret = seen_outside("local", 60)
    assert np.linalg.norm(shown - secret) <= 1e-2 * np.linalg.norm(secret)


def test_what_is_released_has_no_sensitivity_and_true_products_only_prove_the_accelerated_form() -> None:
    assert tasks_of(FapsClient)["split"].releases["Y"] is None
    for method, check in ((Faps(3, center=False), False), (Faps(3, 1e-6, center=False, accelerate=True), True)):
        asked = [e.task for e in solve(method).ledger.events if isinstance(e, Exchange)]
        assert ("multiply" in asked) == check
        assert ("variances" in asked) != check


# --- where it could go wrong


@dataclass(frozen=True)
class AtAnotherEigenspace(Faps):
    """Starts at the eigenvectors 2 and 4 of the pooled rows, and with β_i so large that no client leaves."""

    def init(self, rng: Streams) -> Round[FapsState]:
        state = yield from super().init(rng)
        return replace(state, Z=leading(SMALL, 4)[1][:, [1, 3]])


def test_the_accelerated_form_notices_that_it_stands_at_another_eigenspace() -> None:
    V = leading(SMALL, 2)[1]
    fooled = solve(AtAnotherEigenspace(2, center=False, start="paper", beta=5.0))
    assert fooled.converged
    assert largest_angle(fooled.state.Z, V) > 1.5
    method = AtAnotherEigenspace(2, 1e-6, center=False, start="paper", beta=5.0, accelerate=True)
    first = solve(method, rounds=1)
    assert first.state.residual <= 1e-6 < first.state.kkt
    result = solve(method)
    assert result.converged
    assert result.state.kkt <= 1e-6
    assert largest_angle(result.state.Z, V) < 1e-3


def test_extrapolation_does_not_depend_on_the_bases_but_on_what_they_span() -> None:
    rng = np.random.default_rng(0)
    Z, *bases = (random_orthonormal(rng, 7, K) for _ in range(4))
    turned = [B @ random_orthonormal(rng, K, K) for B in bases]
    gamma = np.array([0.5, -0.3, 0.8])
    np.testing.assert_allclose(
        combine_bases(gamma, np.stack(bases), Z), combine_bases(gamma, np.stack(turned), Z), atol=1e-9
    )


@pytest.mark.parametrize("accelerate", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, accelerate: bool) -> None:
    """To the bit: the rounds before are in the checkpoint, those after it are the same operations."""
    method = Faps(3, 1e-9, center=False, accelerate=accelerate)
    whole = solve(method, rounds=20)
    for rounds in (1, 7, 8, 20):
        parts = solve(method, rounds=rounds, checkpoint=Checkpoint(tmp_path))
    assert parts.rounds == whole.rounds
    for a, b in zip(flatten(parts.state)[1].values(), flatten(whole.state)[1].values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("accelerate", [False, True])
def test_lost_replies_are_asked_for_again_and_change_nothing(accelerate: bool) -> None:
    method = Faps(3, 1e-9, center=False, accelerate=accelerate)
    engine = InProcess(SMALL, threads=1, faults=Faults(lose_reply=0.3))
    lossy = run(method, engine, rounds=15, seed=3, retries=30)
    np.testing.assert_allclose(lossy.state.Z, solve(method, rounds=15).state.Z, atol=1e-7)


@pytest.mark.parametrize("accelerate", [False, True])
def test_odd_clients(accelerate: bool) -> None:
    """One with fewer rows than components, one with nothing but zeros; and as many components as features."""
    clients = TINY | {"one row": TINY["c0"][:1], "zeros": np.zeros((4, 7))}
    for k in (3, 7):
        method = Faps(k, 1e-9 if accelerate else 1e-14, center=False, accelerate=accelerate)
        result = solve(method, clients, 500)
        assert result.converged
        w, V = leading(clients, k)
        np.testing.assert_allclose(result.state.theta, w, rtol=1e-6)
        assert largest_angle(result.state.Z, V) < 1e-4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delta": 1.0}, "delta must be from 0 to below 1"),
        ({"beta": 0.0}, "beta must be above 0"),
        ({"rule": "26"}, "rule must be 'residual' or 'change'"),
        ({"start": "zero"}, "start must be 'local' or 'paper'"),
        ({"penalty": ""}, "penalty must be 'local' or 'paper'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Faps(**options)
