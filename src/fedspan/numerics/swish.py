"""The two-layer network of mini-batch SSCA, section V: swish inside, softmax outside, gradients in closed form.

Notation: X (n, P) rows, W1 (P, J) and W0 (J, L) the weights, H = X W1, S(z) = z/(1+e^-z), Q = softmax(S(H) W0) (n, L),
ω = (W0, W1) as one vector, W1 by features, so that the weights of a block of features stand together. The paper has no
intercepts; with them W1 is (P+1, J) and W0 (J+1, L), and their last rows are added to H and to the outputs. Products
are taken in the precision of the rows: float32 rows cost half the time.
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
    intercept: bool = False
    length2: float = 0.0  # the mean ‖x‖² of rows, if they were scaled to it; 0: that of P columns of variance 1

    def size(self, features: int) -> int:
        """d = J (P + L), and J + L more with intercepts."""
        return self.hidden * (features + self.classes) + self.intercept * (self.hidden + self.classes)

    def start(self, features: int, rng: np.random.Generator) -> Array:
        """ω¹: normal, of variance 2 / ‖input‖² (He et al. 2015), intercepts 0; the paper allows any start."""
        W1 = rng.normal(size=(features, self.hidden)) * np.sqrt(2 / (self.length2 or features))
        W0 = rng.normal(size=(self.hidden, self.classes)) * np.sqrt(2 / self.hidden)
        if self.intercept:
            W0, W1 = (np.concatenate([W, np.zeros((1, W.shape[1]))]) for W in (W0, W1))
        return np.concatenate([W0.ravel(), W1.ravel()])

    def split(self, omega: Array) -> tuple[Array, Array]:
        """W0 (J, L) and W1 (P, J), each with the intercepts as one row more, if there are any."""
        inputs = self.hidden + self.intercept
        head = inputs * self.classes
        return omega[:head].reshape(inputs, self.classes), omega[head:].reshape(-1, self.hidden)

    def proba(self, omega: Array, X: HeldMatrix) -> Array:
        """Q, (n, L)."""
        W0, W1 = self.split(omega)
        S, _ = swish(multiply(to_floats(X), W1))
        return softmax(multiply(S.astype(np.float64, copy=False), W0))


def join_models(omega: Array, W: Array) -> Array:
    """One vector with a network's ω and the W (P+1, L) of a linear model beside it, whose last row are intercepts."""
    return np.concatenate([omega, W.ravel()])


def split_models(net: Swish, both: Array, features: int) -> tuple[Array, Array | None]:
    """ω, and the W of the linear model beside the network, if there is one."""
    size = net.size(features)
    omega, rest = both[:size], both[size:]
    return omega, rest.reshape(features + 1, net.classes) if len(rest) else None


def mean_proba(net: Swish, both: Array, X: HeldMatrix) -> Array:
    """The mean of both models' Q, or Q of the network if there is no other; (n, L)."""
    omega, W = split_models(net, both, X.shape[1])
    Q = net.proba(omega, X)
    return Q if W is None else (Q + linear_proba(W, X)) / 2


def linear_proba(W: Array, X: HeldMatrix) -> Array:
    """Q of a linear model, (n, L)."""
    return softmax(multiply(to_floats(X), W).astype(np.float64, copy=False))


def to_floats(X: HeldMatrix) -> HeldMatrix:
    """The rows as floating-point numbers: float32 stays, everything else becomes float64; sparse rows stay sparse."""
    dtype = np.float32 if X.dtype == np.float32 else np.float64
    return X.astype(dtype, copy=False) if sp.issparse(X) else np.asarray(X, dtype=dtype)


def multiply(X: HeldMatrix, W: Array) -> Array:
    """X W in the precision of X; a row of W more than X has columns is added to every row."""
    P, W = X.shape[1], W.astype(X.dtype, copy=False)
    product = np.asarray(X @ W[:P])
    if len(W) > P:
        product += W[P]
    return product


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
    loss, Q = losses(multiply(S, W0), y, weight)
    Q[np.arange(len(y)), y] -= 1.0
    if weight is not None:
        Q *= weight[:, None].astype(Q.dtype)
    return loss, Q, S, (Q @ W0[: S.shape[1]].T) * dS


def losses(O: Array, y: Array, weight: Array | None) -> tuple[Array, Array]:  # noqa: E741 - the outputs
    """-log Q_y of every row, in float64, and Q: (28), and c̄ with the sign of the loss."""
    top = O.max(axis=1, keepdims=True)
    Q = np.exp(O - top)
    total = Q.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) + top[:, 0] - O[np.arange(len(y)), y]).astype(np.float64)
    Q /= total
    return loss if weight is None else loss * weight, Q


def gradient(X: HeldMatrix, S: Array, E: Array, D: Array, intercept: bool = False) -> Array:
    """Σ over the rows of ∇ω: ā for W0, b̄ for W1 (below (31))."""
    parts = [layer_gradient(S, E, intercept).ravel(), layer_gradient(X, D, intercept).ravel()]
    return np.concatenate(parts).astype(np.float64, copy=False)


def layer_gradient(inputs: HeldMatrix, slopes: Array, intercept: bool) -> Array:
    """Σ over the rows of the gradient of one layer's weights, with that of its intercepts as the last row."""
    weights = np.asarray(inputs.T @ slopes)
    return np.concatenate([weights, slopes.sum(axis=0, keepdims=True)]) if intercept else weights


def gradient_norms(X: HeldMatrix, S: Array, E: Array, D: Array, intercept: bool = False) -> Array:
    """‖∇ω‖ of every row by itself, (n,): both parts have rank one, so no gradient need be formed."""
    one = float(intercept)  # an intercept is the weight of an input that is 1
    head, first = np.hypot(_row_norms(S), one), np.hypot(_row_norms(X), one)
    return np.hypot(head * _row_norms(E), _row_norms(D) * first)


def _row_norms(A: HeldMatrix) -> Array:
    """‖a‖ of every row in float64, scaled by its largest entry: no square is lost, however small or large."""
    if isinstance(A, np.ndarray):
        most = np.abs(A).max(axis=1, initial=0.0).astype(np.float64)
        scaled = A / np.where(most > 0, most, 1.0)[:, None]
        return most * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    most = np.asarray(abs(A).max(axis=1).todense(), dtype=np.float64).ravel()
    shrunk = sp.diags_array(1 / np.where(most > 0, most, 1.0)) @ A
    return most * np.sqrt(np.asarray(shrunk.multiply(shrunk).sum(axis=1)).ravel())
