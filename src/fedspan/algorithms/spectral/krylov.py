"""Block Krylov at the server: what it has seen is kept, and Rayleigh-Ritz runs over the whole span.

In none of the papers implemented here; the method is block Lanczos with full reorthogonalisation and thick restarts:
    G. H. Golub, R. R. Underwood. The block Lanczos method for computing eigenvalues. Mathematical Software III, 1977.
    K. Wu, H. Simon. Thick-restart Lanczos method for large symmetric eigenvalue problems. SIAM J. Matrix Anal. Appl.,
    2000. https://doi.org/10.1137/S0895479898334605
The corrections of `Davidson` are those of:
    E. R. Davidson. The iterative calculation of a few of the lowest eigenvalues and corresponding eigenvectors of
    large real-symmetric matrices. J. Comput. Phys., 1975. https://doi.org/10.1016/0021-9991(75)90065-0

Notation: M = Σ_i M_i, Q (d, m) orthonormal basis of all that was multiplied, AQ = M Q, V (d, k) the next block,
Z = Q S_k the k leading Ritz vectors with values θ, R = (I - QQᵀ) M Z their residual, ‖R‖_F / tr(M) the KKT violation,
Δ the step to which every entry of M_i V is rounded (0: not at all), M̃ = P diag(λ) Pᵀ a guess of M.

A round costs what a round of SSI costs, but its answer is the best in the span of all rounds so far, not of the last
one. The sum must be complete: Rayleigh-Ritz on a sum over a subset of the clients answers another problem, so those
that did not answer are asked again.

What the server sees: the opening (_moments.py), then Σ M_i V in every round, as in SSI (power.py). `Davidson` also
shows it every client's own leading eigenpairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.linalg

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import Moments, RowsClient, measure, measure_replay, measure_tasks
from fedspan.algorithms.spectral._eigenspace import Spectral, SpectralState
from fedspan.algorithms.spectral._narrow import ask_near, predict_sum
from fedspan.core.protocol import Ask, Client, Replay, Round, Sum, complete
from fedspan.core.replay import CLOSE, TOGETHER, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid, to_grid
from fedspan.numerics.orthonormal import orthonormalize, random_orthonormal
from fedspan.numerics.precondition import corrections, low_rank_sum
from fedspan.numerics.rayleigh_ritz import append_rows, extension, rayleigh_ritz


class Prior(NamedTuple):
    """A guess of M from an earlier run: its Ritz vectors P (d, p) and values λ (p,)."""

    vectors: Array
    values: Array

    def __repr__(self) -> str:
        """Name the run that starts from it: a checkpoint of a run from another prior belongs to another run."""
        digest = blake2b(self.vectors.tobytes() + self.values.tobytes(), digest_size=8).hexdigest()
        return f"Prior({digest})"


@dataclass(frozen=True)
class KrylovState(SpectralState):
    """The span so far, and the best estimate in it; `kkt` includes the rounding errors that it may hide."""

    step: float  # Δ
    P: Array  # (d, p) the guess of M, no columns if there is none
    lam: Array  # (p,)
    Qt: Array  # (m, d) Qᵀ: rows can be added without copying those that are there
    AQt: Array  # (m, d)
    noise: Array  # (m, m) the Gram matrix of the columns' rounding errors, in units of one rounded column
    next: Array  # (d, k) the next block; no columns if the span holds all there is
    gap: float  # θ_k - θ_{k+1}: if it is small, the k-th component is hardly determined

    def known_basis(self) -> tuple[Array, Array] | None:
        return (self.Qt.T, self.AQt.T) if len(self.Qt) else None


@dataclass(frozen=True)
class Krylov(Spectral[KrylovState]):
    """Block Krylov until the scaled KKT violation is at most `tol`.

    The server keeps at most `keep`·k basis vectors; when there are more it restarts from the leading half of the Ritz
    vectors (12 costs no rounds, 8 seldom one, 4 up to half as many again, 3 can fail). `rounded` sends V to `grid`
    bits a number and M_i V as whole multiples of one Δ, so coarse that the asked-for `tol` is just reached. A `prior`
    from a run on nearly the same data is the start, and the guess M̃ that corrects residuals.
    """

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    keep: int = 12
    rounded: bool = False
    grid: int = 8
    prior: Prior | None = None

    State = KrylovState
    client: ClassVar[type[Client[object]]] = RowsClient
    product: ClassVar[str] = "multiply"  # the task of the product M_i V; on a grid: with "_on_grid" behind it

    @property
    def product_task(self) -> str:
        """The task that these options ask for the product."""
        return f"{self.product}_on_grid" if self.rounded else self.product

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 12 * self.k}

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {self.product_task}

    def replay(self) -> Replay | str:
        if self.prior is not None:
            return "it starts from an earlier model, which the sites do not have"
        if self.tol < 1e-12:
            return "tol is below 1e-12, where rounding decides what is asked next"
        tol = 0.05 if self.rounded or self.tol < 1e-8 else 1e-3
        block: dict[str, Comparison] = {"Z": Basis(tol)}
        if self.rounded:
            block = {"Z": Basis(tol, grid="scale"), "scale": TOGETHER, "step": CLOSE}
        return {**measure_replay(self.center, self.scale), self.product_task: block}

    def accept(self, state: KrylovState, arrays: Arrays) -> KrylovState | None:
        """Any basis of what M has added to the span: rounding decides which, if Ritz values (nearly) coincide."""
        if state.kkt <= self.tol:
            if state.kkt < 0.1 * self.tol:
                return None
            # A restart that cuts between equal Ritz values keeps one or the other, and then rounding decides when tol
            # is met.
            state = replace(state, kkt=float(np.nextafter(self.tol, np.inf)))
        V, trace = arrays.get("Z"), state.moments.trace or 1.0
        if V is None or not len(state.Qt) or V.ndim != 2 or len(V) != state.Qt.shape[1] or V.shape[1] > self.k:
            return None
        if self.rounded:
            V = from_grid(V, arrays.get("scale", np.ones(1)))
        Q, AQ = state.Qt.T, state.AQt.T
        W = AQ - Q @ (Q.T @ AQ)
        U, s, _ = np.linalg.svd(W - Q @ (Q.T @ W), full_matrices=False)
        U = U[:, s > 0.1 * _least_direction(self.tol, self.k) * trace]
        inside = U @ (U.T @ V)
        if not np.linalg.norm(V - inside) <= (0.05 if self.rounded or self.tol < 1e-8 else 1e-3) * np.sqrt(self.k):
            return None
        return replace(state, next=orthonormalize(inside) if self.rounded else np.array(V))

    def opening(self, rng: Streams) -> Round[tuple[Moments, Array]]:
        """What must be known of the operator, and where to start."""
        moments = yield from measure(self.center, self.scale)
        return moments, random_orthonormal(rng("start"), len(moments.mean), self.k)

    def init(self, rng: Streams) -> Round[KrylovState]:
        moments, V = yield from self.opening(rng)
        d, nothing = len(moments.mean), np.zeros((len(moments.mean), 0))
        P, lam = (nothing, np.zeros(0)) if self.prior is None else self.prior
        if len(lam) >= self.k:
            V = P[:, : self.k]
        # Δ: the rounding errors of all clients make at most half of the violation that tol allows.
        step = 0.5 * self.tol * moments.trace / np.sqrt(moments.clients * d * self.k / 12) if self.rounded else 0.0
        return KrylovState(
            moments,
            Z=V,
            theta=np.zeros(self.k),
            kkt=np.inf,
            step=float(step),
            P=P,
            lam=lam,
            Qt=nothing.T,
            AQt=nothing.T,
            noise=np.zeros((0, 0)),
            next=V,
            gap=0.0,
        )

    def round(self, state: KrylovState, rng: Streams) -> Round[KrylovState]:
        k, trace = self.k, state.moments.trace or 1.0
        V, Y = yield from self._multiply(state)
        U, L = extension(state.Qt.T, V)
        m, room = len(state.Qt), self.keep * k
        Qt, AQt = append_rows(state.Qt, U.T, room), append_rows(state.AQt, L[:m].T @ state.AQt + L[m:].T @ Y.T, room)
        Q, AQ = Qt.T, AQt.T
        noise = _carry_errors(state.noise, L)
        theta, S, R = rayleigh_ritz(Q, AQ, k)
        Z, Sk = Q @ S[:, :k], S[:, :k]
        rounding = state.moments.clients * len(Q) * state.step**2 / 12 * float(np.sum(Sk * (noise @ Sk)))
        kkt = float(np.sqrt(np.sum(R**2) + rounding)) / trace
        gap = float(theta[k - 1] - theta[k]) if len(theta) > k else 0.0
        least = _least_direction(self.tol, k) * trace
        if len(state.lam) and np.all(theta[:k] > 0) and _find_directions(R, least).size:
            corrected = corrections(R, theta[:k], state.P, state.lam)
            corrected -= Q @ (Q.T @ corrected)
            if size := np.linalg.norm(corrected):
                R = corrected * (np.linalg.norm(R) / size)  # of the size of R: what is negligible there is so here
        if len(Qt) + k > room:  # thick restart
            half = S[:, : room // 2]
            Qt, AQt, noise = half.T @ Qt, half.T @ AQt, half.T @ noise @ half
        return replace(
            state, Qt=Qt, AQt=AQt, noise=noise, next=_find_directions(R, least), Z=Z, theta=theta[:k], kkt=kkt, gap=gap
        )

    def _multiply(self, state: KrylovState) -> Round[tuple[Array, Array]]:
        """What was multiplied, exactly as the clients had it, and the sum of their products."""
        if not self.rounded:
            replies = yield from complete(Ask(self.product_task, {"Z": state.next}, Sum("Y")))
            return state.next, replies.total["Y"]
        codes, scale = to_grid(state.next, self.grid)
        arrays = {"Z": codes, "scale": scale, "step": np.array(state.step)}
        V, moments = from_grid(codes, scale), state.moments
        expected = predict_sum(state.Qt, state.AQt, V, state.step, moments.trace, moments.clients)
        Y = yield from ask_near(Ask(self.product_task, arrays, Sum("Y")), "Y", expected)
        return from_grid(codes, scale), Y * state.step  # a site that repeats this has what came in `codes` now

    def done(self, state: KrylovState) -> bool:
        return state.kkt <= self.tol or state.next.shape[1] == 0

    def metrics(self, state: KrylovState) -> dict[str, float]:
        return super().metrics(state) | {"gap": state.gap}


@dataclass(frozen=True)
class Davidson(Krylov):
    """Block Krylov that opens with each client's own `columns` leading eigenpairs (default 5·k) at 8 bits.

    What the opening shows: the server sees **every client's own leading subspace and variances**, by itself, not
    summed; secure aggregation cannot hide it. It is for silos that may share that. From it the server makes the guess
    M̃, the start and the corrections (M̃ - θ)⁻¹R, which saves more than half of the rounds.
    """

    columns: int | None = None

    def __post_init__(self) -> None:
        check_columns(self.columns)

    def asks(self) -> frozenset[str]:
        return super().asks() | {"leading"}

    def replay(self) -> Replay | str:
        return "its opening shows every client's own eigenpairs, not a sum"

    def init(self, rng: Streams) -> Round[KrylovState]:
        state = yield from super().init(rng)
        d = len(state.moments.mean)
        count = min(self.columns or 5 * self.k, d - 1 if d > 1 else 1)
        ask = Ask("leading", {"count": np.array(count), "size": np.array(d)})
        opened = (yield from complete(ask)).each.values()
        P, lam = low_rank_sum((from_grid(a["U"], a["scale"]) * np.sqrt(a["w"]) for a in opened), most=4 * count)
        return replace(state, P=P, lam=lam, next=P[:, : self.k] if len(lam) >= self.k else state.next)


def check_columns(columns: int | None) -> None:
    """Refuse `columns` that are neither None nor a whole number of at least 1."""
    if columns is not None and (not isinstance(columns, int) or isinstance(columns, bool) or columns < 1):
        raise InputError(f"columns must be None or a whole number of at least 1, but is {columns!r}.")


def _carry_errors(noise: Array, L: Array) -> Array:
    """The Gram matrix of rounding errors after [Q V] became [Q U], where the columns of V bring fresh errors."""
    m, w = len(noise), L.shape[0] - len(noise)
    before = scipy.linalg.block_diag(noise, np.eye(w))
    full = np.hstack([np.eye(m + w)[:, :m], L])
    return full.T @ before @ full


def _least_direction(tol: float, k: int) -> float:
    """The size, over the trace, below which a residual is not worth a column: all of them together are below tol / 10.

    Those near 1e-15 are rounding errors, and point anywhere.
    """
    return min(max(0.1 * tol / np.sqrt(k), 1e-15), 1e-13)


def _find_directions(R: Array, least: float) -> Array:
    """An orthonormal basis of what the residuals hold above that size."""
    U, T, _ = scipy.linalg.qr(R, mode="economic", pivoting=True)
    return U[:, np.abs(np.diagonal(T)) > least]
