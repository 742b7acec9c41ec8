"""The client of personalized PCA: its rows by fold, its own second moments, its own components. See personalized.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.spectral.oneshot import pack_triangle
from fedspan.core.protocol import Client, Sensitivity, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.folds import Folded, Part, Prep, top
from fedspan.numerics.operators import Rows
from fedspan.numerics.stiefel import align, span_distance

_MOST_FEATURES = 5000  # for which d×d numbers are sent
LAMBDAS = (0.0, *(10.0**e for e in np.linspace(-3, 2, 12)), math.inf)


def shares(lam: Array) -> Array:
    """ω = λ/(1 + λ): from 0 (local) to 1 (global), so that no infinity is sent or computed with."""
    lam = np.asarray(lam, dtype=np.float64)
    return np.where(np.isinf(lam), 1.0, lam / (1.0 + np.where(np.isinf(lam), 0.0, lam)))


def blend(M: Array, K: Array, omega: Array, r: int) -> Array:
    """top_r((1 - ω) M + ω K) for every ω, (len(ω), p, r); at both ends the other part still breaks ties."""
    ends = np.clip(omega, 1e-10, 1.0 - 1e-10)
    if len(M) > 128:
        return np.stack([top((1.0 - o) * M + o * K, r) for o in ends])
    mixed = (1.0 - ends)[:, None, None] * M + ends[:, None, None] * K
    return np.linalg.eigh(mixed)[1][:, :, : -r - 1 : -1]


@dataclass(frozen=True)
class Personal:
    """What a client remembers: to which fold each row belongs, and (method "paper") its iterate."""

    fold: Array | None = None  # (n,)
    U: Array | None = None  # (d, r)


class PersonalClient(Client[Personal]):
    """A client with few rows. Nothing of one round is needed in the next, but the folds."""

    State = Personal

    def __init__(self, data: Any, center: str = "client", clip: float = 0.0) -> None:
        self.rows, self.center, self.clip = Rows(data), center, clip
        self._last: tuple[tuple[Array | None, ...], Folded] | None = None

    def init(self) -> Personal:
        return Personal()

    def folded(self, state: Personal, arrays: Arrays) -> Folded:
        """The rows prepared as the server says, by fold; kept until it says something else."""
        prep = Prep(self.center == "client", arrays.get("mean"), arrays.get("scale"), self.clip)
        told = (prep.mean, prep.scale, state.fold)
        if self._last is None or not all(map(_same, self._last[0], told)):
            with np.errstate(over="ignore", invalid="ignore"):
                rows = Folded(self.rows.A, prep, state.fold)
                finite = np.isfinite(rows.squares()).all()
            if not finite:
                raise self._refusal()
            self._last = (told, rows)
        return self._last[1]

    def _refusal(self) -> InputError:
        values, rows, first = self.rows.not_finite()
        if values == 0:
            return InputError("need numbers whose squares can be added up, got some too large; rescale the columns")
        return InputError(
            f"need finite numbers, got NaN or infinity in {values} entries of {rows} of {self.rows.n} rows "
            f"(first in column {first}); drop those rows (X[np.isfinite(X).all(axis=1)]) or columns, or impute the "
            "values (sklearn.impute.SimpleImputer)"
        )

    @task(releases={"n": Sensitivity(0), "total": None})
    def count(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        own = Folded(self.rows.A, Prep(True, clip=self.clip))
        if not np.isfinite(own.mean).all():
            raise self._refusal()
        return state, {"n": np.array(own.n), "total": own.mean * own.n}

    @task(releases={"n": Sensitivity(0), "squares": None})
    def spread(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Squares around the common mean, if one is told, else around the client's own."""
        prep = Prep("mean" not in arrays, arrays.get("mean"), clip=self.clip)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = Folded(self.rows.A, prep).squares()
        if not np.isfinite(squares).all():
            raise self._refusal()
        return state, {"n": np.array(self.rows.n), "squares": squares}

    @task(releases={"n": Sensitivity(0), "trace": None, "squares": None})
    def size(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        rows = self.folded(state, arrays)
        return state, {"n": np.array(rows.n), "trace": np.array(rows.whole.trace), "squares": rows.squares()}

    def parts(self, arrays: Arrays, state: Personal, rng: Streams) -> tuple[Personal, Folded, list[Part]]:
        """All rows, and those outside each fold; the folds are drawn here."""
        F = int(arrays["folds"])
        if F:
            state = replace(state, fold=rng("folds").permutation(self.rows.n) % F)
        rows = self.folded(state, arrays)
        return state, rows, [rows.whole, *(rows.split(f)[0] for f in range(F))]

    @task(releases={"S": None, "n": Sensitivity(0), "trace": None, "squares": None})
    def sketch(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """V√w (1 + F, d, 2r) of the leading eigenpairs."""
        state, rows, parts = self.parts(arrays, state, rng)
        S = np.stack([part.leading(int(arrays["width"])) for part in parts])
        return state, {"S": S, **_sizes(parts), "squares": rows.squares()}

    @task(releases={"G": None, "n": Sensitivity(0), "trace": None, "squares": None})
    def gram(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """The triangles of the second moments (1 + F, d(d+1)/2), to be summed."""
        if self.rows.d > _MOST_FEATURES:
            raise InputError(
                f"need at most {_MOST_FEATURES} features to send sums of second moments, got {self.rows.d}; "
                "use share='eigenpairs', or choose fewer columns"
            )
        state, rows, parts = self.parts(arrays, state, rng)
        G = np.stack([pack_triangle(part.within(None)) for part in parts])
        return state, {"G": G, **_sizes(parts), "squares": rows.squares()}

    @task(releases={"losses": None})
    def validate(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Σ ‖x - U Uᵀx‖² over the rows of each fold, held out in turn, (F, kinds, 14)."""
        rows, omega, r = self.folded(state, arrays), shares(np.array(LAMBDAS)), int(arrays["r"])
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
                size = _prior_size(train, kind, arrays["v"][f], arrays["rows"][f])
                U = blend(M, size * K, omega, r)
                losses[f, row] = test.trace - np.einsum("lir,lir->l", U, H @ U)
        return state, {"losses": losses}

    def own(self, state: Personal, arrays: Arrays) -> tuple[Array, Folded]:
        """U_i (d, r) by the shared part that is told, turned towards its first r columns."""
        rows = self.folded(state, arrays)
        U = personal_basis(rows.whole, arrays, int(arrays["r"])) if state.U is None else state.U
        return U, rows

    @task(releases={"distance": None})
    def settle(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Keep the components here; say only how far they are from the shared ones."""
        U, _ = self.own(state, arrays)
        return state, {"distance": np.array(span_distance(arrays["Q"][:, : U.shape[1]], U))}

    @task(releases={"U": None, "mean": None, "bounds": None, "distance": None, "n": Sensitivity(0)})
    def collect(self, state: Personal, arrays: Arrays, rng: Streams) -> tuple[Personal, Arrays]:
        """Hand the components to the caller, and what must be done to rows before they are transformed."""
        U, rows = self.own(state, arrays)
        bounds = np.zeros((0, rows.d)) if rows.bounds is None else rows.bounds
        far = np.finfo(np.float64).max  # a column without bounds; infinity is not sent
        return state, {
            "U": U, "mean": rows.mean, "bounds": np.clip(bounds, -far, far),
            "distance": np.array(span_distance(arrays["Q"][:, : U.shape[1]], U)), "n": np.array(rows.n),
        }  # fmt: skip


def personal_basis(own: Part, arrays: Arrays, r: int) -> Array:
    """top_r(M_i + λ K_i) for the shared part in `arrays`, (d, r), turned towards its first r columns."""
    Q = arrays["Q"]
    P = own.basis(Q)
    C = Q if P is None else P.T @ Q
    K = _prior_size(own, int(arrays["kind"]), arrays["v"], arrays["rows"]) * (C * arrays["w"]) @ C.T
    (U,) = blend(own.within(P), K, np.atleast_1d(arrays["omega"]), r)
    return align(U if P is None else P @ U, Q[:, :r])


def _prior_size(own: Part, kind: int, v: Array, rows: Array) -> float:
    return float((own.trace + v, rows * (own.trace + v) / (own.n + 1), rows * v)[kind])


def _sizes(parts: list[Part]) -> dict[str, Array]:
    return {"n": np.array([part.n for part in parts]), "trace": np.array([part.trace for part in parts])}


def _same(a: Array | None, b: Array | None) -> bool:
    """By value: a lossy channel may tell a slightly different mean each time."""
    return a is b or (a is not None and b is not None and np.array_equal(a, b))
