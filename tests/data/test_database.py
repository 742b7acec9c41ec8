"""Tables and queries in real databases: a PostgreSQL server of the tests' own, and SQLite files."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import FederatedClassifier, FederatedPCA
from fedspan.data import sources, tables
from fedspan.data.database import has_password, hide_password, parse_query
from fedspan.data.preparation import Preparation
from fedspan.data.tables import BatchedRows, open_table
from fedspan.errors import InputError

Fedspan = Callable[..., Any]
N = 500
RNG = np.random.default_rng(11)
AGE, PULSE, COST = RNG.normal(50, 9, N), RNG.integers(50, 120, N), RNG.normal(size=N).round(3)
SMOKER, WARD = RNG.random(N) < 0.4, RNG.choice(["east", "it's"], N)
X = np.column_stack([AGE, PULSE, COST, SMOKER])


@pytest.fixture(scope="session")
def people(postgres: str) -> str:
    """A table of 500 people, with the types that such tables have."""
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(postgres) as connection, connection.cursor() as cursor:
        cursor.execute('CREATE SCHEMA "clinic"')
        cursor.execute(
            'CREATE TABLE clinic."the people" (person text, age double precision, pulse smallint, cost numeric(12, 3), '
            "smoker boolean, ward text, y integer)"
        )
        rows = zip(AGE.tolist(), PULSE.tolist(), COST.tolist(), SMOKER.tolist(), WARD.tolist(), strict=True)
        values = ", ".join(
            f"('p{i}', {a!r}, {p}, {c!r}, {s}, '{w.replace(chr(39), chr(39) * 2)}', {i % 2})"
            for i, (a, p, c, s, w) in enumerate(rows)
        )
        cursor.execute(f'INSERT INTO clinic."the people" VALUES {values}')  # noqa: S608 - numbers made here
        connection.commit()
    return f"{postgres}?table=clinic.the%20people"


def count(postgres: str) -> int:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(postgres.split("?")[0]) as connection, connection.cursor() as cursor:
        cursor.execute('SELECT count(*) FROM clinic."the people"')
        return int(cursor.fetchone()[0])


NUMBERS = ("age", "pulse", "cost", "smoker")


def test_a_table_of_postgresql(people: str) -> None:
    table = open_table(people, Preparation(columns=NUMBERS, id="person", label="y"))
    np.testing.assert_allclose(table.X, X, rtol=1e-15)
    assert table.names == NUMBERS
    assert table.ids is not None
    assert table.ids.tolist() == [f"p{i}" for i in range(N)]
    assert table.labels is not None
    assert table.labels.tolist() == [i % 2 for i in range(N)]
    both = open_table(people, Preparation(columns=("ward",), categories={"ward": ("east", "it's")}))
    np.testing.assert_array_equal(both.X[:, 0], WARD == "east")
    assert both.names == ("ward=east", "ward=it's")


def test_a_query_of_postgresql(postgres: str, people: str) -> None:
    query = 'SELECT age, cost * 2 AS twice FROM clinic."the people" WHERE smoker ORDER BY person'
    order = np.argsort([f"p{i}" for i in range(N)])
    order = order[SMOKER[order]]
    table = open_table({"url": postgres, "query": query})
    np.testing.assert_allclose(table.X, np.column_stack([AGE, 2 * COST])[order], rtol=1e-15)


def test_a_job_with_a_database(people: str, tmp_path: Path, fedspan: Fedspan) -> None:
    """Files and a database in one federation: the same components as from all rows together."""
    other = RNG.normal(size=(40, 4)) * [9, 20, 1, 0.5]
    np.savetxt(tmp_path / "file.csv", other, delimiter=",", header=",".join(NUMBERS), comments="", fmt="%.17g")
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "pca"\nn_components = 2\nsolver = "krylov"\ntol = 1e-10\nrandom_state = 0\n[data]\n'
        f'columns = ["age", "pulse", "cost", "smoker"]\nclients = ["file.csv", "{people}"]\n'
    )
    result = fedspan("run", tmp_path / "job.toml", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    model = FederatedPCA.load(tmp_path / "run" / "model.safetensors")
    pooled = np.vstack([X, other])
    want = np.linalg.svd(pooled - pooled.mean(axis=0))[2][:2]
    np.testing.assert_allclose(np.abs(model.components_ @ want.T), np.eye(2), atol=1e-8)


def test_a_database_that_is_larger_than_memory(people: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "LARGE", 1000)
    monkeypatch.setattr(sources, "ENTRIES", 4 * 64)
    table = open_table(people, Preparation(columns=NUMBERS), in_batches=True)
    assert isinstance(table.X, BatchedRows)
    parts = list(table.X.batches())
    assert max(map(len, parts)) == 64
    np.testing.assert_allclose(np.vstack(parts), X, rtol=1e-15)


def test_labels_from_a_database(people: str, tmp_path: Path, fedspan: Fedspan) -> None:
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "classifier"\nhidden = 4\nbatch_size = 50\nrounds = 5\nrandom_state = 0\n[data]\nlabel = "y"\n'
        f'id = "person"\ncategories = ["ward"]\n[data.clients]\nclinic = "{people}"\n'
    )
    result = fedspan("run", tmp_path / "job.toml", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    model = FederatedClassifier.load(tmp_path / "run" / "model.safetensors")
    assert model.classes_.tolist() == [0, 1]
    assert list(model.feature_names_in_) == [*NUMBERS, "ward=east", "ward=it's"]


def refused(fedspan: Fedspan, folder: Path, client: str) -> str:
    (folder / "job.toml").write_text(
        f'[job]\ntask = "pca"\nn_components = 1\n[data.clients]\nable = {client}\nclinic = {client}\n'
    )
    before = sorted(p.name for p in folder.iterdir())
    result = fedspan("run", folder / "job.toml", "--out", folder / "run")
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == before
    return str(result.stderr)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ('table = "nowhere"', ["does not exist", "Check the table or the query"]),
        ('table = "clinic.nobody"', ["does not exist"]),
        ('query = "SELEC 1"', ["syntax error"]),
        ('query = "SELECT 1/0 AS x"', ["division by zero"]),
        ('query = "SELECT now() AS x"', ["Column 'x' must be numeric, but its type is timestamp"]),
        ('query = "SELECT age FROM clinic.\\"the people\\" WHERE false"', ["must have at least one row"]),
        ('query = "DELETE FROM clinic.\\"the people\\" RETURNING age"', ["read-only transaction"]),
        ('query = "SELECT 1 AS x; DROP TABLE clinic.\\"the people\\""', ["multiple commands"]),
    ],
)
def test_what_goes_wrong_at_the_server(
    people: str, tmp_path: Path, fedspan: Fedspan, ask: str, words: list[str]
) -> None:
    said = refused(fedspan, tmp_path, f'{{ url = "{people.split("?")[0]}", {ask} }}')
    for word in ["client 'able'", *words]:
        assert word in said
    assert count(people) == N


def test_a_server_that_is_not_there(tmp_path: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"postgresql://reader@127.0.0.1:{free.getsockname()[1]}/trial?table=t"
        said = refused(fedspan, tmp_path, f'"{address}"')
    assert "client 'able': Cannot read from postgresql://reader@127.0.0.1" in said
    assert "Is the server running?" in said


def test_a_password_is_not_for_job_files(tmp_path: Path, fedspan: Fedspan) -> None:
    for address in ("postgresql://me:tiger@host/db?table=t", "postgresql://me@host/db?password=tiger&table=t"):
        said = refused(fedspan, tmp_path, f'"{address}"')
        assert "contains a password, but job files are copied" in said
        assert "(client 'able')" in said
        assert "PGPASSWORD" in said
        assert "tiger" not in said


def test_a_password_is_used_and_never_said(postgres: str) -> None:
    secret = postgres.replace("tester@", "tester:geheim@")  # the server trusts everybody, and does not mind
    table = open_table({"url": secret, "query": "SELECT 1.5 AS x, 2 AS y"})
    np.testing.assert_array_equal(table.X, [[1.5, 2.0]])
    for query in ("SELECT 1 FROM geheim", "SELECT nothing"):
        with pytest.raises(InputError) as error:
            open_table({"url": secret, "query": query})
        assert "geheim" not in str(error.value)


def test_addresses() -> None:
    assert parse_query("postgresql://a@h:5/d?table=t&sslmode=require").url == "postgresql://a@h:5/d?sslmode=require"
    assert parse_query("postgresql://h/d?table=my.ta%22ble").select() == 'SELECT * FROM "my"."ta""ble"'
    assert parse_query("sqlite:///x?table=t").select(["a", 'b"']) == 'SELECT "a", "b""" FROM "t"'
    assert parse_query({"url": "sqlite:///x.db", "query": " SELECT 1; "}).select(["a"]) == "SELECT 1"
    assert hide_password("postgresql://u:p%40ss@h/d?password=x&sslmode=a") == "postgresql://u@h/d?sslmode=a"
    assert has_password("postgresql://u:p@h/d")
    assert not has_password("postgresql://u@h:5432/d")
    for wrong, words in [
        ("mysql://h/d?table=t", "mysql:// is not a known kind of database"),
        ("postgresql://h/d", "postgresql://h/d needs exactly one table or one query, but none is given"),
        ({"url": "sqlite:///x", "table": "t", "query": "q"}, "more than one is given"),
        ({"url": "sqlite:///x", "tabel": "t"}, "'tabel' was given. Did you mean 'table'"),
    ]:
        with pytest.raises(InputError, match=words):
            parse_query(wrong)


def test_sqlite_in_a_job_is_beside_it(tmp_path: Path, fedspan: Fedspan) -> None:
    with sqlite3.connect(tmp_path / "my lab.db") as base:
        base.execute("CREATE TABLE r (a, b)")
        base.executemany("INSERT INTO r VALUES (?, ?)", RNG.normal(size=(30, 2)).tolist())
    base.close()
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "pca"\nn_components = 1\nrandom_state = 0\n[data.clients]\n'
        'one = "sqlite:///my%20lab.db?table=r"\ntwo = { url = "sqlite:///my lab.db", query = "SELECT * FROM r" }\n'
    )
    result = fedspan("run", tmp_path / "job.toml", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert FederatedPCA.load(tmp_path / "run" / "model.safetensors").n_samples_ == 60


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ('"sqlite:///no.db?table=r"', "must be an SQLite file, but it does not exist"),
        ('"sqlite:///lab.db?table=s"', "no such table: s"),
        ('{ url = "sqlite:///lab.db", query = "SELEC" }', "syntax error"),
        ('{ url = "sqlite:///lab.db", query = "DELETE FROM r" }', "readonly database"),
        ('{ url = "sqlite:///lab.db", query = "SELECT c FROM r" }', "no such column: c"),
    ],
)
def test_what_goes_wrong_with_sqlite(tmp_path: Path, fedspan: Fedspan, address: str, words: str) -> None:
    with sqlite3.connect(tmp_path / "lab.db") as base:
        base.execute("CREATE TABLE r (a, b)")
        base.execute("INSERT INTO r VALUES (1, 2)")
    base.close()
    before = (tmp_path / "lab.db").read_bytes()
    said = refused(fedspan, tmp_path, address)
    assert "client 'able'" in said
    assert words in said
    assert (tmp_path / "lab.db").read_bytes() == before
