"""How tables are written: the same meaning with and without pyarrow, from job files and from Python."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedspan import FederatedPCA, prepare
from fedspan.data import _csv_file, sources
from fedspan.data.cells.cell_guesses import guess_cause
from fedspan.data.preparation import Preparation
from fedspan.data.tables import open_table
from fedspan.errors import InputError, MissingExtraError
from fedspan.jobs.model import Job

Fedspan = Callable[..., Any]
ROWS = np.array([[1.5, 2.0], [np.nan, 3.25], [-4.0, 1000.5]])


@pytest.fixture(params=["pyarrow", "by lines"], autouse=True)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by lines":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    return str(request.param)


def find_components(X: np.ndarray) -> np.ndarray:
    """The first two components, up to signs."""
    return np.abs(np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:2])


TEXTS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "decimal.csv": (b"who;a;b\nx;1,5;2\ny;;3,25\nz;-4;1000,5\n", {"decimal": ","}),
    "quoted.csv": (b'who,a,b\nx,"1,5",2\ny,NA,"3,25"\nz,-4,"1000,5"\n', {"decimal": ","}),
    "latin.csv": ("who,a,b\nMüller,1.5,2\ny,,3.25\nz,-4,1000.5\n".encode("latin-1"), {"encoding": "cp1252"}),
    "wide.csv": ("who,a,b\nMüller,1.5,2\ny,,3.25\nz,-4,1000.5\n".encode("utf-16"), {"encoding": "utf-16"}),
    "marked.csv": (b"\xef\xbb\xbfwho,a,b\nx,1.5,2\ny,,3.25\nz,-4,1000.5\n", {}),
    "marks.csv": (b"who,a,b\nx,1.5,2\ny,?,3.25\nz,-4,1000.5\n", {"na_values": ["?", "-"]}),
    "sentinel.csv": (b"who,a,b\nx,1.5,2\ny,-999.0,3.25\nz,-4,1000.5\n", {"na_values": ["-999"]}),
    "bar.csv": (b"who|a|b\nx|1.5|2\ny||3.25\nz|-4|1000.5\n", {"separator": "|"}),
    "commas.csv": (b"who;a, in m;b\nx;1.5;2\ny;;3.25\nz;-4;1000.5\n", {"separator": ";", "names": ["who", "a", "b"]}),
    "tabs.tsv": (b"who\ta\tb\nx\t1.5\t2\ny\t\t3.25\nz\t-4\t1000.5\n", {}),
    "twice.csv": (b"who,a,a\nx,1.5,2\ny,,3.25\nz,-4,1000.5\n", {"names": ["who", "a", "b"]}),
    "grams.csv": (b"who,a,b\nx,1500,2\ny,,3.25\nz,-4000,1000.5\n", {"multiply": {"a": 0.001}}),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("packed", [False, True])
def test_text_of_every_kind_means_the_same(name: str, packed: bool, tmp_path: Path) -> None:
    text, how = TEXTS[name]
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(text) if packed else text)
    table = open_table({"path": path, **how}, Preparation(id="who", missing="mean", fill={"a": 7.0}))
    np.testing.assert_array_equal(table.X, np.where(np.isnan(ROWS), 7.0, ROWS))
    assert table.names == ("a", "b")


def test_yes_no_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who;smokes;born;seen\nx;ja;31.12.1969;2020-02-29\ny;Nein;02.01.1970;\nz;NA;1.1.1970;1970-01-03\n")
    how = {"true_values": ["ja"], "false_values": ["Nein"], "decimal": ","}
    forms = {"born": "%d.%m.%Y", "seen": "%Y-%m-%d"}
    filled = Preparation(id="who", missing="mean", fill={"smokes": 0.5, "seen": 0.0, "born": 0.0})
    table = open_table({"path": path, **how, "dates": forms}, filled)
    days = (date(2020, 2, 29) - date(1970, 1, 1)).days
    np.testing.assert_array_equal(table.X, [[1, -1, days], [0, 1, 0], [0.5, 0, 2]])
    with pytest.raises(InputError, match=r"dates of the form '%d/%m/%Y', but row 1 of .* '31.12.1969'. It fits '%d.%m"):
        open_table({"path": path, **how, "dates": {**forms, "born": "%d/%m/%Y"}}, filled)


def test_words_that_mean_missing_and_spellings(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("ward,x\nEast Wing,1\neast  wing ,2\nWest,3\n?,4\n")
    words = {"ward": ("east wing", "west")}
    table = open_table(
        {"path": path, "na_values": ["?"], "ignore_case": ["ward"]}, Preparation(categories=words, missing="drop")
    )
    np.testing.assert_array_equal(table.X, [[1, 0, 1], [1, 0, 2], [0, 1, 3]])


@pytest.mark.parametrize(
    ("cell", "decimal", "words"),
    [
        ("?", ".", 'na_values = ["?"]'),
        ("n.a.", ".", 'na_values = ["n.a."]'),
        ("1,5", ".", 'decimal = ","'),
        ("1,234", ".", "thousands"),
        ("1,234,567.8", ".", "thousands"),
        ("1 234", ".", "thousands"),
        ("1.234,5", ",", "thousands"),
        ("1.5", ",", "decimal point"),
        ("31.12.1999", ".", 'dates = { "x" = "%d.%m.%Y" }'),
        ("1999-12-31", ".", 'dates = { "x" = "%Y-%m-%d" }'),
        ("yes", ".", "true_values"),
        ("12 kg", ".", "unit 'kg'"),
        ("< 0.5", ".", "limit of detection"),
    ],
)
def test_the_cell_is_quoted_and_its_cause_guessed(cell: str, decimal: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f'x;y\n1;2\n\n"{cell}";3\n')
    with pytest.raises(InputError) as refused:
        open_table({"path": path, "decimal": decimal})
    assert f"row 2 (line 4) of {path} contains {cell!r}. " in str(refused.value)
    assert words in str(refused.value)
    assert "categories" not in str(refused.value)
    assert guess_cause("x", "north") == ""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"decimal": ";"}, 'decimal in .* must be "." or ","'),
        ({"separator": ";;"}, "separator in .* must be one character"),
        ({"separator": '"'}, "separator in .* must be one character"),
        ({"encoding": "zip"}, "encoding in .* must be the name of a text encoding"),
        ({"encoding": "utf-99"}, "encoding in .* must be the name of a text encoding"),
        ({"na_values": "?"}, "na_values in .* must be a list of words"),
        ({"names": ["a", "a"]}, "names in .* must be a list of different names"),
        ({"names": ["a"]}, "has 2 columns and names has 1"),
        ({"multiply": {"x": 0}}, "multiply in .* must be a table of numbers that are not 0"),
        ({"dates": ["z"]}, "There is no column 'z'"),
        ({"decimals": ","}, "not by 'decimals'. Did you mean 'decimal'"),
        ({"sheet": "one"}, "sheet does not apply to"),
        ({"na_values": ["x"], "true_values": ["x"]}, "'x' is both in na_values and in true_values"),
        ({"encoding": "utf-16"}, "is not utf-16 text, as encoding says"),
    ],
)
def test_keys_that_do_not_fit(how: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n2,3\n")
    with pytest.raises(InputError, match=words):
        open_table({"path": path, **how})


def test_one_bad_line_far_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a file of gigabytes: in a later block, after a cell of two lines."""
    monkeypatch.setattr(_csv_file, "_CSV_BLOCK", 1 << 12)
    monkeypatch.setattr(sources, "ENTRIES", 1 << 8)
    lines = ["x,y", '1,"two\nlines"', *(f"{i},w" for i in range(20_000))]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([*lines, "1,5,w", "7,w"]))
    with pytest.raises(InputError, match=r"row 20002 \(line 20004\) has 3"):
        open_table(path, Preparation(columns=("x",)))
    path.write_text("\n".join([*lines, '"1,5",w', "7,w"]))
    with pytest.raises(InputError, match=r"row 20002 \(line 20004\) of .* contains '1,5'. If that is a decimal comma"):
        open_table(path, Preparation(columns=("x",)))


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_csv_file, "_CSV_BLOCK", 1 << 12)
    monkeypatch.setattr(sources, "ENTRIES", 1 << 8)
    path = tmp_path / "t.csv"
    path.write_text("x\n" + "1\n" * 50_000)
    batches = _csv_file.CsvFile(path).batches(["x"], [])
    next(batches)
    with path.open("a") as file:
        file.write("2\n")
    with pytest.raises(InputError, match="changed while it was read"):
        list(batches)


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one, two, three = (pd.DataFrame(rng.normal(size=(n, 3)), columns=list("abc")) for n in (30, 20, 25))
    two_turned, three_turned = two[["c", "a", "b"]], three[["b", "c", "a"]]
    two_turned.to_csv(tmp_path / "two.csv", index=False)
    pooled = np.vstack([one, two, three])
    for missing in ("refuse", "mean"):
        clients = prepare({"1": one, "2": tmp_path / "two.csv", "3": three_turned}, missing=missing)
        model = FederatedPCA(2, random_state=0).fit(clients)
        assert list(model.feature_names_in_) == list("abc")
        np.testing.assert_allclose(np.abs(model.components_), find_components(pooled), atol=1e-6)
        np.testing.assert_allclose(model.mean_, pooled.mean(axis=0), atol=1e-12)


def test_columns_are_matched_by_name_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedspan.data import tables

    monkeypatch.setattr(tables, "LARGE", 100)
    rng = np.random.default_rng(1)
    one = pd.DataFrame({"w": rng.choice(["u", "v"], 40), "a": rng.normal(size=40), "b": rng.normal(size=40)})
    two = pd.DataFrame({"b": rng.normal(size=30), "w": rng.choice(["u", "v"], 30), "a": rng.normal(size=30)})
    one.to_csv(tmp_path / "one.csv", index=False)
    two.to_csv(tmp_path / "two.csv", index=False)
    files = [{"path": tmp_path / "one.csv"}, {"path": tmp_path / "two.csv"}]
    fits = [
        FederatedPCA(2, random_state=0).fit(prepare(clients, categories={"w": ["u", "v"]}))
        for clients in (files, [one, two[["w", "a", "b"]]])
    ]
    np.testing.assert_allclose(fits[0].components_, fits[1].components_, atol=1e-8)


def test_a_column_more_or_less_is_named() -> None:
    one = pd.DataFrame(np.ones((5, 3)), columns=list("abc"))
    with pytest.raises(InputError, match="client 'y' lacks 'b' and has 'd', unlike client 'x'"):
        FederatedPCA(1).fit({"x": one, "y": one.rename(columns={"b": "d"})})
    with pytest.raises(InputError, match="client 'y' has 'd', unlike client 'x'"):
        prepare({"x": one, "y": one.assign(d=1.0)}, missing="mean")


# Job files


def test_a_job_reads_each_client_in_its_own_way(tmp_path: Path, fedspan: Fedspan) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).round(4)
    names = ["a", "b", "c"]
    pd.DataFrame(X[:30], columns=names).to_csv(tmp_path / "north.csv", index=False, sep=";", decimal=",")
    south = pd.DataFrame(X[30:] * [1000, 1, 1], columns=names)[["c", "a", "b"]]
    south.to_csv(tmp_path / "south.csv.gz", index=False)
    text = """
[job]
task = "pca"
n_components = 2
random_state = 0
[data]
na_values = ["?"]
[data.clients]
north = { path = "north.csv", decimal = "," }
south = { path = "south.csv.gz", multiply = { a = 0.001 } }
"""
    (tmp_path / "job.toml").write_text(text)
    result = fedspan("run", tmp_path / "job.toml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    model = FederatedPCA.load(tmp_path / "out" / "model.safetensors")
    np.testing.assert_allclose(np.abs(model.components_), find_components(X), atol=1e-6)
    again = Job.load(tmp_path / "out" / "job.toml")
    assert again.reading == {"na_values": ["?"]}
    assert again.clients["north"] == {"path": str(tmp_path / "north.csv"), "decimal": ","}
    listed = text.replace("[data.clients]\nnorth = ", 'clients = ["south.csv.gz", ').replace(
        '"," }\nsouth', '"," }]\n# '
    )
    (tmp_path / "listed.toml").write_text(listed)
    assert set(Job.load(tmp_path / "listed.toml").clients) == {"north", "south"}


def test_a_job_cannot_say_how_sites_read_their_files(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[job]\ntask = "pca"\n[data]\ndecimal = ","\n')
    with pytest.raises(InputError, match=r"a job cannot change it; leave data\.decimal out"):
        Job.load_for(tmp_path / "job.toml", lambda: ["a", "b"])


# Excel


def write_book(path: Path, **sheets: list[list[Any]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_an_excel_sheet(tmp_path: Path) -> None:
    path = write_book(
        tmp_path / "t.xlsx",
        people=[
            [" who ", "a", "b", "born", "ok"],
            ["x", 1.5, "2,0", datetime(1970, 1, 2), True],
            [7, None, 3, datetime(1970, 1, 3, 12), False],
            ["z", "?", "4", None, "yes"],
        ],
    )
    how = {"decimal": ",", "dates": ["born"], "na_values": ["?"], "true_values": ["yes"]}
    filled = Preparation(id="who", missing="mean", fill={"a": 0.0, "born": 0.0})
    table = open_table({"path": path, **how}, filled)
    assert table.ids is not None
    assert table.ids.tolist() == ["x", "7", "z"]
    np.testing.assert_array_equal(table.X, [[1.5, 2, 1, 1], [0, 3, 2.5, 0], [0, 4, 0, 1]])
    with pytest.raises(InputError, match=r"Column 'born' .* row 1 \(line 2\) .* '1970-01-02'. If that is a date"):
        open_table({"path": path, "decimal": ","}, Preparation(columns=("born",)))
    with pytest.raises(InputError, match=r"Column 'a' .* row 3 \(line 4\) .* contains '\?'"):
        open_table({"path": path, "decimal": ","}, Preparation(columns=("a",)))


def test_an_excel_file_with_two_sheets(tmp_path: Path) -> None:
    path = write_book(tmp_path / "t.xlsx", notes=[["about"]], rows=[["a", "b"], [1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"has 2 sheets \('notes', 'rows'\), so say which one .* sheet = \"notes\""):
        open_table(path)
    np.testing.assert_array_equal(open_table({"path": path, "sheet": "rows"}).X, [[1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"has no sheet 'row'\. It has 'notes', 'rows'"):
        open_table({"path": path, "sheet": "row"})


def test_an_excel_file_that_is_protected_or_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    with pytest.raises(InputError, match=r"is protected by a password, or is an old \.xls file"):
        open_table(path)
    whole = write_book(tmp_path / "whole.xlsx", rows=[["a"], [1]]).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"Cannot read .*t\.xlsx"):
        open_table(path)


def test_what_to_install_for_excel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_book(tmp_path / "t.xlsx", rows=[["a"], [1]])
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(MissingExtraError, match=r"reading .xlsx files needs .*excel"):
        open_table(path)


# Folders


def test_a_folder_of_parquet_files(tmp_path: Path, reader: str) -> None:
    if reader == "by lines":
        pytest.skip("Parquet needs pyarrow")
    frame = pd.DataFrame(np.arange(12.0).reshape(6, 2), columns=["a", "b"])
    folder = tmp_path / "rows.parquet"
    folder.mkdir()
    frame[:2].to_parquet(folder / "part-0.parquet")
    frame[2:][["b", "a"]].to_parquet(folder / "part-1.parquet")
    (folder / "_SUCCESS").write_text("")
    np.testing.assert_array_equal(open_table(folder).X, frame)
    frame[["a"]].to_parquet(folder / "part-2.parquet")
    with pytest.raises(InputError, match=r"same columns, but 'b' is in only one of part-0.parquet and part-2.parquet"):
        open_table(folder)
    (folder / "year=2020").mkdir()
    with pytest.raises(InputError, match="holds the folder 'year=2020'"):
        open_table(folder)


def test_typed_tables_have_words_for_missing_and_dates_too(tmp_path: Path, reader: str) -> None:
    if reader == "by lines":
        pytest.skip("Parquet needs pyarrow")
    path = tmp_path / "t.parquet"
    born = pd.to_datetime(["1970-01-02 00:00", "1970-01-03 12:00"])
    pd.DataFrame({"a": [-9.0, 2.0], "born": born, "w": ["A", "?"]}).to_parquet(path)
    how = {"path": path, "na_values": ["-9", "?"], "dates": ["born"], "ignore_case": ["w"]}
    gaps = {"a": 5.0, "w=a": 0.5}
    table = open_table(how, Preparation(categories={"w": ("a",)}, missing="mean", fill=gaps))
    np.testing.assert_array_equal(table.X, [[5, 1, 1], [2, 2.5, 0.5]])
    with pytest.raises(InputError, match="decimal does not apply to"):
        open_table({"path": path, "decimal": ","})
