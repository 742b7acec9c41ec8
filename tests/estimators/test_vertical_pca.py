"""VerticalPCA and VerticalSVD as users see them: against the pooled table, on good input and bad, and under attack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from fedspan import FederatedPCA, InputError, Secure, VerticalPCA, VerticalSVD
from fedspan.algorithms import ColumnsKrylov
from fedspan.algorithms.gcca.entities import Entities
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import SecretTurn, largest_angle

SECRET = "common to the clients"  # noqa: S105


def table(J: int = 90, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(J, 9)) @ np.diag(0.7 ** np.arange(9)) @ rng.normal(size=(9, 9)) + np.arange(9)


def split(X: np.ndarray) -> dict[str, np.ndarray]:
    return {"bank": X[:, :4], "shop": X[:, 4:5], "lab": X[:, 5:]}


PROTECTED: list[dict[str, Any]] = [
    {},
    {"secure": True},
    {"hide_scores": True},
    {"secure": Secure(verified=True), "hide_scores": True},
]


@pytest.mark.parametrize("options", PROTECTED)
@pytest.mark.parametrize("scale", [False, True])
def test_it_is_the_pca_of_the_pooled_table(options: dict[str, Any], scale: bool) -> None:
    X = table()
    pooled = StandardScaler().fit_transform(X) if scale else X
    reference = PCA(3).fit(pooled)
    pca = VerticalPCA(3, scale=scale, tol=1e-9, random_state=0, **options).fit(split(X))
    whole = np.hstack(pca.components_)
    np.testing.assert_allclose(whole @ whole.T, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(np.abs(whole @ reference.components_.T), np.eye(3), atol=1e-7)
    np.testing.assert_allclose(pca.explained_variance_, reference.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(pca.explained_variance_ratio_, reference.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(pca.singular_values_, reference.singular_values_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(pca.scores_), np.abs(reference.transform(pooled)), atol=1e-6)
    np.testing.assert_allclose(pca.shares_.sum(axis=0), 1.0)
    assert pca.converged_
    assert pca.n_rounds_ <= 10


def test_svd_subtracts_nothing() -> None:
    X = table()
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    svd = VerticalSVD(2, tol=1e-9, random_state=0).fit(split(X))
    np.testing.assert_allclose(svd.singular_values_, s[:2], rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.hstack(svd.components_) @ Vt[:2].T), np.eye(2), atol=1e-7)
    np.testing.assert_allclose(np.abs(svd.scores_), np.abs(U[:, :2] * s[:2]), atol=1e-6)
    assert all(np.all(mean == 0) for mean in svd.means_)


@pytest.mark.parametrize("options", [{}, {"secure": True}, {"secure": Secure(verified=True)}])
def test_new_rows_are_scored_by_a_sum_over_the_clients(options: dict[str, Any]) -> None:
    X, new = table(), table(20, seed=1)
    pca = VerticalPCA(3, scale=True, tol=1e-9, random_state=0, **options).fit(split(X))
    np.testing.assert_allclose(pca.transform(split(X)), pca.scores_, atol=1e-8)
    parts = [pca.transform_view(name, part) for name, part in split(new).items()]
    np.testing.assert_allclose(pca.transform(split(new)), sum(parts), atol=1e-9)
    scaler = StandardScaler().fit(X)
    reference = PCA(3).fit(scaler.transform(X)).transform(scaler.transform(new))
    np.testing.assert_allclose(np.abs(pca.transform(split(new))), np.abs(reference), atol=1e-6)


def test_rounded_runs_are_as_exact_as_tol_and_smaller() -> None:
    X = table(400)
    plain = VerticalPCA(3, secure=True, random_state=0).fit(split(X))
    rounded = VerticalPCA(3, bits="auto", secure=True, random_state=0).fit(split(X))
    np.testing.assert_allclose(rounded.explained_variance_, plain.explained_variance_, rtol=1e-6)
    assert rounded.ledger_.bytes_up < 0.5 * plain.ledger_.bytes_up


def test_sparse_columns_and_files_give_the_same(tmp_path: Path) -> None:
    X = np.where(np.random.default_rng(0).random((80, 9)) < 0.7, 0.0, table(80))
    dense = VerticalPCA(2, tol=1e-9, random_state=0).fit(split(X))
    np.save(tmp_path / "lab.npy", X[:, 5:])
    mixed = {"bank": sp.csr_matrix(X[:, :4]), "shop": X[:, 4:5], "lab": tmp_path / "lab.npy"}
    other = VerticalPCA(2, tol=1e-9, random_state=0).fit(mixed)
    np.testing.assert_allclose(other.explained_variance_, dense.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(other.scores_, dense.scores_, atol=1e-6)


def test_save_and_load_keep_all_that_transforms(tmp_path: Path) -> None:
    X = table()
    pca = VerticalPCA(2, scale=True, hide_scores=True, random_state=0).fit(split(X))
    pca.save(tmp_path / "model.safetensors")
    again = VerticalPCA.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.transform(split(X)), pca.transform(split(X)))
    np.testing.assert_array_equal(again.scores_, pca.scores_)


def test_a_run_that_was_cut_off_ends_with_the_same_model(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(info: Any) -> None:
        if info.round == 2:
            raise Stop

    X = table(300)
    options: dict[str, Any] = {"hide_scores": True, "random_state": 3, "tol": 1e-10}
    whole = VerticalPCA(3, **options).fit(split(X), secret=SECRET)
    with pytest.raises(Stop):
        VerticalPCA(3, callback=stop, checkpoint=tmp_path, **options).fit(split(X), secret=SECRET)
    resumed = VerticalPCA(3, checkpoint=tmp_path, **options).fit(split(X), secret=SECRET)
    np.testing.assert_array_equal(resumed.scores_, whole.scores_)
    np.testing.assert_array_equal(resumed.components_[0], whole.components_[0])


def held_by_the_server(views: dict[str, Any], k: int, hide: bool) -> np.ndarray:
    engine = InProcess({name: Entities(X, secret=SECRET) for name, X in views.items()})
    result = run(ColumnsKrylov(k=k, tol=1e-6, hide=hide, last=50), engine, rounds=50, seed=0)
    return np.asarray(result.state.basis * np.sqrt(result.state.values))


def test_neighbours_in_what_the_server_holds_name_classes_unless_scores_are_hidden() -> None:
    """The attack: the labels of a few entities leaked, and the server looks for the others' neighbours."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 100)
    X = rng.normal(size=(4, 12))[y] * 3 + rng.normal(size=(400, 12))
    views = {"a": X[:, :4], "b": X[:, 4:9], "c": X[:, 9:]}
    shown, hidden = held_by_the_server(views, 3, hide=False), held_by_the_server(views, 3, hide=True)
    attack = KNeighborsClassifier(5)
    assert cross_val_score(attack, shown, y).mean() > 0.95
    assert cross_val_score(attack, hidden, y).mean() < 0.4  # chance is .25
    truth = shown / np.linalg.norm(shown, axis=0)
    assert np.abs(truth.T @ (hidden / np.linalg.norm(hidden, axis=0))).max() < 0.4


def test_whoever_knows_the_secret_turns_everything_back() -> None:
    """Why hide_scores is a shield and no proof: the secret is all that keeps the scores from the server."""
    views = split(table())
    engine = InProcess({name: Entities(X, secret=SECRET) for name, X in views.items()})
    result = run(ColumnsKrylov(k=2, tol=1e-9, hide=True, last=50), engine, rounds=50, seed=0)
    key = Streams(0, 0, 0, SERVER)("turn").integers(0, 256, 32, dtype=np.uint8)  # the server's own, which it sent
    turn = SecretTurn(Entities(np.zeros((1, 1)), secret=SECRET).derive_key(key.tobytes(), "turn"), 90)
    plain = VerticalPCA(2, tol=1e-9, random_state=0).fit(views)
    assert largest_angle(turn.reveal(result.state.basis), plain.scores_) < 1e-6


def test_the_turn_is_orthogonal_and_goes_back() -> None:
    turn = SecretTurn(bytes(range(32)), 37)
    V = np.random.default_rng(0).normal(size=(37, 4))
    np.testing.assert_allclose(turn.reveal(turn.hide(V)), V, atol=1e-12)
    whole = turn.hide(np.eye(37))
    np.testing.assert_allclose(whole.T @ whole, np.eye(37), atol=1e-12)
    assert np.abs(whole).max() < 0.8  # no entity stands out


def test_clients_with_different_secrets_are_refused() -> None:
    views = split(table())
    data = {name: Entities(X, secret=name) for name, X in views.items()}
    with pytest.raises(InputError, match="do not have the same one"):
        run(ColumnsKrylov(k=2, hide=True), InProcess(data), rounds=5, seed=0)
    run(ColumnsKrylov(k=2), InProcess(data), rounds=5, seed=0)  # without a turn nobody needs it


def test_views_of_one_column_and_constant_ones() -> None:
    X = table()
    one_each = {f"c{j}": X[:, j : j + 1] for j in range(4)}
    pca = VerticalPCA(2, tol=1e-9, random_state=0).fit({**one_each, "constant": np.full((90, 2), 7.0)})
    np.testing.assert_allclose(pca.explained_variance_, PCA(2).fit(X[:, :4]).explained_variance_, rtol=1e-9)
    assert pca.shares_[-1].max() == 0


def test_what_cannot_be_is_refused() -> None:
    X = table()
    with pytest.raises(InputError, match="n_components must be from 1 to 9"):
        VerticalPCA(10, random_state=0).fit(split(X))
    with pytest.raises(InputError, match="n_components must be from 1 to 4"):
        VerticalPCA(5, random_state=0).fit(split(X[:5]))
    with pytest.raises(InputError, match="All rows are equal"):
        VerticalPCA(1, random_state=0).fit([np.ones((5, 2)), np.ones((5, 1))])
    with pytest.raises(InputError, match="90 rows and client 'lab' has 80"):
        VerticalPCA(1, random_state=0).fit({**split(X), "lab": X[:80, 5:]})
    with pytest.raises(InputError, match="NaN or infinity was found in 1 of 90 rows"):
        VerticalPCA(1, random_state=0).fit({**split(X), "lab": np.where(np.arange(90)[:, None] == 3, np.nan, X[:, 5:])})
    with pytest.raises(InputError, match="at least two views"):
        VerticalPCA(1, random_state=0).fit([X])
    with pytest.raises(InputError, match="the same ids in another order"):
        VerticalPCA(1, random_state=0).fit([X[:, :4], X[:, 4:]], ids=[range(90), range(89, -1, -1)], match="order")
    fitted = VerticalPCA(2, random_state=0).fit(split(X))
    with pytest.raises(InputError, match="view 'shop' is missing"):
        fitted.transform({**split(X), "shop": None})
    with pytest.raises(InputError, match="View 'bank' has 4 features, but the table has 9"):
        fitted.transform_view("bank", X)


def test_a_lower_rank_is_said() -> None:
    X = table()
    low = {"a": X[:, :2], "b": X[:, :2] @ np.array([[1.0, 2.0], [0.5, -1.0]])}
    with pytest.warns(UserWarning, match="rank 2, so there are only 2 components, not 3"):
        pca = VerticalPCA(3, random_state=0).fit(low)
    assert pca.scores_.shape == (90, 2)


def test_an_answer_that_is_not_determined_is_warned_of() -> None:
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(60, 6)))[0]
    X = Q @ np.diag([5.0, 3, 3, 3, 1, 1])
    with pytest.warns(UserWarning, match="Component 2 is not determined"):
        VerticalPCA(2, center=False, random_state=0).fit([X[:, :3], X[:, 3:]])


def test_too_few_rounds_are_warned_of() -> None:
    with pytest.warns(ConvergenceWarning, match="Stopped after 1 rounds"):
        pca = VerticalPCA(2, max_rounds=1, tol=1e-12, random_state=0).fit(split(table(300)))
    assert not pca.converged_


def test_one_client_with_all_columns_would_be_an_ordinary_pca() -> None:
    """The two models agree: rows spread over clients, and columns spread over clients."""
    X = table(200)
    rows = FederatedPCA(3, random_state=0, tol=1e-9).fit([X[:50], X[50:]])
    columns = VerticalPCA(3, random_state=0, tol=1e-9).fit(split(X))
    np.testing.assert_allclose(columns.explained_variance_, rows.explained_variance_, rtol=1e-8)


@pytest.mark.parametrize(("name", "parts", "k", "scale"), [("mnist", 4, 10, False), ("mfeat", 6, 10, True)])
def test_real_tables(shared_data: Callable[[str], dict[str, Any]], name: str, parts: int, k: int, scale: bool) -> None:
    """At most ten rounds, values to 1e-6 of the pooled PCA, and neighbours only where scores are not hidden."""
    z = shared_data(name)
    if name == "mnist":
        X, y = z["X"][::30].astype(np.float64), z["y"][::30]
        views = {str(i): X[:, at] for i, at in enumerate(np.array_split(np.arange(X.shape[1]), parts))}
    else:
        views, y = {str(i): z[f"X{i}"].astype(np.float64) for i in range(parts)}, z["y"]
        X = np.hstack(list(views.values()))
    B = X - X.mean(axis=0)
    B = B / np.where(B.std(axis=0) > 0, B.std(axis=0), 1.0) if scale else B
    theta = np.linalg.eigvalsh(B.T @ B)[::-1][:k]
    for options in ({}, {"secure": True, "hide_scores": True}):
        pca = VerticalPCA(k, scale=scale, random_state=0, **options).fit(views)
        assert pca.n_rounds_ <= 10
        np.testing.assert_allclose(pca.singular_values_**2, theta, rtol=1e-6)
    attack = KNeighborsClassifier(5)
    if not scale:
        assert cross_val_score(attack, held_by_the_server(views, k, hide=False), y).mean() > 0.8
        assert cross_val_score(attack, held_by_the_server(views, k, hide=True), y).mean() < 0.2
