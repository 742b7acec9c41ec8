"""MAX-VAR GCCA whose weights stay at the clients, and GCCA of entities that not every client has.

The problem is (7) of CuteMaxVar's paper (maxvar_krylov.py), the method block Krylov. With missing entities it is the
weighted problem: maximise tr GᵀΣ(E_iP_iE_iᵀ)G over GᵀDG = m·I.

Notation: J entities, I (here m) views; E_i (J, n_i) picks the entities that client i has, B_i (n_i, N_i) its view of
these, centred over them, P_i the projector of B_i, D = Σ E_iE_iᵀ (J, J) diagonal: how many views each entity has.
With G = √m·D^-½Z this is the leading eigenspace Z of D^-½Σ(E_iP_iE_iᵀ)D^-½: the server applies D^-½, so that clients
need not know it. T_i = GᵀE_iP_iE_iᵀG (K, K). If nobody lacks an entity, D = m·I, and all is as in maxvar_krylov.py.

What the server sees: how many rows each client has and a digest of their ids (entities.py); with missing entities D,
that is how many views each entity has, and without secure sums each client's own part of it, which says whom it lacks;
the sums of maxvar_krylov.py; and at the end Σ T_i, the sum of the views' correlations with G and of the shares of
variance that G explains. Weights, offsets, means and deviations stay at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms._moments import Moments, describe_not_finite
from fedspan.algorithms._operator import round_product
from fedspan.algorithms.gcca._view import ViewClient, ViewState
from fedspan.algorithms.gcca._weigh import Answer
from fedspan.algorithms.gcca.entities import MATCH_TASKS, MATCH_TURNS, Entities, match_entities
from fedspan.algorithms.gcca.maxvar_krylov import MaxVarKrylov, ViewsKrylovState
from fedspan.algorithms.spectral.krylov import KrylovStart, KrylovState
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, TOGETHER, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid, to_grid
from fedspan.numerics.orthonormal import fix_signs, orthonormalize
from fedspan.numerics.view_projector import View

Missing = Literal["none", "mask", "drop"]


@dataclass(frozen=True)
class KeptState(ViewState):
    """What a client remembers besides: whom it has, which rows count (drop), and at the end what is its own."""

    present: Array | None = None  # (J,) which entities it has, if some may be missing
    rows: Array | None = None  # the positions of complete rows
    weights: Array | None = None  # (N_i, K) for features as they are, not centred or scaled
    offset: Array | None = None  # (K,)
    correlations: Array | None = None  # (K,) of its M_i with G
    explained: float = 0.0


class KeptView(ViewClient):
    """A view whose weights stay here. With `missing`, rows of NaN are entities that this client does not have."""

    State = KeptState

    def __init__(
        self,
        data: Entities | Matrix,
        center: bool = True,
        scale: bool = False,
        ridge: float = 0.0,
        accuracy: float = 1e-10,
        relative: bool = False,
        missing: str = "none",
    ) -> None:
        super().__init__(data, center, scale, ridge, accuracy, relative=relative)
        self.partial = missing != "none"
        self.opened: tuple[bytes, View] | None = None

    def init(self) -> KeptState:
        return KeptState()

    @task(
        releases={"D": None, "features": None, "rank": None},
        shows="which entities it lacks, its number of features, and how many of them are independent",
    )
    def locate(self, state: KeptState, arrays: Arrays, rng: Streams) -> tuple[KeptState, Arrays]:
        """Its part of D, and how many components its view can hold."""
        present = find_present(self.entities)
        view, _ = self._open(state)
        check_partial_view(view)
        counts = {"features": np.array(view.N), "rank": np.array(view.rank)}
        return replace(state, present=present), {"D": present.astype(np.int64), **counts}

    @task(releases={"rank": None}, shows="how many of its features are independent among the complete rows")
    def restrict(self, state: KeptState, arrays: Arrays, rng: Streams) -> tuple[KeptState, Arrays]:
        """Only these rows count from now on."""
        state = replace(state, rows=np.array(arrays["rows"]))
        view, _ = self._open(state)
        check_partial_view(view)
        return state, {"rank": np.array(view.rank)}

    @task(releases={"S": None}, shows="a few random combinations of its features for each entity that it has, rounded")
    def sketch_located(self, state: KeptState, arrays: Arrays, rng: Streams) -> tuple[KeptState, Arrays]:
        """E_iB_iΩ of unit size, to about 6 bits a number."""
        view, rows = self._open(state)
        S = view.times(rng("sketch").normal(size=(view.N, int(arrays["k"]))))
        codes = np.rint(S * (16 * np.sqrt(S.size) / np.linalg.norm(S))).astype(np.int64)
        return state, {"S": spread_rows(codes, rows, self.view.J)}

    @task(
        releases={"Y": None}, shows="the server's blocks projected on the span of its features, where it has entities"
    )
    def fit_located(self, state: KeptState, arrays: Arrays, rng: Streams) -> tuple[KeptState, Arrays]:
        """E_iP_iE_iᵀZ."""
        return state, {"Y": self._project(state, arrays["Z"])}

    @task(
        releases={"Y": None},
        shows="the server's blocks projected on the span of its features, where it has entities, rounded",
    )
    def fit_located_on_grid(self, state: KeptState, arrays: Arrays, rng: Streams) -> tuple[KeptState, Arrays]:
        """E_iP_iE_iᵀV̂ in whole multiples of the run's step."""
        return state, {"Y": round_product(lambda V: self._project(state, V), arrays)}

    @task(
        releases={"T": None, "correlations": None, "explained": None},
        shows="how well its view agrees with the common representation (no weights)",
    )
    def keep_weights(self, state: KeptState, arrays: Arrays, rng: Streams) -> tuple[KeptState, Arrays]:
        """The weights that answer for G are kept; T_i, the correlations of M_i with G, the share that G explains."""
        view, rows = self._open(state)
        G = np.asarray(arrays["G"][rows], dtype=np.float64)
        Q = view.solve(G)
        M = view.times(Q)
        inner = G - G.mean(axis=0) if view.mu is not None else G
        size = np.linalg.norm(M, axis=0) * np.linalg.norm(inner, axis=0)
        agreement = np.einsum("ij,ij->j", M, inner)
        correlations = np.divide(agreement, size, out=np.zeros_like(agreement), where=size > 0)
        across = view.cross(inner)
        inside = np.linalg.lstsq(inner.T @ inner, across.T)[0]
        explained = float(np.sum(across.T * inside)) / float(view.column_squares.sum())
        weights = Q if view.s is None else Q / view.s[:, None]
        offset = np.zeros(Q.shape[1]) if view.mu is None else view.mu @ weights
        kept = replace(state, weights=weights, offset=offset, correlations=correlations, explained=explained)
        return kept, {"T": G.T @ M, "correlations": correlations, "explained": np.array(explained)}

    def _open(self, state: KeptState) -> tuple[View, Array]:
        """The view of the rows that count, and where they stand."""
        if not self.partial:
            return self.view, np.arange(self.view.J)
        rows = np.flatnonzero(find_present(self.entities)) if state.rows is None else state.rows
        key = rows.tobytes()
        if self.opened is None or self.opened[0] != key:
            given = self.view
            X = select_rows(self.entities.X, rows)
            view = View(X, given.center, given.scale, given.given_ridge, given.accuracy, given.relative)
            self.opened = (key, view)
        return self.opened[1], rows

    def _project(self, state: KeptState, V: Array) -> Array:
        view, rows = self._open(state)
        return spread_rows(view.project(V[rows]), rows, self.view.J)


def find_present(entities: Entities) -> Array:
    """Which entities a client has: those of its mask, else those whose rows are not all NaN."""
    X, given = entities.X, entities.present
    if given is not None:
        present = np.asarray(given, dtype=bool)
        if present.shape != (X.shape[0],):
            raise InputError(
                f"A mask must say of each of the {X.shape[0]} rows whether the entity is there, but has shape "
                f"{present.shape}."
            )
        return present
    if sp.issparse(X) or X.dtype.kind != "f":
        return np.ones(X.shape[0], dtype=bool)
    gaps = np.isnan(X)
    empty = gaps.all(axis=1)
    holes = int(np.sum(gaps.any(axis=1) & ~empty))
    if holes:
        raise InputError(
            f"An entity that a view lacks has a row of NaN only, but {holes} rows have NaN in some features. Impute "
            "these values, or leave these rows empty."
        )
    return np.asarray(~empty)


def select_rows(X: Matrix, rows: Array) -> Matrix:
    """Some rows, sparse ones as CSR."""
    return X.tocsr()[rows] if sp.issparse(X) else np.asarray(X[rows])


def spread_rows(Y: Array, rows: Array, J: int) -> Array:
    """Y at those rows of J, and zeros elsewhere."""
    out = np.zeros((J, Y.shape[1]), dtype=Y.dtype)
    out[rows] = Y
    return out


def check_partial_view(view: View) -> None:
    """Refuse a view that says nothing of the entities that it has."""
    if view.J == 0:
        raise InputError("This view has none of the entities. Leave it out.")
    sums = view.column_squares.sum()
    if not np.isfinite(sums):
        raise describe_not_finite(view, drop="those rows from every view")
    if sums == 0 or view.rank == 0:
        raise InputError("All rows of this view are equal, so it says nothing. Leave this view out.")
    if view.ridge == 0 and view.rank >= view.J - view.center:
        raise InputError(
            f"The {view.N} features of this view fit any representation of the {view.J} entities that it has, so they "
            "say nothing. Use fewer features than entities, or ridge > 0."
        )


def ask_locations(k: int, center: bool, missing: str, rng: Streams) -> Round[tuple[Array, int]]:
    """(√D as the problem has it, m): infinite for entities that do not count, because then they have no part."""
    J, views = yield from match_entities(rng)
    total = (yield from complete(Ask("locate", want=Sum("D", "features", "rank")))).total
    D, rank = np.asarray(total["D"], dtype=np.int64), int(total["rank"])
    if missing == "drop":
        rows = np.flatnonzero(views == D)
        if len(rows) < 3:
            raise InputError(
                f"Only {len(rows)} of {J} entities are in all {views} views, which is too few. Use missing='mask'."
            )
        rank = int((yield from complete(Ask("restrict", {"rows": rows}, Sum("rank")))).total["rank"])
        D = np.where(views == D, D, 0)
    here = int(np.sum(D > 0))
    if not np.any(views * (D > 1)):
        raise InputError("No entity is in two views, so the views have nothing to share. Check the ids or the masks.")
    most = min(rank, here - center)
    if k > most:
        raise InputError(f"n_components must be from 1 to {most}, the rank of all views together, but is {k}.")
    return np.where(D > 0, np.sqrt(np.maximum(D, 1)), np.inf), views


@dataclass(frozen=True)
class KeptMaxVar(MaxVarKrylov):
    """Block Krylov as MaxVarKrylov, whose closing leaves the weights at the clients and shows sums only.

    `missing`: "none" (every client has all entities), "mask" (D weighs them by how many views each has) or "drop" (only
    entities that all clients have).
    """

    missing: Missing = "none"

    client: ClassVar[type[Client[object]]] = KeptView

    def __post_init__(self) -> None:
        if self.patience:
            raise InputError("patience looks at what single views say of rows held out. Leave it out.")
        if self.width is not None or self.local_rank is not None:
            raise InputError(
                "width and local_rank are for MaxVarKrylov, whose weights do not stay at the clients. Leave them out."
            )

    @property
    def product_task(self) -> str:
        name = "fit_view" if self.missing == "none" else "fit_located"
        return f"{name}_on_grid" if self.rounded else name

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {**super().client_options(), "missing": self.missing}

    def _list_opening(self) -> tuple[str, ...]:
        if self.missing == "none":
            return ("open_view", "sketch")
        return ("locate", "restrict", "sketch_located") if self.missing == "drop" else ("locate", "sketch_located")

    def asks(self) -> frozenset[str]:
        return MATCH_TASKS | {*self._list_opening(), self.product_task, "keep_weights"}

    def course(self) -> Course:
        names = self._list_opening()
        opening = [Turn(name, after=[before]) for before, name in zip(("identify", *names), names, strict=False)]
        rounds = (Turn(self.product_task, after=[names[-1]]), Turn("keep_weights", rounds=1, after=[names[-1]]))
        return Course((*MATCH_TURNS, *opening), rounds)

    def replay(self) -> Replay | str:
        if self.missing != "none":
            return "with missing entities the blocks that it asks with are not orthonormal"
        if self.tol < 1e-12:
            return "tol is below 1e-12, where rounding decides what is asked next"
        tol = 0.05 if self.rounded or self.tol < 1e-8 else 1e-3
        block: dict[str, Comparison] = {"Z": Basis(tol)}
        if self.rounded:
            block = {"Z": Basis(tol, grid="scale"), "scale": TOGETHER, "step": CLOSE}
        matching: dict[str, dict[str, Comparison]] = {name: {"key": CLOSE} for name in MATCH_TASKS}
        closing: dict[str, dict[str, Comparison]] = {"keep_weights": {"G": Basis()}}
        return {**matching, "open_view": {}, "sketch": {"k": CLOSE}, self.product_task: block, **closing}

    def opening(self, rng: Streams) -> Round[KrylovStart]:
        if self.missing == "none":
            return (yield from super().opening(rng))
        r, views = yield from ask_locations(self.k, self.center, self.missing, rng)
        S = (yield from complete(Ask("sketch_located", {"k": np.array(self.k)}, Sum("S")))).total["S"]
        # The eigenvalues are at most 1, so Σθ is at most K.
        moments = Moments(len(r), np.zeros(len(r)), r, float(self.k), views)
        return KrylovStart(moments, orthonormalize(S.astype(np.float64) / r[:, None]))

    def multiply_block(self, state: KrylovState) -> Round[tuple[Array, Array, Array | None]]:
        if self.missing == "none":
            return (yield from super().multiply_block(state))
        r = state.moments.scale[:, None]
        V = state.next / r
        if not self.rounded:
            Y = (yield from complete(Ask(self.product_task, {"Z": V}, Sum("Y")))).total["Y"]
            return state.next, Y / r, None
        codes, scale = to_grid(V, self.grid)
        arrays = {"Z": codes, "scale": scale, "step": np.array(state.step)}
        Y = (yield from complete(Ask(self.product_task, arrays, Sum("Y")))).total["Y"]
        had = np.where(np.isfinite(r), from_grid(codes, scale) * np.where(np.isfinite(r), r, 0.0), 0.0)
        return had, Y * state.step / r, None

    def close(self, state: ViewsKrylovState) -> Round[Answer]:
        G, views = fix_signs(state.Z.T).T, state.moments.clients
        if self.missing != "none":
            G = np.sqrt(views) * G / state.moments.scale[:, None]
        ask = Ask("keep_weights", {"G": np.ascontiguousarray(G)}, Sum("T", "correlations", "explained"))
        total = (yield from complete(ask)).total
        theta = np.diagonal(total["T"]).copy()
        return Answer(
            ask.arrays["G"],
            theta,
            cost=0.5 * (views * self.k - float(theta.sum())),
            Q={},
            offset={},
            correlations={"": total["correlations"] / views},
            explained={"": float(total["explained"]) / views},
        )

    def metrics(self, state: KrylovState) -> dict[str, float]:
        found = super().metrics(state)
        if self.missing != "none":
            views = state.moments.clients
            found["cost"] = 0.5 * views * (self.k - float(state.theta.sum()))
        return found
