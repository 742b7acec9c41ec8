"""Weights of rows and of clients, against the pooled weighted oracle and against rows that are there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, FederatedSVD, InputError, Job, RowDP, prepare
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.core.protocol import tasks_of
from fedspan.core.rng import Streams
from fedspan.numerics.operators import RowBatches, Rows, WeightedRows
from fedspan.privacy.request import PaperDP

rng = np.random.default_rng(5)
SIZES = {"a": 70, "b": 40, "c": 90}
MIX = rng.normal(size=(7, 7)) * [6, 4, 2.5, 1, 0.6, 0.4, 0.3]
CLIENTS = {name: rng.normal(size=(n, 7)) @ MIX.T + 3 * i for i, (name, n) in enumerate(SIZES.items())}
WEIGHTS = {name: rng.exponential(size=n) for name, n in SIZES.items()}
WEIGHTS["b"][:5] = 0.0
X = np.concatenate(list(CLIENTS.values()))
V = np.concatenate(list(WEIGHTS.values()))


class Batches(RowBatches):
    def __init__(self, A: np.ndarray) -> None:
        self.A, self.shape = A, A.shape

    def batches(self) -> Any:
        yield from (self.A[start : start + 7] for start in range(0, len(self.A), 7))


def pool(X: np.ndarray, v: np.ndarray, k: int, center: bool = True, scale: bool = False) -> tuple[np.ndarray, ...]:
    mean = np.average(X, axis=0, weights=v) if center else np.zeros(X.shape[1])
    s = np.sqrt(np.average((X - np.average(X, axis=0, weights=v)) ** 2, axis=0, weights=v)) if scale else 1.0
    B = (X - mean) / s
    values, U = np.linalg.eigh((B * v[:, None]).T @ B)
    return mean, values[::-1][:k] / (v.sum() - 1), U[:, ::-1][:, :k], values[::-1][:k] / values.sum()


def check(model: FederatedPCA, oracle: tuple[np.ndarray, ...], tol: float = 1e-6) -> None:
    mean, variances, U, shares = oracle
    np.testing.assert_allclose(model.mean_, mean, rtol=tol, atol=tol)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=tol)
    np.testing.assert_allclose(model.explained_variance_ratio_, shares, rtol=tol)
    cosines = np.linalg.svd(model.components_ @ U, compute_uv=False)
    assert cosines.min() > 1 - tol


@pytest.mark.parametrize("solver", ["gram", "krylov", "davidson", "ssi", "fedpower"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "float32", "opened later"])
def test_the_answer_is_that_of_the_pooled_weighted_rows(solver: str, kind: str) -> None:
    make: dict[str, Any] = {
        "dense": lambda A: A,
        "sparse": sp.csr_array,
        "float32": lambda A: A.astype(np.float32),
        "opened later": lambda A: lambda: A,
    }
    clients = {name: make[kind](A) for name, A in CLIENTS.items()}
    tol = 1e-7 if kind == "float32" else 1e-9
    model = FederatedPCA(2, solver=solver, tol=tol, max_rounds=500, random_state=0).fit(clients, sample_weight=WEIGHTS)
    check(model, pool(X, V, 2), 3e-5 if kind == "float32" else 1e-6)
    assert model.n_samples_ == pytest.approx(V.sum())


@pytest.mark.parametrize("options", [{"scale": True}, {"secure": True}, {"solver": "krylov", "secure": True}])
def test_with_scaling_and_under_secure_sums(options: dict[str, Any]) -> None:
    model = FederatedPCA(3, tol=1e-9, random_state=0, **options).fit(CLIENTS, sample_weight=WEIGHTS)
    check(model, pool(X, V, 3, scale=bool(options.get("scale"))))


def test_svd_weighs_rows_without_centering() -> None:
    model = FederatedSVD(2, solver="gram", random_state=0).fit(
        list(CLIENTS.values()), sample_weight=[*WEIGHTS.values()]
    )
    check(model, pool(X, V, 2, center=False))


ALL = ["gram", "krylov", "davidson", "faps", "ssi", "localpower", "fedpower", "uda", "wda", "drsvd"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("solver", ALL)
def test_a_weight_of_two_is_a_row_that_is_there_twice(solver: str) -> None:
    often = {name: np.random.default_rng(1).integers(0, 4, size=n) for name, n in SIZES.items()}
    repeated = {name: np.repeat(A, often[name], axis=0) for name, A in CLIENTS.items()}
    model, twice = (FederatedPCA(2, solver=solver, max_rounds=60, random_state=0) for _ in range(2))
    model.fit(CLIENTS, sample_weight=often)
    twice.fit(repeated)
    np.testing.assert_allclose(model.explained_variance_, twice.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(model.components_, twice.components_, atol=1e-4)
    assert model.n_samples_ == twice.n_samples_


@pytest.mark.parametrize("given", ["equal", {"a": 3, "b": 1.0, "c": 0}])
@pytest.mark.parametrize("solver", ["gram", "krylov"])
def test_what_clients_count(solver: str, given: Any) -> None:
    counts = {"a": 1, "b": 1, "c": 1} if given == "equal" else given
    total = sum(counts.values())
    share = {name: counts[name] / total * len(X) / n for name, n in SIZES.items()}
    v = np.concatenate([np.full(n, share[name]) for name, n in SIZES.items()])
    model = FederatedPCA(2, solver=solver, tol=1e-9, random_state=0).fit(CLIENTS, client_weight=given)
    check(model, pool(X, v, 2))
    assert model.n_samples_ == pytest.approx(len(X))


def test_both_at_once() -> None:
    v = np.concatenate([w / w.sum() * V.sum() / 3 for w in WEIGHTS.values()])
    model = FederatedPCA(2, solver="gram").fit(CLIENTS, sample_weight=WEIGHTS, client_weight="equal")
    check(model, pool(X, v, 2))


def frames() -> dict[str, pd.DataFrame]:
    names = [f"x{j}" for j in range(7)]
    return {name: pd.DataFrame(A, columns=names).assign(w=WEIGHTS[name]) for name, A in CLIENTS.items()}


def test_rows_that_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspan.data.tables.LARGE", 0)
    for solver in ("gram", "krylov"):
        check(FederatedPCA(2, solver=solver, tol=1e-9).fit(prepare(frames(), weight="w")), pool(X, V, 2))
    named = {name: frame.assign(id=[f"{name}{i}" for i in range(len(frame))]) for name, frame in frames().items()}
    check(FederatedPCA(2, solver="gram").fit(prepare(named, weight="w", id="id")), pool(X, V, 2))


def test_a_column_holds_the_weights(tmp_path: Path) -> None:
    model = FederatedPCA(2, solver="gram").fit(prepare(frames(), weight="w"))
    check(model, pool(X, V, 2))
    assert "w" not in model.feature_names_in_
    assert model.transform(frames()["a"]).shape == (70, 2)
    for name, frame in frames().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    text = '[job]\ntask = "pca"\nsolver = "gram"\n[data]\nweight = "w"\nclient_weight = "rows"\nclients = {}\n'
    (tmp_path / "job.toml").write_text(text.format('["a.csv", "b.csv", "c.csv"]'))
    run = Job.load(tmp_path / "job.toml").run(tmp_path / "run")
    assert isinstance(run.model, FederatedPCA)
    check(run.model, pool(X, V, 2))
    equal = Job.load(tmp_path / "job.toml", ["data.client_weight=equal"]).run(tmp_path / "equal")
    assert isinstance(equal.model, FederatedPCA)
    v = np.concatenate([w / w.sum() * V.sum() / 3 for w in WEIGHTS.values()])
    check(equal.model, pool(X, v, 2))
    assert Job.load(tmp_path / "equal" / "job.toml").client_weight == "equal"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"sample_weight": {**WEIGHTS, "b": np.r_[1.0, -2.0, np.ones(38)]}}, "client 'b'.*row 2 has -2"),
    ({"sample_weight": {**WEIGHTS, "c": np.r_[np.ones(89), np.nan]}}, "client 'c'.*row 90 has nan"),
    ({"sample_weight": {**WEIGHTS, "a": np.r_[np.inf, np.ones(69)]}}, "client 'a'.*row 1 has inf"),
    ({"sample_weight": {name: np.zeros(n) for name, n in SIZES.items()}}, "all weights are 0"),
    ({"sample_weight": {name: np.full(n, 1e-3) for name, n in SIZES.items()}}, "add up to at least 2"),
    ({"sample_weight": {**WEIGHTS, "a": np.ones(69)}}, "client 'a'.*each of the 70 rows"),
    ({"sample_weight": {**WEIGHTS, "a": ["x"] * 70}}, "client 'a'.*must be numbers"),
    ({"sample_weight": {"a": WEIGHTS["a"]}}, "has none for 'b'"),
    ({"sample_weight": {**WEIGHTS, "d": np.ones(3)}}, "names no client in 'd'"),
    ({"sample_weight": V}, "one array per client"),
    ({"client_weight": "euqal"}, "'euqal'. Did you mean"),
    ({"client_weight": {"a": 1, "b": 1}}, "has none for 'c'"),
    ({"client_weight": {"a": 1, "b": 1, "c": -1}}, "-1 for client 'c'"),
    ({"client_weight": {"a": 1, "b": 1, "c": float("nan")}}, "nan for client 'c'"),
    ({"client_weight": {"a": 0, "b": 0, "c": 0}}, "0 for all"),
    ({"client_weight": 3}, "is of type int"),
    ({"client_weight": "equal", "sample_weight": {**WEIGHTS, "a": np.zeros(70)}}, "client 'a': all weights"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_weights_that_mean_nothing_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FederatedPCA(2, solver="gram").fit(CLIENTS, **given)


@pytest.mark.parametrize(
    ("privacy", "given", "message"),
    [
        (RowDP(1.0, 1e-6, 10.0), {"client_weight": "equal"}, "count by how many they are"),
        (RowDP(1.0, 1e-6, 10.0), {"sample_weight": WEIGHTS}, "must be at most 1"),
        (RowDP(1.0, 0.01, 10.0), {"sample_weight": {n: np.full(s, 0.05) for n, s in SIZES.items()}}, "delta must be"),
        (PaperDP(1.0, 1e-6), {"sample_weight": WEIGHTS}, "PaperDP"),
    ],
)
def test_weights_that_break_a_promise_are_refused(privacy: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FederatedPCA(2, privacy=privacy).fit(CLIENTS, **given)


def test_a_private_run_weighs_rows() -> None:
    """With hardly any noise, the answer is that of the weighted rows."""
    v = {name: w / max(map(np.max, WEIGHTS.values())) for name, w in WEIGHTS.items()}
    pooled = np.concatenate(list(v.values()))
    many = 200
    clients = {name: np.tile(A, (many, 1)) for name, A in CLIENTS.items()}
    weights = {name: np.tile(w, many) for name, w in v.items()}
    dp = RowDP(50.0, 1e-6, 120.0, simulate=True)
    model = FederatedPCA(2, privacy=dp, random_state=0).fit(clients, sample_weight=weights)
    mean, variances, U, shares = pool(np.tile(X, (many, 1)), np.tile(pooled, many), 2)  # n - 1 is nearly n here
    check(model, (mean, variances, U, shares), 3e-2)
    unweighted = pool(X, np.ones(len(X)), 2)
    assert np.linalg.norm(mean - unweighted[0]) > 0.1 * np.linalg.norm(mean)  # so that the weights matter


TASKS = ["census", "add_up", "triangle", "project", "energy", "refine"]


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("task", TASKS)
def test_one_row_changes_what_leaves_by_no_more_than_its_sensitivity(task: str, make: Any) -> None:
    """Whatever its weight says: at the client's door a row counts at most once, and is shortened after weighting."""
    C, mean = 4.0, np.full(7, 0.5)
    draw = np.random.default_rng(2)
    Z = np.linalg.qr(draw.normal(size=(7, 3)))[0]
    question = {"census": {}, "add_up": {}, "triangle": {"mean": mean}, "project": {"Z": Z, "mean": mean}}.get(
        task, {"mean": mean, "Z": Z, "cut": np.array(0.5)}
    )
    if task == "energy":
        question = {"mean": mean}

    def release(A: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
        client = PrivateClient(WeightedRows(make(A), v), row_norm=C)
        return tasks_of(PrivateClient)[task].call(client, client.init(), question, Streams(0, 1, 0, "a"))[1]

    worst = 0.0
    for length in (0.1, 1.0, 5.0, 1e6):
        for weight in (1e-3, 0.3, 1.0, 50.0):
            A = draw.normal(size=(6, 7))
            A[0] *= length
            v = np.r_[weight, np.full(5, 0.7)]
            with_row, without = release(A, v), release(A[1:], v[1:])
            power = {"census": 0, "add_up": 1}.get(task, 2)
            change = max(float(np.linalg.norm(with_row[name] - without[name])) for name in with_row)
            worst = max(worst, change / C**power)
    assert worst <= 1 + 1e-9
    assert worst > 0.4  # a long row reaches it


def test_without_the_cut_a_heavy_row_would_tell_of_itself() -> None:
    A = np.ones((3, 7))
    v = np.array([50.0, 1.0, 1.0])
    uncut, cut = Rows(WeightedRows(A, v)), PrivateClient(WeightedRows(A, v), row_norm=4.0).rows
    assert uncut.total == 52
    assert cut.total == 3


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, Batches])
@pytest.mark.parametrize("bound", [np.inf, 5.0])
def test_operators_agree_with_dense_formulas(make: Any, bound: float) -> None:
    A, v, mu = X[:40], V[:40], X[:40].mean(axis=0) + 0.1
    rows = Rows(WeightedRows(make(A), v), bound)
    B = np.sqrt(v)[:, None] * (A - mu)
    B *= np.minimum(1, bound / np.maximum(np.linalg.norm(B, axis=1), 1e-300))[:, None]
    B0 = np.sqrt(v)[:, None] * A
    B0 *= np.minimum(1, bound / np.maximum(np.linalg.norm(B0, axis=1), 1e-300))[:, None]
    W = np.random.default_rng(3).normal(size=(7, 2))
    s = np.linspace(1, 2, 7)
    np.testing.assert_allclose(rows.multiply(W, mu, s), (B / s).T @ ((B / s) @ W))
    np.testing.assert_allclose(rows.gram(mu, s), (B / s).T @ (B / s))
    np.testing.assert_allclose(rows.squares(mu), (B**2).sum(axis=0))
    np.testing.assert_allclose(rows.sums(), np.sqrt(v) @ B0)
    if bound < np.inf:
        np.testing.assert_allclose(rows.reaches(W, mu), np.linalg.norm(B, axis=1) * np.linalg.norm(B @ W, axis=1))


@pytest.mark.parametrize("sparse", [False, True])
def test_unit_rows_count_by_their_weights(sparse: bool) -> None:
    """The norm of a row does not count, but its weight does: a weight of 0 takes it out."""
    rng = np.random.default_rng(0)
    X, v = rng.normal(size=(30, 4)) * rng.uniform(0.1, 50, (30, 1)), rng.choice([0.0, 0.25, 1.0], 30)
    rows = Rows(WeightedRows(sp.csr_array(X) if sparse else X, v), 2.0, unit=True)
    mu = X.mean(axis=0)
    for shift in (None, mu):
        B = X if shift is None else X - shift
        B = 2.0 * B / np.linalg.norm(B, axis=1, keepdims=True)
        np.testing.assert_allclose(rows.gram(shift, None), (B * v[:, None]).T @ B, atol=1e-12)
