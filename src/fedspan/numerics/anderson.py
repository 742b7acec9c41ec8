"""Anderson acceleration of an iteration on subspaces.

Notation: Z_j⁺ = what one round makes of Z_j, both (d, k) bases; V_j the basis of the same space with ZᵀV_j = I, its
graph coordinates over the current Z, which do not depend on the basis; γ weights with Σ γ_j = 1.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array


def combine_bases(gamma: Array, bases: Array, Z: Array) -> Array:
    """Σ γ_j V_j, where V_j is the basis of span(bases[j]) with ZᵀV_j = I."""
    return sum((g * graph_basis(B, Z) for g, B in zip(gamma, bases, strict=True)), np.zeros_like(Z))


def graph_basis(B: Array, Z: Array) -> Array:
    """The basis V of span(B) with ZᵀV = I."""
    return B @ np.linalg.pinv(Z.T @ B, rcond=1e-8)


def anderson_weights(sent: Array, found: Array, Z: Array) -> Array | None:
    """The γ of least ‖Σ γ_j (Z_j⁺ - Z_j)‖; None if the last residual has more than doubled.

    `sent` holds the Z_j and `found` the Z_j⁺, both (h, d, k).

    Residuals vanish at every eigenspace, not only at the leading one. So a step that would descend is reflected: it
    leads back to a saddle, and its mirror image leads away from it.
    """
    F = np.stack([graph_basis(g, Z) - graph_basis(z, Z) for z, g in zip(sent, found, strict=True)])
    sizes = np.linalg.norm(F, axis=(1, 2))
    if len(F) > 1 and sizes[-1] > 2 * sizes[-2]:
        return None
    flat = F.reshape(len(F), -1)
    c = np.linalg.lstsq((flat[:-1] - flat[-1]).T, -flat[-1], rcond=1e-8)[0]
    gamma = np.append(c, 1.0 - c.sum())
    if np.sum((combine_bases(gamma, found, Z) - Z) * F[-1]) < 0:  # F[-1] is along P_Z⊥ Σ Y_i, the way up
        gamma = np.append(-c, 1.0 + c.sum())
    return gamma
