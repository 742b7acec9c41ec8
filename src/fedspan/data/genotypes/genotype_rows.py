"""Genotypes as the rows of a client: samples × variants, standardised, multiplied without being formed.

Notation: g (d, n) counts of alleles (int8, -1 missing), p (d,) allele frequencies over all clients, s (d,) the scale;
row i of A is s∘(g_i - 2p), and 0 where g_i is missing, so that a missing genotype is at the mean. Scale "hwe" is
s = 1/√(2p(1-p)), the standard deviation in Hardy-Weinberg equilibrium, as in plink2 --pca.

A product AᵀA V takes two passes over tiles of some variants: Y = A V is added up over tiles, then each tile gives its
rows of AᵀY. A tile is made as float32, with the mean subtracted, while it is in the cache; where genotypes are missing
it is set to zero, by a list of places. So the data stay int8, as they came, or in their file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fedspan._types import Array
from fedspan.data.genotypes.genotype_files import GenotypeFile
from fedspan.numerics.operators import RowKernel

SCALES = ("hwe", "none")
_TILE = 1 << 18  # entries of a tile: 1 MB of float32
_SLAB = 1 << 24  # genotypes that are read from a file at once: 16 MB
_ROWS = 1 << 11  # samples of a tile
_BATCH = 1 << 23  # entries of a batch of standardised rows


@dataclass(frozen=True)
class ChosenVariants:
    """Which variants of a file are used, in the order that all clients share, and how they are standardised.

    `at`: their places in the file; `swapped`: where the file counts the other allele; `p`: frequencies of the counted
    allele over all clients.
    """

    at: Array
    swapped: Array
    p: Array = field(default_factory=lambda: np.zeros(0))
    scale: str = "hwe"

    def take(self, keep: Array) -> ChosenVariants:
        """Some of them."""
        p = self.p[keep] if len(self.p) else self.p
        return ChosenVariants(self.at[keep], self.swapped[keep], p, self.scale)


def find_scale(p: Array, scale: str) -> Array:
    """What the deviation of each variant from its mean is multiplied by."""
    if scale == "none":
        return np.ones(len(p))
    return 1.0 / np.sqrt(2 * p * (1 - p))


class GenotypeRows(RowKernel):
    """The standardised genotypes of one file. `held`: keep them in memory, a byte for each."""

    dtype = np.dtype(np.float32)

    def __init__(self, file: GenotypeFile, chosen: ChosenVariants, *, held: bool) -> None:
        self.file, self.chosen, self.held = file, chosen, held
        self.shape = (len(file.samples), len(chosen.at))
        self._G: Array | None = None
        self._means = (2 * chosen.p).astype(np.float32)
        self._s = find_scale(chosen.p, chosen.scale)
        self._gaps: dict[tuple[int, int], Array] = {}
        self._counts: tuple[Array, Array, Array] | None = None

    def _slabs(self) -> Iterator[tuple[int, Array]]:
        """The genotypes, some variants at a time, each with the place of its first."""
        if self._G is not None:
            yield 0, self._G
            return
        d = self.shape[1]
        G = np.empty((d, self.shape[0]), dtype=np.int8) if self.held else None
        for start, slab in read_slabs(self.file, self.chosen):
            if G is not None:
                G[start : start + len(slab)] = slab
            yield start, slab
        self._G = G

    def _tiles(self) -> Iterator[tuple[int, int, int, Array]]:
        """The tiles of A without its scale, transposed: first variant, first and last sample, (variants, samples)."""
        n = self.shape[0]
        rows = min(n, _ROWS)
        height = max(32, _TILE // rows)
        buffer = np.empty(height * rows, dtype=np.float32)
        for first, slab in self._slabs():
            for at in range(0, len(slab), height):
                for start in range(0, n, rows):
                    g = slab[at : at + height, start : start + rows]
                    tile = buffer[: g.size].reshape(g.shape)
                    np.copyto(tile, g, casting="unsafe")
                    tile -= self._means[first + at : first + at + len(g), None]
                    tile.ravel()[self._find_gaps((first + at, start), g)] = 0.0
                    yield first + at, start, start + g.shape[1], tile

    def _find_gaps(self, place: tuple[int, int], g: Array) -> Array:
        """Where the genotypes of a tile are missing; found once if all are in memory."""
        if (known := self._gaps.get(place)) is not None:
            return known
        gaps = np.flatnonzero(g < 0)
        if self._G is not None:
            self._gaps[place] = gaps.astype(np.int32)
        return gaps

    def count(self) -> tuple[Array, Array, Array]:
        """Of each variant: copies of the counted allele, called genotypes, and heterozygous ones, (d,) each."""
        if self._counts is None:
            d = self.shape[1]
            alleles, calls, hets = np.zeros(d), np.zeros(d), np.zeros(d)
            for first, slab in self._slabs():
                at = slice(first, first + len(slab))
                alleles[at], calls[at], hets[at] = count_genotypes(slab)
            self._counts = alleles, calls, hets
        return self._counts

    def add_rows(self) -> Array:
        alleles, calls, _ = self.count()
        return self._s * (alleles - 2 * self.chosen.p * calls)

    def add_squares(self, mu: Array) -> Array:
        alleles, calls, hets = self.count()
        m, two = 2 * self.chosen.p, (alleles - hets) / 2
        squares = (calls - hets - two) * m**2 + hets * (1 - m) ** 2 + two * (2 - m) ** 2
        return np.maximum(self._s**2 * squares - 2 * mu * self.add_rows() + self.shape[0] * mu**2, 0.0)

    def multiply_shifted(self, W: Array, c: Array) -> tuple[Array, Array]:
        n, d = self.shape
        scaled = (self._s[:, None] * W).astype(np.float32)
        Y = np.zeros((n, W.shape[1]))
        for first, start, stop, tile in self._tiles():
            Y[start:stop] += tile.T @ scaled[first : first + len(tile)]
        Y -= c
        single, out = Y.astype(np.float32), np.zeros((d, W.shape[1]))
        for first, start, stop, tile in self._tiles():
            out[first : first + len(tile)] += tile @ single[start:stop]
        out *= self._s[:, None]
        return out, Y.sum(axis=0)

    def project(self, W: Array) -> Array:
        """A W, (n, k)."""
        scaled, Y = (self._s[:, None] * W).astype(np.float32), np.zeros((self.shape[0], W.shape[1]))
        for first, start, stop, tile in self._tiles():
            Y[start:stop] += tile.T @ scaled[first : first + len(tile)]
        return Y

    def batches(self) -> Iterator[Array]:
        """The rows themselves. A file is read once for each batch, so this is for few variants or small files."""
        n, d = self.shape
        step = max(1, _BATCH // max(1, d))
        for start in range(0, n, step):
            batch = np.empty((min(step, n - start), d), dtype=np.float32)
            for first, slab in self._slabs():
                at = slice(first, first + len(slab))
                g = slab[:, start : start + step].T
                block = (g - self._means[at]) * self._s[at].astype(np.float32)
                block[g < 0] = 0.0
                batch[:, at] = block
            yield batch


def read_slabs(file: GenotypeFile, chosen: ChosenVariants) -> Iterator[tuple[int, Array]]:
    """The genotypes of the chosen variants from the file, with the counted allele that all share."""
    step = max(1, _SLAB // max(1, len(file.samples)))
    for start in range(0, len(chosen.at), step):
        slab = file.read(chosen.at[start : start + step])
        odd = np.flatnonzero(chosen.swapped[start : start + step])
        if len(odd):
            turned = slab[odd]
            slab[odd] = np.where(turned < 0, turned, 2 - turned)
        yield start, slab


def count_genotypes(slab: Array) -> tuple[Array, Array, Array]:
    """Of each variant: copies of the counted allele, called genotypes, and heterozygous ones."""
    n, total = slab.shape[1], slab.sum(axis=1, dtype=np.int64)  # in which a missing one is -1
    hets, gaps = np.count_nonzero(slab == 1, axis=1), np.count_nonzero(slab < 0, axis=1)
    return (total + gaps).astype(float), (n - gaps).astype(float), hets.astype(float)


def multiply_neighbours(file: GenotypeFile, chosen: ChosenVariants, window: int) -> Array:
    """Σ_i a_ij a_i,j+l over the samples, for l = 0 … window, (d, window + 1): zero beyond the last variant."""
    d, out = len(chosen.at), np.zeros((len(chosen.at), window + 1))
    means, before = (2 * chosen.p).astype(np.float32), np.zeros((0, len(file.samples)), dtype=np.float32)
    for start, slab in read_slabs(file, chosen):
        rows = slab - means[start : start + len(slab), None]
        rows[slab < 0] = 0.0
        rows = np.concatenate([before, rows])
        first = start - len(before)
        last = len(rows) if start + len(slab) == d else max(0, len(rows) - window)
        for block in range(0, last, window):
            stop = min(block + window, last)
            products = rows[block:stop] @ rows[block : stop + window].T
            for j in range(stop - block):
                found = products[j, j : j + window + 1]
                out[first + block + j, : len(found)] = found
        before = rows[last:]
    return out
