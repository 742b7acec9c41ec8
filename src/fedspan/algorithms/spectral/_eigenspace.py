"""What every method for an eigenspace ends with, and what its server says of it.

Notation: M = Σ_i M_i (d, d), Z (d, k) the Ritz vectors with values θ (k,), R = (I - ZZᵀ) M Z their residual,
‖R‖_F / tr(M) the scaled KKT violation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from fedspan._types import Array
from fedspan.algorithms._moments import Moments
from fedspan.core.protocol import Ask, Round, Server, Sum, complete
from fedspan.numerics.rayleigh_ritz import rayleigh_ritz


@dataclass(frozen=True)
class SpectralState:
    """The current estimate of an eigenspace, and how good it is: what all spectral states have in common."""

    moments: Moments
    Z: Array  # (d, k) Ritz vectors, the best first
    theta: Array  # (k,) Ritz values, in squares of the unit of the moments
    kkt: float  # ‖(I - ZZᵀ) M Z‖_F / tr(M); nan if the server cannot know it

    def known_basis(self) -> tuple[Array, Array] | None:
        """(Q, M Q), each (d, m), of all that the server has kept; None if it kept no more than Z."""
        return None

    def known_floor(self) -> float:
        """Up to which size a Ritz value may be nothing but what was rounded."""
        return 0.0

    def known_rest(self) -> Array | None:
        """Σ (θ_j / tr M)^i over all eigenvalues that are left out, for i = 1, 2, 3, (3,); None if it is not known."""
        return None

    def known_angles(self) -> Array | None:
        """(k,) about how far the first j components are from the exact ones, j = 1 … k; None if nothing is known."""
        return None


AnySpectral = TypeVar("AnySpectral", bound=SpectralState)


@dataclass(frozen=True)
class Spectral(Server[AnySpectral]):
    """What the servers of all spectral methods say in the same way."""

    family: ClassVar[str] = "spectral"

    def estimate(self, state: AnySpectral) -> Array:
        return state.Z.T

    def metrics(self, state: AnySpectral) -> dict[str, float]:
        return {"objective": float(state.theta.sum()) * state.moments.unit**2, "kkt": state.kkt}


class RitzPairs(NamedTuple):
    """Ritz values, their coordinates in Q, and the scaled KKT violation of the leading k."""

    theta: Array
    S: Array
    kkt: float


def ritz_pairs(moments: Moments, Q: Array, AQ: Array, k: int) -> RitzPairs:
    """Rayleigh-Ritz on span(Q), from Q and M Q."""
    theta, S, R = rayleigh_ritz(Q, AQ, k)
    return RitzPairs(theta, S, float(np.linalg.norm(R)) / (moments.trace or 1.0))


class Confirmed(NamedTuple):
    """The best answer in a block V, with its true products."""

    Z: Array  # (d, k) Ritz vectors
    theta: Array
    kkt: float
    MV: Array


def confirm_residual(moments: Moments, V: Array, k: int) -> Round[Confirmed]:
    """One exchange, ΣM_iV as it is: what a method that stops by a measure of its own must see before it says so."""
    MV = (yield from complete(Ask("confirm", {"V": V}, Sum("MV")))).total["MV"]
    theta, S, kkt = ritz_pairs(moments, V, MV, k)
    return Confirmed(V @ S[:, :k], theta[:k], kkt, MV)
