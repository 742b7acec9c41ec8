"""One spelling for every id, so that the same entity has the same id at every client.

    text       Unicode NFKC, case folded, one space between words and none around: " Ann  Lee" is "ann lee"
    numbers    whole ones by their digits, whatever holds them: 1, 1.0, "1", "1.0" and " 1 " are one id
    "007"      stays text, because leading zeros count: it is not 7
    refused    gaps, fractions (they do not survive rounding), numbers beyond 2^53 in floating point, duplicates

Ids that differ only in what is said above are one id. Refusals name rows, never ids, because messages travel.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError

_EXACT = 2**53  # from here on, not every whole number is a float64
_GAPS = frozenset({"", "nan", "nat", "<na>", "none"})  # as numpy and pandas write what is missing
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0*)?")
_BROKEN = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9.]+e[+-][0-9]+)")  # as programs write fractions
_ROWS_SHOWN = 5  # rows of a refusal

GAP, FRACTION, TOO_LARGE = "no id", "a fraction", "a floating-point number that is too large to be exact"


class _NotAnIdError(Exception):
    """What a cell holds in place of an id, in words."""


def canonical(one: object) -> bytes:
    """The one spelling of an id, or a refusal."""
    try:
        return _spell(one)
    except _NotAnIdError as error:
        raise InputError(f"An id must be text or a whole number, but this one is {error}.") from None


def canonical_ids(ids: Sequence[object] | Array) -> list[bytes]:
    """The spelling of every row's id, if every row has one and no two are the same."""
    cells, spelled = list(ids), list[bytes]()
    wrong: dict[str, list[int]] = {}
    for row, one in enumerate(cells):
        try:
            spelled.append(_spell(one))
        except _NotAnIdError as error:
            wrong.setdefault(str(error), []).append(row)
    if wrong:
        found = "; ".join(f"{what} in {_name_rows(rows)}" for what, rows in wrong.items())
        raise InputError(
            f"Every row must have an id that is text or a whole number, but there is {found}. Remove these rows, or "
            "write their ids as text or whole numbers."
        )
    _refuse_duplicates(cells, spelled)
    return spelled


def digest_table(spelled: Sequence[bytes]) -> bytes:
    """A digest of all ids in their order, for the client's own use: whether its table is still the same."""
    digest = blake2b(digest_size=16)
    for one in spelled:
        digest.update(len(one).to_bytes(8, "little") + one)
    return digest.digest()


def _spell(one: object) -> bytes:
    if isinstance(one, bytes):
        one = one.decode("utf-8", errors="strict") if _is_utf8(one) else one.hex()
    if one is None:
        raise _NotAnIdError(GAP)
    if isinstance(one, bool | np.bool_):
        raise _NotAnIdError("true or false")
    if isinstance(one, int | np.integer):
        return b"i%d" % int(one)
    if isinstance(one, np.floating):
        return _spell_number(float(one))
    if isinstance(one, float | Decimal | Fraction):
        return _spell_number(one)
    text = " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", str(one)).casefold()).split())
    if text in _GAPS:
        raise _NotAnIdError(GAP)
    if whole := _WHOLE.fullmatch(text):
        return b"i0" if whole[1] == "-0" else b"i" + whole[1].encode()
    if _BROKEN.fullmatch(text):
        raise _NotAnIdError(FRACTION)
    return b"t" + text.encode("utf-8", errors="surrogatepass")


def _spell_number(one: float | Decimal | Fraction) -> bytes:
    if one != one:
        raise _NotAnIdError(GAP)
    if isinstance(one, float) and not abs(one) < _EXACT:
        raise _NotAnIdError(TOO_LARGE)
    if one != int(one):
        raise _NotAnIdError(FRACTION)
    return b"i%d" % int(one)


def _is_utf8(one: bytes) -> bool:
    try:
        one.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _refuse_duplicates(cells: Sequence[object], spelled: Sequence[bytes]) -> None:
    """Refuse rows that have the id of another row, and say whether they are written alike."""
    if len(set(spelled)) == len(spelled):
        return
    first: dict[bytes, int] = {}
    pairs = [(first.setdefault(one, row), row) for row, one in enumerate(spelled)]
    repeats = [(one, other) for one, other in pairs if one != other]
    unlike = [(one, other) for one, other in repeats if str(cells[one]) != str(cells[other])]
    shown = ", ".join(f"row {other + 1} that of row {one + 1}" for one, other in repeats[:_ROWS_SHOWN])
    more = f", and {len(repeats) - _ROWS_SHOWN} more" if len(repeats) > _ROWS_SHOWN else ""
    how = ""
    if unlike:
        one, other = unlike[0]
        how = (
            f" Rows {one + 1} and {other + 1} differ only in upper and lower case, in spaces, in how a character is "
            "encoded or in how a number is written, so they are one id."
        )
    raise InputError(
        f"Ids must be unique, but {len(repeats)} of {len(spelled)} rows repeat the id of another row ({shown}{more})."
        f"{how} Keep one row for each id."
    )


def _name_rows(rows: Sequence[int]) -> str:
    shown = ", ".join(str(row + 1) for row in rows[:_ROWS_SHOWN])
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return f"row{'' if len(rows) == 1 else 's'} {shown}{more}"
