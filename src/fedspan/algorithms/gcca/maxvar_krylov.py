"""Block Krylov on views: MAX-VAR GCCA in a few rounds, by the code that PCA uses (spectral/krylov.py).

The problem is (7) of:
    S. Shrestha, X. Fu. Communication-Efficient Federated Linear and Deep Generalized Canonical Correlation Analysis.
    IEEE Trans. Signal Process., 2023. https://arxiv.org/abs/2109.12400
The method is in none of the papers: the best G spans the leading eigenvectors of a sum of operators that are held
apart, as in PCA.

Notation: P = Σ P_i (J, J) the sum of the views' projectors (see _view.py), Ω_i random (N_i, K), θ the eigenvalues of P.
The KKT violation is scaled by I·K, the largest that Σθ can be, where PCA scales by the trace: tr(P) is the number of
features, and says nothing of K components.

In the wide form (`width`) the run opens with Σ B_iB_iᵀΩ of 3·K columns for one random Ω, and goes on as that of PCA
does: a first block of all these columns, and Nyström's estimate. Large and sparse views have many directions that
agree a little by chance, among which P alone finds its way slowly. `local_rank` adds a second operator ΣT_i, of each
view cut to its r leading directions: the run opens with ΣT_iΩ of 4·K columns, every round returns Σ T_iV beside Σ P_iV,
and the next block is what of it is new. The answer is still that of P. A round takes about three times the bytes.

What the server sees: Σ B_iΩ_i once (wide: Σ B_iB_iᵀΩ), Σ P_i V in each round, and at the end every client's weights
(_view.py); with `local_rank` Σ T_iΩ and Σ T_iV, too. Without secure sums each T_iV is shown by itself, and so what a
view holds most of (as P_iV shows the span of all of its features).
`MaxVarDavidson` opens with each view cut to low rank instead of Σ B_iΩ_i: fewer rounds, and the server sees each view's
leading subspace.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np

from fedspan._types import Array
from fedspan.algorithms._moments import Moments
from fedspan.algorithms.gcca._view import (
    ViewClient,
    open_views,
    send_common,
    view_opening,
    view_options,
    view_rounds,
    view_tasks,
)
from fedspan.algorithms.gcca._weigh import (
    NOT_SUMS_OF_VIEWS,
    Answer,
    Watch,
    ask_weights,
    is_out_of_patience,
    view_metrics,
    watch_held_out,
)
from fedspan.algorithms.gcca.altmaxvar import ask_low_rank
from fedspan.algorithms.spectral.krylov import Krylov, KrylovStart, KrylovState, check_columns
from fedspan.algorithms.spectral.narrow_sums import Shape
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sum, complete
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid, to_grid
from fedspan.numerics.maxvar import common_step
from fedspan.numerics.orthonormal import orthonormalize

_TIMES = 8.0  # entries of a product are hardly ever larger than that many times their root mean square


@dataclass(frozen=True)
class ViewsKrylovState(KrylovState):
    """The span, the rounds that led to it, and the weights once they are asked for."""

    t: int
    watch: Watch | None
    answer: Answer | None


@dataclass(frozen=True)
class MaxVarKrylov(Krylov):
    """Block Krylov on P = Σ P_i: the same code as for PCA, begun from data (Σ B_iΩ_i) instead of at random.

    `rounded` as there; `width`: columns of the opening and of the first block, "auto" is 3·K (4·K with a second
    operator), None the narrow form; `local_rank`: columns of each view's leading part T_i (10·K, say), with a width.
    Rows held out, `patience` and `last` as in AltMaxVar; `relative`: the ridge is in units of the mean eigenvalue of
    each view's B_iᵀB_i.
    """

    ridge: float = 0.0
    patience: int = 0
    last: int = field(default=0, repr=False)
    relative: bool = False
    local_rank: int | None = None

    State = ViewsKrylovState  # type: ignore[assignment]
    client: ClassVar[type[Client[object]]] = ViewClient
    family: ClassVar[str] = "gcca"
    product: ClassVar[str] = "fit_view"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local_rank(self.local_rank, self.width)

    def client_options(self) -> dict[str, float | int | str | bool]:
        options = view_options(self.center, self.scale, self.ridge, self.tol, self.relative)
        return options | ({} if self.local_rank is None else {"local_rank": self.local_rank})

    @property
    def product_task(self) -> str:
        base = self.product if self.local_rank is None else f"{self.product}_twice"
        return f"{base}_on_grid" if self.rounded else base

    def asks(self) -> frozenset[str]:
        return view_tasks(self.patience) | {self.sketch_task, self.product_task}

    @property
    def sketch_task(self) -> str:
        """What the opening asks for."""
        if self.local_rank is not None:
            return "sketch_leading"
        return "sketch_squared" if self.wide else "sketch"

    def course(self) -> Course:
        return Course(view_opening(self.sketch_task), view_rounds(self.product_task, self.patience))

    def replay(self) -> Replay | str:
        return NOT_SUMS_OF_VIEWS

    def opening(self, rng: Streams) -> Round[KrylovStart]:
        J, views = yield from open_views(self.k, self.center, rng)
        moments = Moments(J, np.zeros(J), np.ones(0), float(views * self.k), views)
        arrays, first = {"k": np.array(self.k)}, None
        if self.wide:
            usual = (3 if self.local_rank is None else 4) * self.k
            width = min(self.width if isinstance(self.width, int) else usual, J - self.center)
            arrays = {"k": np.array(width), "seed": np.array(int(rng("opening").integers(2**62)))}
            first = Shape(np.ones(J), np.full(width, _TIMES / (self.k * np.sqrt(J))))  # entries of ΣP_iV over I·K
        S = (yield from complete(Ask(self.sketch_task, arrays, Sum("S")))).total["S"]
        return KrylovStart(moments, orthonormalize(S - S.mean(axis=0) if self.center else S.astype(np.float64)), first)

    def init(self, rng: Streams) -> Round[ViewsKrylovState]:
        state = yield from super().init(rng)
        return ViewsKrylovState(**vars(state), t=0, watch=None, answer=None)

    def multiply_block(self, state: KrylovState) -> Round[tuple[Array, Array, Array | None]]:
        if self.local_rank is None:
            return (yield from super().multiply_block(state))
        arrays, V = {"Z": state.next}, state.next
        if self.rounded:
            codes, scale = to_grid(V, self.grid)
            arrays, V = {"Z": codes, "scale": scale, "step": np.array(state.step)}, from_grid(codes, scale)
        total = (yield from complete(Ask(self.product_task, arrays, Sum("Y", "E")))).total
        return V, total["Y"] * (state.step or 1.0), total["E"] / (64 * np.sqrt(len(V)))

    def round(self, state: ViewsKrylovState, rng: Streams) -> Round[ViewsKrylovState]:  # type: ignore[override]
        found = cast(ViewsKrylovState, (yield from super().round(state, rng)))  # of the class that it was given
        state = replace(found, t=state.t + 1, answer=None)
        if self.patience:
            sent = send_common(state.Z, self.rounded)
            state = replace(state, watch=(yield from watch_held_out(state.watch, state.Z, sent, state.t)))
        if self.done(state) or state.t == self.last:
            state = replace(state, answer=(yield from self.close(state)))
        return state

    def close(self, state: ViewsKrylovState) -> Round[Answer]:
        """What is asked at the end."""
        return (yield from ask_weights(state.watch.G if state.watch else state.Z, self.rounded))

    def done(self, state: KrylovState) -> bool:
        watch, t = (state.watch, state.t) if isinstance(state, ViewsKrylovState) else (None, 0)
        return super().done(state) or is_out_of_patience(watch, t, self.patience)

    def estimate(self, state: KrylovState) -> Array:
        return state.answer.G if isinstance(state, ViewsKrylovState) and state.answer else state.Z

    def metrics(self, state: KrylovState) -> dict[str, float]:
        cost = 0.5 * (state.moments.clients * self.k - float(state.theta.sum()))
        watch = state.watch if isinstance(state, ViewsKrylovState) else None
        return view_metrics(cost, state.kkt, watch) | {"gap": state.gap}


@dataclass(frozen=True)
class MaxVarDavidson(MaxVarKrylov):
    """Block Krylov that opens as MVLSA does: each view's `columns` leading left singular vectors (default 3·K), 8 bits.

    What the opening shows: the server sees **every view's own leading subspace**, by itself, not summed. From it the
    server makes the guess P̃ of P, the start (the answer of MVLSA) and the corrections (P̃ - θ)⁻¹R.
    """

    columns: int | None = None

    def __post_init__(self) -> None:
        check_columns(self.columns)
        if self.width is not None:
            raise InputError(f"width is for krylov, whose opening is a sum, but is {self.width!r} here; leave it out.")
        super().__post_init__()

    def asks(self) -> frozenset[str]:
        return (super().asks() - {"sketch"}) | {"reduce"}

    def course(self) -> Course:
        return replace(super().course(), opening=view_opening("reduce"))

    def opening(self, rng: Streams) -> Round[KrylovStart]:
        J, views = yield from open_views(self.k, self.center, rng)
        return KrylovStart(Moments(J, np.zeros(J), np.ones(0), float(views * self.k), views), np.zeros((J, self.k)))

    def init(self, rng: Streams) -> Round[ViewsKrylovState]:
        state = yield from super().init(rng)
        vectors, values = yield from ask_low_rank(self.k, self.columns or 3 * self.k)
        start = common_step(vectors[:, : self.k], center=self.center)
        return replace(state, P=vectors, lam=values, next=start, Z=start)


def check_local_rank(local_rank: int | None, width: int | str | None) -> None:
    """Refuse a `local_rank` that is neither None nor a whole number of at least 1, or that has no width."""
    if local_rank is None:
        return
    if not isinstance(local_rank, int) or isinstance(local_rank, bool) or local_rank < 1:
        raise InputError(f"local_rank must be None or a whole number of at least 1, but is {local_rank!r}.")
    if width is None:
        raise InputError("local_rank needs the wide form of krylov: give width='auto', or leave local_rank out.")
