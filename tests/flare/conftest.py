"""One federation of three hospitals for all tests with real processes: mutual TLS, stopped by their ids.

These tests are in one group, so that pytest-xdist gives all of them to one worker. What a test changes, it restores.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "mischief"), str(HERE.parent / "deployment"), str(HERE.parent / "reports")]

from tunnel import Tunnel  # noqa: E402


def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    mix = rng.normal(size=(6, 6))
    return {name: rng.normal(size=(n, 6)) @ mix + 1.0 for name, n in (("east", 40), ("north", 90), ("south", 25))}


@pytest.fixture(scope="session")
def hospital_rows() -> dict[str, np.ndarray]:
    return rows()


@pytest.fixture(scope="session")
def tunnel() -> Tunnel:
    """The proxy behind which south is."""
    return Tunnel()


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory, tunnel: Tunnel) -> Iterator[Any]:
    """The sites have a table with the columns lab0 … lab5, and those of orders.py.

    They leave it to the job whether sums are secure. Two tables cannot be used: at south "renamed" has another column,
    and the file of "gone" is not there. North does not allow UDA.
    """
    pytest.importorskip("nvflare", reason="needs fedspan[flare]")
    import pyarrow as pa
    import pyarrow.parquet as pq
    from orders import THREE, write_tables
    from people_tables import write_people
    from world import federation

    from fedspan.deployment.kit import init_site
    from fedspan.deployment.policy import ALGORITHM_NAMES

    folder = tmp_path_factory.mktemp("three")
    tables = write_tables(folder, THREE)
    for site, keys in write_people(folder, THREE).items():
        tables[site]["people"] = keys
    for site, X in rows().items():
        path = folder / f"{site}.parquet"
        pq.write_table(pa.table({f"lab{i}": X[:, i] for i in range(6)}), path)
        keys = {"path": str(path), "columns": [f"lab{i}" for i in range(6)], "rows": len(X)}
        tables[site] |= dict.fromkeys(("default", "renamed", "gone"), keys)
    names = ["lab0", "lab1", "LAB2", "lab3", "lab4", "lab5"]
    pq.write_table(pq.read_table(folder / "south.parquet").rename_columns(names), folder / "renamed.parquet")
    own = tables["south"]
    own["renamed"] = {"path": str(folder / "renamed.parquet"), "columns": names}
    own["gone"] = {**own["gone"], "path": str(folder / "gone.parquet")}
    made = federation(folder / "federation", tables, secure=False)
    allowed = [name for name in ALGORITHM_NAMES if name != "uda"]
    init_site(made.kit("north"), tables["north"], replace=True, secure=False, algorithms=allowed)
    made.own["south"] = tunnel.environment
    with made:
        yield made


@pytest.fixture(scope="session")
def first_job(three: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One job with many orders, of which several tests look at the outcome; see first_job.py."""
    from first_job import FirstJob

    return FirstJob(three, tmp_path_factory.mktemp("first-job"))


@pytest.fixture
def healed(three: Any, first_job: Any) -> Iterator[Any]:
    """The federation, for tests that disturb it: nothing else is at work there, and it is whole again afterwards."""
    from world import SERVER, misbehave

    first_job.finish()
    yield three
    for site in three.sites:
        misbehave(three, site)
    dead = [name for name in (SERVER, *three.sites) if three.processes[name].poll() is not None]
    for name in dead:
        three.start(name)
    if dead:
        three.wait_for(three.sites)


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kits of another federation, made by somebody else; none of its processes is started here."""
    pytest.importorskip("nvflare", reason="needs fedspan[flare]")
    from fedspan.deployment.local import LocalFederation

    return LocalFederation(tmp_path_factory.mktemp("strangers"), ["west", "south"])
