"""Whatever a user, a site or a stranger puts into a file: a value or one of our errors, in bounded memory and time."""

from __future__ import annotations

import io
import json
import random
import sqlite3
import sys
import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mutation import SIZES, fuzz, mutate_tree
from sklearn.datasets import dump_svmlight_file

from fedspan.data.preparation import Preparation
from fedspan.data.survey import TableSurvey
from fedspan.data.tables import open_table
from fedspan.deployment.kit import policy_file
from fedspan.deployment.policy import Policy
from fedspan.jobs.model import Job

pa = pytest.importorskip("pyarrow", reason="needs fedspan[data]")
import pyarrow.parquet as pq  # noqa: E402
from pyarrow import feather  # noqa: E402

RNG = np.random.default_rng(1)
X = RNG.normal(size=(9, 3)).round(3)
WORDS = ["f", "m", "", "f", "ü", "m", "m", "f", "x y"]


def to_npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def to_npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def to_svm() -> bytes:
    file = io.BytesIO()
    dump_svmlight_file(X, np.arange(9) % 2, file, zero_based=False)
    return file.getvalue()


def make_table() -> pa.Table:
    columns = {"x": X[:, 0], "y": pa.array([1, 2, None, 4, 5, 6, 7, 8, 9]), "w": pa.array(WORDS).dictionary_encode()}
    return pa.table({**columns, "id": [f"p{i}" for i in range(9)]})


def to_feather(**options: str) -> bytes:
    file = io.BytesIO()
    feather.write_feather(make_table(), file, **options)
    return file.getvalue()


def to_parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(make_table(), file)
    return file.getvalue()


def to_sqlite(folder: Path) -> bytes:
    path = folder / "seed.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x REAL, y INTEGER, w TEXT)")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?)", [(float(X[i, 0]), i, word) for i, word in enumerate(WORDS)]
        )
    connection.close()
    return path.read_bytes()


CSV = "x,y,w,id\n" + "\n".join(f"{X[i, 0]},{X[i, 1]},{word},p{i}" for i, word in enumerate(WORDS))
csr = sp.csr_array(X)
SEEDS: dict[str, list[bytes]] = {
    "csv": [CSV.encode(), CSV.replace(",", ";").encode(), b'\xef\xbb\xbf"x","y"\r\n1,"2"\r\n3,NA\r\n'],
    "npy": [to_npy(X), to_npy(np.asfortranarray(X)), to_npy(np.arange(6, dtype=np.int8).reshape(2, 3))],
    "npz": [
        to_npz(X=X, ids=np.array([f"p{i}" for i in range(9)])),
        to_npz(X_data=csr.data, X_indices=csr.indices, X_indptr=csr.indptr, X_shape=np.array(csr.shape)),
    ],
    "svm": [to_svm(), b"1 1:2 3:4\n-1 2:1 # words\n"],
    "feather": [to_feather(compression="uncompressed"), to_feather(compression="lz4"), to_feather(compression="zstd")],
    "parquet": [to_parquet()],
}
PREPARATIONS = {
    "csv": Preparation(columns=("x", "y", "w"), id="id", categories={"w": ("f", "m", "ü", "x y")}, missing="drop"),
    "feather": Preparation(columns=("x", "y"), id="id", missing="drop"),
    "parquet": Preparation(columns=("x", "y"), id="id", missing="drop"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", SEEDS)
def test_tables(tmp_path: Path, kind: str, size: int) -> None:
    path = tmp_path / f"table.{kind}"
    numbers = Preparation(columns=("x",)) if kind in PREPARATIONS else Preparation()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        table = open_table(path, numbers)
        np.asarray(table.X[:1].sum())  # a mapped file is read now

    fuzz(read, SEEDS[kind], examples=200 * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", PREPARATIONS)
def test_columns_of_all_kinds(tmp_path: Path, kind: str, size: int) -> None:
    """Ids, words and gaps, of a table that is prepared, and that is looked at before."""
    path = tmp_path / f"table.{kind}"
    draft = Preparation(columns=("x", "y", "w"), categories={"w": ()}, missing="mean")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        open_table(path, PREPARATIONS[kind])
        survey = TableSurvey(path, draft)
        survey.columns()
        words = tuple(survey.words(["w"])["w"])
        TableSurvey(path, replace(draft, categories={"w": words})).sums()

    fuzz(read, SEEDS[kind][:1], examples=150 * size)


@pytest.mark.parametrize("size", SIZES)
def test_csv_without_pyarrow(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "table.csv"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        open_table(path, Preparation(columns=("x",)))

    fuzz(read, SEEDS["csv"], examples=150 * size)


@pytest.mark.parametrize("size", SIZES)
def test_sqlite(tmp_path: Path, size: int) -> None:
    path = tmp_path / "table.db"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        open_table(f"sqlite:///{path}?table=t", Preparation(columns=("x", "y")))

    fuzz(read, [to_sqlite(tmp_path)], examples=150 * size)


JOBS = [
    b'[job]\ntask = "pca"\nn_components = 2\nsolver = "krylov"\ntol = 1e-6\nrandom_state = 3\n'
    b'[data]\nclients = { a = "a.csv", b = "sqlite:///b.db?table=t" }\ncolumns = ["x", "y"]\nmissing = "mean"\n'
    b"[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrow_norm = 1.0\n[secure]\nenabled = true\nthreshold = 2\n"
    b"[run]\ncheckpoint_every = 1\nmin_clients = 2\ntranscript = true\n",
    b'[job]\ntask = "classifier"\nhidden = 8\nrounds = 3\nparticipation = { fraction = 0.5 }\n'
    b'[data]\nclients = ["a.csv", { url = "postgresql://u@h/d", query = "SELECT 1" }]\nlabel = "y"\n'
    b'categories = { w = ["f", "m"] }\nmissing = "mean"\nfill = { x = 1.5 }\n',
    b'[job]\ntask = "gcca"\npatience = 3\n'
    b'[data]\nviews = ["a.csv", "b.csv"]\nid = "person"\nheld_out = ["c.csv", "d.csv"]\n',
]


@pytest.mark.parametrize("size", SIZES)
def test_jobs(tmp_path: Path, size: int) -> None:
    path = tmp_path / "job.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        job = Job.load(path)
        job.to_toml()
        job.facts()

    def quietly(data: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(data)

    fuzz(quietly, JOBS, mutate_toml, examples=500 * size)


def mutate_toml(seed: bytes, plan: Sequence[tuple[int, int]]) -> bytes:
    """A job or a policy whose values were changed; it stays TOML."""
    tree: Any = tomllib.loads(seed.decode())
    for _, stream in plan:
        tree = mutate_tree(tree, random.Random(stream))  # noqa: S311
    lines = []
    for name, table in tree.items() if isinstance(tree, dict) else ():
        if not isinstance(table, dict):
            lines.insert(0, f"{json.dumps(name)} = {to_toml_value(table)}")
            continue
        lines.append(f"[{json.dumps(name)}]")
        lines += [f"{json.dumps(key)} = {to_toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines).encode()


def to_toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {to_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml_value, value)) + "]"
    return json.dumps("nothing" if value is None else value)


@pytest.mark.parametrize("size", SIZES)
def test_policies(tmp_path: Path, size: int) -> None:
    path = tmp_path / "local" / "fedspan.toml"
    path.parent.mkdir()
    table = {
        "path": "rows.csv",
        "columns": ["x", "w"],
        "id": "person",
        "label": "y",
        "classes": ["ill", "well"],
        "categories": {"w": ["f", "m"]},
        "units": {"x": "kg"},
        "min_rows": 20,
    }
    rules = {"row_norm": 1.0, "epsilon": 2.0, "delta": 1e-6, "verified": True, "sites": ["a", "b", "c"]}
    seed = policy_file({"default": table}, **rules).encode()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        Policy.read(tmp_path)

    fuzz(read, [seed], mutate_toml, examples=500 * size)


PLANTED: dict[str, Callable[[bytes], object]] = {
    "another error": lambda data: {}["missing"] if b"\xff" in data else None,
    "memory": lambda data: bytearray(1 << 40) if b"\xff" in data else None,
    "recursion": lambda data: json.loads("[" * 5000) if b"[" in data else None,
}


@pytest.mark.parametrize("bug", PLANTED)
def test_bugs_are_found(bug: str) -> None:
    """The test of these tests: a reader with a bug does not pass."""
    with pytest.raises((KeyError, MemoryError, RecursionError, ValueError)):
        fuzz(PLANTED[bug], [b"seed seed seed"], examples=500)
