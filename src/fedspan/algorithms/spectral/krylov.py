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

In the narrow form a round costs what a round of SSI costs, but its answer is the best in the span of all rounds so far,
not of the last one. In the wide form (`width`) the run opens with one more sum (wide_blocks.py), from which a first
block of several times k columns is made; later blocks have 1.5·k. That takes about half of the rounds and as many
bytes. Its estimate is that of Nyström, which is one product ahead of the Ritz vectors. In both, sums must be complete:
Rayleigh-Ritz on a sum over a subset of the clients answers another problem, so those that did not answer are asked
again.

What the server sees: the opening (_moments.py), then Σ M_i V in every round, as in SSI (power.py). The wide form's own
opening is a sum over the clients of random mixes of their leading eigenvectors: with secure sums the server sees what
the clients hold together; without, each client's mix by itself, which shows that client's leading subspace (as the
products M_i V that follow would, too). `Davidson` shows every client's own leading eigenpairs, whatever is secure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.linalg

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import Moments, RowsClient, measure, measure_replay, measure_tasks, measure_turns
from fedspan.algorithms._operator import check_step
from fedspan.algorithms.spectral._eigenspace import Spectral, SpectralState
from fedspan.algorithms.spectral.certified_angle import bound_angles, shrink_by_nystrom
from fedspan.algorithms.spectral.narrow_sums import Shape, ask_near, predict_sum
from fedspan.algorithms.spectral.wide_blocks import (
    OPENING,
    OPENING_ARRAYS,
    ask_opening,
    first_width,
    later_width,
    point_along,
)
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sum, Turn, complete
from fedspan.core.replay import CLOSE, TOGETHER, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid, to_grid
from fedspan.numerics.orthonormal import orthonormalize, random_orthonormal
from fedspan.numerics.precondition import corrections, low_rank_sum
from fedspan.numerics.rayleigh_ritz import Ritz, append_rows, extension, nystrom, rayleigh_ritz

_KEPT_WIDE = 24  # basis vectors of the wide form over k
_ROUNDS_ENOUGH = 5
_ERRORS = 3.0  # how many times its expected size a rounding error may be


class Prior(NamedTuple):
    """A guess of M from an earlier run: its Ritz vectors P (d, p) and values λ (p,)."""

    vectors: Array
    values: Array

    def __repr__(self) -> str:
        """Name the run that starts from it: a checkpoint of a run from another prior belongs to another run."""
        digest = blake2b(self.vectors.tobytes() + self.values.tobytes(), digest_size=8).hexdigest()
        return f"Prior({digest})"


class KrylovStart(NamedTuple):
    """What must be known of the operator, where to start, and what is known of the first sum."""

    moments: Moments
    V: Array
    first: Shape | None = None


@dataclass(frozen=True)
class KrylovState(SpectralState):
    """The span so far, and the best estimate in it; `kkt` includes the rounding errors that it may hide."""

    step: float  # Δ
    P: Array  # (d, p) the guess of M, no columns if there is none
    lam: Array  # (p,)
    Qt: Array  # (m, d) Qᵀ: rows can be added without copying those that are there
    AQt: Array  # (m, d)
    noise: Array  # (m, m) the Gram matrix of the columns' rounding errors, in units of one rounded column
    next: Array  # (d, w) the next block; no columns if the span holds all there is
    gap: float  # θ_k - θ_{k+1}: if it is small, the k-th component is hardly determined; nan while θ_{k+1} still moves
    beyond: float  # θ_{k+1}; nan if there is none
    angles: Array  # (k,) b_1 … b_k of numerics/certified_angle.py: twice that is a bound; infinite in the narrow form
    before: Array  # (k,) those of the round before
    last: int  # columns of the block before
    rounds: int
    settled: bool  # whether what is outside of the k components can be told from them
    first: Shape | None  # of the wide form: what its opening says of the first sum
    floor: float = field(default=0.0, kw_only=True)  # what rounding makes of a Ritz value that is zero

    def known_floor(self) -> float:
        return self.floor

    def known_angles(self) -> Array | None:
        if self.first is None:
            return None
        agreed = np.where(self.before < 1, self.angles, np.nan)  # two rounds must agree
        return np.where(self.angles == 0, 0.0, np.where(self.angles >= 1, np.inf, agreed))

    def known_basis(self) -> tuple[Array, Array] | None:
        return (self.Qt.T, self.AQt.T) if len(self.Qt) else None


@dataclass(frozen=True)
class Krylov(Spectral[KrylovState]):
    """Block Krylov until the scaled KKT violation is at most `tol`.

    The server keeps at most `keep`·k basis vectors; when there are more it restarts from the leading half of the Ritz
    vectors (12 costs no rounds, 8 seldom one, 4 up to half as many again, 3 can fail). `rounded` sends V to `grid`
    bits a number and M_i V as whole multiples of one Δ, so coarse that the asked-for `tol` is just reached. A `prior`
    from a run on nearly the same data is the start, and the guess M̃ that corrects residuals; it takes the place of an
    opening. `width` is how many columns the first block has: "auto" is 6·k (4·k if d < 12·k), None the narrow form.
    `angle_tol` (wide form, not rounded) stops by the bound on the angle to the exact components instead of `tol`: when
    2·b_k is at most that, and b_k was below 1 in the round before.
    """

    k: int = 2
    tol: float = 1e-6
    center: bool = True
    scale: bool = False
    keep: int = 12
    rounded: bool = False
    grid: int = 8
    prior: Prior | None = None
    width: int | str | None = None
    angle_tol: float | None = None

    State = KrylovState
    client: ClassVar[type[Client[object]]] = RowsClient
    product: ClassVar[str] = "multiply"  # the task of the product M_i V; on a grid: with "_on_grid" behind it

    def __post_init__(self) -> None:
        check_width(self.width, self.k)
        check_angle_tol(self.angle_tol, self.wide, self.rounded)

    @property
    def wide(self) -> bool:
        """Whether the run has an opening of its own and a wide first block."""
        return self.width is not None and self.prior is None

    @property
    def product_task(self) -> str:
        """The task that these options ask for the product."""
        return f"{self.product}_on_grid" if self.rounded else self.product

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"columns": 12 * self.k}

    def asks(self) -> frozenset[str]:
        return measure_tasks(self.center, self.scale) | {self.product_task} | ({OPENING} if self.wide else set())

    def course(self) -> Course:
        wide = (Turn(OPENING, after=["settle"]),) if self.wide else ()
        return Course((*measure_turns(self.center, self.scale), *wide), (Turn(self.product_task, after=["settle"]),))

    def replay(self) -> Replay | str:
        if self.prior is not None:
            return "it starts from an earlier model, which the sites do not have"
        if self.tol < 1e-12:
            return "tol is below 1e-12, where rounding decides what is asked next"
        tol = 0.05 if self.rounded or self.tol < 1e-8 else 1e-3
        block: dict[str, Comparison] = {"Z": Basis(tol)}
        if self.rounded:
            block = {"Z": Basis(tol, grid="scale"), "scale": TOGETHER, "step": CLOSE}
        opened: dict[str, dict[str, Comparison]] = {OPENING: dict.fromkeys(OPENING_ARRAYS, CLOSE)} if self.wide else {}
        return {**measure_replay(self.center, self.scale), **opened, self.product_task: block}

    def accept(self, state: KrylovState, arrays: Arrays) -> KrylovState | None:
        """Any basis of what M has added to the span: rounding decides which, if Ritz values (nearly) coincide."""
        if self.done(state) and state.next.size:
            if state.kkt < 0.1 * self.tol:
                return None
            # A restart that cuts between equal Ritz values keeps one or the other, and then rounding decides when tol
            # is met.
            state = replace(state, kkt=float(np.nextafter(self.tol, np.inf)))
        V, trace, most = arrays.get("Z"), state.moments.trace or 1.0, self._next_width
        if V is None or not len(state.Qt) or V.ndim != 2 or len(V) != state.Qt.shape[1] or V.shape[1] > most:
            return None
        if self.rounded:
            V = from_grid(V, arrays.get("scale", np.ones(1)))
        Q, AQ = state.Qt.T, state.AQt.T
        W = AQ - Q @ (Q.T @ AQ)
        U, s, _ = np.linalg.svd(W - Q @ (Q.T @ W), full_matrices=False)
        U = U[:, s > 0.1 * _least_direction(self.tol, most) * trace]
        inside = U @ (U.T @ V)
        if not np.linalg.norm(V - inside) <= (0.05 if self.rounded or self.tol < 1e-8 else 1e-3) * np.sqrt(V.shape[1]):
            return None
        return replace(state, next=orthonormalize(inside) if self.rounded else np.array(V))

    @property
    def _next_width(self) -> int:
        """Columns of every block but the first."""
        return later_width(self.k) if self.wide else self.k

    def opening(self, rng: Streams) -> Round[KrylovStart]:
        """All that is asked before the first round."""
        moments = yield from measure(self.center, self.scale)
        d = len(moments.mean)
        if not self.wide:
            return KrylovStart(moments, random_orthonormal(rng("start"), d, self.k))
        V, first = yield from ask_opening(moments, self.k, first_width(self.width, d, self.k), rng)
        return KrylovStart(moments, V, first)

    def init(self, rng: Streams) -> Round[KrylovState]:
        moments, V, first = yield from self.opening(rng)
        d, nothing = len(moments.mean), np.zeros((len(moments.mean), 0))
        P, lam = (nothing, np.zeros(0)) if self.prior is None else self.prior
        lam = lam / moments.unit / moments.unit
        if len(lam) >= self.k:
            V = P[:, : self.k]
        # Δ: the rounding errors of all clients make at most half of the violation that tol allows.
        step = 0.5 * self.tol * moments.trace / np.sqrt(moments.clients * d * self.k / 12) if self.rounded else 0.0
        if self.rounded:
            check_step(moments.trace, step)
        return KrylovState(
            moments,
            Z=V[:, : self.k],
            theta=np.zeros(self.k),
            kkt=np.inf,
            step=float(step),
            P=P,
            lam=lam,
            Qt=nothing.T,
            AQt=nothing.T,
            noise=np.zeros((0, 0)),
            next=V,
            gap=np.nan,
            beyond=np.nan,
            angles=np.full(self.k, np.inf),
            before=np.full(self.k, np.inf),
            last=0,
            rounds=0,
            settled=first is None,
            first=first,
        )

    def round(self, state: KrylovState, rng: Streams) -> Round[KrylovState]:
        k, trace = self.k, state.moments.trace or 1.0
        V, Y, lead = yield from self.multiply_block(state)
        U, L = extension(state.Qt.T, V)
        wide, more = state.first is not None, self._next_width
        m, room = len(state.Qt), max(self.keep, _KEPT_WIDE if wide else 0) * k
        Qt, AQt = append_rows(state.Qt, U.T, room), append_rows(state.AQt, L[:m].T @ state.AQt + L[m:].T @ Y.T, room)
        Q, AQ = Qt.T, AQt.T
        noise = _carry_errors(state.noise, L)
        ritz = rayleigh_ritz(Q, AQ, len(Qt) if wide else k)
        theta, S, R = ritz
        Z, values = Q @ S[:, :k], theta[:k]
        unit = state.moments.clients * len(Q) * state.step**2 / 12  # the squared rounding error of one column
        errors = np.sqrt(unit * np.sum(S * (noise @ S), axis=0))
        kkt = float(np.sqrt(np.sum(R[:, :k] ** 2) + np.sum(errors[:k] ** 2))) / trace
        beyond = float(theta[k]) if len(theta) > k else np.nan
        angles = np.full(k, np.inf)
        least = _least_direction(self.tol, more) * trace
        settled = True
        if wide:
            settled = self._is_settled(state.rounds + 1, ritz, trace)
            better = nystrom(AQ, ritz, k, max(1e-12 * float(theta[0]), _ERRORS * float(errors.max(initial=0.0))))
            values, Z = (values, Z) if better is None else better
            angles = bound_angles(theta, R, errors, k)
            if better is not None:
                missed = _find_missed(state.Qt, state.AQt, U, AQt[m:])
                angles = shrink_by_nystrom(angles, R, errors, Z - Q @ (Q.T @ Z), missed)
            R = _take_first(R, least, more) if lead is None else trace * point_along(lead, Q, R)
        elif len(state.lam) and np.all(theta[:k] > 0) and _find_directions(R, least).size:
            corrected = corrections(R, theta[:k], state.P, state.lam)
            corrected -= Q @ (Q.T @ corrected)
            if size := np.linalg.norm(corrected):
                R = corrected * (np.linalg.norm(R) / size)  # of the size of R: what is negligible there is so here
        if len(Qt) + more > room:  # thick restart
            half = S[:, : room // 2]
            Qt, AQt, noise = half.T @ Qt, half.T @ AQt, half.T @ noise @ half
        block = _find_directions(R, least)
        if wide and not block.size:  # M maps the span into itself: the components are exact
            angles = np.where(np.append(theta, 0.0)[:k] - np.append(theta, [0.0, 0.0])[1 : k + 1] > least, 0.0, np.inf)
        return replace(
            state,
            Qt=Qt,
            AQt=AQt,
            noise=noise,
            next=block,
            Z=Z,
            theta=values,
            kkt=kkt,
            gap=_honest_gap(theta, k, state.beyond, exact=not block.size and (wide or len(Qt) == len(Q))),
            beyond=beyond,
            angles=angles,
            before=state.angles,
            last=U.shape[1],
            rounds=state.rounds + 1,
            settled=settled,
            floor=_ERRORS * float(errors[:k].max(initial=0.0)),
        )

    def _is_settled(self, rounds: int, ritz: Ritz, trace: float) -> bool:
        """Whether a wide run may end: its start favoured some directions, so a small residual alone is no proof.

        Other Ritz pairs must not reach up to the k-th, by what they may be off, or there were enough rounds for the
        random columns of the first block to bring up whatever was missed.
        """
        k = self.k
        if rounds < 2 or len(ritz.theta) <= k:
            return False
        reach = ritz.theta[k:] + np.linalg.norm(ritz.R[:, k:], axis=0)
        return rounds >= _ROUNDS_ENOUGH or bool(reach.max() <= ritz.theta[k - 1] + 10 * self.tol * trace)

    def multiply_block(self, state: KrylovState) -> Round[tuple[Array, Array, Array | None]]:
        """What was multiplied, exactly as the clients had it, the sum of their products, and where else to look."""
        if not self.rounded:
            replies = yield from complete(Ask(self.product_task, {"Z": state.next}, Sum("Y")))
            return state.next, replies.total["Y"], None
        codes, scale = to_grid(state.next, self.grid)
        arrays = {"Z": codes, "scale": scale, "step": np.array(state.step)}
        V, moments = from_grid(codes, scale), state.moments
        expected = predict_sum(
            state.Qt, state.AQt, V, state.step, moments.trace, moments.clients, state.last, state.first
        )
        Y = yield from ask_near(Ask(self.product_task, arrays, Sum("Y")), "Y", expected)
        return from_grid(codes, scale), Y * state.step, None  # a site that repeats this has what came in `codes` now

    def done(self, state: KrylovState) -> bool:
        if self.angle_tol is None:
            enough = state.kkt <= self.tol
        else:
            enough = 2 * state.angles[-1] <= self.angle_tol and state.before[-1] < 1
        return bool(enough and state.settled) or state.next.shape[1] == 0

    def metrics(self, state: KrylovState) -> dict[str, float]:
        angle = {"angle": float(state.angles[-1])} if state.first is not None else {}
        return super().metrics(state) | {"gap": state.gap * state.moments.unit**2} | angle


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
        if self.width is not None:
            raise InputError(f"width is for krylov, whose opening is a sum, but is {self.width!r} here; leave it out.")
        check_angle_tol(self.angle_tol, self.wide, self.rounded)

    def asks(self) -> frozenset[str]:
        return super().asks() | {"leading"}

    def course(self) -> Course:
        course = super().course()
        return replace(course, opening=(*course.opening, Turn("leading", after=["settle"])))

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


def check_width(width: int | str | None, k: int) -> None:
    """Refuse a `width` that is neither None nor "auto" nor a whole number of at least k."""
    whole = isinstance(width, int) and not isinstance(width, bool)
    if width is not None and width != "auto" and not (whole and int(width) >= k):
        raise InputError(
            f"width must be None, 'auto' or a whole number of at least the {k} components, but is {width!r}."
        )


def check_angle_tol(angle_tol: float | None, wide: bool, rounded: bool) -> None:
    """Refuse an `angle_tol` that is out of range, or that the run could not certify."""
    if angle_tol is None:
        return
    if not 1e-10 <= angle_tol < 1:
        raise InputError(f"angle_tol must be from 1e-10 to below 1, but is {angle_tol!r}.")
    if not wide or rounded:
        raise InputError(
            "angle_tol needs krylov with a width, without bits='auto' and without a warm start: only then there is a "
            "bound on the angle. Leave it out, or change the solver."
        )


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


def _find_missed(Qt: Array, AQt: Array, U: Array, MUt: Array) -> float:
    """How large (M - M̂) U is for the block U that was multiplied last and the Nyström approximation M̂ before it.

    That block holds the directions of which M̂ missed most. It is known now, so the median of the singular values is
    taken, not the largest, for what may be left outside of it.
    """
    if not len(Qt):
        return float(np.linalg.norm(MUt, 2))
    T = Qt @ AQt.T
    theta, S = scipy.linalg.eigh((T + T.T) / 2)
    kept = theta > 1e-12 * theta[-1]
    Ft = (S[:, kept] / np.sqrt(theta[kept])).T @ AQt
    return float(np.median(np.linalg.svd(MUt - (Ft @ U).T @ Ft, compute_uv=False)))


def _honest_gap(theta: Array, k: int, before: float, exact: bool) -> float:
    """θ_k - θ_{k+1}, or nan while θ_{k+1} still moves (it was `before`): it may yet be much larger than it looks.

    A narrow span that M maps into itself says nothing of eigenvalues that occur more often than it has columns. One
    that is nearly zero is known in any case, as θ_{k+1} can only grow.
    """
    values = np.append(theta, np.zeros(k + 1))
    gap, last = float(values[k - 1] - values[k]), float(values[k - 1])
    known = exact or gap <= 1e-6 * last or (len(theta) > k and abs(float(theta[k]) - before) <= 0.1 * gap)
    return gap if known else np.nan


def _take_first(R: Array, least: float, most: int) -> Array:
    """The residuals of the first `most` Ritz vectors that have one."""
    return R[:, np.flatnonzero(np.linalg.norm(R, axis=0) > least)[:most]]


def _find_directions(R: Array, least: float) -> Array:
    """An orthonormal basis of what the residuals hold above that size."""
    U, T, _ = scipy.linalg.qr(R, mode="economic", pivoting=True)
    return U[:, np.abs(np.diagonal(T)) > least]
