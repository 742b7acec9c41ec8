"""How a site compares the server's questions with its own: what each array of a question is, said by the algorithm.

Under verified sums (secure/witness.py) every site runs the server's half of the algorithm too, on the sums that it is
shown, and answers no question but the next one. Two machines round differently, so questions are compared as what they
are: numbers to a relative tolerance, a basis by its span, weighted eigenvectors by the matrix that they make.

Notation: P what the site expects, V what came, w its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.errors import ProtocolError

ORTHONORMAL = 1e-8  # ‖VᵀV - I‖ of a block that is sent as it is
COARSE_BLOCK = 0.05  # the same of one on a grid


@dataclass(frozen=True)
class Close:
    """Numbers that follow from the sums by plain arithmetic: all within `rtol` of the largest of them."""

    rtol: float = 1e-9


@dataclass(frozen=True)
class Basis:
    """Orthonormal columns (d, w) that matter by their span: ‖(I - PPᵀ)V‖_F ≤ tol·√w.

    `grid` names the array of steps, if what is sent are codes on a grid (numerics/grid.py).
    """

    tol: float = 1e-3
    grid: str = ""


@dataclass(frozen=True)
class WeightedBasis:
    """Orthonormal columns (…, d, q) that matter by Σ w_j v_j v_jᵀ; `weights` names the array of the w (…, q)."""

    weights: str
    tol: float = 1e-6


@dataclass(frozen=True)
class Together:
    """Compared with the array that names this one."""


Comparison = Close | Basis | WeightedBasis | Together
Replay = Mapping[str, Mapping[str, Comparison]]
"""Task → array of its question → how it is compared. Each task of `asks()` is in it, and each array of each."""

CLOSE, TOGETHER = Close(), Together()


def check_question(how: Mapping[str, Comparison], expected: Arrays, came: Arrays) -> None:
    """Refuse a question that is not the expected one, up to rounding."""
    if came.keys() != expected.keys():
        raise ProtocolError(f"A question has the arrays {sorted(came)}, but should have {sorted(expected)}.")
    for name, x in came.items():
        _check_layout(name, expected[name], x)
        if name not in how:
            raise ProtocolError(f"Nobody said how {name!r} of a question is to be compared, so it is not answered.")
    for name, kind in how.items():
        if name not in came:
            continue
        if isinstance(kind, Close):
            _check_close(name, expected[name], came[name], kind.rtol)
        elif isinstance(kind, Basis):
            _check_basis(name, kind, expected, came)
        elif isinstance(kind, WeightedBasis):
            _check_weighted(name, kind, expected, came)


def _check_layout(name: str, expected: Array, came: Array) -> None:
    if came.dtype != expected.dtype or came.shape != expected.shape:
        raise ProtocolError(
            f"{name!r} of a question is {came.dtype} of shape {came.shape}, but should be {expected.dtype} of shape "
            f"{expected.shape}."
        )
    if came.dtype.kind == "f" and not np.isfinite(came).all():
        raise ProtocolError(f"{name!r} of a question must be finite, but contains NaN or infinity.")


def _check_close(name: str, expected: Array, came: Array, rtol: float) -> None:
    if came.dtype.kind != "f":
        if not np.array_equal(came, expected):
            raise ProtocolError(f"{name!r} of a question is not what the sums lead to.")
        return
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(came - expected).max(initial=0.0)
    if not apart <= rtol * np.abs(expected).max(initial=0.0):
        raise ProtocolError(f"{name!r} of a question is not what the sums lead to.")


def departure(V: Array) -> float:
    """‖VᵀV - I‖₂: how far columns are from being orthonormal."""
    with np.errstate(over="ignore", invalid="ignore"):
        G = V.T @ V - np.eye(V.shape[1])
    return float(np.linalg.norm(G, 2)) if G.size and np.isfinite(G).all() else (0.0 if not G.size else np.inf)


def _check_basis(name: str, kind: Basis, expected: Arrays, came: Arrays) -> None:
    P, V, most = expected[name], came[name], ORTHONORMAL
    if kind.grid:
        step = came[kind.grid]
        if not (np.isfinite(step).all() and (step > 0).all()):
            raise ProtocolError(f"{kind.grid!r} of a question must be positive steps.")
        P, V = P * expected[kind.grid], V * step
        most = max(COARSE_BLOCK, 2 * departure(P))
    if not departure(V) <= most:
        raise ProtocolError(f"The columns of {name!r} in a question are not orthonormal.")
    Q = np.linalg.qr(P)[0] if kind.grid else P
    if not np.linalg.norm(V - Q @ (Q.T @ V)) <= kind.tol * np.sqrt(max(V.shape[1], 1)):
        raise ProtocolError(f"{name!r} of a question does not span what the sums lead to.")


def _check_weighted(name: str, kind: WeightedBasis, expected: Arrays, came: Arrays) -> None:
    P, V, wp, wv = expected[name], came[name], expected[kind.weights], came[kind.weights]
    size = np.abs(wp).max(initial=0.0)
    if not np.abs(wv - wp).max(initial=0.0) <= kind.tol * size or (wv < -kind.tol * size).any():
        raise ProtocolError(f"{kind.weights!r} of a question is not what the sums lead to.")
    flat = [(x.reshape(-1, *x.shape[-2:]), w.reshape(-1, w.shape[-1])) for x, w in ((P, wp), (V, wv))]
    for p, wp_f, v, wv_f in zip(*flat[0], *flat[1], strict=True):
        if not departure(v) <= ORTHONORMAL:
            raise ProtocolError(f"The columns of {name!r} in a question are not orthonormal.")
        A = (v * wv_f) - p @ (wp_f[:, None] * (p.T @ v))  # (V w Vᵀ - P w Pᵀ) V
        if not np.linalg.norm(A) <= kind.tol * size * np.sqrt(v.shape[1]):
            raise ProtocolError(f"{name!r} of a question does not span what the sums lead to.")


def adopt_question(expected: Arrays, came: Arrays) -> None:
    """Go on with what the server sent: the arrays of the replica's own question become those that came.

    So rounding does not make the two drift apart. It works because an algorithm goes on with the very arrays that it
    has asked with (see `Ask`).
    """
    for name, x in came.items():
        np.copyto(expected[name], x)
