"""Bounds that a private run finds by itself, the refined Gram matrix, and personalized components under privacy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, InputError, Ledger, PersonalizedPCA, RowDP, run
from fedspan.algorithms import NoisyGram, NoisyRefine
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.algorithms.spectral.private_bounds import Census
from fedspan.core.protocol import declared_releases, tasks_of
from fedspan.engines import InProcess
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import orthonormalize, projection_distance
from fedspan.privacy.noised_count import NoisedCount
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
    says = r"about 7\d% of them \(noised, ± \d%\) are longer than row_norm=4"
    with pytest.warns(UserWarning, match=says):
        model = FederatedPCA(1, privacy=RowDP(3.0, 1e-6, 4.0, simulate=True), random_state=0).fit([X])
    true = np.mean(np.linalg.norm(X, axis=1) > 4.0)
    told = next(float(note.split("about ")[-1].split("%")[0]) / 100 for note in model.ledger_.notes if "longer" in note)
    assert told == pytest.approx(true, abs=0.05)


@pytest.mark.parametrize("secure", [False, True], ids=["noise at each client", "shared noise"])
@pytest.mark.parametrize("seed", range(15))
def test_counts_that_are_nothing_but_noise_are_not_taken_for_more(seed: int, secure: bool) -> None:
    """Of a hundred rows that keep the bound, at ε = 0.01: no row was shortened, and no count says anything."""
    X = [np.random.default_rng(i).normal(size=(40, 3)) * 0.1 for i in range(3)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dp = RowDP(0.01, 1e-6, 2.0, simulate=True)
        model = FederatedPCA(1, privacy=dp, secure=secure, random_state=seed).fit(X)
    told = [str(w.message) for w in warned]
    assert not any("were shortened" in text for text in told)
    assert any("The noise hides even the number of rows" in text for text in told)
    notes = " ".join(model.ledger_.notes)
    assert "rows whose number the noise hides" in notes
    assert "how many of them are longer than row_norm=2 is hidden by the noise" in notes


def test_the_noise_of_a_count_is_that_of_the_plan() -> None:
    """Measured over 300 runs, and told with the count; without secure sums every client adds all of it."""
    X = [np.zeros((1000, 2)) + np.arange(2) for _ in range(4)]
    for secure in (False, True):
        found, told = [], set()
        for seed in range(150):
            census = Census()
            dp, sharers = RowDP(1.0, 1e-6, 2.0, simulate=True), 4 if secure else 1
            plan = plan_for(dp, declared_releases(census.client), census.planned(), spread=sharers)
            found.append(run(census, InProcess(X, threads=1), rounds=0, seed=seed, privacy=plan).state.n)
            told.add(plan.deviation("census", "n", declared_releases(census.client)["census"]["n"], 1, 4))
        assert np.std(found) == pytest.approx(told.pop(), rel=0.2)
        assert not told


@pytest.mark.parametrize(
    ("value", "deviation", "words", "figure"),
    [
        (1200, 0.0, "1,200 rows", "1,200"),
        (1203.4, 15.2, "about 1,203 rows (noised, ± 30)", "1,203 ± 30"),
        (120.0, 0.1, "about 120 rows (noised, ± 1)", "120 ± 1"),
        (28457.0, 30000.0, "rows whose number the noise hides (28,457 ± 60,000)", "28,457 ± 60,000"),
    ],
)
def test_a_noised_count_says_how_sure_it_is(value: float, deviation: float, words: str, figure: str) -> None:
    count = NoisedCount(value, deviation)
    assert (count.describe("rows"), count.figure()) == (words, figure)
    assert count.least <= value <= count.most


def test_a_delta_is_refused_only_if_it_is_too_large_for_sure() -> None:
    """At ε = 0.01 the noised count of 120 rows is often above 1/δ: that is no reason to refuse, but it is told."""
    X = np.random.default_rng(0).normal(size=(120, 3)) * 0.1
    notes = []
    for seed in range(10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            dp = RowDP(0.01, 1e-3, 2.0, simulate=True)
            notes.append(FederatedPCA(1, privacy=dp, random_state=seed).fit([X]).ledger_.notes)
    assert all(any("cannot be told from the noised count" in text for text in found) for found in notes)
    assert max(float(text.split("(")[-1].split(" ±")[0].replace(",", "")) for found in notes for text in found
               if "cannot be told" in text) > 1000, "some counts were far above the truth"  # fmt: skip


def test_a_report_says_that_the_number_of_rows_is_noised(tmp_path) -> None:
    X = np.random.default_rng(0).normal(size=(5000, 4))
    model = FederatedPCA(2, privacy=RowDP(3.0, 1e-6, 9.0, simulate=True), random_state=0).fit([X])
    model.report(tmp_path / "report.html")
    count = model.ledger_.counted
    assert f"The number of rows is a noised count, {count.figure()}." in (tmp_path / "report.html").read_text()
    assert count.value == pytest.approx(model.n_samples_, abs=1)
    model.ledger_.save(tmp_path / "ledger.jsonl")
    assert Ledger.read(tmp_path / "ledger.jsonl").counted == count


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
