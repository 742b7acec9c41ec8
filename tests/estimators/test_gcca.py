"""FederatedGCCA as users see it: against cca-zoo and a direct eigendecomposition, on good input and bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from fedspan import FederatedGCCA, FederatedPCA, InputError
from fedspan.algorithms import CuteMaxVar, MaxVarKrylov, Ssi
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import largest_angle


def make(seed: int = 0, J: int = 150, noise: float = 0.5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(J, 2))
    return [common @ rng.normal(size=(2, n)) + noise * rng.normal(size=(J, n)) + n for n in (6, 9, 4)]


def direct(views: list[np.ndarray], k: int, ridge: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    P = np.zeros((len(views[0]),) * 2)
    for X in views:
        U, S, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
        kept = 1e-9 * S[0] < S
        P += (U[:, kept] * (S[kept] ** 2 / (S[kept] ** 2 + ridge))) @ U[:, kept].T
    w, U = np.linalg.eigh(P)
    return w[::-1][:k], U[:, ::-1][:, :k]


def test_it_agrees_with_cca_zoo_and_with_a_direct_eigendecomposition() -> None:
    GCCA = pytest.importorskip("cca_zoo.linear", reason="needs cca-zoo").GCCA
    views = make()
    ours = FederatedGCCA(2, tol=1e-9, random_state=0).fit(views)
    w, U = direct(views, 2)
    assert largest_angle(ours.common_, U) <= 1e-6
    np.testing.assert_allclose(ours.eigenvalues_, w, rtol=1e-9)
    peer = GCCA(n_components=2).fit(views)
    for X, own, theirs in zip(views, ours.weights_, peer.weights_, strict=True):
        said = (X - X.mean(axis=0)) @ theirs
        scale = np.sqrt(len(X) - 1) * np.sign(np.sum((X - X.mean(axis=0)) @ own * said, axis=0))
        np.testing.assert_allclose((X - X.mean(axis=0)) @ own * scale, said, atol=1e-5 * np.abs(said).max())


def test_real_views_agree_with_a_direct_eigendecomposition(shared_data: Callable[[str], dict[str, Any]]) -> None:
    """scene15: 1000 of its images, three views, one of them rank-deficient in these rows."""
    z = shared_data("scene15")
    views = [z[f"X{i}"][:1000].astype(np.float64) for i in range(3)]
    ours = FederatedGCCA(5, tol=1e-9, random_state=0).fit(views)
    w, U = direct(views, 5)
    assert largest_angle(ours.common_, U) <= 1e-6
    np.testing.assert_allclose(ours.eigenvalues_, w, rtol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "krylov"},
        {"bits": "auto"},
        {"solver": "davidson"},
        {"solver": "davidson", "bits": "auto"},
        {"solver": "altmaxvar"},
        {"solver": "cutemaxvar"},
        {"bits": 4, "first_bits": None},
        {"bits": 3, "local_solver": "gradient", "local_steps": 30},
        {"bits": 3, "local_solver": "sgd", "batch_size": 75},
        {"local_solver": "gradient"},
        {"solver": "mvlsa"},
        {"solver": CuteMaxVar(start="mvlsa", alpha=100.0)},
        {"solver": MaxVarKrylov(grid=6), "bits": "auto", "tol": 1e-4},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_solver_is_near_the_best_cost(options: dict[str, Any]) -> None:
    views = make(noise=0.2)
    w, U = direct(views, 2)
    model = FederatedGCCA(2, **{"tol": 1e-6, "max_rounds": 60, "random_state": 1} | options).fit(views)
    best = 0.5 * (6 - w.sum())
    assert best * (1 - 1e-9) <= model.cost_ <= best * (1.3 if options == {"solver": "mvlsa"} else 1.05)
    assert largest_angle(model.common_, U) < 0.1
    np.testing.assert_allclose(model.common_.T @ model.common_, np.eye(2), atol=1e-9)


def test_the_cost_of_a_run_that_was_cut_short_is_that_of_what_the_clients_hold() -> None:
    """After two rounds at 3 bits Ĝ is far from orthonormal: the cost must not come out below the best."""
    views = make(noise=0.2)
    model = FederatedGCCA(2, bits=3, tol=0, max_rounds=2, random_state=0).fit(views)
    assert model.cost_ > 0.5 * (6 - direct(views, 2)[0].sum())
    H = [X @ Q - offset for X, Q, offset in zip(views, model.weights_, model.offsets_, strict=True)]
    sizes = [np.linalg.norm(h, axis=0) for h in H]
    assert np.all(np.array(sizes) <= 1 + 1e-9)  # each is the projection of a unit vector
    np.testing.assert_allclose(model.correlations_, sizes, atol=1e-9)  # which it meets at the angle of its own length


def test_transform_of_new_entities() -> None:
    views = make(J=400)
    model = FederatedGCCA(2, random_state=0).fit([X[:300] for X in views])
    parts = [(X[300:] - X[:300].mean(axis=0)) @ Q for X, Q in zip(views, model.weights_, strict=True)]
    np.testing.assert_allclose(model.transform([X[300:] for X in views]), sum(parts) / 3, atol=1e-10)
    np.testing.assert_allclose(model.transform_view(1, views[1][300:]), parts[1], atol=1e-10)
    np.testing.assert_allclose(model.transform([views[0][300:], None, None]), parts[0], atol=1e-10)
    np.testing.assert_allclose(model.transform_view(2, sp.csr_array(views[2][300:])), parts[2], atol=1e-9)
    both = np.corrcoef(parts[0][:, 0], parts[1][:, 0])[0, 1]
    assert both > 0.8  # views that never met agree on entities that neither was fitted on


def test_views_may_be_a_mapping_and_keep_their_names() -> None:
    views = dict(zip(("text", "image", "audio"), make(), strict=True))
    model = FederatedGCCA(2, random_state=0).fit(views)
    assert model.view_names_ == ["text", "image", "audio"]
    assert model.n_features_ == [6, 9, 4]
    mixed = {name: views[name] for name in ("audio", "text", "image")}
    np.testing.assert_allclose(model.transform(views), model.transform(mixed), atol=1e-12)
    np.testing.assert_allclose(model.transform_view("image", views["image"]), model.transform_view(1, views["image"]))


@pytest.mark.parametrize("kind", ["sparse", "memmap", "integers", "table"])
def test_views_of_any_kind(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    views = [rng.integers(0, 5, size=(80, n)).astype(np.uint8) for n in (5, 6, 7)]
    views = [X + views[0][:, :1] for X in views]
    want = FederatedGCCA(2, tol=1e-9, random_state=0).fit([X.astype(np.float64) for X in views])
    given: list[Any] = list(views)
    if kind == "sparse":
        given = [sp.csr_array(X.astype(np.float64)) for X in views]
    if kind == "memmap":
        for i, X in enumerate(views):
            np.save(tmp_path / f"{i}.npy", X.astype(np.float32))
        given = [tmp_path / f"{i}.npy" for i in range(3)]
    if kind == "table":
        given = [pd.DataFrame(views[0]), pl.DataFrame(views[1]), pa.table({str(j): views[2][:, j] for j in range(7)})]
    got = FederatedGCCA(2, tol=1e-9, random_state=0).fit(given)
    assert largest_angle(got.common_, want.common_) <= 1e-6
    np.testing.assert_allclose(got.correlations_, want.correlations_, atol=1e-7)


def test_constant_and_zero_features_get_no_weight_and_change_nothing() -> None:
    views = make()
    padded = [np.hstack([X, np.zeros((150, 1)), np.full((150, 1), 0.1)]) for X in views]
    for options in ({}, {"scale": True}):
        plain, model = (FederatedGCCA(2, random_state=0, **options).fit(v) for v in (views, padded))
        assert largest_angle(plain.common_, model.common_) <= 1e-5
        assert all(np.abs(Q[-2:]).max() <= 1e-10 for Q in model.weights_)


def test_a_rank_deficient_view_is_the_view_without_what_it_repeats() -> None:
    views = make()
    repeated = [np.hstack([X, X[:, :2] - X[:, 1:3]]) for X in views]
    plain, model = (FederatedGCCA(2, tol=1e-9, random_state=0).fit(v) for v in (views, repeated))
    assert largest_angle(plain.common_, model.common_) <= 1e-6


def test_more_features_than_rows_need_a_ridge() -> None:
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(30, 50)), rng.normal(size=(30, 40))]
    with pytest.raises(InputError, match=r"client '0'.*50 features .* fit any representation of its 30 rows.*ridge"):
        FederatedGCCA(2).fit(views)
    model = FederatedGCCA(2, ridge=10.0, tol=1e-9, random_state=0).fit(views)
    assert largest_angle(model.common_, direct(views, 2, 10.0)[1]) <= 1e-6


def test_more_components_than_the_rank() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    with pytest.raises(InputError, match=r"n_components must be from 1 to 6, .* but is 7"):
        FederatedGCCA(7).fit([X, rng.normal(size=(50, 3))])
    for solver in ("krylov", "altmaxvar"):
        model = FederatedGCCA(5, solver=solver, random_state=0)
        with pytest.warns(UserWarning, match="there are only 3 components"):
            model.fit([X, X @ rng.normal(size=(3, 3))])
        assert model.common_.shape == (50, 3)
        assert model.correlations_.shape == (2, 3)


def test_ids_are_matched_across_kinds_of_tables(tmp_path: Path) -> None:
    views, names = make(), [f"p{i}" for i in range(150)]
    frames: list[Any] = [pd.DataFrame(X, columns=[f"f{j}" for j in range(X.shape[1])]) for X in views]
    frames = [frame.assign(patient=names)[["patient", *frame.columns]] for frame in frames]
    frames[1].to_csv(tmp_path / "b.csv", index=False)
    pq.write_table(pa.Table.from_pandas(frames[2], preserve_index=False), tmp_path / "c.parquet")
    sources = [pl.DataFrame(frames[0].to_dict("list")), tmp_path / "b.csv", tmp_path / "c.parquet"]
    want = FederatedGCCA(2, tol=1e-9, random_state=0).fit(views)
    got = FederatedGCCA(2, tol=1e-9, random_state=0).fit(sources, ids="patient")
    assert largest_angle(want.common_, got.common_) <= 1e-6
    swapped = frames[1].iloc[[1, 0, *range(2, 150)]]
    with pytest.raises(InputError, match=r"2 of 150 rows differ .* same ids in another order"):
        FederatedGCCA(2).fit([frames[0], swapped, frames[2]], ids="patient", match="order")
    with pytest.raises(InputError, match=r"There is no column 'person'\. The table has patient"):
        FederatedGCCA(2).fit(frames, ids="person")
    with pytest.raises(InputError, match="There is no column 'patient', because this table's columns have no names"):
        FederatedGCCA(2).fit(views, ids="patient")


def test_ids_given_as_lists() -> None:
    views = make()
    FederatedGCCA(2).fit(views, ids=range(150), secret="between the hospitals")  # noqa: S106
    FederatedGCCA(2).fit(views, ids=[np.arange(150)] * 3)
    with pytest.raises(InputError, match="149 of 150 rows differ"):
        FederatedGCCA(2).fit(views, ids=[range(150), [0, *range(2, 151)], range(150)], match="order")
    with pytest.raises(InputError, match="must be ids for each of the 3 views, but there are 2"):
        FederatedGCCA(2).fit(views, ids=[range(150), range(150)])


def test_a_held_out_alignment_can_stop_it() -> None:
    views = make(J=300, noise=2.0)
    model = FederatedGCCA(2, tol=0, patience=2, max_rounds=50, random_state=0)
    model.fit([X[:200] for X in views], held_out=[X[200:] for X in views])
    best = max(row["best_accuracy"] for row in model.history_ if row["round"])
    assert model.n_rounds_ < 50
    assert model.converged_
    assert best > 1 / 100
    with pytest.raises(InputError, match="patience looks at held-out rows, but none were given"):
        model.fit(views)
    with pytest.raises(InputError, match="The held_out rows have 9 features, but the view has 6"):
        model.fit(views, held_out=[views[1]] * 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1 or 'auto', but is 0"),
        ({"n_components": 2.0}, "n_components must be an integer of at least 1 or 'auto', but is 2.0"),
        ({"solver": "altmaxva"}, "Did you mean 'altmaxvar'"),
        ({"solver": Ssi()}, "solver must be one of krylov.* but is a Ssi"),
        ({"local_solver": "newton"}, "local_solver must be a known name, but is 'newton'. Known: exact, gradient, sgd"),
        ({"local_solver": "sgd"}, "need batch_size of at least 1 entity, but it is 0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1 or None, but is 0"),
        ({"patience": 0}, "patience must be an integer of at least 1 or None, but is 0"),
        ({"bits": 1}, "bits must be an integer from 2 to 16, 'auto' or None, but is 1"),
        ({"bits": 3, "solver": "krylov", "tol": 0}, "with tol above 1e-14"),
        ({"bits": 3, "solver": "altmaxvar"}, "use solver='cutemaxvar'"),
        ({"bits": "auto", "solver": "altmaxvar"}, "bits='auto' is for solver 'krylov'"),
        ({"bits": "auto", "tol": 0}, "with tol above 1e-14"),
        ({"ridge": -1.0}, "ridge must be a number from 0 to below inf or 'auto', but is -1.0"),
        ({"tol": 1.5}, "tol must be a number from 0 to below 1, but is 1.5"),
        ({"secure": True, "solver": "altmaxvar"}, "With secure only solver='krylov' can run"),
        ({"privacy": "some"}, "no known sensitivity"),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_by_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FederatedGCCA(**options).fit(make())


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (np.eye(5), "must be a list or a mapping with one entry per view, but they are one ndarray"),
        ([np.eye(5)], "must be at least two views"),
        ([np.eye(9)[:, :3], np.eye(8)[:, :3]], "client '0' has 9 rows and client '1' has 8"),
        ([np.eye(9)[:, :3], np.eye(9)[:, :3] * np.nan], r"client '1'.*NaN"),
        ([np.eye(9)[:, :3], np.array([["a"] * 2] * 9)], "must be numeric"),
        ([np.eye(9)[:, :3], "nowhere.npy"], "nowhere.npy does not exist"),
    ],
    ids=["array", "one", "rows", "nan", "text", "file"],
)
def test_bad_views_are_refused(views: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FederatedGCCA(2).fit(views)


def test_two_bits_warn() -> None:
    with pytest.warns(UserWarning, match="2 bits leave one level on each side of zero, and the run may diverge"):
        FederatedGCCA(2, bits=2, tol=0, max_rounds=3).fit(make())


def test_it_warns_if_it_did_not_converge() -> None:
    with pytest.warns(
        ConvergenceWarning,
        match=r"after 2 rounds .*, above tol=1e-12; use solver='krylov', raise max_rounds",
    ):
        model = FederatedGCCA(2, solver="altmaxvar", tol=1e-12, max_rounds=2).fit(make())
    assert not model.converged_
    assert model.n_rounds_ == model.ledger_.rounds == 2


def test_transform_refuses_what_does_not_fit() -> None:
    views = make()
    with pytest.raises(NotFittedError):
        FederatedGCCA().transform(views)
    model = FederatedGCCA(2, random_state=0).fit(views)
    with pytest.raises(InputError, match=r"fitted on 3 views \(0, 1, 2\), but 2 were given"):
        model.transform(views[:2])
    with pytest.raises(InputError, match="View '0' has 6 features, but the table has 9"):
        model.transform([views[1]] * 3)
    with pytest.raises(InputError, match="All views must have the same entities, but they have 150, 5 rows"):
        model.transform([views[0], views[1][:5], None])
    with pytest.raises(InputError, match="At least one view must be given"):
        model.transform([None] * 3)
    with pytest.raises(InputError, match="must be a number from 0 to 2"):
        model.transform_view(3, views[0])
    with pytest.raises(InputError, match="NaN or infinity"):
        model.transform_view(0, views[0] * np.nan)


def test_save_and_load(tmp_path: Path) -> None:
    """To the bit: the loaded arrays are the saved ones and lie in memory as they did."""
    views = make()
    model = FederatedGCCA(2, ridge=1.0, random_state=0).fit(views)
    for name in ("a", "b"):
        model.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = FederatedGCCA.load(tmp_path / "a")
    np.testing.assert_array_equal(loaded.transform(views), model.transform(views))
    assert loaded.get_params()["ridge"] == 1.0
    with pytest.raises(InputError, match=r"holds a FederatedGCCA, not a FederatedPCA; use FederatedGCCA\.load"):
        FederatedPCA.load(tmp_path / "a")


def test_the_same_seed_gives_the_same_model_and_a_checkpoint_goes_on(tmp_path: Path) -> None:
    """To the bit: the same operations on the same streams, before the checkpoint and after it."""
    views = make()
    options: dict[str, Any] = {"n_components": 2, "bits": 3, "tol": 0, "random_state": 5}
    want = FederatedGCCA(max_rounds=9, **options).fit(views)
    again = clone(want).fit(views)
    np.testing.assert_array_equal(want.common_, again.common_)

    class Killed(Exception):
        pass

    def kill(info: Any) -> None:
        if info.round == 4:
            raise Killed

    with pytest.raises(Killed):
        FederatedGCCA(max_rounds=9, checkpoint=tmp_path, callback=kill, **options).fit(views)
    with pytest.raises(InputError, match="The checkpoint is at round 4, past max_rounds=3"):
        FederatedGCCA(max_rounds=3, checkpoint=tmp_path, **options).fit(views)
    resumed = FederatedGCCA(max_rounds=9, checkpoint=tmp_path, **options).fit(views)
    np.testing.assert_array_equal(want.common_, resumed.common_)
    for mine, theirs in zip(want.weights_, resumed.weights_, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_engine_and_a_callback() -> None:
    views, told = make(), []
    model = FederatedGCCA(2, engine=lambda data: InProcess(data, threads=1, wire=True), callback=told.append)
    model.fit(views)
    assert [info.round for info in told] == list(range(1, model.n_rounds_ + 1))
    assert told[0].estimate.shape == (150, 2)
    assert {"cost", "kkt"} <= set(told[0].metrics)
    assert model.history_[-1]["cost"] == pytest.approx(model.cost_, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"solver": "altmaxvar"}, {"solver": "davidson"}, {"secure": True}])
def test_agreement_is_listed_in_the_order_of_the_views(options: dict[str, Any]) -> None:
    """Clients answer in the order of their names, and views may be given in another one."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(200, 1))
    noise = {"zebra": 0.05, "mole": 1.0, "ant": 3.0}  # the first agrees best
    views = {
        name: np.hstack([hidden + size * rng.normal(size=(200, 1)), rng.normal(size=(200, 2))])
        for name, size in noise.items()
    }
    gcca = FederatedGCCA(1, random_state=0, **options).fit(views)
    assert gcca.view_names_ == [*noise]
    for at, name in enumerate(noise):
        said = gcca.transform_view(name, views[name])[:, 0]
        assert gcca.correlations_[at, 0] == pytest.approx(np.corrcoef(said, gcca.common_[:, 0])[0, 1], abs=1e-6)
    assert (np.diff(gcca.correlations_[:, 0]) < -0.01).all()
    G = gcca.common_ - gcca.common_.mean(axis=0)
    for at, X in enumerate(views.values()):
        B = X - X.mean(axis=0)
        share = np.sum((B.T @ G) ** 2) / np.sum(G**2) / np.sum(B**2)
        assert gcca.explained_variance_ratio_[at] == pytest.approx(share, abs=1e-6)
