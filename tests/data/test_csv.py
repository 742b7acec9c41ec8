"""CSV files with odd cells: pyarrow and the reader that goes line by line must take every cell for the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspan.data import _csv_file, sources
from fedspan.data._csv_file import CsvFile
from fedspan.data.preparation import Preparation
from fedspan.data.tables import open_table
from fedspan.errors import InputError

NAN, REFUSED = float("nan"), None

# What is in the file, the number that it means, and the word.
CELLS: list[tuple[str, float | None, str | None]] = [
    ("", NAN, None),
    (" ", NAN, None),
    ("   ", NAN, None),
    ("\t", NAN, None),
    ("\u00a0", NAN, None),
    ('""', NAN, None),
    ('" "', NAN, None),
    ("NA", NAN, "NA"),
    (" NA ", NAN, "NA"),
    ('" NA "', NAN, "NA"),
    ("N/A ", NAN, "N/A"),
    (" NaN", NAN, "NaN"),
    ("nan ", NAN, "nan"),
    ("NAN", NAN, "NAN"),
    ("-nan", NAN, "-nan"),
    ("nan(1)", REFUSED, "nan(1)"),
    (" null", NAN, "null"),
    ("None ", NAN, "None"),
    ("none", REFUSED, "none"),
    ("1.5", 1.5, "1.5"),
    (" 1.5", 1.5, "1.5"),
    ("1.5 ", 1.5, "1.5"),
    ("\t1.5\u00a0", 1.5, "1.5"),
    ('"1.5"', 1.5, "1.5"),
    ('" 1.5 "', 1.5, "1.5"),
    ('"\n1.5"', 1.5, "1.5"),
    (' "1.5"', REFUSED, '"1.5"'),
    ('"1".5', 1.5, "1.5"),
    ("+5", 5.0, "+5"),
    ("-.5e3", -500.0, "-.5e3"),
    ("-0", -0.0, "-0"),
    ("0.1000000000000000055511151231257827", 0.1, "0.1000000000000000055511151231257827"),
    ("5.", 5.0, "5."),
    ("1e400", np.inf, "1e400"),
    (" -inf ", -np.inf, "-inf"),
    ("Infinity", np.inf, "Infinity"),
    ("\u0661\u0662", 12.0, "\u0661\u0662"),  # Arabic digits
    ("1_000", REFUSED, "1_000"),
    ("1 000", REFUSED, "1 000"),
    ("0x10", REFUSED, "0x10"),
    ("true", REFUSED, "true"),
    ('"1,5"', REFUSED, "1,5"),
    ('"a""b"', REFUSED, 'a"b'),
    ('a"b', REFUSED, 'a"b'),
    ('"two\nlines"', REFUSED, "two\nlines"),
    ("?", REFUSED, "?"),
    ("é ", REFUSED, "é"),
]


def read(path: Path, names: list[str], text: list[str]) -> dict[str, list[Any]] | str:
    """The columns, or what is said instead."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    try:
        for batch in CsvFile(path).batches(names, text):
            for name in names:
                columns[name] += batch[name].tolist()
    except InputError as error:
        return str(error)
    return columns


@pytest.fixture(params=["pyarrow", "by lines"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by lines":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    else:
        pytest.importorskip("pyarrow")
    return str(request.param)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("place", ["alone", "first", "last"])
@pytest.mark.parametrize(("cell", "number", "word"), CELLS)
def test_what_a_cell_means(cell: str, number: float | None, word: str | None, place: str, tmp_path: Path) -> None:
    rows = {"alone": "x\n1\n{}\n3\n", "first": "x,y\n1,7\n{},8\n3,9\n", "last": "y,x\r\n7,1\r\n8,{}\r\n9,3"}
    path = tmp_path / "t.csv"
    path.write_bytes(rows[place].format(cell).encode())
    if (cell, place) == ("", "alone"):  # an empty line is no row
        assert read(path, ["x"], []) == {"x": [1.0, 3.0]}
        return
    assert read(path, ["x"], ["x"]) == {"x": ["1", word, "3"]}
    found = read(path, ["x"], [])
    if number is REFUSED:
        assert str(found).startswith("Column 'x' must be numeric, but row 2 (line ")
        assert f"of {path} contains {word!r}. " in str(found)
    else:
        assert isinstance(found, dict)
        np.testing.assert_array_equal(found["x"], [1.0, number, 3.0])
        assert str(found["x"][1]).startswith("-") == str(number).startswith("-")


@pytest.mark.usefixtures("reader")
def test_only_the_columns_that_are_read_must_be_in_order(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("x,y,z\n1,Köln,?\n2,Ulm,!\n".encode("latin-1"))
    assert read(path, ["x"], []) == {"x": [1.0, 2.0]}
    assert "must be UTF-8 text, but it seems to be Latin-1" in str(read(path, ["x", "y"], ["y"]))


@pytest.mark.usefixtures("reader")
def test_names_may_be_quoted_and_take_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('" a,b ","c\nd"\n1,2\n\n3,4\n')
    assert read(path, ["a,b", "c\nd"], []) == {"a,b": [1.0, 3.0], "c\nd": [2.0, 4.0]}


def test_a_good_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces around numbers, gaps and words are no reason to begin again line by line."""
    pytest.importorskip("pyarrow")

    def begin_again(*_: object) -> None:
        raise AssertionError("the file is read a second time")

    monkeypatch.setattr(CsvFile, "_read_lines", begin_again)
    path = tmp_path / "t.csv"
    path.write_text('x,y,who\n 1 , NA ,a\n , 2,b \n+3,-nan, c\n 4 ," 5 ", d e \n')
    table = open_table(path, Preparation(id="who", missing="drop"))
    np.testing.assert_array_equal(table.X, [[4.0, 5.0]])
    assert table.ids is not None
    assert table.ids.tolist() == ["d e"]


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ("9,?", "Column 'y' must be numeric, but row 900 (line 901) of"),
        ("9", "must have 2 cells, as its first line has, but row 900 (line 901) has 1"),
        ("9,8,7", "must have 2 cells, as its first line has, but row 900 (line 901) has 3"),
    ],
)
def test_what_is_wrong_is_found_in_a_later_batch(
    spoilt: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_csv_file, "_CSV_BLOCK", 1000)
    monkeypatch.setattr(sources, "ENTRIES", 100)
    lines = [f"{i},{2 * i}" for i in range(1, 1001)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,y", *lines]))
    assert read(path, ["x", "y"], []) == {"x": list(range(1, 1001)), "y": list(range(2, 2001, 2))}
    lines[899] = spoilt
    path.write_text("\n".join(["x,y", *lines]))
    assert words in str(read(path, ["x", "y"], []))


def test_a_row_that_is_longer_than_a_block_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(_csv_file, "_CSV_BLOCK", 1000)
    lines = [f"{i},w" for i in range(300)] + ["300," + "long " * 1000, "301,w"]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,y", *lines]))
    assert read(path, ["x"], []) == {"x": list(range(302))}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.text(alphabet='12aN" ,\n\r', max_size=20), columns=st.integers(1, 3))
def test_both_readers_agree_on_any_text(body: str, columns: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    names = list("xyz"[:columns])
    path = tmp_path / "t.csv"
    path.write_bytes((",".join(names) + "\n" + body).encode())
    for text in ([], names):
        with pytest.MonkeyPatch.context() as without:
            fast = read(path, names, text)
            without.setitem(sys.modules, "pyarrow", None)
            assert repr(read(path, names, text)) == repr(fast)
