"""Bounds that a private run finds by itself, the refined Gram matrix, and personalized components under privacy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, InputError, Ledger, PersonalizedPCA, RowDP, run
from fedspan.algorithms import NoisyGram, NoisyRefine
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.core.protocol import declared_releases, tasks_of
from fedspan.engines import InProcess
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import orthonormalize, projection_distance
from fedspan.privacy.plan import plan_for
from fedspan.privacy.quantile import count_in_bins, find_quantile


def spiked(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.normal(size=(d, 2)))[0]
    return rng.normal(size=(n, d)) + (rng.normal(size=(n, 2)) * [3.2, 2.8]) @ V.T, V


def test_a_quantile_of_a_noised_histogram_is_near_the_true_one() -> None:
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(size=5000))
    bins = count_in_bins(values)
    assert bins.sum() == 5000
    assert count_in_bins(np.array([0.0, np.inf, 1e-300])).sum() == 3
    for share in (0.5, 0.9):
        found = find_quantile(bins + 20 * rng.normal(size=bins.shape), 20.0, share)
        assert found == pytest.approx(np.quantile(values, share), rel=0.25)
    assert np.isfinite(find_quantile(np.zeros(len(bins)), 1.0, 0.9)), "nothing but noise"


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("shift", [False, True])
def test_parts_of_rows_are_cut_as_the_formula_says(form, shift: bool) -> None:
    rng = np.random.default_rng(1)
    A, Z, C, most = rng.normal(size=(60, 5)), orthonormalize(rng.normal(size=(5, 2))), 1.8, 0.9
    mu = rng.normal(size=5) * 0.3 if shift else None
    B = A - (0.0 if mu is None else mu)
    rows = Rows(form(A), C)
    np.testing.assert_allclose(rows.norms(mu), np.linalg.norm(B, axis=1), rtol=1e-12)
    B = B * np.minimum(1, C / np.linalg.norm(B, axis=1))[:, None]
    parts = np.einsum("ni,nk->nik", B, B @ Z)  # bbᵀZ of each row
    sizes = np.linalg.norm(parts, axis=(1, 2))
    np.testing.assert_allclose(rows.reaches(Z, mu), sizes, rtol=1e-11)
    cut = parts * np.minimum(1, most / sizes)[:, None, None]
    np.testing.assert_allclose(rows.multiply_clipped(Z, mu, most), cut.sum(axis=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("replace", [False, True])
def test_one_row_changes_the_new_releases_by_no_more_than_is_declared(replace: bool) -> None:
    rng, C, worst = np.random.default_rng(0), 1.7, {}
    for _ in range(300):
        A, Z = rng.normal(size=(8, 4)), orthonormalize(rng.normal(size=(4, 1)))
        a = rng.normal(size=4) * rng.choice([0.3, 9.0])
        b = rng.choice([-1, 1]) * a * [1, 1, 1, -1] + 0.1 * rng.normal(size=4)
        tables = [np.vstack([A, a]), np.vstack([A, b]) if replace else A]
        question = {"Z": Z, "cut": np.array(float(rng.choice([0.01, 0.2, 1.0])))}
        for name in ("tally", "lengths", "reach", "refine"):
            task = tasks_of(PrivateClient)[name]
            asked = question if name == "refine" else {"Z": Z} if name == "reach" else {}
            one, two = (task.call(PrivateClient(rows, row_norm=C), None, asked, None)[1] for rows in tables)
            for array in task.releases:
                change = float(np.linalg.norm(np.asarray(one[array], dtype=float) - two[array]))
                worst[name, array] = max(worst.get((name, array), 0.0), change)
    for (name, array), change in worst.items():
        bound = tasks_of(PrivateClient)[name].releases[array].bound(C, replace)
        assert change <= bound * (1 + 1e-12), (name, array)
        assert replace is False or change >= 0.7 * bound or name == "tally", "and the bound is nearly reached"


def test_a_refined_gram_matrix_is_better_where_rows_are_long_beside_their_components() -> None:
    errors: dict[str, list[float]] = {}
    for seed in range(4):
        X, V = spiked(4000, 300, seed)
        for server in (NoisyGram(2, False), NoisyRefine(2, False)):
            dp = RowDP(1.0, 1e-3, np.sqrt(318.0), simulate=True)
            plan = plan_for(dp, declared_releases(server.client), server.planned())
            Z = run(server, InProcess([X]), rounds=2, seed=seed, privacy=plan).state.Z
            errors.setdefault(type(server).__name__, []).append(projection_distance(Z, V))
    assert np.mean(errors["NoisyRefine"]) < 0.9 * np.mean(errors["NoisyGram"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_bound_that_nobody_knows_is_found_and_charged() -> None:
    X = np.random.default_rng(0).normal(size=(20_000, 6)) * [30, 20, 1, 1, 1, 1] + 10.0
    V = np.eye(6)[:, :2]
    auto = FederatedPCA(2, privacy=RowDP(1.0, 1e-6, "auto", simulate=True), random_state=0).fit([X])
    assert projection_distance(auto.components_.T, V) < 0.1
    assert auto.ledger_.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
    assert any("row_norm" in note and "noised histogram" in note for note in auto.ledger_.notes)
    assert {row["task"] for row in auto.ledger_.rows() if row["event"] == "exchange"} == {
        "tally", "lengths", "add_up", "triangle",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_far_from_the_origin_have_a_bound_of_their_own_for_their_mean() -> None:
    """With row_norm for both, the mean of rows far away is shortened, and so are their differences."""
    X = np.random.default_rng(0).normal(size=(20_000, 4)) * [3, 2, 1, 1] + [100, 0, 0, 50]
    V = np.eye(4)[:, :2]

    def fit(**more: object) -> FederatedPCA:
        return FederatedPCA(2, privacy=RowDP(1.0, 1e-6, 8.0, simulate=True, **more), random_state=0).fit([X])

    assert projection_distance(fit().components_.T, V) > 0.3
    for bound in ("robust", 120.0):
        model = fit(center=bound)
        assert projection_distance(model.components_.T, V) < 0.15
        np.testing.assert_allclose(model.mean_, [100, 0, 0, 50], atol=3.0)
        assert model.ledger_.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
        assert any("for their mean, and after centering to 8" in note for note in model.ledger_.notes)


def test_a_bound_that_shortens_many_rows_is_told_by_a_noised_count() -> None:
    X = np.random.default_rng(0).normal(size=(5000, 4)) * 3
    with pytest.warns(UserWarning, match=r"of which about \d+% are longer than row_norm=4 \(noised\)"):
        FederatedPCA(1, privacy=RowDP(3.0, 1e-6, 4.0), random_state=0).fit([X])


@pytest.mark.parametrize(("features", "rows", "center", "chosen"), [
    (600, 300, True, "NoisyRefine"), (600, 300, False, "NoisyGram"), (40, 300, True, "NoisyGram"),
])  # fmt: skip
def test_the_solver_is_chosen_by_size_and_says_why(features: int, rows: int, center: bool, chosen: str) -> None:
    X = np.random.default_rng(0).normal(size=(rows, features))
    ledger = Ledger()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dp = RowDP(1.0, 1e-6, np.sqrt(features))
        FederatedPCA(2, center=center, privacy=dp, random_state=0).fit([X], ledger=ledger)
    assert ledger.started is not None
    assert ledger.started.algorithm == chosen
    assert "with privacy" in ledger.started.why


def writers() -> dict[str, np.ndarray]:
    """Clients that share two directions, and have one of their own."""
    rng = np.random.default_rng(3)
    shared, clients = np.linalg.qr(rng.normal(size=(20, 2)))[0], {}
    for i in range(40):
        own = np.linalg.qr(rng.normal(size=(20, 1)))[0]
        scores = rng.normal(size=(25, 3)) * [4, 3, 2]
        clients[f"w{i:02d}"] = scores @ np.hstack([shared, own]).T + 0.5 * rng.normal(size=(25, 20))
    return clients


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_private_personalized_components_stay_at_home_and_are_nearly_as_good() -> None:
    clients = writers()
    train = {name: rows[:12] for name, rows in clients.items()}
    test = {name: rows[12:] for name, rows in clients.items()}

    def error(components) -> float:
        lost = 0.0
        for name, rows in test.items():
            Z, U = rows - train[name].mean(axis=0), components(name)
            lost += float((Z**2).sum() - ((Z @ U.T) ** 2).sum())
        return lost

    plain = PersonalizedPCA(3, random_state=0).fit(train)
    dp = RowDP(3.0, 1e-6, 9.0, simulate=True)
    private = PersonalizedPCA(3, privacy=dp, secure=True, collect=False, random_state=0).fit(train)
    assert private.components_ is None
    assert private.ledger_.epsilon(1e-6) == pytest.approx(3.0, rel=1e-6)
    assert {row["task"] for row in private.ledger_.rows() if row["event"] == "exchange"} == {
        "census", "add_up", "triangle",
    }  # fmt: skip
    local = error(lambda name: np.linalg.svd(train[name] - train[name].mean(axis=0))[2][:3])
    at_home = error(lambda name: private.personalize(train[name]))
    exact = error(lambda name: plain.components_[plain.client_names_.index(name)])
    assert at_home < 1.1 * exact
    assert at_home < 1.02 * local, "a client that gains nothing stays with its own"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs collect=False: a client's own components have no known sensitivity"),
        ({"collect": False, "method": "eigen"}, "is for method='auto'"),
        ({"collect": False, "scale": True}, "scale cannot be combined with privacy"),
        ({"collect": False, "clip": 3.0}, "clip cannot be combined with privacy"),
    ],
    ids=str,
)
def test_what_cannot_be_private_about_personalized_components_is_refused(options: dict, says: str) -> None:
    ledger = Ledger()
    with pytest.raises(InputError, match=says):
        PersonalizedPCA(2, privacy=RowDP(1.0, 1e-6, 3.0), **options).fit(writers(), ledger=ledger)
    assert ledger.exchanges == 0
