"""The Stiefel manifold by the properties that define its operations, and the parts of rows by fold."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from fedspan.errors import InputError
from fedspan.numerics.folds import Folded, Prep, leading_eigenpairs, leading_eigenpairs_of_sum, top_eigenvectors
from fedspan.numerics.orthonormal import largest_angle
from fedspan.numerics.stiefel import align, lift, random_point, retract, span_distance, sym, tangent, tangent_distance

SIZES = [(5, 2), (30, 10), (7, 7), (4, 1)]


@pytest.fixture(params=SIZES, ids=str)
def point(request):
    rng = np.random.default_rng(sum(request.param))
    return random_point(rng, *request.param), rng


def test_random_points_are_orthonormal_and_uniform():
    rng = np.random.default_rng(0)
    points = np.stack([random_point(rng, 4, 2) for _ in range(4000)])
    np.testing.assert_allclose(points.transpose(0, 2, 1) @ points, np.broadcast_to(np.eye(2), (4000, 2, 2)), atol=1e-14)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=0.04)  # no preferred direction
    np.testing.assert_allclose((points @ points.transpose(0, 2, 1)).mean(axis=0), np.eye(4) / 2, atol=0.03)


def test_the_tangent_projection_is_orthogonal_onto_the_tangent_space(point):
    U, rng = point
    X, Y = rng.normal(size=(2, *U.shape))
    T = tangent(U, X)
    np.testing.assert_allclose(T.T @ U + U.T @ T, 0, atol=1e-13)
    np.testing.assert_allclose(tangent(U, T), T, atol=1e-13)
    assert abs(np.sum((X - T) * tangent(U, Y))) < 1e-12  # what is taken off is normal to every tangent vector


def test_a_retraction_starts_at_the_point_and_along_the_vector(point):
    U, rng = point
    T = tangent(U, rng.normal(size=U.shape))
    np.testing.assert_allclose(retract(U, 0 * T), U, atol=1e-14)
    slope = (retract(U, 1e-6 * T) - retract(U, -1e-6 * T)) / 2e-6
    np.testing.assert_allclose(slope, T, atol=1e-8)
    closed = (U + T) @ np.linalg.inv(scipy.linalg.sqrtm(np.eye(U.shape[1]) + T.T @ T))
    np.testing.assert_allclose(retract(U, T), closed, atol=1e-12)  # the paper's form, where that is accurate


def test_a_retraction_does_not_drift_where_the_closed_form_does():
    """The likelihood's gradient has a term n W⁻¹U, normal to the manifold: what is left of it is rounding."""
    good = bad = random_point(np.random.default_rng(3), 12, 4)
    for _ in range(60):
        good = retract(good, -tangent(good, good))
        T = -tangent(bad, bad)
        w, E = np.linalg.eigh(np.eye(4) + T.T @ T)
        bad = (bad + T) @ (E / np.sqrt(w)) @ E.T
    assert np.linalg.norm(good.T @ good - np.eye(4)) < 1e-13
    assert not np.linalg.norm(bad.T @ bad - np.eye(4)) < 1e-3


def test_distances(point):
    U, rng = point
    d, r = U.shape
    V = random_point(rng, d, r)
    A = V.T @ U
    skew, outside = (A - A.T) / 2, U - V @ A
    np.testing.assert_allclose(tangent_distance(V, U) ** 2, (skew**2).sum() + (outside**2).sum(), atol=1e-12)
    np.testing.assert_allclose(tangent_distance(V, U) ** 2, r - np.linalg.norm(sym(A)) ** 2, atol=1e-12)
    assert tangent_distance(U, U) < 1e-13
    np.testing.assert_allclose(lift(V, U), tangent(V, U))
    sines = np.sin(scipy.linalg.subspace_angles(U, V))
    np.testing.assert_allclose(span_distance(V, U), np.sqrt((sines**2).mean()), atol=1e-7)
    turned = align(U, V)
    assert largest_angle(turned, U) < 1e-7
    A = V.T @ turned
    np.testing.assert_allclose(A, A.T, atol=1e-12)
    assert np.linalg.eigvalsh(sym(A)).min() > -1e-12
    np.testing.assert_allclose(tangent_distance(V, turned), span_distance(V, U) * np.sqrt(r), atol=1e-7)


# --- rows by fold: both ways of holding them against the definition


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("shape", [(9, 20), (60, 6)], ids=str)
@pytest.mark.parametrize("kind", ["dense", "sparse", "integers"])
def test_parts_are_the_second_moments_of_their_rows(shape, own, kind):
    rng = np.random.default_rng(1)
    n, d = shape
    A = rng.poisson(2.0, size=shape) + 100
    X = A.astype(float)
    fold, mean, scale = rng.permutation(n) % 4, rng.normal(size=d), rng.uniform(1, 2, size=d)
    given = {"dense": X, "sparse": sp.csr_array(X), "integers": A.astype(np.uint8)}[kind]
    rows = Folded(given, Prep(own, None if own else mean, scale), fold)
    Q = random_point(rng, d, 2)
    for f in range(4):
        train, test = X[fold != f] / scale, X[fold == f] / scale
        mu = train.mean(axis=0) if own else mean / scale
        B, C = train - mu, test - mu
        got, held = rows.split(f)
        assert (got.n, held.n) == (len(B), len(C))
        np.testing.assert_allclose([got.trace, held.trace], [(B**2).sum(), (C**2).sum()], rtol=1e-9)
        P = got.basis(Q)
        assert (P is None) == (n > d)
        P = np.eye(d) if P is None else P
        np.testing.assert_allclose(P @ got.within(None if n > d else P) @ P.T, B.T @ B, atol=1e-7)
        np.testing.assert_allclose(P @ (P.T @ Q), Q, atol=1e-12)
        np.testing.assert_allclose(held.within(None), C.T @ C, rtol=1e-8, atol=1e-6)
        np.testing.assert_allclose(got.multiply(Q), B.T @ (B @ Q), rtol=1e-8, atol=1e-7)
        S = got.leading_factor(3)
        np.testing.assert_allclose((S**2).sum(axis=0), np.linalg.eigvalsh(B.T @ B)[::-1][:3], rtol=1e-7)
        np.testing.assert_allclose(B.T @ (B @ S), S * (S**2).sum(axis=0), rtol=1e-6, atol=1e-6)
    whole = (X - (X.mean(axis=0) if own else mean)) / scale
    np.testing.assert_allclose(rows.whole.within(None), whole.T @ whole, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(rows.squares(), (whole**2).sum(axis=0), rtol=1e-9)


def test_one_row_and_no_rows():
    rows = Folded(np.ones((1, 5)), Prep(True), np.zeros(1, dtype=int))
    train, test = rows.split(0)
    assert (train.n, test.n, train.trace) == (0, 1, 0.0)
    assert test.trace == 0.0  # around its own mean, as there is no other
    assert not train.leading_factor(3).any()
    assert train.leading_factor(3).shape == (5, 3)


def test_clipping_is_by_median_and_mad_and_leaves_columns_without_a_scale():
    X = np.column_stack([np.arange(9.0), np.r_[np.zeros(8), 50.0]])
    X[8, 0] = 1e6
    rows = Folded(X, Prep(False, clip=2.0))
    np.testing.assert_allclose(rows.bounds, [[4 - 2 * 2, -np.inf], [4 + 2 * 2, np.inf]])
    np.testing.assert_allclose(rows.squares(), [(np.r_[np.arange(8.0), 8.0] ** 2).sum(), 2500.0])
    with pytest.raises(InputError, match="clip needs dense rows"):
        Folded(sp.csr_array(X), Prep(False, clip=2.0))


@pytest.mark.parametrize("columns", [4, 40])
def test_leading_eigenpairs_of_a_sum(columns):
    S = np.random.default_rng(2).normal(size=(12, columns))
    w, E = np.linalg.eigh(S @ S.T)
    for Q, got in (leading_eigenpairs_of_sum(S, 3), leading_eigenpairs(S @ S.T, 3)):
        np.testing.assert_allclose(got, w[::-1][:3], rtol=1e-10)
        assert largest_angle(Q, E[:, -3:]) < 1e-7
        assert largest_angle(Q, top_eigenvectors(S @ S.T, 3)) < 1e-7
    Q, got = leading_eigenpairs_of_sum(np.zeros((6, 4)), 3)  # nothing to find: still a basis
    np.testing.assert_allclose(Q.T @ Q, np.eye(3), atol=1e-14)
    assert not got.any()
