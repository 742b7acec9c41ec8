"""The two-layer network of mini-batch SSCA, section V: swish inside, softmax outside, gradients in closed form.

Notation: X (n, P) rows, W1 (P, J) and W0 (J, L) the weights, H = X W1, S(z) = z/(1+e^-z), Q = softmax(S(H) W0) (n, L),
ω = (W0, W1) as one vector, W1 by features, so that the weights of a block of features stand together. There are no
biases, as in the paper. Products are taken in the precision of the rows: float32 rows cost half the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.numerics.operators import HeldMatrix


@dataclass(frozen=True)
class Swish:
    """The network's sizes, and how ω is laid out."""

    hidden: int = 128  # J
    classes: int = 2  # L

    def size(self, features: int) -> int:
        """d = J (P + L)."""
        return self.hidden * (features + self.classes)

    def start(self, features: int, rng: np.random.Generator) -> Array:
        """ω¹: normal, of variance 2 / number of inputs (He et al. 2015); the paper allows any start."""
        W1 = rng.normal(size=(features, self.hidden)) * np.sqrt(2 / features)
        W0 = rng.normal(size=(self.hidden, self.classes)) * np.sqrt(2 / self.hidden)
        return np.concatenate([W0.ravel(), W1.ravel()])

    def split(self, omega: Array) -> tuple[Array, Array]:
        """W0 (J, L) and W1 (P, J)."""
        head = self.hidden * self.classes
        return omega[:head].reshape(self.hidden, self.classes), omega[head:].reshape(-1, self.hidden)

    def proba(self, omega: Array, X: HeldMatrix) -> Array:
        """Q, (n, L)."""
        W0, W1 = self.split(omega)
        rows = to_floats(X)
        return softmax(swish(rows @ W1.astype(rows.dtype))[0] @ W0)


def to_floats(X: HeldMatrix) -> HeldMatrix:
    """The rows as floating-point numbers: float32 stays, everything else becomes float64; sparse rows stay sparse."""
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    return X.astype(dtype, copy=False) if sp.issparse(X) else np.asarray(X, dtype=dtype)


def swish(H: Array) -> tuple[Array, Array]:
    """S(H) and S'(H)."""
    gate = 0.5 + 0.5 * np.tanh(0.5 * H)  # 1/(1+e^-z), without overflow
    S = H * gate
    return S, gate + S * (1 - gate)


def softmax(O: Array) -> Array:  # noqa: E741 - the outputs
    """Rows that sum to one."""
    Q = np.exp(O - O.max(axis=1, keepdims=True))
    Q /= Q.sum(axis=1, keepdims=True)
    return Q


def losses_and_slopes(H: Array, W0: Array, y: Array, weight: Array | None) -> tuple[Array, Array, Array, Array]:
    """From the pre-activations H: the losses (n,), their slopes in the outputs (n, L), S(H), and those in H (n, J)."""
    S, dS = swish(H)
    W0 = W0.astype(S.dtype, copy=False)
    loss, Q = losses(S @ W0, y, weight)
    Q[np.arange(len(y)), y] -= 1.0
    if weight is not None:
        Q *= weight[:, None].astype(Q.dtype)
    return loss, Q, S, (Q @ W0.T) * dS


def losses(O: Array, y: Array, weight: Array | None) -> tuple[Array, Array]:  # noqa: E741 - the outputs
    """-log Q_y of every row, in float64, and Q: (28), and c̄ with the sign of the loss."""
    top = O.max(axis=1, keepdims=True)
    Q = np.exp(O - top)
    total = Q.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) + top[:, 0] - O[np.arange(len(y)), y]).astype(np.float64)
    Q /= total
    return loss if weight is None else loss * weight, Q


def gradient(X: HeldMatrix, S: Array, E: Array, D: Array) -> Array:
    """Σ over the rows of ∇ω: ā for W0, b̄ for W1 (below (31))."""
    return np.concatenate([(S.T @ E).ravel(), np.asarray(X.T @ D).ravel()]).astype(np.float64, copy=False)


def gradient_norms(X: HeldMatrix, S: Array, E: Array, D: Array) -> Array:
    """‖∇ω‖ of every row by itself, (n,): both parts have rank one, so no gradient need be formed."""
    return np.hypot(_row_norms(S) * _row_norms(E), _row_norms(D) * _row_norms(X))


def _row_norms(A: HeldMatrix) -> Array:
    """‖a‖ of every row in float64, scaled by its largest entry: no square is lost, however small or large."""
    if isinstance(A, np.ndarray):
        most = np.abs(A).max(axis=1, initial=0.0).astype(np.float64)
        scaled = A / np.where(most > 0, most, 1.0)[:, None]
        return most * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    most = np.asarray(abs(A).max(axis=1).todense(), dtype=np.float64).ravel()
    shrunk = sp.diags_array(1 / np.where(most > 0, most, 1.0)) @ A
    return most * np.sqrt(np.asarray(shrunk.multiply(shrunk).sum(axis=1)).ravel())
