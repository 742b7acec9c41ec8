"""Personalized PCA against dense transcriptions, finite differences, and the synthetic problem of the paper."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from fedspan.algorithms import PerPca, PersonalAuto, PersonalEigen, PersonalPaper
from fedspan.algorithms.personalized.paper import gradient_U, gradient_V, lemma_steps, personal_loss
from fedspan.algorithms.personalized.perpca import complete_basis
from fedspan.algorithms.personalized.shrinkage import LAMBDAS, choose_shrinkage, mix_moments, to_shares
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.protocol import Array
from fedspan.core.run import Result, run
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.errors import InputError
from fedspan.numerics.folds import Folded, Prep, RowPart, top_eigenvectors
from fedspan.numerics.orthonormal import largest_angle
from fedspan.numerics.stiefel import lift, random_point, retract

NOISE = 0.5


def section_v(seed: int, var_u: float, d: int = 12, r: int = 3, m: int = 8, n: int = 10) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    V = random_point(rng, d, r)
    out = {}
    for i in range(m):
        U = retract(V, lift(V, V + np.sqrt(var_u) * rng.normal(size=(d, r))))
        out[f"{i:02d}"] = rng.normal(size=(n, r)) @ U.T + np.sqrt(NOISE) * rng.normal(size=(n, d))
    return out


SMALL = section_v(0, 0.05)
FEW = section_v(0, 0.05, m=3)
TALL = section_v(1, 0.05, n=30)  # more rows than features: the other way of holding them


def solve(server: Any, clients: Any = SMALL, rounds: int = 6000, **more: Any) -> Result[Any]:
    return run(server, InProcess(clients, threads=1), rounds=rounds, seed=more.pop("seed", 1), **more)


def part(X: Array) -> RowPart:
    return Folded(X, Prep(False)).whole


def dense_f(M: Array, n: int, U: Array, V: Array, precision: float) -> float:
    """(4) as printed, with W formed."""
    W = U @ U.T + NOISE * np.eye(len(U))
    T = U - V @ (V.T @ U + U.T @ V) / 2
    likelihood = n / 2 * (np.linalg.slogdet(W)[1] + np.trace(np.linalg.inv(W) @ M / n))
    return float(likelihood + precision / 2 * (T**2).sum())


def differences(f: Any, X: Array, h: float = 1e-5) -> Array:
    out = np.empty_like(X)
    for at in np.ndindex(X.shape):
        E = np.zeros_like(X)
        E[at] = h
        out[at] = (f(X + E) - f(X - E)) / (2 * h)
    return out


# --- the paper's function and its gradients


@pytest.mark.parametrize("clients", [SMALL, TALL], ids=["rows", "moments"])
def test_the_loss_and_its_gradients_agree_with_the_dense_definition(clients):
    X = clients["03"]
    M, n, precision = X.T @ X, len(X), 7.0
    rng = np.random.default_rng(0)
    U, V = random_point(rng, 12, 3), random_point(rng, 12, 3)
    np.testing.assert_allclose(
        personal_loss(part(X), M @ U, U, V, NOISE, precision), dense_f(M, n, U, V, precision), rtol=1e-12
    )
    by_U = differences(lambda Z: dense_f(M, n, Z, V, precision), U)
    np.testing.assert_allclose(gradient_U(part(X), M @ U, U, V, NOISE, precision), by_U, rtol=1e-6, atol=1e-6)
    by_V = differences(lambda Z: dense_f(M, n, U, Z, precision), V)
    got = gradient_V(U, V, precision)  # Fact 1 leaves out what is normal to the manifold: compare the projections
    np.testing.assert_allclose(lift(V, got), lift(V, by_V), rtol=1e-6, atol=1e-6)
    prior = precision * lift(V, U)
    printed = prior + (gradient_U(part(X), M @ U, U, V, NOISE, precision) - prior) / 2  # n/2, as the paper has it
    assert np.abs(printed - by_U).max() > 0.1


def test_the_steps_of_the_lemmas():
    n, op, noise, precision = 20, 2.0, 0.5, 5.0
    L_U = n / 2 * (2 + 8 + (1 + 8) * 8) + 10.0
    G_U = n / 2 * (8 + 2) + 5.0
    np.testing.assert_allclose(lemma_steps(n, op, noise, precision), (1 / (L_U + G_U), 1 / 150))


class Watched(InProcess):
    """An engine whose clients' memories can be looked at."""

    def start(self, *args: Any) -> Any:
        self.session = super().start(*args)
        return self.session

    def iterates(self) -> list[Array]:
        return [site.state.U for site in self.session.sites.values()]


def test_a_round_of_the_paper_is_its_listing():
    lam, alpha, beta = 15.0, 0.01, 0.02
    precision = lam / (NOISE * (1 + NOISE))
    server = PersonalPaper(3, lam, "none", start="random", noise=NOISE, step=(alpha, beta), rounds=4, tol=-1.0)
    engine, seen = Watched(SMALL, threads=1), []
    run(server, engine, rounds=4, seed=5, callback=lambda info: seen.append((info.estimate.T, engine.iterates())))
    for (V0, before), (V1, after) in pairwise(seen):
        H = np.zeros_like(V0)
        for X, U0, U1 in zip(SMALL.values(), before, after, strict=True):
            M, n = X.T @ X, len(X)
            g = lift(U0, differences(lambda Z, M=M, n=n, V0=V0: dense_f(M, n, Z, V0, precision), U0))  # line 6
            np.testing.assert_allclose(U1, retract(U0, -alpha * g), atol=1e-7)  # line 7
            H += lift(V0, differences(lambda Z, M=M, n=n, U1=U1: dense_f(M, n, U1, Z, precision), V0))
        np.testing.assert_allclose(V1, retract(V0, -beta * H / len(SMALL)), atol=1e-7)  # line 14


@pytest.mark.parametrize("start", ["global", "random"])
def test_the_safe_steps_never_raise_the_objective_and_stay_on_the_manifold(start):
    server = PersonalPaper(3, 15.0, "none", start=start, noise=NOISE, rounds=150, tol=-1.0, local_steps=2)
    engine, off = Watched(FEW, threads=1), []

    def watch(info: Any) -> None:
        off.append(max(np.linalg.norm(U.T @ U - np.eye(3)) for U in [info.estimate.T, *engine.iterates()]))

    result = run(server, engine, rounds=151, seed=0, callback=watch)
    f = np.array([row["objective"] for row in result.ledger.history() if "objective" in row])
    assert len(f) >= 150
    assert np.diff(f).max() <= 1e-12 * abs(f).max()
    assert max(off) <= 1e-13


@pytest.mark.long
def test_five_thousand_rounds_do_not_blow_up():
    server = PersonalPaper(3, 15.0, "none", start="random", noise=NOISE, rounds=5000, tol=-1.0)
    engine, off = Watched(FEW, threads=1), []

    def watch(info: Any) -> None:
        off.append(max(np.linalg.norm(U.T @ U - np.eye(3)) for U in [info.estimate.T, *engine.iterates()]))

    result = run(server, engine, rounds=5001, seed=0, callback=watch)
    f = np.array([row["objective"] for row in result.ledger.history() if "objective" in row])
    assert len(f) >= 5000
    assert max(off) <= 1e-12
    assert np.diff(f).max() <= 1e-12 * abs(f).max()


# --- the exact alternation


def phi(clients: dict[str, Array], U: Array, V: Array, lam: float) -> float:
    return sum(
        float((X**2).sum() - ((X @ U_i) ** 2).sum() + lam * (V.shape[1] - np.linalg.norm(V.T @ U_i) ** 2))
        for X, U_i in zip(clients.values(), U, strict=True)
    )


@pytest.mark.parametrize("share", ["eigenpairs", "sums"])
@pytest.mark.parametrize("clients", [SMALL, TALL], ids=["rows", "moments"])
def test_eigen_is_the_dense_alternation_and_a_fixed_point(clients, share):
    lam = 15.0
    result = solve(PersonalEigen(3, lam, "none", share=share, tol=1e-14, rounds=500), clients)
    V, U = result.state.V, result.state.collected.U
    M = [X.T @ X for X in clients.values()]
    for M_i, U_i in zip(M, U, strict=True):
        assert largest_angle(U_i, top_eigenvectors(M_i + lam * V @ V.T, 3)) < 1e-6
    assert largest_angle(V, top_eigenvectors(sum(U_i @ U_i.T for U_i in U), 3)) < 1e-5
    np.testing.assert_allclose(result.state.objective, phi(clients, U, V, lam), rtol=1e-9)
    Z = top_eigenvectors(sum(M), 3)  # the same from the same start, with every matrix formed
    for _ in range(300):
        Z = top_eigenvectors(sum(P @ P.T for P in (top_eigenvectors(M_i + lam * Z @ Z.T, 3) for M_i in M)), 3)
    assert largest_angle(V, Z) < 1e-4
    f = np.array([row["objective"] for row in result.ledger.history() if "objective" in row])
    assert np.diff(f).max() <= 1e-12 * f[0]


@pytest.mark.parametrize("var_u", [0.02, 0.05])
def test_the_paper_reaches_the_objective_of_eigen(var_u):
    clients, lam = section_v(3, var_u, m=4), NOISE * (1 + NOISE) / var_u
    exact = solve(PersonalEigen(3, lam, "none", tol=1e-13, rounds=1000), clients).state
    paper = solve(PersonalPaper(3, lam, "none", noise=NOISE, tol=1e-11, rounds=1000), clients).state
    best = phi(clients, exact.collected.U, exact.V, lam)
    assert phi(clients, paper.collected.U, paper.V, lam) <= best * (1 + 1e-6)
    n, d, r, m = 10, 12, 3, len(clients)  # and f itself is φ up to the factor and the constant of the docstring
    constant = (
        n / 2 * (r * np.log(1 + NOISE) + (d - r) * np.log(NOISE))
        + sum((X**2).sum() for X in clients.values()) * (1 / (2 * NOISE) - 1 / (2 * NOISE * (1 + NOISE))) / m
    )
    np.testing.assert_allclose(paper.objective, constant + best / (2 * NOISE * (1 + NOISE) * m), rtol=1e-6)


def test_a_large_client_keeps_to_itself_and_a_tiny_one_to_the_shared_part():
    many, one = section_v(9, 0.05, m=1, n=3000)["00"], section_v(8, 0.05, m=1, n=1)["00"]
    result = solve(PersonalEigen(3, 40.0, "none"), {**SMALL, "many": many, "one": one})
    got = result.state.collected
    U, far = dict(zip(got.names, got.U, strict=True)), dict(zip(got.names, got.distances, strict=True))
    assert largest_angle(U["many"], top_eigenvectors(many.T @ many, 3)) < 0.15
    assert far["one"] == min(far.values())
    assert far["many"] == max(far.values())
    auto = solve(PersonalAuto(3, center="none"), {**SMALL, "many": many, "one": one}).state.collected
    assert largest_angle(auto.U[auto.names.index("many")], top_eigenvectors(many.T @ many, 3)) < 0.35


# --- auto


def dense_auto(clients: dict[str, Array], folds: dict[str, Array], r: int, kind: int, lam: float, F: int) -> float:
    """The held-out loss of one λ, with every matrix formed and nothing sketched."""
    total = 0.0
    for f in range(F):
        kept = {c: X[folds[c] != f] for c, X in clients.items()}
        kept = {c: X - X.mean(axis=0) for c, X in kept.items()}
        pooled = sum(X.T @ X for X in kept.values())
        N, T = sum(map(len, kept.values())), np.trace(pooled)
        w, Q = np.linalg.eigh(pooled)
        q = 3 * r
        K = (Q[:, -q:] * w[-q:]) @ Q[:, -q:].T / T
        for c, X in kept.items():
            M, n, v = X.T @ X, len(X), T / N
            size = np.trace(M) + v if kind == 0 else N / len(clients) * (np.trace(M) + v) / (n + 1)
            U = top_eigenvectors(size * K if lam == np.inf else M + lam * size * K, r)
            C = clients[c][folds[c] == f] - clients[c][folds[c] != f].mean(axis=0)
            total += (C**2).sum() - ((C @ U) ** 2).sum()
    return total


@pytest.mark.parametrize("share", ["eigenpairs", "sums"])
def test_the_losses_by_which_auto_chooses_are_cross_validation(share):
    clients = section_v(6, 0.03, d=9, r=3, m=6, n=14) | {"short": section_v(7, 0.03, d=9, r=3, m=1, n=4)["00"]}
    r, F = 3, 4
    engine = Watched(clients, threads=1)
    result = run(PersonalAuto(r, folds=F, share=share), engine, rounds=3, seed=2)
    folds = {name: site.state.fold for name, site in engine.session.sites.items()}
    assert result.ledger.exchanges == 3
    for kind in (0, 1):
        for j in (1, 4, 8, 13):
            want = dense_auto(clients, folds, r, kind, LAMBDAS[j], F)
            # (at λ = 0 the short client has fewer directions than r: which ones fill up is for K to say)
            # the sketch of 2r = 6 of 9 directions is nearly all of a client's moments; the sums are all of them
            np.testing.assert_allclose(result.state.losses[kind, j], want, rtol=1e-6 if share == "sums" else 0.02)
    best = np.unravel_index(np.argmin(result.state.losses), result.state.losses.shape)
    chosen = result.state.kind, LAMBDAS.index(result.state.shrinkage)
    assert chosen in (best, (0, 0), (0, 13))


def test_a_small_gain_within_two_standard_errors_is_none():
    rng = np.random.default_rng(0)
    clear = np.full((5, 2, 14), 100.0) + rng.normal(size=(5, 1, 1))
    clear[:, :, 1:13] += 5.0
    clear[:, :, 13] += 10.0
    clear[:, 1, 4] = clear[:, 0, 0] - 1.0  # better in every fold
    assert choose_shrinkage(clear) == (1, 4)
    lucky = clear.copy()
    lucky[:, 1, 4] = clear[:, 0, 0] + np.array([2.0, 1.0, 2.0, 1.0, -7.0])  # better in sum, by one fold
    assert lucky.sum(axis=0).argmin() == 14 + 4
    assert choose_shrinkage(lucky) == (0, 0)
    lucky[:, :, 13] -= 20.0
    lucky[:, 1, 4] -= 11.0
    assert choose_shrinkage(lucky) == (0, 13)
    lucky[4, 1, 4] -= 10.0  # by one fold still, but by more than 2 %
    assert choose_shrinkage(lucky) == (1, 4)


def test_both_ends_of_the_grid_are_local_and_global_pca():
    local = solve(PersonalAuto(3, 0.0, "none", share="sums")).state.collected
    for X, U in zip(SMALL.values(), local.U, strict=True):
        assert largest_angle(U, top_eigenvectors(X.T @ X, 3)) < 1e-6
    everyone = solve(PersonalAuto(3, np.inf, "none", share="sums")).state
    V = top_eigenvectors(sum(X.T @ X for X in SMALL.values()), 3)
    for U in everyone.collected.U:
        assert largest_angle(U, V) < 1e-6
    assert everyone.collected.distances.max() < 1e-6
    for kind in (PersonalEigen, PersonalPaper):
        result = solve(kind(3, np.inf, "none", share="sums", start="random"))
        assert result.rounds == 1
        assert all(largest_angle(U, V) < 0.01 for U in result.state.collected.U)
    np.testing.assert_allclose(to_shares(np.array([0.0, 1.0, np.inf])), [0, 0.5, 1])


def test_blending_large_and_small_matrices_is_the_same():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 140, 150))
    M, K = A @ A.T, B @ B.T
    big = mix_moments(M, K, np.array([0.0, 0.3]), 4)
    for U, omega in zip(big, (0.0, 0.3), strict=True):
        assert largest_angle(U, scipy.linalg.eigh((1 - omega) * M + omega * K)[1][:, -4:]) < 1e-6
    small = mix_moments(M[:50, :50], K[:50, :50], np.array([1.0]), 4)
    assert largest_angle(small[0], scipy.linalg.eigh(K[:50, :50])[1][:, -4:]) < 1e-6


@pytest.mark.parametrize(
    "var_u", [0.02, pytest.param(0.005, marks=pytest.mark.long), pytest.param(0.05, marks=pytest.mark.long)]
)
def test_auto_beats_local_and_global_on_the_papers_problem(var_u):
    d, r, m, n = 30, 10, 50, 20
    rng = np.random.default_rng(11)
    V = random_point(rng, d, r)
    train, held = {}, {}
    for i in range(m):
        U = retract(V, lift(V, V + np.sqrt(var_u) * rng.normal(size=(d, r))))
        rows = rng.normal(size=(n + 200, r)) @ U.T + np.sqrt(NOISE) * rng.normal(size=(n + 200, d))
        train[f"{i:02d}"], held[f"{i:02d}"] = rows[:n], rows[n:]

    def error(U: Any) -> float:
        return sum(float((Y**2).sum() - ((Y @ U_i) ** 2).sum()) for U_i, Y in zip(U, held.values(), strict=True))

    known = NOISE * (1 + NOISE) / var_u
    auto = error(solve(PersonalAuto(r, center="none"), train).state.collected.U)
    best = error(solve(PersonalEigen(r, known, "none", tol=1e-6), train).state.collected.U)
    M = [X.T @ X for X in train.values()]
    assert auto < min(error([top_eigenvectors(M_i, r) for M_i in M]), error([top_eigenvectors(sum(M), r)] * m))
    assert auto <= 1.005 * best


def test_partial_participation_asks_the_cohort_only():
    clients = section_v(2, 0.02, m=40, d=8)
    result = solve(PersonalAuto(3, fraction=0.1), clients)
    asked = [(row["task"], len(row["clients"])) for row in result.ledger.rows() if row["event"] == "exchange"]
    assert asked == [("scan", 40), ("factor", 4), ("validate", 4), ("collect", 40)]
    assert len(result.state.collected.names) == 40
    result = solve(PersonalPaper(3, 30.0, count=7, rounds=30, tol=-1.0), clients)
    asked = [len(row["clients"]) for row in result.ledger.rows() if row["event"] == "exchange"]
    assert asked == [40, 7, *[7] * 30, 40]
    full = solve(PersonalEigen(3, 30.0), clients)
    assert np.linalg.norm(np.sin(scipy.linalg.subspace_angles(result.state.V, full.state.V))) < 0.5
    with pytest.raises(InputError, match=r"count must be at most .*40"):
        solve(PersonalAuto(3, count=41), clients)


def test_what_the_server_sees():
    """With sums and nothing collected, no client's arrays reach it by themselves."""
    seen = []

    class Spy(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange

            def spy(ask: Any, *rest: Any) -> Any:
                replies, event = exchange(ask, *rest)
                seen.append((ask.task, bool(replies.each), sorted(replies.total)))
                return replies, event

            session.exchange = spy  # type: ignore[method-assign]
            return session

    server = PersonalAuto(3, share="sums", collect=False, scale=True)
    state = run(server, Spy(SMALL, threads=1), rounds=3, seed=0).state
    assert [task for task, _, _ in seen] == ["square", "fold", "validate", "retain"]
    assert not any(each for _, each, _ in seen)
    assert state.collected.U.size == 0
    assert 0 < state.collected.mean_distance < 1


def test_lost_replies_are_left_out_if_that_is_allowed():
    clients = section_v(2, 0.02, m=12)
    engine = InProcess(clients, threads=1, faults=Faults(lose_reply=0.2))
    result = run(PersonalAuto(3), engine, rounds=3, seed=4, min_clients=4)
    names = result.state.collected.names
    assert 4 <= len(names) < 12
    assert len(result.state.collected.U) == len(names)


def test_a_checkpoint_of_auto_resumes_between_the_exchanges(tmp_path: Path):
    """To the bit: the rounds before are in the checkpoint, those after it are the same operations."""
    first = run(PersonalAuto(3), InProcess(SMALL, threads=1), rounds=2, seed=3, checkpoint=Checkpoint(tmp_path))
    assert not first.converged
    second = run(PersonalAuto(3), InProcess(SMALL, threads=1), rounds=3, seed=3, checkpoint=Checkpoint(tmp_path))
    want = solve(PersonalAuto(3), seed=3)
    assert second.state.shrinkage == want.state.shrinkage
    np.testing.assert_array_equal(second.state.collected.U, want.state.collected.U)


# --- PerPCA


def test_unique_components_are_the_best_that_are_perpendicular_to_the_shared():
    for X in (SMALL["00"], SMALL["00"][:5], TALL["00"], np.zeros((4, 12)), SMALL["00"][:1]):
        U = random_point(np.random.default_rng(1), 12, 2)
        V = complete_basis(part(X), U, 3)
        np.testing.assert_allclose(V.T @ V, np.eye(3), atol=1e-10)
        np.testing.assert_allclose(U.T @ V, 0, atol=1e-10)
        P = np.eye(12) - U @ U.T
        best = np.linalg.eigvalsh(P @ X.T @ X @ P)[::-1][:3].sum()
        np.testing.assert_allclose(((X @ V) ** 2).sum(), best, rtol=1e-9, atol=1e-9)


def test_perpca_finds_shared_and_unique_components():
    rng = np.random.default_rng(5)
    W = np.linalg.qr(rng.normal(size=(15, 15)))[0]
    clients, own = {}, {}
    for i in range(6):
        own[f"{i}"] = W[:, 3:] @ np.linalg.qr(rng.normal(size=(12, 2)))[0]
        signal = rng.normal(size=(400, 3)) @ W[:, :3].T + 1.5 * rng.normal(size=(400, 2)) @ own[f"{i}"].T
        clients[f"{i}"] = signal + 0.05 * rng.normal(size=(400, 15))
    result = solve(PerPca(5, center="none", shared=3, tol=1e-12, rounds=2000), clients)
    assert largest_angle(result.state.V, W[:, :3]) < 0.02
    for name, U in zip(result.state.collected.names, result.state.collected.U, strict=True):
        assert largest_angle(U[:, 3:], own[name]) < 0.02
    f = np.array([row["objective"] for row in result.ledger.history() if "objective" in row])
    assert np.diff(f).max() <= 1e-12 * f[0]


# --- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PersonalAuto(shrinkage=-1.0), "shrinkage must be 'auto' or a number"),
        (lambda: PersonalAuto(shrinkage="much"), "shrinkage must be"),
        (lambda: PersonalAuto(shrinkage=float("nan")), "shrinkage must be"),
        (lambda: PersonalAuto(center="middle"), "center must be"),  # type: ignore[arg-type]
        (lambda: PersonalAuto(share="all"), "share must be"),  # type: ignore[arg-type]
        (lambda: PersonalAuto(folds=1), "folds must be at least 2"),
        (lambda: PersonalAuto(clip=-1.0), "clip must be"),
        (lambda: PersonalPaper(step="long"), "step must be 'safe'"),
        (lambda: PersonalPaper(step=(0.1, -1)), "step must be 'safe'"),
        (lambda: PersonalPaper(noise=0.0), "noise must be above 0"),
        (lambda: solve(PerPca(3, shared=4)), "shared must be from 1 to the 3 components"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
