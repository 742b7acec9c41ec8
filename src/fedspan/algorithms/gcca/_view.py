"""A client that holds one view of the entities: what MAX-VAR GCCA asks of it, whatever the solver.

Notation: J entities, K components, I views; B_i (J, N_i) the view of client i, centred and scaled at home, ε the
ridge; Q_i (N_i, K) its weights, M_i = B_i Q_i (J, K), P_i = B_i(B_iᵀB_i + εI)†B_iᵀ, G (J, K) the common representation,
f_i = ½‖B_iQ_i - G‖² + (ε/2)‖Q_i‖²; T_i the part of P_i in the span of the view's r leading left singular vectors. Lines
are those of CuteMaxVar's Algorithm 1 (see altmaxvar.py).

What the server sees in a run: how many rows each client has and a digest of their ids (entities.py), the sums Σ M_i (or
Σ P_i V) and numbers such as Σ f_i. If `reduce` is asked (MVLSA, a start by it, MaxVarDavidson), it sees every view's
leading left singular vectors. At the end (`solve`) it sees every client's weights Q_i, because the model is made of
them, their offsets (K combinations of the means of its features), and how well each view agrees with G. No feature of
an entity, no mean and no deviation is sent as it is. Of rows held out it sees every B_iQ_i: K equations for an entity's
N_i features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms._moments import describe_not_finite
from fedspan.algorithms._operator import round_product
from fedspan.algorithms.gcca.entities import MATCH_TASKS, MATCH_TURNS, Entities, EntitiesClient, match_entities
from fedspan.core.protocol import Ask, Round, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid, to_grid
from fedspan.numerics.orthonormal import draw_mix
from fedspan.numerics.view_projector import View

_SHOWS_PROJECTIONS = "the server's blocks projected on the span of its features (enough of them give that span)"


@dataclass(frozen=True)
class ViewState:
    """What a client remembers: its weights, from which the next solve begins; of an MVLSA start, what makes them."""

    Q: Array | None = None
    W: Array | None = None  # (N_i, m), B_iW the m leading left singular vectors (each shortened by the ridge)


def _round_sketch(S: Array) -> Array:
    """S in whole numbers of about 16."""
    return np.asarray(np.rint(S * (16 * np.sqrt(S.size) / np.linalg.norm(S)))).astype(np.int64)


class ViewClient(EntitiesClient[ViewState]):
    """One view. `local` says how Q_i follows G: "exact", "gradient", or "sgd" with batches of `batch` entities."""

    State = ViewState

    def __init__(
        self,
        data: Entities | Matrix,
        center: bool = True,
        scale: bool = False,
        ridge: float = 0.0,
        accuracy: float = 1e-10,
        local: str = "exact",
        steps: int = 10,
        batch: int = 0,
        relative: bool = False,
        local_rank: int = 0,
    ) -> None:
        self.entities = data if isinstance(data, Entities) else Entities(data)
        self.view = View(self.entities.X, center, scale, ridge, accuracy, relative)
        self.local, self.steps, self.batch, self.local_rank = local, steps, batch, local_rank

    def init(self) -> ViewState:
        return ViewState()

    @task(
        releases={"features": None, "rank": None, "useless": None},
        shows="its number of features, how many of them are independent, and whether that is none or too many",
    )
    def open_view(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """Make ready, and say how many components the view can hold. Whether they will do, the server decides."""
        view = self.view
        sums = view.column_squares.sum()
        if not np.isfinite(sums):  # not at a site of a federation, where such numbers count as missing
            raise describe_not_finite(view, drop="those rows from every view")
        rank = view.rank if sums > 0 else 0
        useless = rank == 0 or (view.ridge == 0 and rank >= view.J - view.center)
        return state, {"features": np.array(view.N), "rank": np.array(rank), "useless": np.array(int(useless))}

    # One entity's features can turn the projector by any amount, so there is no sensitivity.
    @task(releases={"Y": None}, shows=_SHOWS_PROJECTIONS)
    def fit_view(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """P_i Z."""
        return state, {"Y": self.view.project(arrays["Z"])}

    @task(releases={"Y": None}, shows=f"{_SHOWS_PROJECTIONS}, rounded")
    def fit_view_on_grid(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """P_i V̂ in whole multiples of the run's step."""
        return state, {"Y": round_product(self.view.project, arrays)}

    @task(releases={"Y": None, "E": None}, shows=f"{_SHOWS_PROJECTIONS}, and on its main directions among the entities")
    def fit_view_twice(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """P_i Z and T_i Z."""
        return state, {"Y": self.view.project(arrays["Z"]), "E": self._lead(arrays["Z"])}

    @task(
        releases={"Y": None, "E": None},
        shows=f"{_SHOWS_PROJECTIONS}, and on its main directions among the entities, rounded",
    )
    def fit_view_twice_on_grid(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """P_i V̂ in whole multiples of the run's step, and T_i V̂."""
        V = from_grid(arrays["Z"], arrays["scale"])
        return state, {"Y": round_product(self.view.project, arrays), "E": self._lead(V)}

    @task(releases={"S": None}, shows="a few random combinations of its main directions among the entities, rounded")
    def sketch_leading(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """T_iΩ for the Ω (J, k) of a seed that all clients have."""
        Omega = draw_mix(int(arrays["seed"]), self.view.J, int(arrays["k"]))
        return state, {"S": self._lead(Omega / np.sqrt(self.view.J))}

    def _lead(self, V: Array) -> Array:
        """T_i V for columns of unit size, in whole numbers of at most about 64 (a direction to look at, no more)."""
        W = self._leading_weights
        return np.rint(self.view.times(W @ (W.T @ self.view.cross(V))) * (64 * np.sqrt(self.view.J))).astype(np.int64)

    @cached_property
    def _leading_weights(self) -> Array:
        """W (N_i, r) with T_i = (B_iW)(B_iW)ᵀ."""
        S, V = self.view.leading_factor(self.local_rank, np.sqrt(self.view.column_squares))
        return V / np.sqrt(S**2 + self.view.ridge)

    @task(releases={"S": None}, shows="a few random combinations of its features for each entity, rounded")
    def sketch(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """B_iΩ of unit size for a random Ω, to about 6 bits a number: a start need not be finer."""
        k = int(arrays["k"])
        return state, {"S": _round_sketch(self.view.times(rng("sketch").normal(size=(self.view.N, k))))}

    @task(releases={"S": None}, shows="a few random numbers that its features and their variances make of each entity")
    def sketch_squared(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """B_iB_iᵀΩ of unit size for the Ω (J, k) of a seed that all clients have, rounded as `sketch` is."""
        Omega = draw_mix(int(arrays["seed"]), self.view.J, int(arrays["k"]))
        return state, {"S": _round_sketch(self.view.times(self.view.cross(Omega)))}

    @task(releases={"M": None}, shows="a few random combinations of its features for each entity")
    def begin(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """Random weights, so that M_i is as large as G will be (lines 2 to 4)."""
        k = int(arrays["k"])
        Q = rng("Q").normal(size=(self.view.N, k))
        M = self.view.times(Q)
        size = np.sqrt(k) / np.linalg.norm(M)
        return replace(state, Q=Q * size), {"M": M * size}

    @task(
        releases={"U": None, "scale": None},
        shows="the leading left singular vectors of its view: its own main directions among the entities",
    )
    def reduce(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """U S (S² + ε)^-½ of the view's m leading singular vectors (J, m), to 8 bits a number (MVLSA)."""
        S, V = self.view.leading_factor(int(arrays["m"]), rng("leading").normal(size=self.view.N))
        W = V / np.sqrt(S**2 + self.view.ridge)
        codes, scale = to_grid(self.view.times(W))
        return replace(state, W=W), {"U": codes, "scale": scale}

    @task(
        releases={"M": None, "cost": None, "slope": None},
        shows="for each entity what its features say of the common representation, and its part of the cost",
    )
    def update(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """Q_i towards G; M_i, and f_i and ‖∇f_i‖²/(σ_max² + ε) there (lines 18 to 24)."""
        G, view, slope = arrays["G"], self.view, 0.0
        if self.local == "exact":
            Q = view.solve(G, start=_reuse_weights(state.Q, G))
            M = view.times(Q)
        else:
            before = _reuse_weights(state.Q, G)
            if before is None:  # the weights that the views cut to low rank would have
                before = np.zeros((view.N, G.shape[1])) if state.W is None else state.W @ (state.W.T @ view.cross(G))
            Q = self._descend(before, G, rng)
            M = view.times(Q)
            gradient = view.cross(M - G) + view.ridge * Q
            slope = float(np.sum(gradient**2)) / (view.largest + view.ridge)
        cost = 0.5 * (float(np.sum((M - G) ** 2)) + view.ridge * float(np.sum(Q**2)))
        return replace(state, Q=Q), {"M": M, "cost": np.array(cost), "slope": np.array(slope)}

    def _descend(self, Q: Array, G: Array, rng: Streams) -> Array:
        """`steps` steps of length 1/(σ_max² + ε) down f_i (lines 19 to 22)."""
        view, draw = self.view, rng("batches")
        step = 1.0 / (view.largest + view.ridge)
        for _ in range(self.steps):
            if self.local == "sgd":
                at = np.sort(draw.choice(view.J, min(self.batch, view.J), replace=False))
                B = view.some_rows(at)
                gradient = B.T @ (B @ Q - G[at]) * (view.J / len(at)) + view.ridge * Q
            else:
                gradient = view.cross(view.times(Q) - G) + view.ridge * Q
            Q = Q - step * gradient
        return Q

    @task(releases={"H": None}, shows="what its features say of the rows held out")
    def test(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """B_iQ_i of the rows held out, by the weights for the G that comes with it, or by those at hand."""
        Q = self.view.solve(receive_common(arrays)) if "scale" in arrays or "G" in arrays else state.Q
        rows = self.entities.held_out
        if rows is None or Q is None:
            raise InputError("This client has no rows held out of the fit to stop by. Give held_out at every client.")
        Q = Q if self.view.s is None else Q / self.view.s[:, None]
        return state, {"H": np.asarray(rows @ Q) - (0.0 if self.view.mu is None else self.view.mu @ Q)}

    @task(
        releases={"Q": None, "offset": None, "T": None, "MM": None, "GG": None, "explained": None},
        shows="its weights and offsets, its correlations with the common representation, and how much of its variance "
        "that holds",
    )
    def solve(self, state: ViewState, arrays: Arrays, rng: Streams) -> tuple[ViewState, Arrays]:
        """The weights that answer for G: X_i Q - offset = P_iG; T = GᵀP_iG, M_iᵀM_i and GᵀG (K, K), and how much of
        the view's variance lies in the span of G."""
        G, view = receive_common(arrays), self.view
        Q = view.solve(G)
        M, across = view.times(Q), view.cross(G)
        GG = G.T @ G  # not quite the identity after a coarse channel
        inside = np.linalg.lstsq(GG, across.T)[0]
        explained = float(np.sum(across.T * inside)) / float(view.column_squares.sum())
        Q = Q if view.s is None else Q / view.s[:, None]
        offset = np.zeros(G.shape[1]) if view.mu is None else view.mu @ Q
        agreement = {"T": G.T @ M, "MM": M.T @ M, "GG": GG, "explained": np.array(explained)}
        return state, {"Q": Q, "offset": offset, **agreement}


def _reuse_weights(Q: Array | None, G: Array) -> Array | None:
    """Weights from before, if they are for as many components."""
    return Q if Q is not None and Q.shape[1] == G.shape[1] else None


def send_common(G: Array, coarse: bool) -> Arrays:
    """G as it is, or to 12 bits a number."""
    codes, scale = to_grid(G, 12)
    return {"codes": codes, "scale": scale} if coarse else {"G": G}


def receive_common(arrays: Arrays) -> Array:
    """The inverse of `send_common`."""
    return from_grid(arrays["codes"], arrays["scale"]) if "scale" in arrays else arrays["G"]


def view_options(
    center: bool, scale: bool, ridge: float, tol: float, relative: bool = False
) -> dict[str, float | int | str | bool]:
    """What a client is told of its view. Its solves are finer than the run's tol, but not finer than it needs.

    `relative`: the ridge is in units of the mean eigenvalue of the view's BᵀB, which only the client knows.
    """
    accuracy = min(max(1e-2 * tol, 1e-10), 1e-5)
    return {"center": center, "scale": scale, "ridge": ridge, "accuracy": accuracy, "relative": relative}


def open_views(k: int, center: bool, rng: Streams) -> Round[tuple[int, int]]:
    """(J, I) once the entities match and every view has been looked at; refuse views that say nothing, and more
    components than there can be."""
    J, views = yield from match_entities(rng)
    total = (yield from complete(Ask("open_view", want=Sum("features", "rank", "useless")))).total
    if total["useless"]:
        hidden = (
            f"{int(total['useless'])} of the {views} views say nothing: all rows of such a view are equal, or its "
            "features fit any representation of its rows. Use fewer features than rows, or ridge > 0."
        )
        each = (yield from complete(Ask("open_view", hidden=hidden))).each
        raise InputError(_describe_useless(each, J))
    most = min(int(total["rank"]), J - center)
    if k > most:
        raise InputError(f"n_components must be from 1 to {most}, the rank of all views together, but is {k}.")
    return J, views


def _describe_useless(each: Mapping[str, Arrays], J: int) -> str:
    """Which view says nothing, and why."""
    client = next(client for client, reply in each.items() if reply["useless"])
    says_nothing = f"The view of client {client!r} says nothing."
    if not each[client]["rank"]:
        return f"{says_nothing} All rows of this view are equal; leave it out."
    return (
        f"{says_nothing} The {int(each[client]['features'])} features of this view fit any representation of its {J} "
        "rows. Use fewer features than rows, or ridge > 0."
    )


def view_opening(*more: str) -> tuple[Turn, ...]:
    """The opening of every method on views, and what a method adds to it."""
    return (*MATCH_TURNS, Turn("open_view", after=["identify"]), *(Turn(name, after=["open_view"]) for name in more))


def view_rounds(task: str, patience: int = 0) -> tuple[Turn, ...]:
    """A round: its task, rows held out if it stops by them, and the weights at the end."""
    held_out = (Turn("test", after=["open_view"]),) if patience else ()
    return (Turn(task, after=["open_view"]), *held_out, Turn("solve", rounds=1, after=["open_view"]))


def view_tasks(patience: int = 0) -> frozenset[str]:
    """The tasks of every method on views: the opening, the weights at the end, rows held out if it stops by them."""
    held_out = {"test"} if patience else set()
    return MATCH_TASKS | {"open_view", "solve"} | held_out
