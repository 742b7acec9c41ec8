"""Orthonormal bases: made, compared, and given signs. Each function is one mathematical object."""

from __future__ import annotations

import numpy as np
import scipy.fft
import scipy.linalg

from fedspan._types import Array

_TURNS = 3


def orthonormalize(Y: Array) -> Array:
    """The Q of a QR factorisation whose R has a positive diagonal: the same basis whatever the library's signs."""
    Q, R = np.linalg.qr(Y)
    return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)


def polar(Y: Array) -> Array:
    """The orthonormal basis of span(Y) nearest to Y. If Y = Z T with T positive definite, it is Z itself."""
    U, _, Vt = np.linalg.svd(Y, full_matrices=False)
    return U @ Vt


def random_orthonormal(rng: np.random.Generator, d: int, k: int) -> Array:
    """k random orthonormal columns, from entries uniform in [-1, 1] (FAPS, section 5.2)."""
    return orthonormalize(rng.uniform(-1.0, 1.0, size=(d, k)))


def draw_mix(seed: int, d: int, width: int) -> Array:
    """Ω (d, width), normal numbers that everyone who knows the seed has."""
    return np.random.default_rng([seed, 1]).normal(size=(d, width))


def turn(S: Array, seed: int) -> Array:
    """H S for the orthonormal H of that seed, random signs and a cosine transform: no row of H S stands out."""
    return np.asarray(scipy.fft.dct(_draw_signs(seed, len(S)) * S, axis=0, norm="ortho"))


def turn_back(S: Array, seed: int) -> Array:
    """Hᵀ S."""
    return np.asarray(_draw_signs(seed, len(S)) * scipy.fft.idct(S, axis=0, norm="ortho"))


def _draw_signs(seed: int, d: int) -> Array:
    return np.random.default_rng([seed, 2]).choice([-1.0, 1.0], size=(d, 1))


def fix_signs(components: Array) -> Array:
    """Rows with their largest entry by absolute value positive, as scikit-learn's svd_flip decides for PCA."""
    at = np.argmax(np.abs(components), axis=1)
    signs = np.sign(components[np.arange(len(components)), at])
    return components * np.where(signs == 0, 1.0, signs)[:, None]


def largest_angle(U: Array, V: Array) -> float:
    """The largest principal angle between two column spaces, accurate for small angles too."""
    return float(scipy.linalg.subspace_angles(U, V)[0])


def projection_distance(Z: Array, V: Array) -> float:
    """‖(I - ZZᵀ)V‖₂ for orthonormal Z and V, as a norm: sqrt(1 - σ²) would stop at 1e-8."""
    return float(np.linalg.norm(V - Z @ (Z.T @ V), 2))


class SecretTurn:
    """O (J, J), a secret orthogonal transform of J entities: who has its key turns blocks there and back, quickly.

    Three times random signs, a random permutation and a cosine transform: J log J operations a column. It mixes all
    entities into every row, so rows of O V do not belong to entities any more; it keeps inner products of columns.
    """

    def __init__(self, key: bytes, entities: int) -> None:
        rng = np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
        self.steps = [
            (rng.choice(np.array([-1.0, 1.0]), size=(entities, 1)), rng.permutation(entities)) for _ in range(_TURNS)
        ]

    def hide(self, V: Array) -> Array:
        """O V."""
        for signs, order in self.steps:
            V = np.asarray(scipy.fft.dct((V * signs)[order], axis=0, norm="ortho"))
        return V

    def reveal(self, W: Array) -> Array:
        """OᵀW."""
        for signs, order in reversed(self.steps):
            back = np.empty(W.shape)
            back[order] = scipy.fft.idct(W, axis=0, norm="ortho")
            W = back * signs
        return W
