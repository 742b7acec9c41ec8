"""One federation of three hospitals for each module of tests: real processes with mutual TLS, stopped by their ids."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    mix = rng.normal(size=(6, 6))
    return {name: rng.normal(size=(n, 6)) @ mix + 1.0 for name, n in (("east", 40), ("north", 90), ("south", 25))}


@pytest.fixture(scope="session")
def hospital_rows() -> dict[str, np.ndarray]:
    return rows()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    pytest.importorskip("nvflare", reason="needs fedspan[flare]")
    import pyarrow as pa
    import pyarrow.parquet as pq
    from world import federation

    folder = tmp_path_factory.mktemp("three")
    tables = {}
    for site, X in rows().items():
        pq.write_table(pa.table({f"lab{i}": X[:, i] for i in range(6)}), folder / f"{site}.parquet")
        tables[site] = {"default": {"path": str(folder / f"{site}.parquet")}}
    with federation(folder / "federation", tables) as made:
        yield made
