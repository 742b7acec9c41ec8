"""The variants of a genotype file: what they are called, where they are, and which allele is counted.

Variants are compared by chromosome, position and both alleles, never by their ids alone: ids are missing in many files
and differ between versions of a database. Chromosomes are written as plink writes them (`chr1` is `1`, `23` is `X`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError

_CHROMOSOME_NAMES = {"23": "X", "24": "Y", "25": "XY", "26": "MT", "M": "MT"}
_MOST_VARIANT_TEXT = 1 << 30  # bytes of a description that a client may send


class Variant(NamedTuple):
    """One variant. `counted` is the allele whose copies a genotype counts: A1 of a .bim file, ALT of a .pvar file."""

    chromosome: str
    position: int
    id: str
    counted: str
    other: str

    @property
    def key(self) -> str:
        """What two files must agree in to mean the same variant, whichever allele they count."""
        first, second = sorted((self.counted, self.other))
        return f"{self.chromosome}:{self.position}:{first}:{second}"

    def describe(self) -> str:
        """Say it to a person."""
        return f"{self.id} ({self.chromosome}:{self.position} {self.counted}/{self.other})"


def normalize_chromosome(name: str) -> str:
    """One way to write each chromosome."""
    bare = name[3:] if name[:3].lower() == "chr" else name
    return _CHROMOSOME_NAMES.get(bare.upper(), bare.upper())


def is_autosome(name: str) -> bool:
    """Whether both sexes have two copies."""
    return name.isdecimal() and 1 <= int(name) <= 22


def digest_keys(variants: Sequence[Variant]) -> Array:
    """64 bits of each variant's key, by which clients find it in their files."""
    digests = b"".join(blake2b(variant.key.encode(), digest_size=8).digest() for variant in variants)
    return np.frombuffer(digests, dtype="<u8")


def counts_first(variants: Sequence[Variant]) -> Array:
    """Whether the counted allele is the first of the two in the alphabet, (d,)."""
    return np.array([variant.counted <= variant.other for variant in variants], dtype=bool)


def pack_variants(variants: Sequence[Variant]) -> Array:
    """The variants as bytes that a client can send."""
    lines = "\n".join(f"{v.chromosome}\t{v.position}\t{v.id}\t{v.counted}\t{v.other}" for v in variants)
    return np.frombuffer(zlib.compress(lines.encode(), 6), dtype=np.uint8)


def unpack_variants(packed: Array) -> list[Variant]:
    """The same back; what another client sent is checked before it is believed."""
    try:
        opened = zlib.decompressobj()
        text = opened.decompress(np.asarray(packed, dtype=np.uint8).tobytes(), _MOST_VARIANT_TEXT).decode()
        if not opened.eof:
            raise ValueError
        cells = [line.split("\t") for line in text.split("\n") if line]
        return [Variant(chromosome, int(at), id, a, b) for chromosome, at, id, a, b in cells]
    except (ValueError, zlib.error):
        raise InputError(
            "A client's list of variants cannot be read. Install the same version of fedspan at every client."
        ) from None
