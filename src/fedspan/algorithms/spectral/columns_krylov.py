"""PCA and SVD of a table whose columns are spread over clients: block Krylov on a sum of Gram matrices of the rows.

In none of the papers implemented here; the method is that of krylov.py.

Notation: J entities (the rows, the same at all clients), B_i (J, N_i) the columns of client i, centred and scaled at
home, B = [B_1 … B_I], M_i = B_iB_iᵀ (J, J), M = Σ M_i = BBᵀ; Z (J, k) its leading eigenvectors with values θ, so
that Z√θ are the scores of the pooled PCA; L_i = B_iᵀZ/√θ (N_i, k) the rows of its loadings that belong to client i.
Ω_i random (N_i, k); O (J, J) orthogonal, known to the clients only (`SecretTurn`).

What the server sees: how many rows each client has and a digest of their ids (gcca/entities.py), the number of columns
and their sum of squares, Σ B_iΩ_i once (rounded), Σ M_iV in each round, and ‖B_iᵀz_j‖² for each component at the end,
which sums to θ. From these it has Z, and so the scores of every entity. The loadings, means and deviations stay at the
clients. With `hide` all blocks are turned by O: the server works on OMOᵀ, which has the same eigenvalues, and holds OZ.
That is a shield and no proof: inner products between columns of its blocks are not changed by O, and who learns the
clients' secret turns everything back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np

from fedspan._types import Array, Arrays, Matrix
from fedspan.algorithms._moments import Moments, describe_not_finite
from fedspan.algorithms._operator import round_product
from fedspan.algorithms.gcca.entities import MATCH_TASKS, MATCH_TURNS, Entities, EntitiesClient, match_entities
from fedspan.algorithms.spectral.krylov import Krylov, KrylovStart, KrylovState
from fedspan.core.protocol import Ask, Client, Course, Replay, Round, Sum, Turn, complete, task
from fedspan.core.replay import CLOSE, Basis, Comparison
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import SecretTurn, fix_signs, orthonormalize
from fedspan.numerics.view_projector import View

_FINENESS = 32  # steps of the opening's rounding in one root mean square: a start need not be finer
_DIGEST_SIZE = 16  # bytes
_OPENING = ("open_columns", "sketch_columns")


@dataclass(frozen=True)
class ColumnsState:
    """What a client remembers: the public part of the turn's key; at the end its loadings, and the scores' basis."""

    key: Array | None = None  # bytes; None: nothing is turned
    loadings: Array | None = None  # L_i (N_i, k), of the columns as they are centred and scaled
    mean: Array | None = None  # (N_i,) what is subtracted from them, zeros if nothing is
    scale: Array | None = None  # (N_i,) what they are divided by
    basis: Array | None = None  # Z (J, k), not turned


class ColumnsHolder(EntitiesClient[ColumnsState]):
    """A client that holds some columns of the entities."""

    State = ColumnsState

    def __init__(self, data: Entities | Matrix, center: bool = True, scale: bool = False) -> None:
        self.entities = data if isinstance(data, Entities) else Entities(data)
        self.view = View(self.entities.X, center, scale)
        self.turned: tuple[bytes, SecretTurn] | None = None  # the last one, made once for each key

    def init(self) -> ColumnsState:
        return ColumnsState()

    @task(
        releases={"features": None, "energy": None},
        shows="its number of columns, and their total sum of squares (around their means, if they are centred)",
    )
    def open_columns(self, state: ColumnsState, arrays: Arrays, rng: Streams) -> tuple[ColumnsState, Arrays]:
        """N_i and ‖B_i‖²."""
        energy = self.view.column_squares.sum()
        if not np.isfinite(energy):
            raise describe_not_finite(self.view, drop="those rows at every client")
        return state, {"features": np.array(self.view.N), "energy": np.array(energy)}

    @task(
        releases={"d": None, "dd": None},
        shows="a digest of the clients' secret under a key of this run, which says whether all have the same",
    )
    def prepare_turn(self, state: ColumnsState, arrays: Arrays, rng: Streams) -> tuple[ColumnsState, Arrays]:
        """Remember what O is made from; a digest and its square, by whose sums all have the same secret or not."""
        key = arrays["key"]
        d = np.frombuffer(self.entities.derive_key(key.tobytes(), "compare")[:_DIGEST_SIZE], dtype=np.uint8)
        d = d.astype(np.int64)
        return replace(state, key=key), {"d": d, "dd": d * d}

    @task(releases={"S": None}, shows="a few random combinations of its columns for each entity, rounded")
    def sketch_columns(self, state: ColumnsState, arrays: Arrays, rng: Streams) -> tuple[ColumnsState, Arrays]:
        """B_iΩ_i in whole multiples of a step."""
        S = self.view.times(rng("sketch").normal(size=(self.view.N, int(arrays["k"]))))
        return state, {"S": np.rint(self._hide(state, S) / arrays["step"]).astype(np.int64)}

    # An entity is a row of every client's columns, so one row changes all products: there is no sensitivity.
    @task(
        releases={"Y": None},
        shows="products of the Gram matrix of its rows with the server's blocks (enough of them give the span of its "
        "columns)",
    )
    def multiply_entities(self, state: ColumnsState, arrays: Arrays, rng: Streams) -> tuple[ColumnsState, Arrays]:
        """M_i Z."""
        return state, {"Y": self._multiply(state, arrays["Z"])}

    @task(
        releases={"Y": None},
        shows="products of the Gram matrix of its rows with the server's blocks (enough of them give the span of its "
        "columns), rounded",
    )
    def multiply_entities_on_grid(
        self, state: ColumnsState, arrays: Arrays, rng: Streams
    ) -> tuple[ColumnsState, Arrays]:
        """M_i V̂ in whole multiples of the run's step."""
        return state, {"Y": round_product(lambda V: self._multiply(state, V), arrays)}

    @task(releases={"along": None}, shows="how much of each component's variance lies in its columns")
    def keep_loadings(self, state: ColumnsState, arrays: Arrays, rng: Streams) -> tuple[ColumnsState, Arrays]:
        """Remember L_i; ‖B_iᵀz_j‖², which sums to θ_j over the clients."""
        Z, theta = self._reveal(state, arrays["Z"]), arrays["theta"]
        across = self.view.cross(Z)
        mean = np.zeros(self.view.N) if self.view.mu is None else self.view.mu
        scale = np.ones(self.view.N) if self.view.s is None else self.view.s
        kept = replace(state, loadings=across / np.sqrt(theta), mean=mean, scale=scale, basis=Z)
        return kept, {"along": np.einsum("ij,ij->j", across, across)}

    def _multiply(self, state: ColumnsState, V: Array) -> Array:
        return self._hide(state, self.view.times(self.view.cross(self._reveal(state, V))))

    def _hide(self, state: ColumnsState, V: Array) -> Array:
        turn = self._find_turn(state)
        return V if turn is None else turn.hide(V)

    def _reveal(self, state: ColumnsState, V: Array) -> Array:
        turn = self._find_turn(state)
        return V if turn is None else turn.reveal(V)

    def _find_turn(self, state: ColumnsState) -> SecretTurn | None:
        if state.key is None:
            return None
        key = self.entities.derive_key(state.key.tobytes(), "turn")
        if self.turned is None or self.turned[0] != key:
            self.turned = (key, SecretTurn(key, self.view.J))
        return self.turned[1]


@dataclass(frozen=True)
class ColumnsKrylovState(KrylovState):
    """The span, the rounds that led to it, and the answer once the clients have their loadings."""

    t: int
    basis: Array | None  # (J, k') of the components that are not zero
    values: Array | None  # (k',)
    along: Array | None  # (k',) what the clients' parts sum to


@dataclass(frozen=True)
class ColumnsKrylov(Krylov):
    """Block Krylov on Σ B_iB_iᵀ, begun from Σ B_iΩ_i instead of at random.

    `rounded` and `grid` as in Krylov. `hide`: the clients turn the entities by an orthogonal transform that the server
    does not know. `last` is the round after which the loadings are made though tol is not met.
    """

    hide: bool = False
    last: int = field(default=0, repr=False)

    State = ColumnsKrylovState  # type: ignore[assignment]
    client: ClassVar[type[Client[object]]] = ColumnsHolder
    product: ClassVar[str] = "multiply_entities"

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"center": self.center, "scale": self.scale}

    def asks(self) -> frozenset[str]:
        turned = {"prepare_turn"} if self.hide else set()
        return MATCH_TASKS | {*_OPENING, self.product_task, "keep_loadings"} | turned

    def course(self) -> Course:
        turned = (Turn("prepare_turn", after=["open_columns"]),) if self.hide else ()
        before = ["prepare_turn" if self.hide else "open_columns"]
        opening = (Turn("open_columns", after=["identify"]), *turned, Turn("sketch_columns", after=before))
        product = Turn(self.product_task, after=["sketch_columns"])
        return Course((*MATCH_TURNS, *opening), (product, Turn("keep_loadings", rounds=1, after=["sketch_columns"])))

    def replay(self) -> Replay | str:
        why = super().replay()
        if isinstance(why, str):
            return why
        matching: dict[str, dict[str, Comparison]] = {name: {"key": CLOSE} for name in MATCH_TASKS}
        turned: dict[str, dict[str, Comparison]] = {"prepare_turn": {"key": CLOSE}} if self.hide else {}
        opening: dict[str, dict[str, Comparison]] = {
            "open_columns": {},
            "sketch_columns": {"k": CLOSE, "step": CLOSE},
        }
        closing: dict[str, dict[str, Comparison]] = {"keep_loadings": {"Z": Basis(), "theta": CLOSE}}
        return {**matching, **turned, **opening, **closing, self.product_task: why[self.product_task]}

    def opening(self, rng: Streams) -> Round[KrylovStart]:
        J, clients = yield from match_entities(rng)
        opened = (yield from complete(Ask("open_columns", want=Sum("features", "energy")))).total
        energy, features = float(opened["energy"]), int(opened["features"])
        if energy == 0:
            raise InputError("All rows are equal (after centering), so there is no component to find. Check the data.")
        most = min(J - self.center, features)
        if self.k > most:
            raise InputError(
                f"n_components must be from 1 to {most}, as there are {J} rows and {features} columns, but is {self.k}."
            )
        if self.hide:
            key = {"key": rng("turn").integers(0, 256, 32, dtype=np.uint8)}
            sums = (yield from complete(Ask("prepare_turn", key, Sum("d", "dd")))).total
            d, dd = (np.asarray(sums[name], dtype=np.int64) for name in ("d", "dd"))
            if not (clients * dd == d**2).all():
                raise InputError(
                    "hide_scores turns the entities by a secret that all clients share, but they do not have the same "
                    "one. Give every site of the federation the same secret, and a column of ids."
                )
        question = {"k": np.array(self.k), "step": np.array(np.sqrt(energy / J) / _FINENESS)}
        S = (yield from complete(Ask("sketch_columns", question, Sum("S")))).total["S"]
        moments = Moments(J, np.zeros(J), np.ones(0), energy, clients)
        return KrylovStart(moments, orthonormalize(S.astype(np.float64)))

    def init(self, rng: Streams) -> Round[ColumnsKrylovState]:
        state = yield from super().init(rng)
        return ColumnsKrylovState(**vars(state), t=0, basis=None, values=None, along=None)

    def round(self, state: ColumnsKrylovState, rng: Streams) -> Round[ColumnsKrylovState]:  # type: ignore[override]
        found = cast(ColumnsKrylovState, (yield from super().round(state, rng)))  # of the class that it was given
        state = replace(found, t=state.t + 1)
        if self.done(state) or state.t == self.last:
            kept = state.theta > max(state.Z.shape) * np.finfo(np.float64).eps * state.theta[0]
            Z, theta = fix_signs(state.Z[:, kept].T).T, np.array(state.theta[kept])
            ask = Ask("keep_loadings", {"Z": np.ascontiguousarray(Z), "theta": theta}, Sum("along"))
            along = (yield from complete(ask)).total["along"]
            state = replace(state, basis=ask.arrays["Z"], values=theta, along=along)
        return state

    def estimate(self, state: KrylovState) -> Array:
        return state.Z
