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
does: a first block of all these columns, and Nyström's estimate.

What the server sees: Σ B_iΩ_i once (wide: Σ B_iB_iᵀΩ), Σ P_i V in each round, and at the end every client's weights
(_view.py).
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

    `rounded` as there; `width`: columns of the opening and of the first block, "auto" is 3·K, None the narrow form.
    Rows held out, `patience` and `last` as in AltMaxVar; `relative`: the ridge is in units of the mean eigenvalue of
    each view's B_iᵀB_i.
    """

    ridge: float = 0.0
    patience: int = 0
    last: int = field(default=0, repr=False)
    relative: bool = False

    State = ViewsKrylovState  # type: ignore[assignment]
    client: ClassVar[type[Client[object]]] = ViewClient
    family: ClassVar[str] = "gcca"
    product: ClassVar[str] = "fit_view"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return view_options(self.center, self.scale, self.ridge, self.tol, self.relative)

    def asks(self) -> frozenset[str]:
        return view_tasks(self.patience) | {self.sketch_task, self.product_task}

    @property
    def sketch_task(self) -> str:
        """What the opening asks for."""
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
            width = min(self.width if isinstance(self.width, int) else 3 * self.k, J - self.center)
            arrays = {"k": np.array(width), "seed": np.array(int(rng("opening").integers(2**62)))}
            first = Shape(np.ones(J), np.full(width, _TIMES / (self.k * np.sqrt(J))))  # entries of ΣP_iV over I·K
        S = (yield from complete(Ask(self.sketch_task, arrays, Sum("S")))).total["S"]
        return KrylovStart(moments, orthonormalize(S - S.mean(axis=0) if self.center else S.astype(np.float64)), first)

    def init(self, rng: Streams) -> Round[ViewsKrylovState]:
        state = yield from super().init(rng)
        return ViewsKrylovState(**vars(state), t=0, watch=None, answer=None)

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
        super().__post_init__()
        check_columns(self.columns)
        if self.width is not None:
            raise InputError(f"width is for krylov, whose opening is a sum, but is {self.width!r} here; leave it out.")

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
