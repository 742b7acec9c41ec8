"""n_components="auto": parallel analysis by random signs, against planted components and against permutations."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, FederatedSVD, InputError, PaperDP, RowDP
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import largest_angle
from fedspan.numerics.pca_model.sign_flips import FlippedRows


def plant(seed: int, k: int, *, n: int = 600, d: int = 40, snr: float = 3.0, apart: float = 0.0) -> list[np.ndarray]:
    """Four clients of noise with variance 1, and k directions with `snr` times its largest eigenvalue."""
    draw = np.random.default_rng(seed)
    U = np.linalg.qr(draw.normal(size=(d, max(k, 1))))[0][:, :k]
    largest = (1 + np.sqrt(d / n)) ** 2
    X = draw.normal(size=(n, d)) + (draw.normal(size=(n, k)) * np.sqrt(snr * largest)) @ U.T
    return [rows + apart * draw.normal(size=d) for rows in np.split(X, [n // 10, n // 3, n // 2])]


@pytest.mark.parametrize("options", [{"solver": "gram"}, {"solver": "krylov"}, {"secure": True}])
@pytest.mark.parametrize("k", [1, 4])
def test_planted_components_are_counted(k: int, options: dict[str, Any]) -> None:
    found = [FederatedPCA("auto", random_state=s, **options).fit(plant(s, k)).n_components_ for s in range(100, 110)]
    assert sum(count == k for count in found) >= 9, found


def test_more_components_than_are_looked_for_first() -> None:
    clients = plant(3, 22, d=60, n=2000)
    models = [FederatedPCA("auto", solver=solver, random_state=0).fit(clients) for solver in ("gram", "krylov")]
    assert [model.n_components_ for model in models] == [22, 22]


def test_pure_noise_gives_one_component_and_says_so() -> None:
    told = 0
    for seed in range(200, 210):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            model = FederatedPCA("auto", solver="gram", random_state=seed).fit(plant(seed, 0))
        assert model.n_components_ == 1
        told += any("fewest that are allowed" in str(w.message) for w in warned)
    assert told >= 8  # the quantile is exceeded in about one of twenty


def permuted_level(clients: list[np.ndarray], seed: int) -> float:
    """The same quantile with Horn's way: columns are permuted within each client."""
    draw = np.random.default_rng(seed)
    mean = np.concatenate(clients).mean(axis=0)
    largest = []
    for _ in range(10):
        rows = [np.stack([draw.permutation(column) for column in (A - mean).T], axis=1) for A in clients]
        largest.append(np.linalg.norm(np.concatenate(rows), 2) ** 2)
    return float(np.quantile(largest, 0.95))


def test_means_that_differ_hide_nothing() -> None:
    """Three directions between four clients come on top. Permuting within clients would lose the planted ones."""
    flips, permutations = [], []
    for seed in range(300, 310):
        clients = plant(seed, 3, apart=3.0)
        flips.append(FederatedPCA("auto", solver="gram", random_state=seed).fit(clients).n_components_)
        X = np.concatenate(clients)
        values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2
        permutations.append(int(np.sum(values > permuted_level(clients, seed))))
    assert sum(count == 6 for count in flips) >= 9, flips
    assert max(permutations) < 6, permutations


def test_other_kinds_of_rows() -> None:
    clients = plant(7, 3)
    dense = FederatedPCA("auto", solver="gram", random_state=0).fit(clients)
    sparse = FederatedPCA("auto", solver="gram", random_state=0).fit([sp.csr_array(A) for A in clients])
    assert dense.n_components_ == sparse.n_components_ == 3
    assert FederatedPCA("auto", scale=True, random_state=0).fit(clients).n_components_ == 3
    assert FederatedSVD("auto", random_state=0).fit(clients).n_components_ == 3
    weights = [np.ones(len(A)) for A in clients]
    weighted = FederatedPCA("auto", solver="gram", random_state=0).fit(clients, sample_weight=weights)
    assert weighted.n_components_ == 3


def test_a_run_repeats_and_another_seed_flips_other_signs() -> None:
    clients = plant(8, 2)
    first, again, other = (FederatedPCA("auto", random_state=s).fit(clients).noise_variances_ for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)


def test_products_are_those_of_flipped_rows() -> None:
    draw = np.random.default_rng(0)
    A, mu, s, V = draw.normal(size=(50, 6)), draw.normal(size=6), np.linspace(1, 2, 6), draw.normal(size=(3, 6, 2))
    many, few = FlippedRows(Rows(A), 3, b"key"), FlippedRows(Rows(A), 3, b"key")
    many._keeps, few._keeps = True, False
    np.testing.assert_allclose(many.multiply(V, mu, s), few.multiply(V, mu, s))
    B = np.sqrt(50 / 49) * (A - A.mean(axis=0)) / s  # around their own mean, not the one that is sent
    for t in range(3):
        E = few._draw_signs(t, 0, A.shape)
        assert set(np.unique(E)) == {-1, 1}
        assert abs(E.mean()) < 0.2
        np.testing.assert_allclose(many.multiply(V, mu, s)[t], (E * B).T @ (E * B) @ V[t])


def test_the_signs_are_not_known_without_the_rows() -> None:
    A = np.random.default_rng(0).normal(size=(50, 6))
    changed = A.copy()
    changed[20, 3] += 1e-9
    assert Rows(A).digest() == Rows(A.copy()).digest() != Rows(changed).digest()
    assert Rows(sp.csr_array(A)).digest() != Rows(sp.csr_array(changed)).digest()


@pytest.mark.parametrize("privacy", [RowDP(1.0, 1e-6, 5.0), PaperDP(1.0, 1e-6)])
def test_no_promise_is_broken(privacy: Any) -> None:
    with pytest.raises(InputError, match="no known sensitivity"):
        FederatedPCA("auto", privacy=privacy).fit(plant(0, 1))


def test_only_exact_solvers_can_tell() -> None:
    with pytest.raises(InputError, match="use 'gram' or 'krylov'"):
        FederatedPCA("auto", solver="faps").fit(plant(0, 1))


def test_the_report_draws_the_line(tmp_path: Path) -> None:
    model = FederatedPCA("auto", random_state=0).fit(plant(0, 3))
    model.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "tables with random signs" in text
    assert "second moments of its rows under random signs" in text
    model.save(tmp_path / "model.safetensors")
    loaded = FederatedPCA.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.noise_variances_, model.noise_variances_)
    assert len(loaded.scree_) > 3


def test_many_clients_of_few_rows_do_not_lower_the_noise() -> None:
    X = np.concatenate(plant(11, 2))
    assert FederatedPCA("auto", solver="gram", random_state=0).fit(np.split(X, 150)).n_components_ == 2
    with_single = [X[:1], X[1:2], X[2:]]
    assert FederatedPCA("auto", solver="gram", random_state=0).fit(with_single).n_components_ == 2


@pytest.mark.parametrize("scale", [1e150, 1e-150])
def test_the_unit_of_the_rows_does_not_matter(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "digest", lambda _: b"the signs follow from it")
    unit, clients = 2.0 ** np.round(np.log2(scale)), plant(3, 4)
    plain, scaled = (FederatedPCA("auto", random_state=0).fit([A * by for A in clients]) for by in (1.0, unit))
    assert scaled.n_components_ == plain.n_components_ == 4
    for name in ("noise_variances_", "scree_", "explained_variance_", "noise_variance_"):
        np.testing.assert_allclose(getattr(scaled, name) / unit**2, getattr(plain, name), rtol=1e-9)
    assert largest_angle(scaled.components_.T, plain.components_.T) < 1e-9
    pytest.importorskip("matplotlib").use("Agg")
    for model in (plain, scaled):
        model.plot_scree().figure_.canvas.draw()
