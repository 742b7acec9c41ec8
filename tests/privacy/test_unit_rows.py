"""row_norm="unit": rows count by their directions. What it computes, that one row says no more, and what it refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedClassifier, FederatedPCA, FederatedSVD, InputError, Job, Ledger, PersonalizedPCA, RowDP
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.core.protocol import tasks_of
from fedspan.engines.start import StartMessage
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import orthonormalize, projection_distance

FORMS = {"dense": np.asarray, "sparse": sp.csr_array}


def directions(B: np.ndarray) -> np.ndarray:
    """Every row of norm 1; rows of zeros stay."""
    lengths = np.linalg.norm(B, axis=1, keepdims=True)
    return np.divide(B, lengths, out=np.zeros_like(B), where=lengths > 0)


def heavy_tails(n: int, spread: float = 3.0) -> np.ndarray:
    """Rows of all lengths, some a million times as long as others, whose directions have clear components."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 6)) * [4, 2.5, 1, 1, 1, 1] * np.exp(spread * rng.normal(size=(n, 1)))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("shift", [False, True])
def test_every_row_gets_the_same_norm_and_rows_of_zeros_stay(form, shift: bool) -> None:
    rng = np.random.default_rng(1)
    A = heavy_tails(50) * np.exp(-3)
    A[3], A[7] = 0.0, 1e-170  # the second has no length in float64
    mu = rng.normal(size=6) if shift else None
    B = directions(A if mu is None else A - mu)
    if not shift:
        B[7] = 0.0
    rows, Z = Rows(form(A), 1.0, unit=True), orthonormalize(rng.normal(size=(6, 2)))
    np.testing.assert_allclose(rows.gram(mu, None), B.T @ B, atol=1e-9)
    np.testing.assert_allclose(rows.multiply(Z, mu, None), B.T @ (B @ Z), atol=1e-9)
    np.testing.assert_allclose(rows.squares(mu), (B**2).sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(rows.reaches(Z, mu), np.linalg.norm(B @ Z, axis=1), atol=1e-9)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_row_says_more_than_its_bound_however_near_it_is_to_the_mean(form) -> None:
    """In a sparse table the distance from the mean is a difference of large numbers: dividing by it would not do."""
    rng = np.random.default_rng(2)
    Z = orthonormalize(rng.normal(size=(6, 2)))
    for size in (1e-200, 1e-9, 1e-3, 1.0, 1e100):
        for near in (0.0, 1e-12, 1e-9, 1e-6, 1e-3, 1.0):
            mu = rng.normal(size=6) * size
            a = mu + near * size * rng.normal(size=6)
            for mean in ({}, {"mean": mu} if size <= 1.0 else {}):
                client = PrivateClient(form(a[None]), row_norm=1.0, unit=True)
                for name, asked in (("triangle", mean), ("project", {**mean, "Z": Z}), ("energy", mean)):
                    (found,) = tasks_of(PrivateClient)[name].call(client, None, asked, None)[1].values()
                    assert np.linalg.norm(found) <= 1 + 1e-6, (name, size, near)


def test_rows_that_are_not_finite_count_as_zeros() -> None:
    A = heavy_tails(40)
    bad = np.vstack([A, [[np.nan] * 6], [[np.inf] + [0.0] * 5]])
    np.testing.assert_array_equal(Rows(bad, 1.0, unit=True).gram(None, None), Rows(A, 1.0, unit=True).gram(None, None))


@pytest.mark.parametrize("estimator", [FederatedPCA, FederatedSVD])
def test_the_components_are_those_of_the_directions(estimator) -> None:
    """Where lengths vary without bound, no bound on them leaves anything, and directions do.

    With centering they vary less here: rows that are short beside the noise of the mean point anywhere.
    """
    X = heavy_tails(60_000, 3.0 if estimator is FederatedSVD else 0.7)
    ledger = Ledger()
    dp = RowDP(1.0, 1e-6, "unit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of forecasts
        model = estimator(2, privacy=dp, solver="gram").fit(np.array_split(X, 3), ledger=ledger)
        cut = estimator(2, privacy=RowDP(1.0, 1e-6, 1e6), solver="gram").fit(np.array_split(X, 3))
    exact = np.linalg.svd(directions(X), full_matrices=False)[2][:2].T  # the mean of the directions is about 0
    assert projection_distance(model.components_.T, exact) < 0.1
    assert projection_distance(cut.components_.T, exact) > 0.3, "with a bound that all rows keep, they drown in noise"
    assert ledger.epsilon(1e-6) <= 1.00001
    tasks = [row["task"] for row in ledger.rows() if row["event"] == "exchange"]
    assert tasks == (["tally", "lengths", "add_up", "triangle"] if estimator is FederatedPCA else ["tally", "triangle"])
    notes = " ".join(ledger.notes)
    assert "longer than row_norm" not in notes
    assert ("every row got the norm 1" in notes) is (estimator is FederatedPCA)


def test_a_bound_for_the_mean_may_be_given() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60_000, 6)) * [4, 2.5, 1, 1, 1, 1] + 5.0
    ledger = Ledger()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = FederatedPCA(2, privacy=RowDP(4.0, 1e-6, "unit", center=20.0)).fit([X], ledger=ledger)
    exact = np.linalg.svd(directions(X - X.mean(axis=0)), full_matrices=False)[2][:2].T
    assert projection_distance(model.components_.T, exact) < 0.1
    tasks = [row["task"] for row in ledger.rows() if row["event"] == "exchange"]
    assert tasks == ["tally", "add_up", "triangle"]


def test_a_site_is_told_that_rows_get_the_norm_1_and_its_noise_does_not_depend_on_it() -> None:
    from fedspan.algorithms import NoisyGram
    from fedspan.channel import Channel

    plain = StartMessage("0123456789abcdef", 0, NoisyGram(k=2), Channel(), 1, ("a", "b"), RowDP(1.0, 1e-6, 1.0))
    unit = StartMessage(
        "0123456789abcdef", 0, NoisyGram(k=2, unit=True), Channel(), 1, ("a", "b"), RowDP(1.0, 1e-6, 1.0)
    )
    told = StartMessage.from_json(unit.to_json())
    assert told.algorithm.client_options() == {"unit": True}
    assert told.plan is not None
    assert plain.plan is not None
    assert told.plan.noise == plain.plan.noise


def test_where_lengths_count_it_is_refused_before_anything_is_sent() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    dp = RowDP(1.0, 1e-6, "unit")
    with pytest.raises(InputError, match="'unit' is for FederatedPCA and FederatedSVD"):
        PersonalizedPCA(2, privacy=dp, secure=True, collect=False).fit([X] * 3)
    with pytest.raises(InputError, match="Classifiers need row_norm as a number"):
        FederatedClassifier(batch_size=10, standardize=False, privacy=dp).fit([X], [y])


def test_a_job_file_may_ask_for_it(tmp_path) -> None:
    np.save(tmp_path / "a.npy", heavy_tails(500))
    text = '[job]\ntask = "svd"\n[data.clients]\na = "a.npy"\n[privacy]\nepsilon = 9.0\ndelta = 1e-5\nrow_norm = "{}"\n'
    (tmp_path / "job.toml").write_text(text.format("unit"))
    job = Job.load(tmp_path / "job.toml")
    assert job.privacy["row_norm"] == "unit"
    job.run(tmp_path / "out")
    assert Ledger.read(tmp_path / "out" / "ledger.jsonl").epsilon(1e-5) <= 9.0001
