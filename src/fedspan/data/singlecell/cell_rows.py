"""Cells as the rows of a client: counts of the chosen genes, divided by each cell's total, logarithms taken.

x = log1p(t·c/Σc) with c a cell's counts, Σc over all genes of its file, and t a public number (`target_sum`): as
scanpy's `normalize_total` and `log1p`. A cell without counts is a row of zeros. Cells are read in chunks, again for
every pass, so that a file is never held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.data.singlecell.cell_files import CellFile
from fedspan.errors import InputError
from fedspan.numerics.operators import RowBatches

_DENSE = 1 << 22  # entries of a batch: 16 MB of float32


def normalise_chunk(chunk: sp.csr_array, at: Array, target_sum: float) -> sp.csr_array:
    """t·c/Σc of some genes, before logarithms are taken."""
    totals = np.asarray(chunk.sum(axis=1, dtype=np.float64)).ravel()
    factors = target_sum / np.where(totals > 0, totals, 1.0)
    chosen = chunk[:, at].astype(np.float64)
    chosen.data *= np.repeat(factors, np.diff(chosen.indptr))
    return chosen


class CellRows(RowBatches):
    """The chosen genes of one file's cells."""

    dtype = np.dtype(np.float32)

    def __init__(self, file: CellFile, genes: Sequence[str], target_sum: float) -> None:
        self.file, self.target_sum = file, target_sum
        self.at = find_genes(file, genes)
        self.shape = (len(file.cells), len(self.at))

    def batches(self) -> Iterator[Array]:
        step = max(1, _DENSE // max(1, self.shape[1]))
        for _, chunk in self.file.chunks():
            rows = normalise_chunk(chunk, self.at, self.target_sum).astype(np.float32)
            np.log1p(rows.data, out=rows.data)
            for start in range(0, rows.shape[0], step):
                yield rows[start : start + step].toarray()


class CellsSurvey:
    """A file of cells that is not read as rows yet."""

    def __init__(self, file: CellFile, target_sum: float) -> None:
        self.file, self.target_sum = file, target_sum

    def list_genes(self) -> list[str]:
        """What the file has."""
        return self.file.genes

    def add_moments(self, genes: Sequence[str]) -> tuple[int, Array, Array]:
        """The number of cells, and Σx and Σx² of normalised counts of those genes."""
        at = find_genes(self.file, genes)
        total, squares = np.zeros(len(at)), np.zeros(len(at))
        for _, chunk in self.file.chunks():
            x = normalise_chunk(chunk, at, self.target_sum)
            total += np.bincount(x.indices, weights=x.data, minlength=len(at))
            squares += np.bincount(x.indices, weights=x.data**2, minlength=len(at))
        return len(self.file.cells), total, squares


def find_genes(file: CellFile, genes: Sequence[str]) -> Array:
    """The places of those genes in the file."""
    places = {name: at for at, name in enumerate(file.genes)}
    if any(name not in places for name in genes):
        raise InputError("The server asked for genes that this file does not have. Nothing was sent.")
    return np.array([places[name] for name in genes], dtype=np.intp)
