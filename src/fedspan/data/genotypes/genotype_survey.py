"""A client's genotypes as they are looked at while the federation agrees on its variants."""

from __future__ import annotations

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.field.variants import Variant, counts_first, digest_keys
from fedspan.data.genotypes.genotype_files import GenotypeFile
from fedspan.data.genotypes.genotype_rows import ChosenVariants, count_genotypes, multiply_neighbours, read_slabs
from fedspan.errors import InputError


class FileSurvey:
    """A file of genotypes that is not read as rows yet."""

    def __init__(self, file: GenotypeFile) -> None:
        self.file = file
        self._digests: Array | None = None

    def list_variants(self) -> list[Variant]:
        """What the file has."""
        return self.file.variants

    def find(self, keys: Array, first: Array) -> ChosenVariants:
        """The places of those variants in this file, and where it counts the other allele."""
        if self._digests is None:
            self._digests = digest_keys(self.file.variants)
        order = np.argsort(self._digests, kind="stable")
        at = np.searchsorted(self._digests[order], keys)
        places = order[np.minimum(at, len(order) - 1)]
        if not np.array_equal(self._digests[places], keys):
            raise InputError("The server asked for variants that this file does not have. Nothing was sent.")
        return ChosenVariants(places, counts_first(self.file.variants)[places] != first.astype(bool))

    def count_alleles(self, keys: Array, first: Array) -> tuple[Array, Array]:
        """Copies of the counted allele, and called genotypes, in one pass."""
        chosen = self.find(keys, first)
        alleles, calls = np.zeros(len(keys)), np.zeros(len(keys))
        for start, slab in read_slabs(self.file, chosen):
            alleles[start : start + len(slab)], calls[start : start + len(slab)], _ = count_genotypes(slab)
        return alleles, calls

    def add_products(self, keys: Array, first: Array, p: Array, window: int) -> Array:
        """Products of each variant with its next neighbours, summed over the samples."""
        if not 1 <= window <= 1000:
            raise InputError(f"A window must be from 1 to 1000 variants, but the server asks for {window}.")
        found = self.find(keys, first)
        return multiply_neighbours(self.file, ChosenVariants(found.at, found.swapped, p), window)
