"""PLINK 1 (.bed, .bim, .fam) and PLINK 2 (.pgen, .pvar, .psam) files: variants, samples, and genotypes as int8.

A genotype is how many copies of the counted allele a sample has (0, 1 or 2), or -1 if it is missing. Both formats keep
all samples of a variant together, so genotypes are read some variants at a time, (variants, samples).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.field.variants import Variant
from fedspan.data.genotypes.variant_files import read_bim, read_pvar, read_samples
from fedspan.data.sources import UnchangedFile, explain_file_errors
from fedspan.errors import InputError, MissingExtraError

ENDINGS = (".bed", ".pgen")
_MAGIC, _BY_VARIANT, _BY_SAMPLE = b"\x6c\x1b", 1, 0


class GenotypeFile(ABC):
    """The genotypes of one client."""

    variants: list[Variant]
    samples: list[tuple[str, str]]

    @abstractmethod
    def read(self, at: Array) -> Array:
        """The genotypes of the variants at those places, int8 (len(at), samples); -1: missing."""


def is_genotype_file(source: object) -> bool:
    """Whether that is the path of a file of genotypes."""
    return isinstance(source, str | os.PathLike) and Path(source).suffix.lower() in ENDINGS


def open_genotypes(source: object) -> GenotypeFile:
    """Open a file by its ending; its sister files must be beside it."""
    if isinstance(source, GenotypeFile):
        return source
    if isinstance(source, Mapping) and set(source) == {"path"}:
        source = source["path"]
    if not isinstance(source, str | os.PathLike) or not is_genotype_file(source):
        raise InputError(f"Genotypes are read from .bed and .pgen files, but the client has {str(source)!r}.")
    path = Path(source)
    sisters = (".bim", ".fam") if path.suffix.lower() == ".bed" else (".pvar", ".psam")
    for each in (path, *(path.with_suffix(ending) for ending in sisters)):
        with explain_file_errors(each):
            found = each.is_file()
        if not found:
            packed = each.with_name(each.name + ".zst").is_file()
            what = f"is packed as {each.name}.zst; unpack it with plink2 --zst-decompress" if packed else "is missing"
            raise InputError(f"{path.name} needs {each.name} beside it, but that {what} ({each.parent}).")
    return PlinkBed(path) if path.suffix.lower() == ".bed" else PlinkPgen(path)


class PlinkBed(GenotypeFile):
    """PLINK 1: two bits for each genotype, after three bytes that say so."""

    def __init__(self, path: Path) -> None:
        _require_reader("bed_reader", path)
        self.path = path
        self.variants, self.samples = read_bim(path.with_suffix(".bim")), read_samples(path.with_suffix(".fam"))
        with explain_file_errors(path), path.open("rb") as file:
            head, size = file.read(3), path.stat().st_size
        if head[:2] != _MAGIC or len(head) < 3 or head[2] not in (_BY_VARIANT, _BY_SAMPLE):
            raise InputError(f"{path} is not a PLINK .bed file: its first bytes are {head.hex(' ') or 'missing'}.")
        if head[2] == _BY_SAMPLE:
            raise InputError(
                f"{path} is sample-major, as PLINK before 1.0 wrote it. Write it anew: plink2 --bfile "
                f"{path.stem} --make-bed."
            )
        needed = 3 + len(self.variants) * -(-len(self.samples) // 4)
        if size != needed:
            raise InputError(
                f"{path} must have {needed:,} bytes for the {len(self.variants):,} variants of the .bim and the "
                f"{len(self.samples):,} samples of the .fam file, but has {size:,}. "
                + ("It was cut off; copy it again." if size < needed else "Do the three files belong together?")
            )
        self._unchanged = UnchangedFile(path)

    def read(self, at: Array) -> Array:
        from bed_reader import open_bed

        self._unchanged.check()
        n, d = len(self.samples), len(self.variants)
        with explain_file_errors(self.path), open_bed(self.path, iid_count=n, sid_count=d, num_threads=1) as bed:
            G = bed.read(index=np.s_[:, at], dtype="int8", order="F", num_threads=1).T
        self._unchanged.check()
        np.maximum(G, -1, out=G)
        return G


class PlinkPgen(GenotypeFile):
    """PLINK 2: compressed hard calls."""

    def __init__(self, path: Path) -> None:
        _require_reader("pgenlib", path)
        import pgenlib

        self.path = path
        self.variants, self.samples = read_pvar(path.with_suffix(".pvar")), read_samples(path.with_suffix(".psam"))
        with explain_file_errors(path):
            reader = pgenlib.PgenReader(os.fsencode(path), raw_sample_ct=len(self.samples))
            found = reader.get_variant_ct()
            reader.close()
        if found != len(self.variants):
            raise InputError(
                f"{path} has {found:,} variants, but its .pvar file {len(self.variants):,}. Do the three files belong "
                "together?"
            )
        self._unchanged = UnchangedFile(path)

    def read(self, at: Array) -> Array:
        import pgenlib

        self._unchanged.check()
        G = np.empty((len(at), len(self.samples)), dtype=np.int8)
        with explain_file_errors(self.path):
            reader = pgenlib.PgenReader(os.fsencode(self.path), raw_sample_ct=len(self.samples))
            try:
                reader.read_list(np.asarray(at, dtype=np.uint32), G, allele_idx=1)
            finally:
                reader.close()
        self._unchanged.check()
        np.maximum(G, -1, out=G)
        return G


def _require_reader(library: str, path: Path) -> None:
    if find_spec(library) is None:
        raise MissingExtraError(f"reading {path.suffix} files", "genomics")
