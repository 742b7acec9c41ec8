"""The Stiefel manifold St(d, r) of orthonormal U (d, r), as Ozkara et al. (section II.A) use it.

Each function is one mathematical object; the tests assert its defining property.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array
from fedspan.numerics.orthonormal import orthonormalize, polar
from fedspan.numerics.procrustes import procrustes


def sym(A: Array) -> Array:
    """The symmetric part (A + Aᵀ)/2."""
    return (A + A.T) / 2


def tangent(U: Array, X: Array) -> Array:
    """P_{T_U}(X) = X - U sym(UᵀX): the nearest matrix T with TᵀU + UᵀT = 0."""
    return X - U @ sym(U.T @ X)


def retract(U: Array, T: Array) -> Array:
    """The polar retraction R_U(T) = (U + T)(I + TᵀT)^-½, as the polar factor of U + T.

    The closed form assumes UᵀU = I and UᵀT + TᵀU = 0 exactly, so rounding errors grow from step to step, and a run
    diverges after some hundred steps. The polar factor is orthonormal to rounding error whatever it is given.
    """
    return polar(U + T)


def lift(V: Array, U: Array) -> Array:
    """The orthographic lifting of a point U to the tangent space at V: P_{T_V}(U)."""
    return tangent(V, U)


def tangent_distance(V: Array, U: Array) -> float:
    """d(V, U) = ‖P_{T_V}(U)‖_F, the distance of the paper's prior; it depends on the basis of span(U)."""
    return float(np.linalg.norm(lift(V, U)))


def span_distance(V: Array, U: Array) -> float:
    """‖sin θ‖/√r over the principal angles θ of the two spans: 0 if they are the same, 1 if they are perpendicular."""
    return float(np.linalg.norm(U - V @ (V.T @ U)) / np.sqrt(U.shape[1]))


def random_point(rng: np.random.Generator, d: int, r: int) -> Array:
    """A point of St(d, r), uniformly distributed."""
    return orthonormalize(rng.normal(size=(d, r)))


def align(U: Array, V: Array) -> Array:
    """The basis of span(U) nearest to V: U D with the orthogonal D of least ‖U D - V‖_F."""
    return U @ procrustes(U, V)
