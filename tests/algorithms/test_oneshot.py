"""The one-round methods against dense formulas: Gram is exact, the others are what their listings say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan.algorithms._moments import RowsClient
from fedspan.algorithms.spectral.oneshot import AveragingClient, DrSvd, Gram, Uda, Wda, pack_triangle, unpack_triangle
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array, Sensitivity, Server, tasks_of
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import Result, run
from fedspan.engines.inprocess import InProcess
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import largest_angle, projection_distance

ALL: list[Any] = [Gram, Uda, Wda, DrSvd]


def solve(method: Server[Any], clients: Any, rounds: int = 5) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=rounds, seed=2)


def leading(M: Array, k: int) -> tuple[Array, Array]:
    values, V = np.linalg.eigh(M)
    return values[::-1][:k], V[:, ::-1][:, :k]


def shifted(clients: dict[str, Array], center: bool, scale: bool) -> dict[str, Array]:
    A = np.vstack(list(clients.values()))
    mean, std = A.mean(axis=0) * center, A.std(axis=0) if scale else 1.0
    return {name: (rows - mean) / std for name, rows in clients.items()}


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(("center", "scale"), [(False, False), (True, False), (True, True)])
def test_one_round_and_its_variances_and_kkt_are_those_of_its_answer(
    method: Any, center: bool, scale: bool, hospitals: dict[str, Array]
) -> None:
    result = solve(method(3, center=center, scale=scale), hospitals)
    B = np.vstack(list(shifted(hospitals, center, scale).values()))
    M, Z = B.T @ B, result.state.Z
    assert result.rounds == 1
    np.testing.assert_allclose(Z.T @ Z, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(result.state.theta, np.diagonal(Z.T @ M @ Z), rtol=1e-10)
    np.testing.assert_allclose(Z.T @ M @ Z, np.diag(result.state.theta), atol=1e-9 * np.trace(M))
    kkt = np.linalg.norm(M @ Z - Z @ (Z.T @ M @ Z)) / np.trace(M)
    np.testing.assert_allclose(result.state.kkt, kkt, rtol=1e-6, atol=1e-14)
    if method is Gram:
        assert projection_distance(Z, leading(M, 3)[1]) < 1e-10


@pytest.mark.parametrize(("center", "scale"), [(False, False), (True, True)])
def test_averages_are_those_of_algorithms_4_and_5(center: bool, scale: bool, hospitals: dict[str, Array]) -> None:
    k = 3
    uda, wda = np.zeros((12, 12)), np.zeros((12, 12))
    for B in shifted(hospitals, center, scale).values():
        values, V = leading(B.T @ B / len(B), k)
        uda += V @ V.T / len(hospitals)
        wda += V * values @ V.T / len(hospitals)
    for method, average in ((Uda, uda), (Wda, wda)):
        got = solve(method(k, center=center, scale=scale), hospitals).state.Z
        assert largest_angle(got, leading(average, k)[1]) < 1e-7
    assert largest_angle(leading(uda, k)[1], leading(wda, k)[1]) > 1e-3  # they are not the same


def test_a_client_with_fewer_rows_than_components_sends_what_it_has() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(n, 6)) for n in (2, 30, 1)]
    average = np.zeros((6, 6))
    for A in clients:
        V = leading(A.T @ A, min(3, len(A)))[1]
        average += V @ V.T
    got = solve(Uda(3, center=False), clients).state.Z
    assert largest_angle(got, leading(average, 3)[1]) < 1e-7


def test_wide_and_sparse_rows_never_make_a_square_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    clients = [sp.random_array((n, 300), density=0.1, rng=rng, format="csr") for n in (90, 2, 25)]
    average = np.zeros((300, 300))
    for A in clients:
        B = A.toarray() - np.vstack([C.toarray() for C in clients]).mean(axis=0)
        values, V = leading(B.T @ B / len(B), min(4, len(B)))
        average += V * values @ V.T
    monkeypatch.setattr("fedspan.numerics.operators.Rows.gram", None)
    got = solve(Wda(4), clients).state.Z
    assert largest_angle(got, leading(average, 4)[1]) < 1e-6
    assert solve(DrSvd(4), clients).state.Z.shape == (300, 4)


def test_all_components_can_be_asked_for() -> None:
    A = np.random.default_rng(3).normal(size=(20, 4))
    for method in ALL:
        np.testing.assert_allclose(
            solve(method(4, center=False), [A[:8], A[8:]]).state.theta, leading(A.T @ A, 4)[0], rtol=1e-9
        )


# --- DR-SVD


@pytest.mark.parametrize("width", [None, 3, 5])
def test_dr_svd_is_algorithm_6_with_q_written_out(width: int | None, hospitals: dict[str, Array]) -> None:
    k, A = 3, np.vstack(list(hospitals.values()))
    r = 3 + (12 - 3) // 4 if width is None else width
    Omega = Streams(2, 1, 0, SERVER)("Omega").normal(size=(12, r))  # line 2
    Q = np.linalg.qr(A @ A.T @ A @ Omega)[0]  # line 3
    B = Q.T @ A  # lines 5, 6
    want = np.linalg.svd(B)[2][:k].T
    got = solve(DrSvd(k, center=False, width=width), hospitals).state.Z
    assert largest_angle(got, want) < 1e-6


def test_dr_svd_is_exact_on_rows_of_low_rank() -> None:
    rng = np.random.default_rng(4)
    A = rng.normal(size=(90, 4)) @ rng.normal(size=(4, 40))
    state = solve(DrSvd(4, center=False), np.array_split(A, 5)).state
    values, V = leading(A.T @ A, 4)
    assert projection_distance(state.Z, V) < 1e-9
    np.testing.assert_allclose(state.theta, values, rtol=1e-10)
    assert state.kkt < 1e-12
    fewer = solve(DrSvd(6, center=False), np.array_split(A, 5)).state  # more components than there are
    np.testing.assert_allclose(fewer.theta[:4], values, rtol=1e-10)


def test_rows_that_do_not_vary_are_refused_before_the_first_round() -> None:
    for method in ALL:
        with pytest.raises(InputError, match="All rows are equal"):
            solve(method(2), [np.ones((60, 70)), np.ones((3, 70))])


def test_a_width_that_makes_no_sense_is_refused(hospitals: dict[str, Array]) -> None:
    with pytest.raises(InputError, match="width must be from the 3 components to the 12 features, but is 2"):
        solve(DrSvd(3, width=2), hospitals)


# --- what is sent


def test_own_subspaces_have_no_sensitivity_and_dr_svd_asks_for_products_only(hospitals: dict[str, Array]) -> None:
    releases = {name: task.releases for name, task in tasks_of(AveragingClient).items()}
    assert releases["span"] == releases["weigh"] == {"V": None}
    assert DrSvd().client is RowsClient
    assert tasks_of(RowsClient)["multiply"].releases == {"Y": Sensitivity(2)}
    events = solve(DrSvd(3), hospitals).ledger.events
    assert [e.task for e in events if isinstance(e, Exchange) and e.round == 1] == ["multiply"] * 3


def test_a_triangle_holds_a_symmetric_matrix() -> None:
    A = np.random.default_rng(6).normal(size=(5, 5))
    np.testing.assert_array_equal(unpack_triangle(pack_triangle(A + A.T)), A + A.T)
    assert pack_triangle(np.eye(3)).tolist() == [1, 0, 0, 1, 0, 1]
