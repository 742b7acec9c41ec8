"""Every kind of source gives the same table: features, names, ids and labels, in one reading."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from fedspan import FederatedClassifier, FederatedPCA
from fedspan.data import sources
from fedspan.data.preparation import Preparation
from fedspan.data.tables import open_table
from fedspan.errors import InputError, MissingExtraError
from fedspan.jobs.model import Job

N = 60
RNG = np.random.default_rng(5)
FRAME = pd.DataFrame(
    {
        "person": [f"p{i:02d}" for i in range(N)],
        "age": RNG.integers(18, 90, N),
        "dose": RNG.normal(size=N),
        "smoker": RNG.random(N) < 0.3,
        "y": np.where(RNG.random(N) < 0.5, 1, 2),
    }
)
FEATURES = ["age", "dose", "smoker"]
X = FRAME[FEATURES].to_numpy(dtype=np.float64)
HOW = Preparation(id="person", label="y")


def text(folder: Path, separator: str = ",") -> Path:
    frame = FRAME.astype({"smoker": int})
    frame.to_csv(folder / "t.csv", index=False, sep=separator)
    return folder / "t.csv"


def database(folder: Path) -> str:
    with sqlite3.connect(folder / "t.db") as base:
        FRAME.to_sql("people", base, index=False)
    base.close()
    return f"sqlite:///{folder / 't.db'}?table=people"


def written(folder: Path, kind: str) -> Path:
    table, path = pa.Table.from_pandas(FRAME, preserve_index=False), folder / f"t.{kind}"
    pq.write_table(table, path, row_group_size=7) if kind == "parquet" else pyarrow.feather.write_feather(
        table, path, chunksize=11
    )
    return path


SOURCES: dict[str, Any] = {
    "pandas": lambda folder: FRAME,
    "pandas nullable": lambda folder: FRAME.convert_dtypes(),
    "pandas arrow": lambda folder: FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda folder: pl.DataFrame(FRAME.to_dict("list")),
    "arrow": lambda folder: pa.Table.from_pandas(FRAME, preserve_index=False),
    "csv": text,
    "csv with semicolons": lambda folder: text(folder, ";"),
    "csv with tabs": lambda folder: text(folder, "\t"),
    "parquet": lambda folder: written(folder, "parquet"),
    "feather": lambda folder: written(folder, "feather"),
    "arrow file": lambda folder: written(folder, "feather").rename(folder / "t.arrow"),
    "sqlite": database,
    "sqlite query": lambda folder: {"url": database(folder).split("?")[0], "query": "select * from people;"},
}


@pytest.fixture(params=[1 << 21, 40], ids=["one batch", "many batches"])
def _batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ENTRIES", request.param)


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("kind", SOURCES)
def test_the_same_table_from_everywhere(kind: str, tmp_path: Path) -> None:
    table = open_table(SOURCES[kind](tmp_path), HOW)
    np.testing.assert_array_equal(table.X, X)
    assert table.names == tuple(FEATURES)
    assert table.ids is not None
    assert table.labels is not None
    assert table.ids.tolist() == FRAME["person"].tolist()
    assert table.labels.tolist() == FRAME["y"].tolist()


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("kind", ["csv", "csv with semicolons"])
def test_csv_without_pyarrow(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = SOURCES[kind](tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    table = open_table(path, HOW)
    np.testing.assert_array_equal(table.X, X)
    assert table.labels is not None
    assert table.labels.tolist() == FRAME["y"].tolist()


def test_what_needs_pyarrow_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"reading .parquet files needs .* pip install 'fedspan\[data\]'"):
        open_table(path)


def test_chosen_columns_come_in_their_order(tmp_path: Path) -> None:
    for kind in ("csv", "parquet", "feather", "sqlite", "polars"):
        table = open_table(SOURCES[kind](tmp_path), Preparation(columns=("dose", "age")))
        assert table.names == ("dose", "age")
        np.testing.assert_array_equal(table.X, X[:, [1, 0]])
        (tmp_path / "t.db").unlink(missing_ok=True)


def test_arrays_keep_what_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", X)
    mapped = open_table(tmp_path / "t.npy").X
    assert isinstance(mapped, np.memmap)  # not read until its rows are needed
    np.testing.assert_array_equal(mapped, X)
    sparse = sp.csr_array(X)
    assert open_table(sparse).X is sparse
    np.savez(tmp_path / "t.npz", X=X, y=FRAME["y"].to_numpy(), person=np.array(FRAME["person"], dtype=str))
    table = open_table(tmp_path / "t.npz", HOW)
    np.testing.assert_array_equal(table.X, X)
    assert table.labels is not None
    assert table.labels.tolist() == FRAME["y"].tolist()
    with pytest.raises(InputError, match=r"no column 'person', because this table's columns have no names"):
        open_table(tmp_path / "t.npy", HOW)


def test_libsvm_files_are_as_wide_as_the_widest(tmp_path: Path, fedspan: Any) -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(30, 8)), rng.normal(size=(20, 8))
    A[:, 7] = 0.0  # so that its file does not know of the last feature
    dump_svmlight_file(A, np.repeat([1, 2], 15), str(tmp_path / "a.svm"), zero_based=False)
    dump_svmlight_file(B, np.repeat([1, 2], 10), str(tmp_path / "b.libsvm"), zero_based=False)
    assert open_table(tmp_path / "a.svm").X.shape == (30, 7)
    wide = open_table(tmp_path / "a.svm", Preparation(label="class", n_features=9))
    assert wide.X.shape == (30, 9)
    assert wide.labels is not None
    assert wide.labels.tolist() == [1] * 15 + [2] * 15
    (tmp_path / "job.toml").write_text(
        '[job]\ntask = "svd"\nn_components = 2\nsolver = "gram"\n[data]\nclients = ["a.svm", "b.libsvm"]\n'
    )
    result = fedspan("run", tmp_path / "job.toml", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    from fedspan import FederatedSVD

    model = FederatedSVD.load(tmp_path / "run" / "model.safetensors")
    want = np.linalg.svd(np.vstack([A, B]))[2][:2]
    np.testing.assert_allclose(np.abs(model.components_ @ want.T), np.eye(2), atol=1e-9)


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features, ids and labels in one pass, and no second opening for the run: by counting what is opened."""
    from fedspan.data._csv_file import CsvFile

    passes: list[str] = []
    real = CsvFile.batches
    monkeypatch.setattr(CsvFile, "batches", lambda self, *a: (passes.append(self.path.name), real(self, *a))[1])
    text(tmp_path)
    (tmp_path / "u.csv").write_text((tmp_path / "t.csv").read_text())
    for task, keys in (("pca", "n_components = 2"), ("classifier", "hidden = 3\nrounds = 3")):
        passes.clear()
        (tmp_path / "job.toml").write_text(
            f'[job]\ntask = "{task}"\n{keys}\nrandom_state = 0\n[data]\nclients = ["t.csv", "u.csv"]\nid = "person"\n'
            'label = "y"\n'
        )
        job = Job.load(tmp_path / "job.toml")
        from fedspan.jobs.tasks import TASKS

        given, _ = TASKS[task].arguments(job.prepare())
        (FederatedPCA(2) if task == "pca" else FederatedClassifier(hidden=3, batch_size=9, rounds=3)).fit(*given)
        assert sorted(passes) == ["t.csv", "u.csv"]


def test_many_files_are_not_all_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedspan.data import clients

    rng = np.random.default_rng(0)
    for i in range(4):
        pd.DataFrame(rng.normal(size=(50, 4))).to_csv(tmp_path / f"{i}.csv", index=False, header=list("abcd"))
    files = [tmp_path / f"{i}.csv" for i in range(4)]
    monkeypatch.setattr(clients, "_KEPT", 2 * 50 * 4 * 8)
    kept, schema = clients.open_clients(files)
    assert [callable(data) for data in kept.values()] == [False, False, True, True]
    assert schema.rows == 200
    np.testing.assert_array_equal(kept["3"](), open_table(files[3]).X)


def test_units_are_read_from_arrow_fields(tmp_path: Path) -> None:
    fields = [pa.field("w", pa.float64(), metadata={"unit": "kg"}), pa.field("h", pa.float64())]
    pq.write_table(pa.table([[1.0, 2.0], [3.0, 4.0]], schema=pa.schema(fields)), tmp_path / "t.parquet")
    assert open_table(tmp_path / "t.parquet").units == (("w", "kg"),)


class Squares(sources.Source):
    """A source of one's own: rows that are made when they are read."""

    names, units, rows = ("i", "square"), {"i": "m"}, 8

    def batches(self, names: Any, text: Any) -> Any:
        for start in (0, 3, 6):
            i = np.arange(start, min(start + 3, 8), dtype=np.float64)
            columns = {"i": i, "square": i**2}
            yield {name: columns[name] for name in names}


def test_a_source_of_ones_own() -> None:
    table = open_table(Squares())
    np.testing.assert_array_equal(table.X, np.column_stack([np.arange(8), np.arange(8) ** 2]))
    assert table.names == ("i", "square")
    assert table.units == (("i", "m"),)
    assert FederatedPCA(1, random_state=0).fit([Squares(), Squares()]).n_samples_ == 16
