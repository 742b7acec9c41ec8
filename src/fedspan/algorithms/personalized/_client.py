"""The client of personalized PCA: its rows by fold, its own second moments, its own components.

Notation and what the server sees: personal_server.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms._moments import describe_not_finite
from fedspan.algorithms.personalized.shrinkage import LAMBDAS, mix_moments, personal_basis, size_prior, to_shares
from fedspan.algorithms.spectral.oneshot import pack_triangle
from fedspan.core.protocol import Client, Sensitivity, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.folds import Folded, Prep, RowPart
from fedspan.numerics.operators import Rows
from fedspan.numerics.stiefel import span_distance

_MOST_FEATURES = 5000  # for which d×d numbers are sent
_OF_FOLDS = "of all its rows, and without each fold of them in turn if λ is cross-validated"


@dataclass(frozen=True)
class Personal:
    """What a client remembers: to which fold each row belongs, and (method "paper") its iterate."""

    fold: Array | None = None  # (n,)
    U: Array | None = None  # (d, r)


class PersonalClient(Client[Personal]):
    """A client with few rows. Nothing of one round is needed in the next, but the folds."""

    State = Personal

    def __init__(self, data: object, center: str = "client", clip: float = 0.0) -> None:
        self.rows, self.center, self.clip = Rows(data), center, clip
        self._last: tuple[tuple[Array | None, ...], Folded] | None = None

    def init(self) -> Personal:
        return Personal()

    def prepare_rows(self, state: Personal, arrays: Arrays) -> Folded:
        """The rows prepared as the server says, by fold; kept until it says something else."""
        prep = Prep(self.center == "client", arrays.get("mean"), arrays.get("scale"), self.clip)
        told = (prep.mean, prep.scale, state.fold)
        if self._last is None or not all(map(_are_equal, self._last[0], told)):
            with np.errstate(over="ignore", invalid="ignore"):
                rows = Folded(self.rows.A, prep, state.fold)
                finite = np.isfinite(rows.squares()).all()
            if not finite:
                raise describe_not_finite(self.rows)
            self._last = (told, rows)
        return self._last[1]

    @task(releases={"n": Sensitivity(0), "total": None}, shows="its number of rows and its column sums")
    def count(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """n_i and the column sums, after clipping."""
        own = Folded(self.rows.A, Prep(True, clip=self.clip))
        if not np.isfinite(own.mean).all():
            raise describe_not_finite(self.rows)
        return state, {"n": np.array(own.n), "total": own.mean * own.n}

    @task(
        releases={"n": Sensitivity(0), "squares": None},
        shows="its number of rows and its column sums of squares",
    )
    def square(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Squares around the common mean, if the server sends one, else around the client's own."""
        prep = Prep("mean" not in arrays, arrays.get("mean"), clip=self.clip)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = Folded(self.rows.A, prep).squares()
        if not np.isfinite(squares).all():
            raise describe_not_finite(self.rows)
        return state, {"n": np.array(self.rows.n), "squares": squares}

    @task(
        releases={"n": Sensitivity(0), "trace": None, "squares": None},
        shows="its number of rows, and its column sums of squares and their total",
    )
    def scan(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """n_i, t_i and the squares of its columns, prepared as the server says."""
        rows = self.prepare_rows(state, arrays)
        return state, {"n": np.array(rows.n), "trace": np.array(rows.whole.trace), "squares": rows.squares()}

    def split_rows(self, arrays: Arrays, state: Personal, rng: Streams) -> tuple[Personal, Folded, list[RowPart]]:
        """All rows, and those outside each fold; the folds are drawn here.

        A site with a rule about few rows has no smaller folds than that: some may be empty instead.
        """
        F = int(arrays["folds"])
        if F:
            own = max(1, min(F, self.rows.n // self.least_rows))
            state = replace(state, fold=rng("folds").permutation(self.rows.n) % own)
        rows = self.prepare_rows(state, arrays)
        return state, rows, [rows.whole, *(rows.split(f)[0] for f in range(F))]

    @task(
        releases={"S": None, "n": Sensitivity(0), "trace": None, "squares": None},
        shows=f"the leading eigenvectors and variances of its own second-moment matrix ({_OF_FOLDS}), its number of "
        "rows and its column sums of squares",
    )
    def factor(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """V√w (1 + F, d, 2r) of the leading eigenpairs."""
        state, rows, parts = self.split_rows(arrays, state, rng)
        S = np.stack([part.leading_factor(int(arrays["width"])) for part in parts])
        return state, {"S": S, **_measure_parts(parts), "squares": rows.squares()}

    @task(
        releases={"G": None, "n": Sensitivity(0), "trace": None, "squares": None},
        shows=f"its whole second-moment matrix ({_OF_FOLDS}), its number of rows and its column sums of squares",
    )
    def fold(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """The triangles of the second moments (1 + F, d(d+1)/2), to be summed."""
        if self.rows.d > _MOST_FEATURES:
            raise InputError(
                f"Sums of second moments can be sent for at most {_MOST_FEATURES} features, but there are "
                f"{self.rows.d}. Use share='eigenpairs', or choose fewer columns."
            )
        state, rows, parts = self.split_rows(arrays, state, rng)
        G = np.stack([pack_triangle(part.within(None)) for part in parts])
        return state, {"G": G, **_measure_parts(parts), "squares": rows.squares()}

    @task(releases={"losses": None}, shows="its reconstruction error on held-out rows, for each λ that was tried")
    def validate(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Σ ‖x - U Uᵀx‖² over the rows of each fold, held out in turn, (F, kinds, 14)."""
        rows, omega, r = self.prepare_rows(state, arrays), to_shares(np.array(LAMBDAS)), int(arrays["r"])
        kinds = arrays["kinds"].tolist()
        losses = np.zeros((len(arrays["Q"]), len(kinds), len(omega)))
        for f, (Q, w) in enumerate(zip(arrays["Q"], arrays["w"], strict=True)):
            train, test = rows.split(f)
            if test.n == 0:
                continue
            P = train.basis(Q)
            M, H, C = train.within(P), test.within(P), Q if P is None else P.T @ Q
            K = (C * w) @ C.T
            for row, kind in enumerate(kinds):
                size = size_prior(train, kind, arrays["v"][f], arrays["rows"][f])
                U = mix_moments(M, size * K, omega, r)
                losses[f, row] = test.trace - np.einsum("lir,lir->l", U, H @ U)
        return state, {"losses": losses}

    def find_components(self, state: Personal, arrays: Arrays) -> tuple[Array, Folded]:
        """U_i (d, r) from the shared part that the server sends, turned towards its first r columns."""
        rows = self.prepare_rows(state, arrays)
        U = personal_basis(rows.whole, arrays, int(arrays["r"])) if state.U is None else state.U
        return U, rows

    @task(releases={"distance": None}, shows="how far its own components are from the shared ones")
    def retain(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Keep the components here; say only how far they are from the shared ones."""
        U, _ = self.find_components(state, arrays)
        return state, {"distance": np.array(span_distance(arrays["Q"][:, : U.shape[1]], U))}

    @task(
        releases={"U": None, "mean": None, "bounds": None, "distance": None, "n": Sensitivity(0)},
        shows="its own components, its mean, its number of rows, and how far its components are from the shared ones "
        "(and the bounds of its columns, if they are clipped)",
    )
    def collect(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Hand the components to the caller, and what must be done to rows before they are transformed."""
        U, rows = self.find_components(state, arrays)
        bounds = np.zeros((0, rows.d)) if rows.bounds is None else rows.bounds
        far = np.finfo(np.float64).max  # a column without bounds; infinity is not sent
        return state, {
            "U": U,
            "mean": rows.mean,
            "bounds": np.clip(bounds, -far, far),
            "distance": np.array(span_distance(arrays["Q"][:, : U.shape[1]], U)),
            "n": np.array(rows.n),
        }


def _measure_parts(parts: list[RowPart]) -> dict[str, Array]:
    return {"n": np.array([part.n for part in parts]), "trace": np.array([part.trace for part in parts])}


def _are_equal(a: Array | None, b: Array | None) -> bool:
    """By value: a lossy channel may tell a slightly different mean each time."""
    return a is b or (a is not None and b is not None and np.array_equal(a, b))
