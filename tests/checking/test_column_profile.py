"""A column is counted in the same way whether its cells are taken in all at once or one by one."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.data.cells.column_profile import ColumnProfile
from fedspan.data.cells.dialect import Dialect

NUMBERS = st.one_of(
    st.integers(-999, 9999).map(str),
    st.floats(-1e9, 1e9).map(repr),
    st.sampled_from(["007", "-0", "+3", "1e3", "1E-4", ".5", "5.", "00", "-99", "1", "0", "1e999", "--1", "e", "."]),
)
OTHERS = st.sampled_from([None, "NA", "yes", "12,5", "inf", "1_000", "2020-01-01", "x", "nan"])
DIALECTS = [Dialect(), Dialect(na_values=("-99",)), Dialect(true_values=("1",), false_values=("0",))]


@settings(deadline=None, max_examples=200)
@given(
    cells=st.lists(st.one_of(NUMBERS, NUMBERS, NUMBERS, OTHERS), max_size=12),
    more=st.lists(NUMBERS, max_size=12),
    dialect=st.sampled_from(DIALECTS),
)
def test_at_once_is_one_by_one(cells: list[str | None], more: list[str], dialect: Dialect) -> None:
    quick, slow = ColumnProfile(dialect, "c"), ColumnProfile(dialect, "c")
    for part in (cells, more, more[::-1]):
        quick.add(part)
        slow._add_cells(list(part))
    for one in fields(ColumnProfile):
        if one.name == "seen":  # marks, of which order and place do not matter
            assert quick.seen == slow.seen
        elif one.name in ("total", "squares"):
            assert getattr(quick, one.name) == pytest.approx(getattr(slow, one.name), rel=1e-12, abs=1e-6)
        else:
            assert getattr(quick, one.name) == getattr(slow, one.name), one.name


def test_a_column_of_plain_numbers_is_taken_in_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = ColumnProfile(name="c")
    monkeypatch.setattr(profile, "_add_cells", lambda cells: pytest.fail("one by one"))
    profile.add(["1.5", None, "-2", "003"])
    assert (profile.rows, profile.missing, profile.numbers, profile.whole, profile.zeros_first) == (4, 1, 3, 2, 1)
    assert math.isclose(profile.mean, 2.5 / 3)
