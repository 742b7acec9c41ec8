"""From a source of named columns to a table: one array where it fits, else rows that are read when they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.data.columns import as_labels, checked_ids
from fedspan.data.preparation import Layout, Preparation
from fedspan.data.sources import Source
from fedspan.errors import InputError

LARGE = 1 << 28  # bytes of float64 (256 MB): what is larger is read in batches, if the algorithm can do with that


@dataclass(frozen=True)
class Table:
    """A matrix (dense, memory-mapped, sparse or `Batched`), and what else is known of its columns and rows."""

    X: Any
    names: tuple[str, ...] | None = None
    ids: Array | None = None
    labels: Array | None = None
    units: tuple[tuple[str, str], ...] = ()


class Batched:
    """Rows that stay where they are, and are read and prepared batch by batch at every pass over them."""

    ndim = 2
    dtype = np.dtype(np.float64)

    def __init__(self, source: Source, given: Preparation, shape: tuple[int, int]) -> None:
        self.source, self.given, self.shape = source, given, shape

    def batches(self) -> Iterator[Array]:
        """All rows in order, some at a time."""
        layout, n = Layout(self.source.names, self.given), 0
        for batch in self.source.batches([*layout.features], layout.text):
            X, _ = layout.block(batch)
            n += len(X)
            yield X
        if n != self.shape[0]:
            raise InputError(f"need the {self.shape[0]} rows that were there at first, got {n}; the table was changed")


def read(source: Source, given: Preparation, in_batches: bool) -> Table:
    """All of it in one pass: features, ids and labels, and whether anything is wrong with them."""
    layout = Layout(source.names, given)
    width = 8 * len(layout.names)
    blocks: list[Array] = []
    apart: dict[str, list[Array]] = {name: [] for name in layout.apart}
    n, keep = 0, not (in_batches and (source.rows or 0) * width > LARGE)
    for batch in source.batches([*layout.features, *layout.apart], layout.text):
        X, others = layout.block(batch)
        n += len(X)
        if in_batches and n * width > LARGE:
            keep, blocks = False, []
        if keep:
            blocks.append(X)
            _check_memory(max(n, source.rows or 0) * width)
        for name, column in others.items():
            apart[name].append(column)
    layout.check()
    whole: Any = _joined(blocks, n, len(layout.names)) if keep else Batched(source, given, (n, len(layout.names)))
    columns = {name: np.concatenate(parts) if parts else np.zeros(0, object) for name, parts in apart.items()}
    ids = checked_ids(columns[given.id], given.id) if given.id is not None and given.id in columns else None
    labels = as_labels(columns[given.label]) if given.label is not None and given.label in columns else None
    units = tuple((name, unit) for name, unit in source.units.items() if name in layout.features)
    return Table(whole, layout.names, ids, labels, units)


def _joined(blocks: list[Array], n: int, d: int) -> Array:
    """One array; each block is let go when it has been copied, so that memory holds all rows once."""
    if len(blocks) == 1:
        return blocks[0]
    X, at = np.empty((n, d)), 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        X[at : at + len(block)] = block
        at += len(block)
    return X


def _check_memory(need: int) -> None:
    have = _memory()
    if have is not None and need > have:
        raise InputError(
            f"need {need / 1e9:.3g} GB of memory to hold all rows at once, which this task does, got {have / 1e9:.3g} "
            "GB; choose fewer columns or rows (pca and svd read in batches)"
        )


def _memory() -> int | None:
    """Bytes of this machine; None if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
