"""h5ad files and Zarr stores (anndata): counts of cells × genes, opened but not held.

Counts are X, a layer, or those of raw. They must be counts: whole and not negative. Whoever has normalised values only
is told where counts are in the file, if they are.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.data.sources import UnchangedFile, explain_file_errors
from fedspan.errors import InputError, MissingExtraError

_Element: TypeAlias = Any  # a group or an array of h5py or zarr, which have no type in common
_ENDINGS = (".h5ad", ".zarr")
_CHUNK = 4096  # cells that are read at once


class CellFile:
    """The counts of one client. `layer`: "X", "raw" or the name of a layer."""

    def __init__(self, path: Path, layer: str = "X") -> None:
        self.path, self.layer = path, layer
        with self.open() as root:
            where = self._place(root)
            if where not in root:
                held = [f"layers/{name}" for name in root["layers"]] if "layers" in root else []
                raise InputError(
                    f"{path} has no counts in {where!r}. It holds {', '.join(['X', *held])}; say which with layer=."
                )
            kind = root[where].attrs.get("encoding-type", "array")
            if kind == "csc_matrix":
                raise InputError(
                    f"The counts of {path} are stored by genes (CSC), which cannot be read some cells at a time. Write "
                    "them by cells: adata.X = adata.X.tocsr(); adata.write_h5ad(…)."
                )
            if kind not in ("csr_matrix", "array"):
                raise InputError(f"The counts of {path} are of an unknown kind, {kind!r}. Write the file anew.")
            self.genes = _read_index(root["raw/var" if layer == "raw" else "var"])
            self.cells = _read_index(root["obs"])
            X = _backed(root[where])
            if X.shape != (len(self.cells), len(self.genes)):
                raise InputError(
                    f"{path} is damaged: its counts are of {X.shape[0]:,} cells × {X.shape[1]:,} genes, but it names "
                    f"{len(self.cells):,} and {len(self.genes):,}."
                )
            if 0 in X.shape:
                raise InputError(f"{path} has no counts: {X.shape[0]} cells × {X.shape[1]} genes.")
            self._check_counts(X[: min(_CHUNK, X.shape[0])], root)
        self._unchanged = None if path.is_dir() else UnchangedFile(path)

    @property
    def is_hdf(self) -> bool:
        """Whether it is one file, and not a Zarr store."""
        return self.path.suffix != ".zarr"

    def _place(self, root: _Element) -> str:
        if self.layer in ("X", "raw"):
            return "X" if self.layer == "X" else "raw/X"
        return f"layers/{self.layer}"

    @contextmanager
    def open(self, mode: Literal["r", "r+"] = "r") -> Iterator[_Element]:
        """The file's root group."""
        with explain_file_errors(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not self.is_hdf:
                if find_spec("zarr") is None:
                    raise MissingExtraError("Reading .zarr stores", "singlecell")
                import zarr

                yield zarr.open_group(str(self.path), mode=mode, use_consolidated=False if mode == "r+" else None)
                if mode == "r+":
                    zarr.consolidate_metadata(str(self.path))
                return
            import h5py

            try:
                file = h5py.File(self.path, mode)
            except OSError as error:
                if error.errno:
                    raise
                raise InputError(f"{self.path} is not a whole h5ad file: {error}. Copy it again.") from None
            with file:
                yield file

    def _check_counts(self, chunk: _Element, root: _Element) -> None:
        values = chunk.data if sp.issparse(chunk) else np.asarray(chunk)
        sample = values.ravel()[: 1 << 20]
        if np.all(sample >= 0) and np.all(sample == np.floor(sample)) and np.isfinite(sample).all():
            return
        held = [f'layer="{name}"' for name in root["layers"]] if "layers" in root else []
        held += ['layer="raw"'] if "raw" in root and self.layer != "raw" else []
        hint = f"Look for counts with {' or '.join(held)}." if held else "Use the file before it was normalised."
        raise InputError(
            f"{self._place(root)} of {self.path.name} does not hold counts: {float(sample[_find_odd(sample)]):g} is "
            f"among its values. {hint}"
        )

    def chunks(self) -> Iterator[tuple[int, sp.csr_array]]:
        """The counts, some cells at a time, each with the place of its first."""
        if self._unchanged is not None:
            self._unchanged.check()
        with self.open() as root:
            X = _backed(root[self._place(root)])
            for start in range(0, X.shape[0], _CHUNK):
                chunk = sp.csr_array(X[start : start + _CHUNK])
                if not np.isfinite(chunk.data).all() or (chunk.data < 0).any():
                    raise InputError(f"{self.path.name} holds values that are not counts, from cell {start:,} on.")
                yield start, chunk
        if self._unchanged is not None:
            self._unchanged.check()


def open_cells(source: object, layer: str = "X") -> CellFile:
    """Open a file by its ending."""
    if isinstance(source, CellFile):
        return source
    if isinstance(source, Mapping) and set(source) <= {"path", "layer"} and "path" in source:
        layer, source = str(source.get("layer", layer)), source["path"]
    if not isinstance(source, str | os.PathLike) or Path(source).suffix not in _ENDINGS:
        raise InputError(f"Single cells are read from .h5ad and .zarr files, but the client has {str(source)!r}.")
    if find_spec("anndata") is None or find_spec("h5py") is None:
        raise MissingExtraError(f"Reading {Path(source).suffix} files", "singlecell")
    path = Path(source)
    with explain_file_errors(path):
        if not path.exists():
            raise InputError(f"{path} does not exist.")
    return CellFile(path, layer)


def _find_odd(sample: Array) -> int:
    return int(np.flatnonzero(~((sample >= 0) & (sample == np.floor(sample)) & np.isfinite(sample)))[0])


class _RowsOnDisk:
    """CSR counts of which some rows can be read. (anndata's own reader does not know every version of scipy.)"""

    def __init__(self, group: _Element) -> None:
        self.shape = tuple(int(size) for size in group.attrs["shape"])
        self._data, self._indices, self._starts = group["data"], group["indices"], np.asarray(group["indptr"][:])
        size = self._data.shape[0]
        if len(self._starts) != self.shape[0] + 1 or self._starts[-1] != size or self._indices.shape[0] != size:
            raise InputError("The counts are damaged: their rows do not fit their entries. Write the file anew.")

    def __getitem__(self, rows: slice) -> sp.csr_array:
        start, stop, _ = rows.indices(self.shape[0])
        low, high = int(self._starts[start]), int(self._starts[stop])
        indices = np.asarray(self._indices[low:high])
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.shape[1]:
            raise InputError("The counts are damaged: they name genes that are not there. Write the file anew.")
        parts = (np.asarray(self._data[low:high]), indices, self._starts[start : stop + 1] - low)
        return sp.csr_array(parts, shape=(stop - start, self.shape[1]))


def _backed(element: _Element) -> _Element:
    """A matrix of which rows can be read."""
    return _RowsOnDisk(element) if element.attrs.get("encoding-type") == "csr_matrix" else element


def _read_index(group: _Element) -> list[str]:
    """The names of cells or genes."""
    from anndata.io import read_elem

    return [str(name) for name in read_elem(group[group.attrs["_index"]])]
