"""A folder of Parquet files as a client: read in the order of names, streamed, and refused if its files differ."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedspan import FederatedPCA, InputError, prepare
from fedspan.data import tables
from fedspan.data.tables import BatchedRows, open_table
from fedspan.numerics.orthonormal import largest_angle

pytest.importorskip("pyarrow", reason="the extra 'data' is not installed")


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4)) * [4.0, 2.0, 1.0, 0.5]
    return pd.DataFrame(X, columns=list("abcd")).assign(person=np.arange(90))


def write(folder: Path, frame: pd.DataFrame, cuts: tuple[int, ...] = (0, 40, 41, 90)) -> Path:
    folder.mkdir()
    for part, (start, stop) in enumerate(pairwise(cuts)):
        frame.iloc[start:stop].to_parquet(folder / f"part-{part}.parquet", row_group_size=7)
    return folder


def test_rows_come_in_the_order_of_names(frame: pd.DataFrame, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", frame)
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.parquet.crc").write_text("")
    table = open_table(prepare({"x": folder}, id="person")["x"])
    np.testing.assert_array_equal(table.X, frame[list("abcd")])
    np.testing.assert_array_equal(np.asarray(table.ids).astype(int), frame.person)


def test_files_with_their_columns_in_another_order(frame: pd.DataFrame, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", frame)
    frame.iloc[40:41][["person", "d", "c", "b", "a"]].to_parquet(folder / "part-1.parquet")
    np.testing.assert_array_equal(open_table(prepare({"x": folder}, id="person")["x"]).X, frame[list("abcd")])


def test_a_large_folder_is_streamed(frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGE", 100)
    clients = prepare(
        {"x": write(tmp_path / "x", frame[:50], (0, 20, 50)), "y": write(tmp_path / "y", frame[50:], (0, 40))},
        id="person",
    )
    assert isinstance(open_table(clients["x"], in_batches=True).X, BatchedRows)
    model = FederatedPCA(2, random_state=0).fit(clients)
    X = frame[list("abcd")].to_numpy()
    V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:2]
    assert largest_angle(model.components_.T, V.T) < 1e-6


def test_folders_that_are_no_table(frame: pd.DataFrame, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", frame)
    frame.iloc[:5].rename(columns={"c": "C"}).to_parquet(folder / "part-9.parquet")
    with pytest.raises(InputError, match=r"All files of .* must have the same columns, but 'C' is in only one of"):
        open_table(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is a folder without Parquet files"):
        open_table(tmp_path / "empty")
    (folder / "year=2020").mkdir()
    with pytest.raises(InputError, match="Values that are kept in the names of folders would be lost"):
        open_table(folder)
    cut = write(tmp_path / "cut", frame)
    whole = (cut / "part-2.parquet").read_bytes()
    (cut / "part-2.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"part-2.parquet"):
        open_table(cut)
