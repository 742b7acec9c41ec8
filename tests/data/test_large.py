"""Tables that are not held: the same numbers as from one array, and memory that does not grow with the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from scipy.linalg import subspace_angles

from fedspan import FederatedClassifier, FederatedPCA, PersonalizedPCA, RowDP, prepare
from fedspan.data import _arrow_source, sources, tables
from fedspan.data.preparation import Preparation
from fedspan.data.tables import BatchedRows, open_table
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_parameters import SOLVERS
from fedspan.numerics.operators import Rows

N, D = 700, 6
DENSE = np.random.default_rng(3).normal(size=(N, D)) * [9, 5, 3, 1, 0.5, 0.2] + np.arange(D)
NAMES = [f"x{j}" for j in range(D)]
KINDS = ["parquet", "feather", "csv"]


def write(path: Path, X: Any) -> Path:
    table = pa.table(dict(zip(NAMES, X.T, strict=True)))
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=len(X) // 3)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path, chunksize=len(X) // 3)
    else:
        lines = [",".join(NAMES), *(",".join(map(repr, row)) for row in X.tolist())]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large."""
    monkeypatch.setattr(tables, "LARGE", 1000)
    monkeypatch.setattr(sources, "ENTRIES", 50 * D)


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize("kind", [*KINDS, "polars", "arrow"])
def test_sums_and_products_are_those_of_the_dense_rows(kind: str, tmp_path: Path) -> None:
    if kind in KINDS:
        source: Any = write(tmp_path / f"t.{kind}", DENSE)
    else:
        source = pa.table(dict(zip(NAMES, DENSE.T, strict=True)))
        source = source if kind == "arrow" else pytest.importorskip("polars").from_arrow(source)
    X = open_table(source, in_batches=True).X
    assert isinstance(X, BatchedRows)
    assert X.shape == (N, D)
    mu, s, V = DENSE.mean(axis=0), DENSE.std(axis=0), np.random.default_rng(0).normal(size=(D, 2))
    for row_norm in (np.inf, 4.0):
        held, read = Rows(DENSE, row_norm), Rows(X, row_norm)
        for a, b in [
            (held.sums(), read.sums()),
            (held.squares(mu), read.squares(mu)),
            (held.squares(None), read.squares(None)),
            (held.multiply(V, mu, s), read.multiply(V, mu, s)),
            (held.gram(mu, s), read.gram(mu, s)),
            (held.gram(None, None), read.gram(None, None)),
            (held.multiply_by_gram(V, mu, s), read.multiply_by_gram(V, mu, s)),
        ]:
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12 * np.abs(a).max())
        assert read.count_longer() == held.count_longer()
        assert read.count_not_finite() == (0, 0, -1)


@pytest.mark.parametrize("group", [700, 300, 40])
def test_many_columns_are_read_some_at_a_time(group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups larger and smaller than a slice, which is larger than a batch; columns in another order."""
    monkeypatch.setattr(sources, "ENTRIES", 20 * D)
    monkeypatch.setattr(_arrow_source, "_SLICE", 150 * D)
    monkeypatch.setattr(_arrow_source, "_TOGETHER", 4)
    pq.write_table(pa.table(dict(zip(NAMES, DENSE.T, strict=True))), tmp_path / "t.parquet", row_group_size=group)
    np.testing.assert_array_equal(open_table(tmp_path / "t.parquet").X, DENSE)
    turned = open_table(tmp_path / "t.parquet", Preparation(columns=tuple(NAMES[::-1])))
    np.testing.assert_array_equal(turned.X, DENSE[:, ::-1])


@pytest.mark.usefixtures("_small_limits")
def test_numbers_that_are_not_finite_are_found(tmp_path: Path) -> None:
    bad = DENSE.copy()
    bad[[4, 4, 300], [1, 2, 5]] = np.inf
    path = write(tmp_path / "t.parquet", bad)
    assert Rows(open_table(path, in_batches=True).X).count_not_finite() == (3, 2, 1)
    with pytest.raises(
        InputError, match=r"client 'a': Rows must be finite numbers, .* in 2 of 700 rows \(values affected: 3;"
    ):
        FederatedPCA(2).fit({"a": path})


@pytest.mark.usefixtures("_small_limits")
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_reads_in_batches(solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model from a file that is read again and again as from the rows in memory."""
    files = {"a": write(tmp_path / "a.parquet", DENSE[:400]), "b": write(tmp_path / "b.csv", DENSE[400:])}
    options: dict[str, Any] = {"solver": solver, "random_state": 0, "max_rounds": 60, "tol": 1e-9}
    with pytest.warns() if solver in ("uda", "wda", "drsvd") else _quiet():
        held = FederatedPCA(2, **options).fit({"a": DENSE[:400], "b": DENSE[400:]})
        read = FederatedPCA(2, **options).fit(files)
    assert subspace_angles(read.components_.T, held.components_.T).max() < 1e-7
    np.testing.assert_allclose(read.explained_variance_, held.explained_variance_, rtol=1e-7)


def _quiet() -> Any:
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.usefixtures("_small_limits")
def test_privacy_and_gaps_work_in_batches(tmp_path: Path) -> None:
    gappy = DENSE.copy()
    gappy[::7, 2] = np.nan
    path = write(tmp_path / "t.csv", gappy)
    for missing in ("drop", "mean"):
        ready = prepare([path], missing=missing)
        assert isinstance(open_table(ready["0"], in_batches=True).X, BatchedRows)
        model = FederatedPCA(2, solver="gram", random_state=0).fit(ready)
        rows = gappy[~np.isnan(gappy).any(axis=1)]
        if missing == "mean":
            rows = np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy)
        want = np.linalg.svd(rows - rows.mean(axis=0))[2][:2]
        assert subspace_angles(model.components_.T, want.T).max() < 1e-9
        assert model.n_samples_ == len(rows)
    private = RowDP(50.0, 1e-6, row_norm=30.0, simulate=True)
    FederatedPCA(2, privacy=private, random_state=0).fit(prepare([path], missing="drop"))


@pytest.mark.usefixtures("_small_limits")
def test_a_table_that_changes_between_two_passes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", DENSE)
    X = open_table(path, in_batches=True).X
    write(path, DENSE[:600])
    with pytest.raises(InputError, match="changed while it was read"):
        Rows(X).sums()


@pytest.mark.usefixtures("_small_limits")
def test_what_cannot_read_in_batches_holds_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path / "a.parquet", DENSE[:400]), write(tmp_path / "b.csv", DENSE[400:])]
    held = PersonalizedPCA(2, random_state=0).fit([DENSE[:400], DENSE[400:]])
    read = PersonalizedPCA(2, random_state=0).fit(files)
    np.testing.assert_array_equal(read.components_, held.components_)
    y = [(DENSE[:400, 0] > 0).astype(int), (DENSE[400:, 0] > 0).astype(int)]
    FederatedClassifier(hidden=2, batch_size=20, rounds=2, random_state=0).fit(files, y)
    monkeypatch.setattr(tables, "_measure_memory", lambda: 10_000)
    FederatedPCA(2, random_state=0).fit(files)
    for model, more in ((PersonalizedPCA(2), ()), (FederatedClassifier(hidden=2), (y,))):
        with pytest.raises(InputError, match=r"client '0': .* takes 1.92e-05 GB, .* has 1e-05 GB. Choose fewer"):
            model.fit(files, *more)


PEAK = """
import resource, sys
from fedspan import FederatedPCA
import fedspan.data.tables, pyarrow.parquet, pyarrow.csv, pyarrow.ipc
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = FederatedPCA(2, solver=sys.argv[2], random_state=0).fit({"large": sys.argv[1]})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, model.n_samples_)
"""


@pytest.mark.long
@pytest.mark.parametrize("solver", ["gram", "krylov"])
@pytest.mark.parametrize("kind", ["parquet", "feather", "csv"])
def test_memory_does_not_grow_with_the_file(kind: str, solver: str, tmp_path: Path) -> None:
    """A file of 600 MB (as float64) is read with less than half of that; of `benchmarks/large_file.py` in small."""
    path, n, d = tmp_path / f"t.{kind}", 0, 20
    rng, schema = np.random.default_rng(0), pa.schema([(f"x{j}", pa.float64()) for j in range(d)])
    if kind == "parquet":
        file = pq.ParquetWriter(path, schema)
    else:
        file = pa.ipc.new_file(path, schema) if kind == "feather" else pyarrow.csv.CSVWriter(path, schema)
    with file:
        while n * d * 8 < 600e6:
            block = rng.normal(size=(250_000, d)).round(2 if kind == "csv" else 17)
            batch = pa.RecordBatch.from_arrays([pa.array(column) for column in block.T], schema=schema)
            for start in range(0, len(block), 50_000):
                file.write(batch.slice(start, 50_000))
            n += len(block)
    done = subprocess.run([sys.executable, "-c", PEAK, str(path), solver], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    grown, rows = map(float, done.stdout.split())
    assert rows == n
    assert grown < 300, f"{grown} MB more for a table of {n * d * 8 / 1e6} MB"
