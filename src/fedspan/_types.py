"""The two types that everything passes around."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = Mapping[str, Array]


class Draw(Protocol):
    """A family of random streams: one generator for each purpose. `core.rng.Streams` is one."""

    def __call__(self, purpose: str) -> np.random.Generator: ...
