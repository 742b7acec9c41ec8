"""Attacks on a real federation: its processes, its certificates, its TLS. tests/attacks has many more over loopback.

The lying server is the real one, in whose job's process the questions are changed (mischief/liar.py). The sites demand
verified runs; one that does not shows that the lie would have worked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from orders import new_run
from world import SERVER, collect, log_of, submit

from fedspan.data.preparation import Preparation
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest

pytestmark = pytest.mark.xdist_group("flare")
# A block as wide as the table would be the whole space, and columns of the unit matrix would be as good as any others.
KRYLOV = {"n_components": 2, "solver": "krylov", "width": None, "random_state": 4}


def order(table: str = "default", **more: Any) -> RunRequest:
    return RunRequest(new_run(), "FederatedPCA", KRYLOV, table={"name": table}, timeout=300.0, **more)


@pytest.fixture(scope="module")
def strict(healed_for_attacks: Any) -> Iterator[Any]:
    """The federation, whose sites demand verified runs."""
    three = healed_for_attacks
    policies = {site: three.kit(site) / "local" / "fedspan.toml" for site in three.sites}
    before = {site: path.read_text(encoding="utf-8") for site, path in policies.items()}
    for site, path in policies.items():
        text = before[site].replace("secure = false", "secure = true").replace("verified = false", "verified = true")
        text = text.replace("# sites = […]", f"sites = {json.dumps(list(three.sites))}")
        path.write_text(text, encoding="utf-8")
        assert Policy.read(three.kit(site)).verified
    yield three
    for site, path in policies.items():
        path.write_text(before[site], encoding="utf-8")


@pytest.fixture(scope="module")
def healed_for_attacks(three: Any, first_job: Any) -> Iterator[Any]:
    first_job.finish()
    yield three
    (three.kit(SERVER) / "mischief.json").unlink(missing_ok=True)
    for site in three.sites:
        shutil.rmtree(three.kit(site) / "fedspan", ignore_errors=True)  # groups and refusals of these tests


def test_without_the_replay_the_lie_is_answered(healed_for_attacks: Any, tmp_path: Path) -> None:
    """The lie at sites that do not demand verified runs: the server gets its columns. First, before they are strict."""
    three = healed_for_attacks
    lie = order(secure={"enabled": True, "verified": False})
    (three.kit(SERVER) / "mischief.json").write_text(json.dumps({"lies": [lie.run]}), encoding="utf-8")
    assert collect(three, submit(three, [lie]), [lie], tmp_path)[lie.run] == {"done": True}


@pytest.fixture(scope="module")
def outcomes(strict: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One job with all orders: to start one takes FLARE half a minute. The server lies in those that are named so."""
    orders = {
        "honest": order(),
        "lie": order(),
        "not verified": order(secure={"enabled": True, "verified": False}),
        "surnames": RunRequest(
            new_run(),
            "FederatedClassifier",
            {"rounds": 1},
            table={"name": "labelled", "preparation": asdict(Preparation(label="x0"))},
            timeout=300.0,
        ),
    }
    lies = {"lies": [orders["lie"].run]}
    (strict.kit(SERVER) / "mischief.json").write_text(json.dumps(lies), encoding="utf-8")
    folder = tmp_path_factory.mktemp("attacks")
    found = collect(strict, submit(strict, list(orders.values())), list(orders.values()), folder)
    return {name: found[order.run] for name, order in orders.items()}


def test_an_honest_server_is_answered(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["honest"] == {"done": True}


def test_a_lying_server_gets_no_answer(strict: Any, outcomes: dict[str, dict[str, Any]]) -> None:
    """Its first block is one column of the unit matrix after another: M_i e_j would be columns of Gram matrices."""
    outcome = outcomes["lie"]
    assert not outcome["done"]
    assert "Verified sums refused" in outcome["error"]  # it closed the run; its log has the first reason
    assert any("does not span what the sums lead to" in log_of(strict, site) for site in strict.sites)


def test_a_run_that_is_not_verified_is_refused_in_words(outcomes: dict[str, dict[str, Any]]) -> None:
    assert not outcomes["not verified"]["done"]
    assert "accepts verified runs only" in outcomes["not verified"]["error"]


def test_a_label_returns_no_surnames(outcomes: dict[str, dict[str, Any]]) -> None:
    """A job names a column as its label, which the site's file does not."""
    outcome = outcomes["surnames"]
    assert not outcome["done"]
    assert "label" in outcome["error"]
    assert "0." not in outcome["error"]  # no value of the column
