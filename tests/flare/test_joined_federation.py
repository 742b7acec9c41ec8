"""A federation whose members joined by invitation, on one port: real processes, keys that were made where they are."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from joined import ADA, BOB, JoinedFederation, ask
from world import environment, until

from fedspan import FederatedPCA
from fedspan.deployment.kit import init_site
from typed import assert_refused, call

pytestmark = [pytest.mark.xdist_group("flare"), pytest.mark.long]
JOB = '[job]\ntask = "pca"\nn_components = 2\nsolver = "ssi"\ntol = 0.0\nmax_rounds = 4\nrandom_state = 4\n'
PCA = {"n_components": 2, "solver": "ssi", "tol": 0.0, "max_rounds": 4, "random_state": 4}


def make_rows(site: str) -> np.ndarray:
    rng = np.random.default_rng(sum(map(ord, site)))
    return rng.normal(size=(30, 4)) * [4.0, 3.0, 2.0, 1.0]


def set_up_site(made: JoinedFederation, site: str) -> None:
    path = made.folder / f"{site}.npy"
    np.save(path, make_rows(site))
    init_site(made.kit(site), {"default": {"path": str(path), "features": 4}}, replace=True, secure=False)


@pytest.fixture(scope="module", params=["grpc", "http"])
def joined(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedFederation]:
    """Sites north and south, and the researchers Ada and Bob."""
    made = JoinedFederation(
        tmp_path_factory.mktemp("joined"), ["north", "south"], driver=request.param, **environment()
    )
    made.join(BOB)
    for site in made.sites:
        set_up_site(made, site)
    with made:
        yield made


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


def run(joined: JoinedFederation, job: Path, name: str, who: str = ADA) -> Any:
    return call("run", job, "--on", joined.kit(who), "--out", job.parent / name)


def status(joined: JoinedFederation) -> dict[str, dict[str, Any]]:
    told = json.loads(call("federation", "status", joined.researcher, "--json").stdout)
    return {site["name"]: site for site in told["sites"]}


def tell(joined: JoinedFederation, *words: str) -> str:
    return ask("federation", *words, "--folder", joined.register)


def test_a_run_on_one_port_gives_the_model_of_one_process(joined: JoinedFederation, job: Path) -> None:
    done = run(joined, job, "first")
    assert done.exit_code == 0, done.output
    model = FederatedPCA.load(job.parent / "first" / "model.safetensors")
    here = FederatedPCA(**PCA).fit({site: make_rows(site) for site in joined.sites})
    np.testing.assert_array_equal(model.components_, here.components_)


def test_status_is_true_within_two_seconds_of_a_death(joined: JoinedFederation) -> None:
    before = status(joined)
    assert all(site["answers"] for site in before.values())
    assert [site["days"] for site in before.values()] == [59, 59]
    assert len({site["fedspan"] for site in before.values()}) == 1
    joined.kill("south")
    begun = time.monotonic()
    until(lambda: not status(joined)["south"]["answers"])
    taken = time.monotonic() - begun  # a session is opened for every question, which `--watch` does once
    assert status(joined)["north"]["answers"]
    joined.start("south")
    joined.wait_for(joined.sites)
    os.kill(joined.processes["south"].pid, signal.SIGSTOP)
    pids = joined.pids("south")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        frozen = status(joined)
        assert not frozen["south"]["answers"]
        assert frozen["north"]["answers"], "a site that is frozen hides no other"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    until(lambda: status(joined)["south"]["answers"])
    print(f"noticed {taken:.1f} s after the death")


def test_a_site_joins_a_federation_that_runs_and_is_removed_at_once(joined: JoinedFederation, job: Path) -> None:
    untouched = {name: joined.processes[name].pid for name in joined.processes}
    joined.join("west")
    set_up_site(joined, "west")
    joined.sites.append("west")
    joined.start("west")
    joined.wait_for(joined.sites)
    assert run(joined, job, "three").exit_code == 0
    assert {name: joined.processes[name].pid for name in untouched} == untouched
    said = tell(joined, "remove", "west")
    assert "noted by north, south" in said
    joined.sites.remove("west")
    until(lambda: "west" not in status(joined) or not status(joined)["west"]["answers"])
    assert run(joined, job, "two").exit_code == 0
    joined.kill("west")
    tell(joined, "restore", "west")
    joined.start("west")
    joined.wait_for(["north", "south", "west"])
    tell(joined, "remove", "west")


def test_a_researcher_who_was_removed_is_refused_by_the_sites_at_once(joined: JoinedFederation, job: Path) -> None:
    assert run(joined, job, "before", BOB).exit_code == 0
    said = tell(joined, "remove-researcher", BOB)
    assert "noted by north, south" in said
    begun = time.monotonic()
    assert_refused(run(joined, job, "after", BOB), 2, "'bob@uni.example.org' was removed from this federation")
    print(f"refused after {time.monotonic() - begun:.1f} s")
    assert run(joined, job, "ada").exit_code == 0
    tell(joined, "restore", BOB)
    assert run(joined, job, "again", BOB).exit_code == 0


def test_a_certificate_is_renewed_while_the_others_go_on(joined: JoinedFederation, job: Path) -> None:
    tell(joined, "renew", "north", "--days", "300")
    ask("site", "renew", joined.kit("north"), joined.register / "signed" / "north.renewed.crt")
    joined.kill("north")
    joined.start("north")
    joined.wait_for(joined.sites)
    until(lambda: status(joined)["north"]["answers"])
    assert status(joined)["north"]["days"] == 299
    assert run(joined, job, "renewed").exit_code == 0
