"""A site's own files: what they say is what they were given, and old kits learn where the classes are now."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.deployment import local
from fedspan.deployment.kit import CLASSES, policy_file, update_class_list
from fedspan.deployment.policy import Policy

bounds = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)


@given(row_norm=bounds, epsilon=bounds, delta=st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_bounds_are_written_exactly(row_norm: float, epsilon: float, delta: float) -> None:
    """Rounded upwards, a bound would allow more than the site's owner said."""
    text = policy_file(
        {"default": {"path": "a.csv", "columns": ["x"]}}, row_norm=row_norm, epsilon=epsilon, delta=delta
    )
    policy = Policy.parse(tomllib.loads(text), Path("kit"), Path("kit/local/fedspan.toml"))
    assert (policy.row_norm, policy.epsilon, policy.delta) == (row_norm, epsilon, delta)


def test_whole_numbers_are_bounds_too() -> None:
    text = policy_file({"default": {"path": "a.csv", "columns": ["x"]}}, row_norm=3, epsilon=1, delta=1e-6)
    assert "row_norm = 3.0  #" in text
    assert "epsilon = 1.0  #" in text


OLD = [
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "fedspan.engines.flare.FlareServer",
    "fedspan.engines.flare.FlareClient",
    "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
]


def write_kit(folder: Path, **resources: Any) -> Path:
    """A site's kit as version 0.1 tightened it."""
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    (folder / "startup" / "fed_client.json").write_text("{}")
    tree = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": OLD,
        "allow_log_streaming": False,
        "components": [{"id": "resource_manager", "args": {}}],
        **resources,
    }
    (folder / "local" / "resources.json").write_text(json.dumps(tree, indent=2))
    return folder


def resources_of(kit: Path) -> Any:
    return json.loads((kit / "local" / "resources.json").read_text())


def test_an_old_kit_learns_the_new_names_and_nothing_else(tmp_path: Path) -> None:
    kit = write_kit(tmp_path)
    before = resources_of(kit)
    update_class_list(kit)
    after = resources_of(kit)
    new = [name for name in CLASSES if name.startswith("fedspan.deployment.")]
    assert after.pop("class_allow_list") == [*before.pop("class_allow_list"), *new]
    assert after == before
    assert set(CLASSES) <= {*OLD, *new}


def test_classes_of_others_that_were_taken_off_the_list_stay_off_it(tmp_path: Path) -> None:
    kit = write_kit(tmp_path, class_allow_list=["fedspan.engines.flare.FlareClient"])
    update_class_list(kit)
    assert all(name.startswith("fedspan.") for name in resources_of(kit)["class_allow_list"])


@pytest.mark.parametrize("given", [{"class_allow_list": [*OLD, *CLASSES]}, {"class_allow_list": None}])
def test_a_kit_that_needs_nothing_is_left_as_it_is(tmp_path: Path, given: Any) -> None:
    kit = write_kit(tmp_path, **given)
    before = (kit / "local" / "resources.json").read_bytes()
    update_class_list(kit)
    assert (kit / "local" / "resources.json").read_bytes() == before
    (kit / "local" / "resources.json").unlink()
    update_class_list(kit)
    assert not (kit / "local" / "resources.json").exists()


def test_starting_an_old_kit_brings_it_up_to_date(tmp_path: Path) -> None:
    kit = write_kit(tmp_path)
    script = kit / "startup" / "sub_start.sh"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    assert local.start_kit(kit).wait() == 0
    assert "fedspan.deployment.flare.FlareClient" in resources_of(kit)["class_allow_list"]
