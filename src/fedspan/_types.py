"""The types that everything passes around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Matrix: TypeAlias = Any  # rows (n, d), dense or sparse: scipy has no types
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""What a JSON document can hold."""


class Draw(Protocol):
    """A family of random streams: one generator for each purpose. `core.rng.Streams` is one."""

    def __call__(self, purpose: str) -> np.random.Generator: ...
