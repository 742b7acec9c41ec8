"""Files and arrays whose columns have numbers, not names: .npz, LIBSVM, and gaps in arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.data.preparation import Preparation
from fedspan.errors import InputError


def npz(path: Path, given: Preparation) -> tuple[Any, Array | None, Array | None]:
    """X (dense, or in CSR parts), ids and labels, each an array of its own. It cannot be mapped, so it is held."""
    with np.load(path, allow_pickle=False) as z:
        for name in (given.id, given.label if given.label_everywhere else None):
            if name is not None and name not in z:
                raise InputError(f"need the array {name!r}, the table has {', '.join(z.files[:10])}")
        apart = [z[name] if name is not None and name in z else None for name in (given.id, given.label)]
        if "X_indptr" in z:
            X: Any = sp.csr_array((z["X_data"], z["X_indices"], z["X_indptr"]), shape=tuple(z["X_shape"]))
        elif "X" in z:
            X = z["X"]
        else:
            raise InputError(f"need an array named 'X' in {path.name}, it holds {', '.join(z.files)}")
    for name, column in zip((given.id, given.label), apart, strict=True):
        if column is not None and column.shape != X.shape[:1]:
            raise InputError(f"need one value in {name!r} for each of the {X.shape[0]} rows, got shape {column.shape}")
    return X, apart[0], apart[1]


def libsvm(path: Path, given: Preparation) -> tuple[Any, Array | None]:
    """Sparse rows, and their labels if asked for. Features are numbered from 1, as the format says."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(path), zero_based=True)  # never guessed: clients must not guess differently
    if X.shape[1] and X.getnnz(axis=0)[0]:
        raise InputError(f"need features numbered from 1 as in LIBSVM files, {path} has a feature 0; add 1 to all")
    width, d = X.shape[1] - 1, given.n_features
    if d is not None and width > d:
        raise InputError(f"need at most n_features = {d}, {path} has a feature {width}; raise it")
    X = sp.csr_array((X.data, X.indices - 1, X.indptr), shape=(X.shape[0], max(width, 0) if d is None else d))
    return X, None if given.label is None else y


def take_rows(X: Any, given: Preparation) -> tuple[Any, Array]:
    """Rows without gaps, or with their gaps filled (by the number of the column); and which rows these are."""
    if sp.issparse(X) or X.dtype.kind != "f":
        return X, np.ones(X.shape[0], dtype=bool)
    gap = np.isnan(X)
    if given.missing == "drop":
        keep = ~gap.any(axis=1)
        return X[keep], keep
    fill = np.array([given.fill.get(str(j), np.nan) for j in range(X.shape[1])])
    bare = np.flatnonzero(gap.any(axis=0) & np.isnan(fill))
    if len(bare):
        raise InputError(f"need a value to fill the gaps in column {bare[0]} with, fill has none; add it to data.fill")
    return np.where(gap, fill, X), np.ones(X.shape[0], dtype=bool)
