"""A client that holds a symmetric operator M_i and can multiply with it: all that the spectral solvers ask of it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from fedspan._types import Array, Arrays
from fedspan.core.protocol import Client, Sensitivity, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError
from fedspan.numerics.grid import from_grid, to_grid

C = TypeVar("C")


class OperatorClient(Client[C]):
    """Tasks around the product M_i V, which subclasses give."""

    def product(self, state: C, V: Array) -> Array:
        """M_i V."""
        raise NotImplementedError

    @task(releases={"Y": Sensitivity(2)})
    def multiply(self, state: C, arrays: Arrays, rng: Streams) -> tuple[C, Arrays]:
        """M_i Z as it is."""
        return state, {"Y": self.product(state, arrays["Z"])}

    @task(releases={"Y": None})  # rounding adds to what one row can change: no bound is claimed
    def multiply_on_grid(self, state: C, arrays: Arrays, rng: Streams) -> tuple[C, Arrays]:
        """M_i V̂ rounded to whole multiples of the run's step, where V̂ stands on a grid too: integers, exact to sum."""
        Y = self.product(state, from_grid(arrays["Z"], arrays["scale"])) / arrays["step"]
        if np.abs(Y).max(initial=0.0) >= 2**52:
            raise InputError("need a step that 53 bits can resolve; raise tol, or leave bits=None")
        return state, {"Y": np.rint(Y).astype(np.int64)}

    @task(releases={"U": None, "scale": None, "w": None})
    def leading(self, state: C, arrays: Arrays, rng: Streams) -> tuple[C, Arrays]:
        """The leading eigenpairs of this client's own M_i, to 8 bits a number: it shows the client's own subspace."""
        r, d = int(arrays["count"]), int(arrays["size"])
        if d <= 3000:
            M = self.product(state, np.eye(d))
            w, U = scipy.linalg.eigh((M + M.T) / 2, subset_by_index=[d - r, d - 1])
        else:
            M = LinearOperator((d, d), matvec=lambda v: self.product(state, v.reshape(d, 1)), dtype=np.float64)
            w, U = eigsh(M, k=r, v0=rng("leading").normal(size=d), tol=1e-3)
        codes, scale = to_grid(U[:, ::-1])
        return state, {"U": codes, "scale": scale, "w": np.maximum(w[::-1], 0.0)}
