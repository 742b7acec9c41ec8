"""Block Krylov: few rounds, exact where the spectrum is hard, bounded memory."""

import numpy as np
import pytest

from fedspan import run
from fedspan.algorithms import Krylov, Ssi
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import largest_angle


def spectrum(values, clients=4, rows=50, seed=0):
    """Clients whose pooled rows have exactly these singular values."""
    rng = np.random.default_rng(seed)
    d, n = len(values), rows * clients
    U = np.linalg.qr(rng.normal(size=(n, d)))[0]
    V = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.split((U * values) @ V.T, clients), V


def solve(data, **options):
    return run(Krylov(center=False, **options), InProcess(data), rounds=300, seed=0)


def test_a_round_by_hand():
    """After two rounds Z is the best in span{V0, M V0}: the same as a dense Rayleigh-Ritz on that span."""
    data, _ = spectrum(0.7 ** np.arange(20))
    pooled = np.vstack(data)
    M = pooled.T @ pooled
    result = run(Krylov(k=2, tol=0.0, center=False), InProcess(data), rounds=2, seed=0)
    V0 = run(Krylov(k=2, center=False), InProcess(data), rounds=0, seed=0).state.next
    Q = np.linalg.qr(np.hstack([V0, M @ V0]))[0]
    theta, S = np.linalg.eigh(Q.T @ M @ Q)
    np.testing.assert_allclose(result.state.theta, theta[::-1][:2], rtol=1e-12)
    assert largest_angle(result.state.Z, Q @ S[:, -2:]) < 1e-12
    kkt = np.linalg.norm(M @ result.state.Z - result.state.Z @ (result.state.Z.T @ M @ result.state.Z)) / np.trace(M)
    np.testing.assert_allclose(result.state.kkt, kkt, rtol=1e-10)


def test_it_needs_far_fewer_rounds_than_subspace_iteration():
    data, V = spectrum(1.03 ** -np.arange(100.0), rows=100)
    ours = solve(data, k=5, tol=1e-8)
    ssi = run(Ssi(k=5, tol=1e-8, center=False), InProcess(data), rounds=3000, seed=0)
    assert ours.rounds * 10 < ssi.rounds
    assert largest_angle(ours.state.Z, V[:, :5]) < 1e-4


def test_the_server_keeps_a_bounded_basis_and_still_converges():
    data, V = spectrum(1.02 ** -np.arange(120.0), rows=100)
    result = solve(data, k=4, tol=1e-10, keep=6)
    assert result.converged
    assert len(result.state.Qt) <= 6 * 4
    assert largest_angle(result.state.Z, V[:, :4]) < 1e-6
    np.testing.assert_allclose(result.state.Qt @ result.state.Qt.T, np.eye(len(result.state.Qt)), atol=1e-13)


def test_equal_eigenvalues_within_the_wanted_space():
    data, V = spectrum(np.array([2.0] * 4 + [1.0] * 30))
    result = solve(data, k=4, tol=1e-10)
    assert result.rounds <= 3
    assert largest_angle(result.state.Z, V[:, :4]) < 1e-9
    np.testing.assert_allclose(result.state.theta, 4.0, rtol=1e-12)


def test_a_cluster_across_k_is_reported_as_a_small_gap():
    data, _ = spectrum(np.array([3.0, 2.0, 1.0, 1.0, 1.0] + [0.1] * 20))
    result = solve(data, k=3, tol=1e-10)
    assert result.converged
    assert result.state.gap < 1e-6 * result.state.theta[0]


def test_low_rank_ends_as_soon_as_the_span_holds_all():
    data, V = spectrum(np.array([3.0, 2.0] + [0.0] * 28))
    result = solve(data, k=3, tol=0.0)
    assert result.converged
    assert result.rounds <= 3
    assert largest_angle(result.state.Z[:, :2], V[:, :2]) < 1e-12


@pytest.mark.parametrize("k", [1, 6])
def test_all_components_of_a_small_problem(k):
    data, _ = spectrum(np.arange(6.0, 0.0, -1.0))
    result = solve(data, k=k, tol=1e-12)
    assert result.converged
    np.testing.assert_allclose(result.state.theta, np.arange(6.0, 0.0, -1.0)[:k] ** 2, rtol=1e-10)


def test_running_on_after_convergence_does_no_harm():
    data, V = spectrum(0.9 ** np.arange(40.0))
    result = solve(data, k=3, tol=0.0)
    assert largest_angle(result.state.Z, V[:, :3]) < 1e-12


@pytest.mark.long
def test_table_4_of_faps_in_fourteen_rounds():
    rng = np.random.default_rng(0)
    n, m = 1000, 36000
    U = np.linalg.qr(rng.uniform(-1, 1, (n, n)))[0]
    V = np.linalg.qr(rng.uniform(-1, 1, (m, n)))[0]
    data = np.split((V * 1.01 ** -np.arange(n)) @ U.T, np.cumsum([1000 * i for i in range(1, 8)]))
    result = solve(data, k=10, tol=1e-6)
    Z, pooled = result.state.Z, np.vstack(data)
    MZ = pooled.T @ (pooled @ Z)
    assert np.linalg.norm(MZ - Z @ (Z.T @ MZ)) / np.sum(pooled**2) <= 1e-6
    assert result.rounds <= 14
