"""How far Ritz vectors are from eigenvectors, from what a block Krylov run has seen.

Notation: θ_1 ≥ … ≥ θ_m all Ritz values of M, R (d, m) the residuals of their vectors, r_j = ‖R_j‖; a split j is between
the j-th and the next; c_s = max over i > s of θ_i + r_i, the most that what comes after s may be.

b_j bounds the sine of the largest angle between the span of the first j Ritz vectors and that of the first j
eigenvectors. It is the sin Θ theorem (C. Davis, W. M. Kahan. The rotation of eigenvectors by a perturbation III. SIAM
J. Numer. Anal., 1970. https://doi.org/10.1137/0707001) on two levels: vectors j+1 to s are in the span already, so that
only what they leave open counts, and those after s are separated from θ_j by θ_j - c_s:

    b_j = min over s ≥ j of ‖R_1..j‖₂ / (θ_j - c_s) · (1 + ‖R_j+1..s‖₂ / (θ_j - θ_j+1))

That c_s bounds what has not been seen holds with high probability over a random start, and is not proved.
"""

from __future__ import annotations

import numpy as np

from fedspan._types import Array

_LOOK = 40  # vectors beyond the split that are tried as s


def bound_angles(theta: Array, R: Array, errors: Array, k: int) -> Array:
    """b_1 … b_k; infinite where nothing can be said. `errors` (m,): what rounding may have changed in each residual."""
    sizes = np.sqrt(np.sum(R**2, axis=0) + errors**2)
    return np.array([_bound_split(theta, R, sizes, errors, j) for j in range(1, k + 1)])


def _bound_split(theta: Array, R: Array, sizes: Array, errors: Array, j: int) -> float:
    m = len(theta)
    if m <= j:
        return np.inf
    inside = float(np.linalg.norm(R[:, :j], 2)) + float(np.linalg.norm(errors[:j]))
    next_gap = float(theta[j - 1] - theta[j])
    best = np.inf
    reach = np.maximum.accumulate((theta + sizes)[::-1])[::-1]  # c_s at s
    G = R[:, j : min(j + _LOOK, m)].T @ R[:, j : min(j + _LOOK, m)]
    for s in range(j, min(j + _LOOK, m)):
        apart = float(theta[j - 1] - reach[s])
        if apart <= 0 or next_gap <= 0:
            continue
        open_part = np.sqrt(max(float(np.linalg.norm(G[: s - j, : s - j], 2)), 0.0)) if s > j else 0.0
        best = min(best, inside / apart * (1 + (open_part + float(np.linalg.norm(errors[j:s]))) / next_gap))
    return best


def shrink_by_nystrom(angles: Array, R: Array, errors: Array, outside: Array, missed: float) -> Array:
    """The bounds for Nyström's vectors Z instead of the Ritz vectors: their residual is smaller.

    For the Nyström approximation M̂, N = M - M̂ is positive and NQ = 0, so the residual of Z is N Z_⊥ with
    Z_⊥ = (I - QQᵀ)Z, given as `outside`. How large N may be is guessed from the block that was multiplied last, of
    which the approximation before it missed most: `missed`.
    """
    out = angles.copy()
    for j in range(1, len(angles) + 1):
        noise = float(np.linalg.norm(errors[:j]))
        ritz = float(np.linalg.norm(R[:, :j], 2)) + noise
        ours = missed * float(np.linalg.norm(outside[:, :j], 2)) + noise
        if ritz > 0 and ours < ritz:
            out[j - 1] *= ours / ritz
    return out
