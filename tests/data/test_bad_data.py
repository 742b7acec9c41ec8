"""Data that is not what a job needs: one sentence with the client, exit code 2, nothing overwritten."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from fedspan.data.tables import open_table
from fedspan.errors import InputError

NAMES = ["age", "pulse", "weight"]
Fedspan = Callable[..., Any]


def columns(seed: int, n: int = 30) -> dict[str, Any]:
    return dict(zip(NAMES, np.random.default_rng(seed).normal(size=(3, n)), strict=True))


def csv(path: Path, table: dict[str, Any]) -> None:
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three good clients; each test spoils one and writes a job for two."""
    csv(tmp_path / "good.csv", columns(0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(world: Path, fedspan: Fedspan, bad: str, *keys: str) -> str:
    """What is said of a job with the client `bad`, written as a TOML value."""
    lines = ['[job]\ntask = "pca"\nn_components = 1\nsolver = "gram"\n', "[data]", *keys]
    (world / "job.toml").write_text("\n".join([*lines, "[data.clients]", 'able = "good.csv"', f"bad = {bad}"]) + "\n")
    (world / "out").mkdir(exist_ok=True)
    before = everything(world)
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert everything(world) == before
    return str(result.stderr)


def truncated(path: Path, keep: float) -> None:
    blob = path.read_bytes()
    path.write_bytes(blob[: int(keep * len(blob))])


@pytest.mark.parametrize("kind", ["parquet", "feather", "npy", "npz", "svm", "db"])
@pytest.mark.parametrize("how", ["empty", "half", "noise", "not there", "a folder"])
def test_files_that_cannot_be_read(world: Path, fedspan: Fedspan, kind: str, how: str) -> None:
    path = world / f"bad.{kind}"
    table = columns(1)
    if kind == "parquet":
        pq.write_table(pa.table(table), path)
    elif kind == "feather":
        pyarrow.feather.write_feather(pa.table(table), path)
    elif kind in ("npy", "npz"):
        X = np.column_stack(list(table.values()))
        np.save(path, X) if kind == "npy" else np.savez(path, X=X)
    elif kind == "svm":
        path.write_text("1 1:0.5 2:2\n0 3:1.5\n")
    else:
        with sqlite3.connect(path) as base:
            base.execute("create table t (age real, pulse real, weight real)")
            base.executemany(
                "insert into t values (?, ?, ?)", zip(*map(np.ndarray.tolist, table.values()), strict=True)
            )
        base.close()
    if how in ("not there", "a folder"):
        path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        truncated(path, 0.55)
    elif how == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(5000))
    if (kind, how) == ("svm", "half"):
        path.write_text("1 1:0.5 2:2\n0 3:")  # cut between lines, a text is still a text
    said = refused(world, fedspan, f'"sqlite:///{path.name}?table=t"' if kind == "db" else f'"{path.name}"')
    assert "client 'bad'" in said
    assert path.name in said
    expected = {
        "empty": "is empty" if kind != "db" else "no such table",
        "not there": "does not exist",
        "a folder": "is a folder",
    }
    assert expected.get(how, "") in said


def latin(path: Path) -> None:
    path.write_bytes("age,pulse,weight\n1,2,3\n1,2,å\n".encode("latin-1"))


def latin_header(path: Path) -> None:
    path.write_bytes("age,pulse,größe\n1,2,3\n".encode("latin-1"))


def wide(path: Path) -> None:
    path.write_bytes("age,pulse,weight\n1,2,3\n".encode("utf-16"))


def wide_without_mark(path: Path) -> None:
    path.write_bytes("age,pulse,weight\n1,2,3\n".encode("utf-16-le"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (latin, ["must be UTF-8 text", "Latin-1"]),
        (latin_header, ["must be UTF-8 text", "Latin-1"]),
        (wide, ["must be UTF-8 text", "UTF-16"]),
        (wide_without_mark, ["must be UTF-8 text", "as UTF-16 does"]),
        (lambda p: p.write_text("age,pulse,weight\n1,2,3\n4,5,6\n7,8"), ["must have 3 cells", "row 3 (line 4) has 2"]),
        (lambda p: p.write_text("age,pulse,weight\n1,2,3\n4,5,6,7\n"), ["must have 3 cells", "row 2 (line 3) has 4"]),
        (lambda p: p.write_text(""), ["must begin with a line of column names", "is empty"]),
        (lambda p: p.write_text("age,pulse,weight\n"), ["must have at least one row"]),
        (lambda p: p.write_text("1,2,3\n4,5,6\n"), ["must begin with a line of column names", "only numbers"]),
        (lambda p: p.write_text("age,pulse,age\n1,2,3\n"), ["Column names must differ, but 'age' occurs twice"]),
        (lambda p: p.write_text("age,pulse\n1,2\n3,4\n"), ["client 'bad' lacks 'weight', unlike client 'able'"]),
        (lambda p: p.write_text("age,pulse,wheight\n1,2,3\n"), ["client 'bad' lacks 'weight' and has 'wheight'"]),
        (
            lambda p: p.write_text("age,pulse,weight\n1,2,3\n4,old,6\n"),
            ["Column 'pulse' must be numeric", "row 2 (line 3) of", "contains 'old'"],
        ),
        (
            lambda p: p.write_text("age,pulse,weight\n1,,3\n4,NA,6\n7,8,9\n"),
            ["Column 'pulse' must have a value in every row", "2 of 3 are missing"],
        ),
    ],
)
@pytest.mark.parametrize("arrow", [True, False], ids=["pyarrow", "by lines"])
def test_csv_that_cannot_be_read(
    world: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch, spoil: Any, words: list[str], arrow: bool
) -> None:
    """The same sentences with and without pyarrow."""
    if not arrow:
        import sys

        monkeypatch.setitem(sys.modules, "pyarrow", None)
    spoil(world / "bad.csv")
    said = refused(world, fedspan, '"bad.csv"')
    for word in ["client 'bad'", *words]:
        assert word in said
    for value in ("old", "å"):  # what stands in the cells stays at the client
        assert value not in said.split("bad.csv")[0]


def test_a_value_of_a_row_is_never_said(world: Path, fedspan: Fedspan) -> None:
    (world / "bad.csv").write_text("age,pulse,weight,person\n1,2,Miller,a\n4,5,6,Smith\n7,8,9,Smith\n")
    assert "Miller" not in refused(world, fedspan, '"bad.csv"', 'id = "person"')
    (world / "bad.csv").write_text("age,pulse,weight,person\n4,5,6,Smith\n7,8,9,Smith\n")
    (world / "good.csv").write_text("age,pulse,weight,person\n4,5,6,a\n7,8,9,b\n")
    assert "Smith" not in refused(world, fedspan, '"bad.csv"', 'id = "person"')


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "sqlite"])
def test_ids_that_are_not_unique(world: Path, fedspan: Fedspan, kind: str) -> None:
    table = {**columns(1, 4), "person": ["a", "b", "c", "b"]}
    csv(world / "good.csv", {**columns(0, 3), "person": [1, 2, 3]})
    where = f'"bad.{kind}"'
    if kind == "csv":
        csv(world / "bad.csv", table)
    elif kind == "parquet":
        pq.write_table(pa.table(table), world / "bad.parquet")
    elif kind == "npz":
        np.savez(world / "bad.npz", X=np.ones((4, 3)), person=np.array(table["person"]))
    else:
        with sqlite3.connect(world / "bad.sqlite") as base:
            base.execute("create table t (age real, pulse real, weight real, person text)")
            base.executemany(
                "insert into t values (?, ?, ?, ?)", [(float(i), 1.0, 2.0, p) for i, p in enumerate("abcb")]
            )
        base.close()
        where = '"sqlite:///bad.sqlite?table=t"'
    said = refused(world, fedspan, where, 'id = "person"')
    assert "client 'bad': Ids must be unique, but 1 of 4 rows in column 'person' repeat the id of another row" in said
    assert "row 4" in said


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather"])
def test_columns_that_one_site_does_not_have(world: Path, fedspan: Fedspan, kind: str) -> None:
    table = {name: column for name, column in columns(1).items() if name != "pulse"}
    if kind == "csv":
        csv(world / "bad.csv", table)
    elif kind == "parquet":
        pq.write_table(pa.table(table), world / "bad.parquet")
    else:
        pyarrow.feather.write_feather(pa.table(table), world / "bad.feather")
    for keys in ['columns = ["age", "pulse"]', 'id = "pulse"', 'label = "pulse"', 'categories = { pulse = ["a"] }']:
        csv(world / "good.csv", {**columns(0), "pulse": ["a"] * 30} if "categories" in keys else columns(0))
        said = refused(world, fedspan, f'"bad.{kind}"', keys)
        assert "client 'bad': There is no column 'pulse'. The table has age, weight." in said


def test_mixed_types_in_a_column(world: Path, fedspan: Fedspan) -> None:
    with sqlite3.connect(world / "bad.db") as base:  # whose columns hold anything
        base.execute("create table t (age, pulse, weight)")
        base.executemany("insert into t values (?, ?, ?)", [(1, 2.0, 3), (4, "high", 5), (6, b"x", 7)])
    base.close()
    said = refused(world, fedspan, '"sqlite:///bad.db?table=t"')
    words = "client 'bad': Column 'pulse' must be numeric, but it contains values of mixed types (2 of 3 values are not"
    assert words in said
    pq.write_table(pa.table({**columns(1, 2), "pulse": pa.array(["1", "2"])}), world / "bad.parquet")
    said = refused(world, fedspan, '"bad.parquet"')
    assert "client 'bad': Column 'pulse' must be numeric, but it contains text" in said


def test_one_site_measures_in_other_units(world: Path, fedspan: Fedspan) -> None:
    for name, unit in (("good", "kg"), ("bad", "lb")):
        fields = [pa.field(n, pa.float64(), metadata={"unit": unit} if n == "weight" else None) for n in NAMES]
        table = pa.table(list(columns(0).values()), schema=pa.schema(fields))
        pq.write_table(table, world / f"{name}.parquet")
    (world / "good.csv").unlink()
    text = '[job]\ntask = "pca"\nn_components = 1\n[data]\nclients = ["good.parquet", "bad.parquet"]\n'
    (world / "job.toml").write_text(text)
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 2
    assert "it is 'lb' at client 'bad' and 'kg' at client 'good'. Convert it." in result.stderr
    assert not (world / "out").exists()


@pytest.mark.parametrize("kind", ["csv", "npy", "parquet", "feather", "db"])
def test_no_permission(kind: str) -> None:
    """Root may read everything: then it is tried as somebody else, for the moment of reading."""
    good, nobody = columns(1), 65534
    with tempfile.TemporaryDirectory() as place:  # not pytest's own folder, which others may not look into
        path = Path(place) / f"bad.{kind}"
        path.write_bytes(b"x")
        Path(place).chmod(0o755)
        path.chmod(0)
        open_table(pa.table(good))  # imports what is needed while that is allowed
        with pytest.raises(InputError):
            open_table(f"sqlite:///{place}/nothing.db?table=t")
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(nobody)
            with pytest.raises(InputError, match=r"(may not be read by this user|Permission denied)"):
                open_table(f"sqlite:///{path}?table=t" if kind == "db" else path)
        finally:
            os.seteuid(user)


def test_a_refusal_of_the_system_is_said_in_a_sentence(
    world: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as above for those who may read everything: the system call is made to fail."""
    csv(world / "bad.csv", columns(1))
    real = Path.open

    def deny(self: Path, *words: Any, **more: Any) -> Any:
        if self.name == "bad.csv":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *words, **more)

    monkeypatch.setattr(Path, "open", deny)
    (world / "job.toml").write_text(
        '[job]\ntask = "pca"\nn_components = 1\n[data]\nclients = ["good.csv", "bad.csv"]\n'
    )
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 2
    assert re.search(r"client 'bad': \S*bad.csv may not be read by this user", result.stderr)


def test_libsvm_files(world: Path, fedspan: Fedspan) -> None:
    (world / "bad.svm").write_text("1 0:1 2:3\n0 1:1\n")
    said = refused(world, fedspan, '"bad.svm"')
    assert "client 'bad'" in said
    assert "bad.svm has a feature 0, but LIBSVM files number features from 1" in said
    (world / "bad.svm").write_text("1 1:1 9:3\n0 1:1\n")
    said = refused(world, fedspan, '"bad.svm"', "n_features = 3")
    assert "client 'bad'" in said
    assert "bad.svm has a feature 9, but n_features = 3" in said
