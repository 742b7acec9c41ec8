"""What the curvature of a linear model's loss says about its coefficients: covariances, ranks, deviances.

Notation: as in newton.py. H the mean curvature of the loss at θ, Λ that of the penalty, M the mean of ∇f ∇fᵀ, φ the
dispersion: that of the residuals for the squared loss, 1 for classes and counts.

    model-based  φ/N (H+Λ)⁻¹ H (H+Λ)⁻¹      which is φ/N H⁻¹ without a penalty
    robust       c/N (H+Λ)⁻¹ M (H+Λ)⁻¹      which does not need the model to be right: the sandwich, with c = n/(n-p)
                                            (HC1) for residuals, c = 1 (HC0) for classes and counts

With a penalty these are the deviations of the penalised estimate around its own mean; its bias is not in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.learning.newton import LinearNewton, LinearState, to_columns
from fedspan.numerics.glm import invert_curvature


@dataclass(frozen=True)
class Inference:
    """Coefficients in the units of the columns, one equation (R) for a regression or two classes, else L - 1.

    With more than two classes an equation is about the odds of a class against the first one.
    """

    estimate: Array  # (R, P+1), the intercepts last
    covariance: Array  # (R(P+1), R(P+1)), equation by equation; NaN where nothing is known; empty without a Hessian
    rank: int  # of the parameters that explain the target
    degrees: float  # of freedom that are left to residuals
    deviance: float
    null_deviance: float
    residual_scale: float  # standard deviation of residuals; Huber's σ; 1 for classes and counts

    @property
    def standard_errors(self) -> Array:
        """(R, P+1)."""
        if not self.covariance.size:
            return np.full(self.estimate.shape, np.nan)
        return np.sqrt(np.diag(self.covariance)).reshape(self.estimate.shape)


def infer(server: LinearNewton, state: LinearState) -> Inference:
    """What is known of the coefficients of a run that has ended."""
    s, loss = state.standard, server.row_loss
    free = loss.free(len(s.mean), server.intercept)
    equations = loss.contrast[1:] - loss.contrast[0] if loss.name == "logistic" else loss.contrast  # (R, K)
    estimate = equations @ to_columns(s, state.theta).T
    shape_only = int(loss.name == "huber")  # σ explains nothing
    rank = state.rank - shape_only
    degrees = float(s.n - rank)
    squared = loss.name == "squared"
    unit2 = float(s.target[1]) ** 2 if squared else 1.0
    left = 2 * state.loss * s.weight  # residual sum of squares, or deviance, in standardised units
    dispersion = (left / degrees if degrees > 0 else np.nan) if squared else 1.0
    known = (estimate, rank, degrees)
    told = (left * unit2, 2 * state.null * s.weight * unit2, _residual_scale(server, state, dispersion))
    if not state.hessian.size:
        return Inference(estimate, np.zeros((0, 0)), *known[1:], *told)
    inverse = invert_curvature(state.hessian + np.diag(server.penalties(s)[free]))
    if server.robust and state.meat.size:
        small_sample = s.n / degrees if degrees > 0 else np.nan
        middle = state.meat * (small_sample if loss.measured else 1.0)
    else:
        middle = state.hessian * dispersion
    C = inverse.matrix @ middle @ inverse.matrix / s.weight
    return Inference(estimate, _to_equations(server, state, free, C, inverse.unknown, equations), *known[1:], *told)


def _residual_scale(server: LinearNewton, state: LinearState, dispersion: float) -> float:
    unit = float(state.standard.target[1])
    if server.row_loss.name == "huber":
        return float(state.theta[-1, 1]) * unit
    return float(np.sqrt(dispersion)) * unit if server.row_loss.name == "squared" else 1.0


def _to_equations(
    server: LinearNewton, state: LinearState, free: Array, C: Array, unknown: Array, equations: Array
) -> Array:
    """The covariance of the free parameters as that of the equations' coefficients, in the units of the columns."""
    s, (d, K), R = state.standard, free.shape, len(equations)
    full, blind = np.zeros((d * K, d * K)), np.zeros(d * K, dtype=bool)
    at = np.flatnonzero(free.ravel())
    full[np.ix_(at, at)], blind[at] = C, unknown
    to_raw = np.diag(np.append(s.inverse, 1.0))
    to_raw[-1, :-1] = -s.mean * s.inverse
    T = np.kron(to_raw * s.target[1], equations)
    cov = (T @ full @ T.T).reshape(d, R, d, R).transpose(1, 0, 3, 2).reshape(d * R, d * R)
    dark = np.asarray(blind.reshape(d, K).any(axis=1))
    dark[:-1] |= s.inverse == 0  # a constant column
    dark[-1] |= bool((dark[:-1] & (s.mean != 0) & (s.inverse > 0)).any()) or not server.intercept
    lost = np.tile(dark, R)
    cov[lost, :] = cov[:, lost] = np.nan
    return cov
