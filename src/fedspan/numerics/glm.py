"""Linear models: the loss of each row as a function of its linear predictors, with slopes and curvatures.

Notation: η (n, K) the predictors of n rows, y (n,) their targets, f(η, y) ≥ 0 the loss of a row, convex in η. K is 1,
but for L > 2 classes L - 1, and for Huber's loss 2: the second predictor is the scale σ, the same for all rows.

logistic   -log softmax(η Cᵀ)_y over L classes. C (L, K) is (0, 1)ᵀ for two classes, so that η is the log odds. For more
           its columns are orthonormal and sum to zero, so that ‖θ‖² = ‖θCᵀ‖²: each class has coefficients of its own,
           and those of all classes sum to zero, as in scikit-learn.
squared    (η - y)²/2
poisson    e^η - y + y (log y - η): half the deviance of counts y whose mean is e^η
huber      σ/2 + r²/2σ for a residual r = η - y of at most ε σ, else σ/2 + ε|r| - ε²σ/2
           (A. B. Owen, A robust hybrid of lasso and ridge regression, Contemp. Math. 443, 2007): jointly convex in η
           and σ, so that the scale needs no pass of its own. Half of scikit-learn's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import scipy.linalg
from scipy.special import xlogy

from fedspan._types import Array
from fedspan.errors import InputError

LossName = Literal["logistic", "squared", "poisson", "huber"]
LOSS_NAMES: tuple[str, ...] = ("logistic", "squared", "poisson", "huber")
_SINGULAR = 1e-10  # relative size of an eigenvalue, at a diagonal of ones, that counts as zero


class LossParts(NamedTuple):
    """Losses (n,), slopes (n, K) and curvatures (n, K, K) of rows in their predictors."""

    loss: Array
    slope: Array
    curve: Array


@dataclass(frozen=True)
class LinearLoss:
    """Which loss; `classes` is for the logistic one, `epsilon` for Huber's."""

    name: LossName = "squared"
    classes: int = 2
    epsilon: float = 1.35

    def __post_init__(self) -> None:
        if self.name not in LOSS_NAMES:
            raise InputError(f"loss must be one of {', '.join(LOSS_NAMES)}, but is {self.name!r}.")
        if self.name == "logistic" and self.classes < 2:
            raise InputError(f"At least 2 classes are needed, but there are {self.classes}.")
        if not self.epsilon >= 1.0:
            raise InputError(f"epsilon must be at least 1, but is {self.epsilon!r}.")

    @property
    def columns(self) -> int:
        """K."""
        return {"logistic": self.classes - 1, "huber": 2}.get(self.name, 1)

    @property
    def measured(self) -> bool:
        """Whether the target has a unit and an origin, so that it can be standardised."""
        return self.name in ("squared", "huber")

    @cached_property
    def contrast(self) -> Array:
        """C (L, K): from predictors to the outputs of the classes; (1, K) for what is no class."""
        if self.name != "logistic":
            return np.eye(1, self.columns)
        if self.classes == 2:
            return np.array([[0.0], [1.0]])
        return np.ascontiguousarray(scipy.linalg.helmert(self.classes).T)

    def free(self, features: int, intercept: bool) -> Array:
        """(P+1, K) which parameters are there to be found; the last row has the intercepts."""
        free = np.ones((features + 1, self.columns), dtype=bool)
        free[-1] = intercept
        if self.name == "huber":
            free[:-1, 1], free[-1, 1] = False, True
        return free

    def check_targets(self, y: Array) -> None:
        """Refuse targets for which there is no loss."""
        if self.name == "logistic":
            return
        if not np.isfinite(y).all():
            raise InputError("Targets must be finite numbers, but some are NaN or infinite. Drop those rows.")
        if self.name == "poisson" and (y < 0).any():
            raise InputError(
                f"Targets of the Poisson loss must be counts of at least 0, but {int(np.sum(y < 0))} are negative."
            )

    def target_columns(self, y: Array) -> Array:
        """(n, L) a 1 in the column of each row's class; (n, 1) the target itself for what is no class."""
        if self.name != "logistic":
            return y[:, None]
        return np.asarray(y[:, None] == np.arange(self.classes), dtype=np.float64)

    def null_predictors(self, mean: Array) -> Array:
        """(K,) the predictors that fit best without features, from the mean of `target_columns` (standardised: 0)."""
        if self.name == "logistic":
            logs = np.log(np.maximum(mean, 1e-12))
            return logs[1:] - logs[0] if self.classes == 2 else logs @ self.contrast
        if self.name == "poisson":
            return np.log(np.maximum(mean, 1e-12))
        return np.array([0.0, 1.0])[: self.columns]

    def __call__(self, eta: Array, y: Array) -> LossParts:
        """The losses with both derivatives. What overflows is infinite: the caller sees to it."""
        if self.name == "logistic":
            return self._logistic(eta, y)
        if self.name == "squared":
            r = eta[:, 0] - y
            return LossParts(r * r / 2, r[:, None], np.ones((len(y), 1, 1)))
        if self.name == "poisson":
            mu = np.exp(eta[:, 0])
            return LossParts(mu - y + xlogy(y, y) - y * eta[:, 0], (mu - y)[:, None], mu[:, None, None])
        return self._huber(eta, y)

    def _logistic(self, eta: Array, y: Array) -> LossParts:
        C = self.contrast
        O = eta @ C.T  # noqa: E741 - the outputs
        top = O.max(axis=1, keepdims=True)
        Q = np.exp(O - top)
        total = Q.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = np.log(total[:, 0]) + top[:, 0] - O[rows, y]
        Q /= total
        QC = Q @ C
        curve = np.einsum("nl,lj,lk->njk", Q, C, C) - QC[:, :, None] * QC[:, None, :]
        return LossParts(loss, QC - C[y], curve)

    def _huber(self, eta: Array, y: Array) -> LossParts:
        r, sigma, eps = eta[:, 0] - y, eta[:, 1], self.epsilon
        inside = np.abs(r) <= eps * sigma
        z = np.where(inside, r / sigma, eps * np.sign(r))
        loss = np.where(inside, sigma / 2 + r * z / 2, sigma / 2 + r * z - eps * eps * sigma / 2)
        loss = np.where(sigma > 0, loss, np.inf)
        curve = np.empty((len(y), 2, 2))
        curve[:, 0, 0] = inside / sigma
        curve[:, 0, 1] = curve[:, 1, 0] = np.where(inside, -z / sigma, 0.0)
        curve[:, 1, 1] = np.where(inside, z * z / sigma, 0.0)
        return LossParts(loss, np.stack([z, (1 - z * z) / 2], axis=1), curve)


class Inverse(NamedTuple):
    """A pseudo-inverse, its rank, and which coordinates the matrix says nothing about."""

    matrix: Array
    rank: int
    unknown: Array  # (F,) bool


def invert_curvature(H: Array) -> Inverse:
    """The pseudo-inverse of a symmetric matrix that should be positive: what is flat, or bends down, is left out.

    It is scaled to a diagonal of ones first, so that the units of the parameters do not decide what is flat.
    """
    diagonal = np.maximum(np.diag(H), 0.0)
    d = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    values, V = np.linalg.eigh(H * np.multiply.outer(d, d))
    keep = values > _SINGULAR * max(float(values[-1]), 0.0) if len(values) else np.zeros(0, dtype=bool)
    V, values = V[:, keep], values[keep]
    inverse = (V / values) @ V.T * np.multiply.outer(d, d)
    unknown = (1 - np.einsum("ij,ij->i", V, V)) > 1e-6
    return Inverse(inverse, int(keep.sum()), unknown)


def lbfgs_direction(g: Array, S: Array, Y: Array) -> Array:
    """-H̃ g, where H̃ is the inverse curvature that the last steps S (m, F) and changes of slope Y (m, F) suggest."""
    if not len(S):
        return -g / max(1.0, float(np.abs(g).sum()))
    q, rho = g.copy(), 1 / np.einsum("ij,ij->i", S, Y)
    alpha = np.zeros(len(S))
    for i in reversed(range(len(S))):
        alpha[i] = rho[i] * (S[i] @ q)
        q -= alpha[i] * Y[i]
    q /= rho[-1] * float(Y[-1] @ Y[-1])
    for i in range(len(S)):
        q += S[i] * (alpha[i] - rho[i] * (Y[i] @ q))
    return -q
