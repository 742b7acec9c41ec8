"""Arrays, and files of arrays, whose columns have no names: .npy, .npz, LIBSVM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import ZipFile

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.data.ids_and_labels import check_ids, to_labels
from fedspan.data.preparation import Preparation
from fedspan.data.sources import explain_file_errors
from fedspan.errors import InputError
from fedspan.numerics.operators import Matrix

LIBSVM = (".svm", ".libsvm", ".svmlight")
_FEATURES_UNASKED = 1 << 24  # of a LIBSVM file that says nothing of it: a vector of so many takes 128 MB
_SMALL_ARCHIVE = 1 << 28  # bytes (256 MB) that an .npz file may unpack to, however small it is
_MOST_RATIO = 100  # how many times its own size a larger one may unpack to


class ArrayTable(NamedTuple):
    """A matrix, and the ids and labels of its rows if they are there."""

    X: Matrix
    ids: Array | None = None
    labels: Array | None = None


def is_libsvm(source: object) -> bool:
    """Whether that is a file that does not say how many features there are."""
    source = source.get("path") if isinstance(source, Mapping) else source
    return isinstance(source, str | PathLike) and Path(source).suffix.lower() in LIBSVM


def read_arrays(source: object, preparation: Preparation) -> ArrayTable:
    """The matrix in an array, a sparse matrix, a list of rows or a file of them, prepared."""
    if preparation.columns is not None or preparation.categories or preparation.weight is not None:
        raise InputError(
            "Columns can be chosen only by their names, but this table has no names. Use CSV, Parquet or a data frame."
        )
    table = _read_matrix(source, preparation)
    beside = preparation.group or preparation.weight
    if beside is not None and preparation.label_everywhere:
        raise InputError(
            f"There is no column {beside!r}, because this table's columns have no names. Use CSV, Parquet or a data "
            "frame, or give groups and sample_weight to fit."
        )
    needs_id = preparation.id is not None and table.ids is None
    needs_label = preparation.label is not None and table.labels is None and preparation.label_everywhere
    if needs_id or needs_label:
        raise InputError(
            f"There is no column {preparation.id if needs_id else preparation.label!r}, because this table's columns "
            "have no names. Use CSV, Parquet, a data frame or an .npz file, or give ids and labels as lists."
        )
    if preparation.missing in ("drop", "mean"):
        table = _fill_or_drop(table, preparation)
    ids = None if table.ids is None else check_ids(table.ids, str(preparation.id))
    return ArrayTable(table.X, ids, None if table.labels is None else to_labels(table.labels))


def _read_matrix(source: object, preparation: Preparation) -> ArrayTable:
    if isinstance(source, str | PathLike):
        path = Path(source)
        with explain_file_errors(path):
            if path.suffix.lower() == ".npz":
                return _read_npz(path, preparation)
            if is_libsvm(path):
                return _read_libsvm(path, preparation)
            return ArrayTable(np.load(path, mmap_mode="r", allow_pickle=False))
    if isinstance(source, list | tuple):
        return ArrayTable(np.asarray(source))
    if isinstance(source, np.ndarray) or sp.issparse(source):
        return ArrayTable(source)
    found = "a mapping without url" if isinstance(source, Mapping) else type(source).__name__
    raise InputError(
        f"A table must be an array, a sparse matrix, a data frame, a path or a database, but this is {found}."
    )


def _read_npz(path: Path, preparation: Preparation) -> ArrayTable:
    """X (dense, or in CSR parts), ids and labels, each an array of its own. It cannot be mapped, so it is held."""
    _check_archive(path)
    with np.load(path, allow_pickle=False) as arrays:
        for name in (preparation.id, preparation.label if preparation.label_everywhere else None):
            if name is not None and name not in arrays:
                raise InputError(f"There is no array {name!r} in {path.name}. It has {', '.join(arrays.files[:10])}.")
        ids = arrays[preparation.id] if preparation.id is not None else None
        labels = arrays[preparation.label] if preparation.label is not None and preparation.label in arrays else None
        if "X_indptr" in arrays:
            parts = (arrays["X_data"], arrays["X_indices"], arrays["X_indptr"])
            X = sp.csr_array(parts, shape=tuple(arrays["X_shape"]))
            X.check_format(full_check=True)
        elif "X" in arrays:
            X = arrays["X"]
        else:
            raise InputError(f"{path.name} must have an array named 'X', but it has {', '.join(arrays.files[:10])}.")
    for name, column in ((preparation.id, ids), (preparation.label, labels)):
        if column is not None and column.shape != X.shape[:1]:
            raise InputError(
                f"{name!r} must have one value for each of the {X.shape[0]} rows, but its shape is {column.shape}."
            )
    return ArrayTable(X, ids, labels)


def _check_archive(path: Path) -> None:
    """Refuse an archive whose arrays would take far more memory than the file has bytes, before one is read."""
    with ZipFile(path) as archive:
        parts = archive.infolist()
        for part in parts:
            with archive.open(part) as file:
                if _measure_array(file) > part.file_size:
                    raise ValueError(f"the array {part.filename!r} is larger than its bytes")
    packed, size = sum(part.compress_size for part in parts), sum(part.file_size for part in parts)
    most = max(_SMALL_ARCHIVE, _MOST_RATIO * min(packed, path.stat().st_size))
    if size > most:
        raise InputError(
            f"{path} would take {size / 1e9:.3g} GB in memory, more than {_MOST_RATIO} times the bytes of the file. If "
            "that is right, save it with numpy.savez, which does not compress, or as a sparse matrix."
        )


def _measure_array(file: IO[bytes]) -> int:
    """The bytes that the array in a file says it has."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"its format is {version}, which is not for numbers")
    return math.prod(shape) * dtype.itemsize


def _read_libsvm(path: Path, preparation: Preparation) -> ArrayTable:
    """Sparse rows, and their labels if asked for. Features are numbered from 1, as the format says."""
    from sklearn.datasets import load_svmlight_file  # slow to import, and few tables need it

    X, y = load_svmlight_file(str(path), zero_based=True)  # never guessed: clients must not guess differently
    if (X.indices == 0).any():
        raise InputError(f"{path} has a feature 0, but LIBSVM files number features from 1. Add 1 to all of them.")
    last, d = X.shape[1] - 1, preparation.n_features
    if d is not None and last > d:
        raise InputError(f"{path} has a feature {last}, but n_features = {d}. Raise n_features.")
    if d is None and last > _FEATURES_UNASKED:
        raise InputError(
            f"{path} has a feature {last:,}, but there may be at most {_FEATURES_UNASKED:,} unless n_features says "
            "otherwise, because every vector of the model is as long. Is the number right? If so, set n_features."
        )
    X = sp.csr_array((X.data, X.indices - 1, X.indptr), shape=(X.shape[0], max(last, 0) if d is None else d))
    return ArrayTable(X, labels=None if preparation.label is None else y)


def _fill_or_drop(table: ArrayTable, preparation: Preparation) -> ArrayTable:
    """The rows without gaps, or with their gaps filled (by the number of the column)."""
    X = table.X
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f" or X.ndim != 2:
        return table
    missing = np.isnan(X)
    if preparation.missing == "drop":
        keep = ~missing.any(axis=1)
        ids, labels = (None if part is None else part[keep] for part in (table.ids, table.labels))
        return ArrayTable(X[keep], ids, labels)
    fill = np.array([preparation.fill.get(str(j), np.nan) for j in range(X.shape[1])])
    unfilled = np.flatnonzero(missing.any(axis=0) & np.isnan(fill))
    if len(unfilled):
        raise InputError(f"Column {unfilled[0]} has missing values, but fill has no value for it. Add one to fill.")
    return table._replace(X=np.where(missing, fill, X))
