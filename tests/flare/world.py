"""Real federations for tests: their kits, their processes, and orders carried out on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspan.deployment import flare_admin
from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation
from fedspan.deployment.server_job import RunRequest

MISCHIEF = Path(__file__).resolve().parent / "mischief"
SERVER = "localhost"
PATIENCE = 300.0  # seconds for what takes a few on a quiet machine


def environment() -> dict[str, str]:
    """What every process of the federation is started with: one BLAS thread, as the tests have."""
    path = os.pathsep.join(filter(None, [str(MISCHIEF), os.environ.get("PYTHONPATH", "")]))
    return {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def federation(folder: Path, tables: Mapping[str, Mapping[str, Mapping[str, Any]]], **rules: Any) -> LocalFederation:
    """Sites with those tables (site → name → keys of fedspan.toml), ready to be entered."""
    made = LocalFederation(folder, list(tables), **environment())
    for site, own in tables.items():
        init_site(made.kit(site), own, replace=False, **rules)
    return made


def submit(made: LocalFederation, orders: Sequence[RunRequest]) -> str:
    """Send one job with those orders, and do not wait for it."""
    with flare_admin.connect(made.researcher) as session:
        return flare_admin.submit(session, made.researcher, list(orders), made.sites)


def collect(made: LocalFederation, job: str, orders: Sequence[RunRequest], into: Path) -> dict[str, dict[str, Any]]:
    """Wait for a job; the outcome of each order by its run. Ledgers and models are left in `into`/<run>."""
    outcomes = {}
    with flare_admin.connect(made.researcher) as session:
        for _ in flare_admin.watch(session, job):
            pass
        for order in orders:
            place = into / order.run
            place.mkdir(parents=True, exist_ok=True)
            outcomes[order.run] = flare_admin.fetch(session, job, order.run, place)
    return outcomes


def command(*words: Any) -> list[str]:
    """The command line of `fedspan` with these words."""
    return [sys.executable, "-m", "fedspan.cli.main", *map(str, words)]


def call(*words: Any) -> subprocess.CompletedProcess[str]:
    """Run `fedspan` with these words in a process of its own."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=PATIENCE, check=False)


def misbehave(made: LocalFederation, site: str, *plans: Mapping[str, Any]) -> None:
    """From now on that site does as the plans say (see mischief/rogue.py); no plans: it behaves."""
    (made.kit(site) / "mischief.json").write_text(json.dumps(list(plans)), encoding="utf-8")


def plans_of(made: LocalFederation, site: str) -> Any:
    """What is left of a site's plans."""
    return json.loads((made.kit(site) / "mischief.json").read_text(encoding="utf-8"))


def log_of(made: LocalFederation, name: str) -> str:
    """All that a site or the server has logged, its jobs included."""
    paths = [*made.kit(name).rglob("log.txt"), made.folder / f"{name}.log"]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


def until(fact: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What the function returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found
