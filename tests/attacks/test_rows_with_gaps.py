"""Jobs that use other rows of the same table: a row that only one of them uses is their difference."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deployment"))

from orders import new_run, write_site

from fedspan import FederatedSVD
from fedspan.data.preparation import Preparation
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest

LONELY = (7.25, -3.5)  # x and y of the only row with a gap, which is in z
defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


def open_clinics(folder: Path, *, defended: bool) -> LoopbackFederation:
    """Three sites of thirty rows; one of them has one row without z. Sums of fewer than 20 rows are forbidden."""
    rng, sites = np.random.default_rng(0), {}
    for name in ("ada", "ben", "cia"):
        (folder / name).mkdir(parents=True)
        rows = rng.normal(size=(30, 3)).tolist()
        lines = [f"{x!r},{y!r},{z!r}\n" for x, y, z in rows]
        lines += [f"{LONELY[0]},{LONELY[1]},\n"] if name == "ben" else []
        (folder / name / "rows.csv").write_text("x,y,z\n" + "".join(lines), encoding="utf-8")
        own: dict[str, Any] = {"path": str(folder / name / "rows.csv"), "columns": ["x", "y", "z"], "min_rows": 20}
        sites[name] = write_site(folder / name, {"default": own | ({"complete_rows": True} if defended else {})})
    return LoopbackFederation(folder / "server", sites)


def learn_moments(clinics: LoopbackFederation, columns: str, missing: Any, **fill: float) -> np.ndarray:
    """The second moments of an ordinary job over those columns, from all of its components."""
    wanted = asdict(Preparation(columns=tuple(columns), missing=missing, fill=fill))
    order = RunRequest(
        new_run(),
        "FederatedSVD",
        {"n_components": len(columns), "solver": "gram", "random_state": 0},
        table={"preparation": wanted},
        timeout=300.0,
    )
    assert clinics.carry_out(order) == {"done": True}
    model = FederatedSVD.load(clinics.place(order) / "model.safetensors")
    return np.asarray((model.components_.T * model.singular_values_**2) @ model.components_)


@defences
def test_two_jobs_over_different_columns(tmp_path: Path, defended: bool) -> None:
    clinics = open_clinics(tmp_path, defended=defended)
    alone = learn_moments(clinics, "xy", "drop") - learn_moments(clinics, "xyz", "drop")[:2, :2]
    there = np.zeros((2, 2)) if defended else np.outer(LONELY, LONELY)
    np.testing.assert_allclose(alone, there, atol=1e-9)


@defences
def test_two_jobs_that_fill_gaps_with_different_numbers(tmp_path: Path, defended: bool) -> None:
    clinics = open_clinics(tmp_path, defended=defended)
    one, two = (learn_moments(clinics, "xyz", "mean", x=0.0, y=0.0, z=number) for number in (0.0, 1.0))
    there = (0.0, 0.0) if defended else LONELY
    np.testing.assert_allclose((two - one)[:2, 2], there, atol=1e-9)


@defences
def test_a_job_that_drops_and_one_that_fills(tmp_path: Path, defended: bool) -> None:
    """The number that fills is the mean over all sites, found by a sum of its own."""
    clinics = open_clinics(tmp_path, defended=defended)
    alone = (learn_moments(clinics, "xyz", "mean") - learn_moments(clinics, "xyz", "drop"))[:2, :2]
    there = np.zeros((2, 2)) if defended else np.outer(LONELY, LONELY)
    np.testing.assert_allclose(alone, there, atol=1e-9)
