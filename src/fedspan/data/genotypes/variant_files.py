"""The text files beside genotypes: which variants (.bim, .pvar) and which samples (.fam, .psam) they are of."""

from __future__ import annotations

from itertools import starmap
from pathlib import Path

from fedspan.algorithms.field.variants import Variant, normalize_chromosome
from fedspan.data.sources import UnchangedFile, explain_file_errors
from fedspan.errors import InputError


def read_bim(path: Path) -> list[Variant]:
    """The variants of PLINK 1 files: chromosome, id, centimorgans, position, A1, A2."""
    return list(starmap(_from_bim, _read_rows(path, 6)))


def _from_bim(chromosome: str, id: str, _morgans: str, position: str, a1: str, a2: str, *_more: str) -> Variant:
    return Variant(normalize_chromosome(chromosome), int(position), id, a1.upper(), a2.upper())


def read_pvar(path: Path) -> list[Variant]:
    """The variants of PLINK 2 files; those with several ALT alleles keep their comma, and are left out later."""
    columns: list[str] = []
    found = []
    for row in _read_rows(path, 5, comment="##"):
        if row[0] == "#CHROM":
            columns = [name.lstrip("#") for name in row]
            continue
        if not columns:
            raise InputError(f"{path} has no line that begins with #CHROM. Write it anew with plink2 --make-pgen.")
        of = dict(zip(columns, row, strict=False))
        chromosome = normalize_chromosome(of["CHROM"])
        found.append(Variant(chromosome, int(of["POS"]), of["ID"], of["ALT"].upper(), of["REF"].upper()))
    return found


def read_samples(path: Path) -> list[tuple[str, str]]:
    """Family and individual id of each sample in a .fam or .psam file."""
    rows = _read_rows(path, 1, comment="##")
    if path.suffix == ".fam" or not rows or not rows[0][0].startswith("#"):
        return [(row[0], row[1]) if len(row) > 1 else ("0", row[0]) for row in rows]
    names = [name.lstrip("#") for name in rows[0]]
    if "IID" not in names:
        raise InputError(f"{path} has no column IID. Write it anew with plink2 --make-pgen.")
    at, family = names.index("IID"), names.index("FID") if "FID" in names else None
    return [("0" if family is None else row[family], row[at]) for row in rows[1:]]


def _read_rows(path: Path, least: int, comment: str = "") -> list[list[str]]:
    """The cells of a text file, by white space; a line that is too short is named."""
    with explain_file_errors(path):
        unchanged = UnchangedFile(path)
        lines = path.read_text(encoding="utf-8").split("\n")
        unchanged.check()
    rows, at = [], {".bim": 3, ".pvar": 1}.get(path.suffix)
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if not cells or (comment and line.startswith(comment)):
            continue
        if len(cells) < least:
            raise InputError(f"Line {number} of {path} must have {least} columns, but has {len(cells)}.")
        if at is not None and not cells[at].isdecimal() and cells[0][0] != "#":
            raise InputError(f"Line {number} of {path} must have a position in base pairs, but has {cells[at]!r}.")
        rows.append(cells)
    return rows
