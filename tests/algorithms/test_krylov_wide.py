"""The wide form of block Krylov: an opening that is a sum, few rounds, and no component that its start has missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from sklearn import datasets

from fedspan import FederatedPCA, run
from fedspan.algorithms import Krylov, Prior
from fedspan.algorithms._operator import approximate_eigenpairs
from fedspan.algorithms.spectral import wide_blocks
from fedspan.channel import Channel, pack
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array
from fedspan.core.rng import Streams
from fedspan.engines import Faults, InProcess
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import draw_mix, projection_distance, turn, turn_back
from fedspan.numerics.rayleigh_ritz import nystrom, rayleigh_ritz

PACKED = Channel(up=pack(), down=pack())


def spectrum(values: Array, clients: int = 6, rows: int = 120, seed: int = 0) -> tuple[list[Array], Array]:
    """Clients whose pooled rows have exactly these singular values, and the right singular vectors."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.normal(size=(rows * clients, len(values))))[0]
    V = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    return np.split((U * values) @ V.T, clients), V


def solve(data: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {"k": 4, "center": False, "width": "auto", "tol": 1e-8} | options
    return run(Krylov(**settings), InProcess(data, threads=1), rounds=60, seed=3, channel=PACKED)


@pytest.mark.parametrize("rounded", [False, True])
def test_half_of_the_rounds_at_about_the_same_bytes(rounded: bool) -> None:
    data, V = spectrum(1.03 ** -np.arange(150.0), rows=150)
    wide, narrow = (solve(data, width=width, rounded=rounded, tol=1e-6) for width in ("auto", None))
    assert wide.converged
    assert 1 + wide.rounds <= 0.65 * narrow.rounds
    sent = [result.ledger.bytes_up + result.ledger.bytes_down for result in (wide, narrow)]
    assert sent[0] <= 1.3 * sent[1]
    assert projection_distance(wide.state.Z, V[:, :4]) < 1e-3


def test_the_estimate_is_no_worse_than_the_residual_that_is_reported() -> None:
    for seed in range(5):
        data, _ = spectrum(1.05 ** -np.arange(80.0), seed=seed)
        result = solve(data, tol=1e-5)
        M, Z = sum(X.T @ X for X in data), result.state.Z
        true = np.linalg.norm(M @ Z - Z @ (Z.T @ M @ Z)) / np.trace(M)
        assert true <= result.state.kkt * (1 + 1e-9) + 1e-14
        np.testing.assert_allclose(Z.T @ Z, np.eye(4), atol=1e-12)
        eigenvalues = scipy.linalg.eigh(M, eigvals_only=True)[::-1][:4]
        assert (result.state.theta <= eigenvalues * (1 + 1e-12)).all()


def test_what_no_client_has_most_of_is_found_all_the_same() -> None:
    """Diagonal M_i: each client's leading eigenvectors are its own coordinates, all have a little of the last one.

    M maps the span of what the opening points at into itself, with a residual of exactly zero. Only the random columns
    of the first block lead out of it.
    """
    clients, k, each = 6, 2, 5
    d = clients * each + 30
    data = []
    for i in range(clients):
        values = np.full(d, 0.01)
        values[i * each : (i + 1) * each] = 1.0 + 0.01 * np.arange(each)
        values[-1] = 0.6  # 6 · 0.36 in the sum: more than any other
        data.append(np.diag(values))
    result = solve(data, k=k, tol=1e-8)
    assert abs(result.state.Z[-1]).max() > 1 - 1e-6
    assert result.state.theta[0] == pytest.approx(clients * 0.36, rel=1e-6)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("values", "k"), [([3.0, 2.0] + [0.0] * 38, 2), ([3.0, 2.0, 1.0] + [0.0] * 38, 6)])
def test_low_rank(values: list[float], k: int, rounded: bool) -> None:
    data, V = spectrum(np.array(values))
    result = solve(data, k=k, tol=1e-7, rounded=rounded)
    rank = int(np.sum(np.array(values) > 0))
    assert result.converged
    assert result.rounds <= 4
    assert projection_distance(result.state.Z[:, :rank], V[:, :rank]) < 1e-4
    np.testing.assert_allclose(result.state.theta[:rank], np.array(values[:rank]) ** 2, rtol=1e-5)


TABLES = {
    "iris": datasets.load_iris().data,
    "wine": datasets.load_wine().data,
    "cancer": datasets.load_breast_cancer().data,
    "diabetes": datasets.load_diabetes().data,
    "digits": datasets.load_digits().data,
    "linnerud": datasets.load_linnerud().data,
    "noise": np.random.default_rng(0).normal(size=(300, 40)),
    "steps": np.random.default_rng(1).normal(size=(300, 50)) * np.repeat([9.0, 3.0, 1.0, 0.3, 0.1], 10),
    "counts": np.random.default_rng(2).poisson(np.exp(np.linspace(-3, 3, 60)), size=(200, 60)).astype(float),
    "one hot": np.eye(30)[np.random.default_rng(3).integers(30, size=400) // 2],
    "two columns": np.random.default_rng(4).normal(size=(50, 2)),
}


@pytest.mark.parametrize("bits", [None, "auto"])
@pytest.mark.parametrize("name", TABLES)
def test_the_default_works_on_tables_that_nobody_looked_at(name: str, bits: str | None) -> None:
    """The leading subspace, for one component, some, and nearly all; against a dense eigensolver."""
    X = TABLES[name]
    d = X.shape[1]
    B = X - X.mean(axis=0)
    w, V = np.linalg.eigh(B.T @ B)
    w, V = w[::-1], V[:, ::-1]
    for k in sorted({1, min(3, d - 1), max(d // 3, 1), d - 1}):
        if not w[k - 1] - w[k] > 1e-4 * w.sum():
            continue  # not determined
        model = FederatedPCA(k, solver="krylov", bits=bits, random_state=0).fit(np.array_split(X, 5))
        assert model.converged_
        assert projection_distance(model.components_.T, V[:, :k]) < 4e-6 * w.sum() / (w[k - 1] - w[k])


def test_the_opening_is_what_its_notation_says() -> None:
    """S = Σ F_iΩ with F_i = U diag((λ/t)^¼) Uᵀ; the server turns it back, up to the rounding that was declared."""
    data, _ = spectrum(0.8 ** np.arange(30.0), clients=3)
    seen: dict[str, Any] = {}

    class Watch(InProcess):
        def start(self, *args: Any) -> Any:
            session: Any = super().start(*args)
            exchange = session.exchange

            def watched(ask: Any, *more: Any) -> Any:
                replies, event = exchange(ask, *more)
                if ask.task == "blend":
                    seen.update(arrays=ask.arrays, S=replies.total["S"])
                return replies, event

            session.exchange = watched
            return session

    run(Krylov(k=3, center=False, width=12), Watch(data), rounds=1, seed=0)
    arrays = seen["arrays"]
    seed, (d, width, count) = int(arrays["seed"]), arrays["shape"].tolist()
    assert (d, width, count) == (30, 12 - wide_blocks.random_width(3), 6)
    S = turn_back(seen["S"] * float(arrays["step"]), seed)
    expected = np.zeros((d, width))
    for X in data:
        w, U = np.linalg.eigh(X.T @ X)
        w, U = w[::-1][:count], U[:, ::-1][:, :count]
        expected += (U * (w / float(arrays["unit"])) ** 0.25) @ (U.T @ draw_mix(seed, d, width))
    np.testing.assert_allclose(S, expected, atol=0.02 * np.abs(expected).max())
    np.testing.assert_allclose(turn_back(turn(expected, 5), 5), expected, atol=1e-12)


def test_what_is_asked_and_how_wide() -> None:
    data, _ = spectrum(0.9 ** np.arange(60.0))
    result = solve(data, k=4, width="auto", tol=1e-9)
    tasks = [event.task for event in result.ledger.events if isinstance(event, Exchange)]
    assert tasks[:3] == ["settle", "blend", "multiply"]
    assert set(tasks[2:]) == {"multiply"}
    assert [wide_blocks.first_width(w, 60, 4) for w in ("auto", 9, 100)] == [24, 9, 60]
    assert wide_blocks.first_width("auto", 47, 4) == 16
    warm = Krylov(k=4, center=False, width="auto", prior=Prior(np.eye(60)[:, :4], np.ones(4)))
    asked = run(warm, InProcess(data), rounds=2, seed=0).ledger.events
    assert "blend" not in [event.task for event in asked if isinstance(event, Exchange)]


def test_a_lossy_network_changes_nothing() -> None:
    data, _ = spectrum(0.9 ** np.arange(40.0))
    algorithm = Krylov(k=3, center=False, width="auto", rounded=True, tol=1e-7)
    runs = [
        run(algorithm, InProcess(data, faults=faults), rounds=40, seed=0, retries=9)
        for faults in (None, Faults(lose_request=0.1, lose_reply=0.1))
    ]
    # The sums over those who are asked again are added up later, so the last bits may differ.
    np.testing.assert_allclose(runs[1].state.Z, runs[0].state.Z, atol=1e-6)
    assert abs(runs[1].rounds - runs[0].rounds) <= 1


def test_the_server_keeps_a_bounded_basis() -> None:
    data, V = spectrum(1.02 ** -np.arange(150.0), rows=100)
    result = solve(data, k=2, tol=1e-10)
    assert result.converged
    assert len(result.state.Qt) <= 24 * 2
    assert projection_distance(result.state.Z, V[:, :2]) < 1e-6


def test_nystrom_is_between_ritz_and_the_truth() -> None:
    data, V = spectrum(0.9 ** np.arange(30.0))
    M = sum(X.T @ X for X in data)
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 8)))[0]
    ritz = rayleigh_ritz(Q, M @ Q, 3)
    found = nystrom(M @ Q, ritz, 3, 1e-12)
    assert found is not None
    values, Z = found
    assert (ritz.theta[:3] <= values).all()
    assert (values <= 0.81 ** np.arange(3) * (1 + 1e-12)).all()
    assert projection_distance(Z, V[:, :3]) < projection_distance(Q @ ritz.S[:, :3], V[:, :3])
    assert nystrom(M @ Q, ritz, 3, float(ritz.theta[1])) is None


def test_a_client_finds_its_own_leading_eigenpairs_with_few_products() -> None:
    data, _ = spectrum(0.9 ** np.arange(50.0), clients=2)
    M, asked = data[0].T @ data[0], []

    def multiply(V: Array) -> Array:
        asked.append(V.shape[1])
        return M @ V

    w, U = approximate_eigenpairs(multiply, 50, 6, Streams(0, 0, 0, "ada"))
    exact, E = np.linalg.eigh(M)
    np.testing.assert_allclose(w, exact[::-1][:6], rtol=1e-2)
    assert projection_distance(U[:, :3], E[:, ::-1][:, :3]) < 0.05
    assert sum(asked) <= 44
    tiny = np.outer(np.arange(5.0), np.arange(5.0))
    w, U = approximate_eigenpairs(lambda V: tiny @ V, 5, 5, Streams(0, 0, 0, "ada"))
    np.testing.assert_allclose(np.abs(w), [30.0, 0, 0, 0, 0], atol=1e-9)


@pytest.mark.parametrize("width", [0, 1, -3, True, "wide", 2.5])
def test_a_width_that_makes_no_sense_is_refused(width: Any) -> None:
    with pytest.raises(InputError, match="width must be"):
        Krylov(k=2, width=width)


def test_width_is_for_krylov_only() -> None:
    with pytest.raises(InputError, match="width is for solver 'krylov', not for 'ssi'"):
        FederatedPCA(2, solver="ssi", width=12).fit([np.eye(5), np.eye(5)])
