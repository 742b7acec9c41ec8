"""Tables of partly other people, in another order and spelling at every site, for jobs that match them by their ids."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from orders import SEED, new_run

from fedspan import FederatedGCCA
from fedspan.deployment.server_job import RunRequest

FULL_WIDTH = str.maketrans("0123456789", "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19")
PEOPLE, ALONE = 60, 4  # people of the federation, and how many of them each site lacks


def people_views(sites: Sequence[str]) -> dict[str, np.ndarray]:
    """The features of all people, by site."""
    rng = np.random.default_rng(11)
    hidden = rng.normal(size=(PEOPLE, 2))
    noise = {site: 0.2 * rng.normal(size=(PEOPLE, 4)) for site in sites}
    return {site: hidden @ rng.normal(size=(2, 4)) + own for site, own in noise.items()}


def spell(person: int, at: int) -> str:
    """The id of a person as the site with that number writes it: numbers, accents, case, spaces, leading zeros."""
    if person % 3 == 0:  # "12" is not "0012", which is the next person
        return [str(person), f" {person} ", str(person).translate(FULL_WIDTH)][at % 3]
    if person % 3 == 1:
        return f"{person - 1:04d}"  # leading zeros count
    name = f"\u00c9ric {person}"  # as one character, as E and an accent, in small letters
    return [name, unicodedata.normalize("NFD", name), f"  {name.lower()} "][at % 3]


def write_people(folder: Path, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each site's fedspan.toml says of its table of people."""
    rng, tables = np.random.default_rng(12), {}
    for i, (site, X) in enumerate(people_views(sites).items()):
        rows = rng.permutation([j for j in range(PEOPLE) if not i * ALONE <= j < (i + 1) * ALONE])
        ids = [spell(j, i) for j in rows]
        columns = {f"{site}{c}": X[rows, c] for c in range(X.shape[1])}
        path = folder / f"people-{site}.parquet"
        pq.write_table(pa.table({**columns, "person": ids}), path)
        tables[site] = {"path": str(path), "columns": [*columns], "id": "person"}
    return tables


def order_for_people() -> RunRequest:
    return RunRequest(
        new_run(),
        "FederatedGCCA",
        {"n_components": 2, "random_state": SEED},
        table={"name": "people"},
        secure={"enabled": False},
        match="psi",
        timeout=300.0,
    )


def assert_people_matched(place: Path, sites: Sequence[str]) -> None:
    """The model is that of the people whom all sites have, though the order of the entities cannot be foreseen."""
    there = FederatedGCCA.load(place / "model.safetensors")
    common = slice(len(sites) * ALONE, None)
    views = {site: X[common] for site, X in people_views(sites).items()}
    here = FederatedGCCA(2, random_state=SEED).fit(dict(sorted(views.items())))
    assert there.n_samples_ == PEOPLE - len(sites) * ALONE
    assert there.view_names_ == here.view_names_
    np.testing.assert_allclose(there.correlations_, here.correlations_, atol=1e-6)
