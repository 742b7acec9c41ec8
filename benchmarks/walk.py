"""How far a cell walks: `python benchmarks/walk.py` lists the functions between `fit` and a client's first product.

Two small CSV files are fitted, each with a marked number in one of its cells. A function of fedspan is on the walk if
it holds a file or the marked number: in an argument, a variable or its result, or at most two steps inside one (a list,
a mapping, an attribute). Each is listed once, in the order of the first calls. The walk ends where a client first
multiplies with its rows.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

import fedspan
from fedspan import FederatedPCA

PACKAGE = Path(fedspan.__file__).resolve().parent
PRODUCTS = {"Rows.gram", "Rows.multiply", "Rows.multiply_by_gram"}
MARK = 0.123456789
DEPTH = 2  # how far inside a value the cell is looked for


class Walk:
    """A profiler (see `sys.setprofile`) that notes which functions hold the cell, and how many were called in all."""

    def __init__(self, files: set[Path]) -> None:
        self.files = files
        self.called: set[CodeType] = set()
        self.holders: dict[CodeType, str] = {}
        self.arrived = False

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if self.arrived or event not in ("call", "return") or code.co_name.startswith("<"):  # <listcomp>, <module>
            return
        if not path.is_relative_to(PACKAGE):
            return
        self.called.add(code)
        self.arrived = code.co_qualname in PRODUCTS
        if code not in self.holders and any(self._holds(value) for value in [*frame.f_locals.values(), result]):
            self.holders[code] = f"{path.relative_to(PACKAGE).with_suffix('').as_posix()}: {code.co_qualname}"

    def _holds(self, value: object, depth: int = DEPTH) -> bool:
        if isinstance(value, np.ndarray):
            return value.dtype == np.float64 and bool((value == MARK).any())
        if isinstance(value, Path):
            return value in self.files
        if depth == 0:
            return False
        inner: list[object] = []
        if isinstance(value, Mapping):
            inner = list(value.values())
        elif isinstance(value, list | tuple):
            inner = list(value)
        elif type(value).__module__.startswith("fedspan."):
            inner = list(getattr(value, "__dict__", {}).values())
        return any(self._holds(one, depth - 1) for one in inner)


def walk(folder: Path) -> Walk:
    """What was seen of one `fit`."""
    rng, files = np.random.default_rng(0), {}
    for name in ("a", "b"):
        X = rng.normal(size=(30, 3))
        X[3, 1] = MARK
        files[name] = folder / f"{name}.csv"
        np.savetxt(files[name], X, delimiter=",", header="age,pulse,weight", comments="")
    model, seen = FederatedPCA(n_components=2, random_state=0), Walk(set(files.values()))
    sys.setprofile(seen)
    threading.setprofile(seen)
    try:
        model.fit(files)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert seen.arrived, "no product was seen"
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = walk(Path(place))
    steps = list(found.holders.values())
    print("\n".join(steps))
    rooms = Counter(step.split("/")[0] for step in steps)
    by_room = ", ".join(f"{count} in {room}" for room, count in rooms.items())
    print(f"\n{len(steps)} functions hold the cell: {by_room}")
    print(f"{len(found.called)} functions of fedspan are called in all")
