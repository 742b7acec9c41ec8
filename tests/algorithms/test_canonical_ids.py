"""One spelling for every id, whatever a table, a language or a program makes of it."""

from __future__ import annotations

import random
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fedspan.algorithms.matching.canonical_ids import canonical, canonical_ids, digest_table
from fedspan.errors import InputError

ONE = [1, 1.0, "1", "1.0", " 1 ", "1.", "1.000", "\u00a01\t", "１", np.int8(1), np.float32(1), Decimal("1.00"), b"1"]
SAME: list[list[Any]] = [
    ONE,
    ["É", "E\u0301", "é", "e\u0301", " É"],
    ["Ann  Lee", "ann lee", " ANN\tLEE\n", "Ann\u00a0Lee"],
    ["ﬁle", "FILE", "file"],
    ["Straße", "STRASSE"],
    ["007", " 007", "００７"],
    ["-3", -3, -3.0, "-3.0"],
    [0, "0", -0.0, "-0"],
    [2**70, str(2**70), f"{2**70}.0", Fraction(2**70)],
]


@pytest.mark.parametrize("group", SAME, ids=lambda group: ascii(group[0]))
def test_these_are_one_id(group: list[Any]) -> None:
    assert len({canonical(one) for one in group}) == 1


def test_different_ids_stay_different() -> None:
    apart = [group[0] for group in SAME] + [7, "7a", "0", 10, "01", "1 0", "a-b", "ab", "1e5", "1_0", "+1", "1,5", "²³"]
    spelled = {canonical(one) for one in apart}
    assert len(spelled) == len({*map(str, apart)}), "0 is there twice"
    assert canonical("007") != canonical(7)


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (None, "no id"),
        (float("nan"), "no id"),
        (np.float64("nan"), "no id"),
        (pd.NA, "no id"),
        (pd.NaT, "no id"),
        ("", "no id"),
        (" \t", "no id"),
        ("nan", "no id"),
        (1.5, "a fraction"),
        ("1.5", "a fraction"),
        ("1e+20", "a fraction"),
        (Decimal("0.1"), "a fraction"),
        (1e20, "too large to be exact"),
        (float("inf"), "too large to be exact"),
        (True, "true or false"),
    ],
    ids=str,
)
def test_what_is_no_id_is_refused(one: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        canonical(one)


def test_a_refusal_names_all_rows_and_no_id() -> None:
    with pytest.raises(InputError) as refused:
        canonical_ids(["MRN1", None, "MRN2", 1.5, "MRN3", "", 2.5])
    assert "no id in rows 2, 6; a fraction in rows 4, 7" in str(refused.value)
    assert "MRN" not in str(refused.value)


def test_ids_that_differ_only_by_case_are_one_and_so_a_duplicate() -> None:
    with pytest.raises(InputError, match=r"row 3 that of row 1\)\. Rows 1 and 3 differ only in upper and lower case"):
        canonical_ids(["Ann", "Bo", "ANN"])
    with pytest.raises(InputError, match=r"2 of 4 rows repeat .* \(row 2 that of row 1, row 4 that of row 1\)\. Keep"):
        canonical_ids([7, 7, 8, 7])
    with pytest.raises(InputError, match=r"and 4 more"):
        canonical_ids([7] * 10)


@pytest.mark.parametrize(
    "kind",
    [list, np.array, pd.Series, pl.Series, pa.array, lambda x: pd.Series(x, index=range(9, 9 - len(x), -1))],
    ids=["list", "numpy", "pandas", "polars", "arrow", "another index"],
)
@pytest.mark.parametrize("values", [[3, 1, 2], ["c", "A", "b"], [3.0, 1.0, 2.0]], ids=str)
def test_any_container_gives_the_same(kind: Any, values: list[Any]) -> None:
    assert canonical_ids(kind(values)) == canonical_ids(values)


def test_a_spelling_is_its_own_spelling() -> None:
    """Whatever letters there are: what was spelled once stays as it is, when a table is written and read again."""
    rng = random.Random(0)  # noqa: S311
    letters = [chr(c) for c in range(0x2FFF) if unicodedata.category(chr(c))[0] in "LNM"]
    for _ in range(3000):
        text = "x" + "".join(rng.choices(letters, k=4))
        spelled = canonical(text)
        for other in (
            text.upper().lower() if text.upper().lower().casefold() == text.casefold() else text,
            f" {text} ",
        ):
            assert canonical(other) == spelled
        assert canonical(spelled[1:].decode()) == spelled
        assert canonical(unicodedata.normalize("NFD", text)) == spelled


def test_a_table_that_changed_has_another_digest() -> None:
    digests = {digest_table(canonical_ids(ids)) for ids in (["a", "b"], ["b", "a"], ["a", "bc"], ["ab", "c"], ["a"])}
    assert len(digests) == 5
