"""Real federations for tests: their kits, their processes, and orders carried out on them."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedspan.checkpoint import load_tree
from fedspan.deployment.kit import init_site
from fedspan.deployment.local import LocalFederation
from fedspan.deployment.order import Order
from fedspan.engines import flare_admin
from fedspan.ledger import Exchange, Ledger

MISCHIEF = Path(__file__).parent / "mischief"


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


def new_run() -> str:
    return secrets.token_hex(16)


def carry_out(made: LocalFederation, orders: list[Order], into: Path) -> dict[str, dict[str, Any]]:
    """The outcome of each order of one job, by its run; ledgers and models are left in `into`/<run>."""
    outcomes = {}
    with flare_admin.connected(made.researcher) as session:
        job = flare_admin.submit(session, orders, len(made.sites))
        for _ in flare_admin.watch(session, job):
            pass
        for order in orders:
            place = into / order.run
            place.mkdir(parents=True, exist_ok=True)
            outcomes[order.run] = flare_admin.fetch(session, job, order.run, place)
    return outcomes


def estimate(place: Path) -> np.ndarray:
    return np.asarray(load_tree(place / "model.safetensors", "model")["estimate"])


def exchanges(ledger: Ledger) -> list[Exchange]:
    return [event for event in ledger.events if isinstance(event, Exchange)]


def misbehave(made: LocalFederation, site: str, *plans: Mapping[str, Any]) -> None:
    """From now on that site does as the plans say (see mischief/sitecustomize.py); no plans: it behaves."""
    (made.kit(site) / "mischief.json").write_text(json.dumps(list(plans)))


def log_of(made: LocalFederation, name: str) -> str:
    """All that a site or the server has logged, its jobs included."""
    kit = made.kit(name)
    texts = [path.read_text(errors="replace") for path in [*kit.rglob("log.txt"), made.folder / f"{name}.log"]]
    return "\n".join(texts)


def until(fact: Callable[[], Any], seconds: float = 90.0) -> Any:
    """What the function returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found
