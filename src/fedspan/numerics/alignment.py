"""How good a common representation is, and what it cost to send: the measures of CuteMaxVar, section V.

Notation: J entities, K components, I views, q bits per number, q_full those of an uncompressed one (32 in the paper),
R_C and R_A the rounds of the compressed and the uncompressed method to the same cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError


def bits_per_variable(rounds: int, bits: float, full: float = 32, first: float | None = None) -> float:
    """BPV(r) = q_full + r·q: bits sent so far for one number of M_i or G; `first` those of the first exchange."""
    return (full if first is None else first) + rounds * bits


def compression_ratio(bits: float, rounds: int, full_rounds: int, full: float = 32) -> float:
    """CR = 1 - q·R_C / (q_full·R_A), the paper's formula: without the first exchange, scales and headers."""
    return 1.0 - bits * rounds / (full * full_rounds)


def measured_ratio(sent: float, full_sent: float) -> float:
    """The same, from all bytes that crossed the wire."""
    return 1.0 - sent / full_sent


def alignment_accuracy(representations: Sequence[Array], block: int = 1024) -> float:
    """AC: how often an entity's nearest neighbour in another view is itself, over all ordered pairs of views.

    A tie counts as right, as in the paper (≤); `block` rows of distances are held at a time.
    """
    if len(representations) < 2 or len({R.shape for R in representations}) > 1:
        raise InputError("Alignment needs representations from at least two views, all of the same shape.")
    J, views, right = len(representations[0]), len(representations), 0
    squares = [np.einsum("ij,ij->i", R, R) for R in representations]
    for i, A in enumerate(representations):
        for m, B in enumerate(representations):
            if i == m:
                continue
            for start in range(0, J, block):
                rows = slice(start, min(start + block, J))
                # ‖a - b‖² less ‖a‖², which is the same along a row.
                distance = squares[m] - 2.0 * (A[rows] @ B.T)
                own = distance[np.arange(rows.stop - start), np.arange(start, rows.stop)]
                right += int(np.sum(own <= distance.min(axis=1)))
    return right / (views * (views - 1) * J)


def measure_agreement(representations: Sequence[Array]) -> float:
    """(‖ΣM_i‖² - Σ‖M_i‖²) / ((I - 1) Σ‖M_i‖²) of centred columns, mean over them; 0 if there are none.

    It is 1 if all views say the same, and about 0 if they have nothing to do with each other.
    """
    centred = [M - M.mean(axis=0) for M in representations]
    own = sum((np.sum(M**2, axis=0) for M in centred), np.zeros(centred[0].shape[1]))
    across = np.sum(sum(centred[1:], centred[0]) ** 2, axis=0) - own
    found = np.divide(across, (len(centred) - 1) * own, out=np.zeros_like(own), where=own > 0)
    return float(found.mean()) if len(found) else 0.0
