"""The opening round: sums over clients only, two passes, nothing cancels."""

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import run
from fedspan.algorithms import Ssi
from fedspan.engines import InProcess


def opening(data, **options):
    result = run(Ssi(k=1, **options), InProcess(data), rounds=0, seed=0)
    return result.state.moments, result.ledger


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_moments_are_those_of_the_pooled_rows(center, scale, make):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 5)) * [1, 10, 100, 1, 0] + [0, 3, -5, 1e3, 7]
    found, ledger = opening([make(part) for part in np.split(X, [10, 40])], center=center, scale=scale)
    shifted = X - (X.mean(axis=0) if center else 0)
    std = np.where(X.std(axis=0) > 1e-9, X.std(axis=0), 1.0)
    assert found.n == 90
    np.testing.assert_allclose(found.mean, X.mean(axis=0) if center else 0, rtol=1e-12)
    np.testing.assert_allclose(found.scale, std if scale else 1.0, rtol=1e-9)
    np.testing.assert_allclose(found.trace, np.sum((shifted / (std if scale else 1)) ** 2), rtol=1e-9)
    assert ledger.rounds == 0
    assert ledger.exchanges == (3 if scale else 2 if center else 1)


def test_squares_are_taken_around_the_common_mean():
    """A sum of squares less n·mean² would lose all digits here."""
    X = np.random.default_rng(0).normal(size=(1000, 2)) + 1e8
    found, _ = opening(np.split(X, 4))
    np.testing.assert_allclose(found.trace, np.sum((X - X.mean(axis=0)) ** 2), rtol=1e-6)


def test_unsigned_rows_do_not_wrap_around():
    X = np.array([[0, 255], [1, 0], [2, 255]], dtype=np.uint8)
    found, _ = opening([X, X])
    np.testing.assert_allclose(found.trace, 2 * np.sum((X - X.mean(axis=0)) ** 2))
