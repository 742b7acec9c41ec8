"""What the tests of federations over loopback share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))

from orders import write_site, write_tables

from fedspan.deployment.loopback_federation import LoopbackFederation

SITES = {"east": 40, "north": 90, "south": 25}


@pytest.fixture(autouse=True)
def _one_blas_thread() -> Iterator[None]:
    """Runs are compared to the bit, and BLAS rounds differently with another number of threads."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> LoopbackFederation:
    """Five sites with all the tables of orders.py, which leave it to the job whether sums are secure."""
    folder = tmp_path_factory.mktemp("five")
    sites = {name: write_site(folder / name, own, secure=False) for name, own in write_tables(folder).items()}
    return LoopbackFederation(folder / "server", sites)


@pytest.fixture(scope="session")
def hospital_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    mix = rng.normal(size=(6, 6))
    return {name: rng.normal(size=(n, 6)) @ mix + 1.0 for name, n in SITES.items()}


@pytest.fixture
def make_three(tmp_path: Path, hospital_rows: dict[str, np.ndarray]) -> Callable[..., LoopbackFederation]:
    """Makes a federation of three hospitals with the columns lab0 … lab5; secure sums only, unless told otherwise."""

    def make(**rules: Any) -> LoopbackFederation:
        sites = {}
        for name, X in hospital_rows.items():
            path = tmp_path / f"{name}.csv"
            names = [f"lab{i}" for i in range(X.shape[1])]
            np.savetxt(path, X, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
            table = {"path": str(path), "columns": names, "rows": len(X)}
            sites[name] = write_site(tmp_path / name, {"default": table}, **rules)
        return LoopbackFederation(tmp_path / "server", sites)

    return make
