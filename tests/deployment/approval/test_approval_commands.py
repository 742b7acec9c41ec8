"""`fedspan site researchers | pending | approve | refuse`: what an administrator types, and what it does at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import ADA, BOB
from orders import new_run

from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_evidence import describe_book
from typed import assert_refused, call

Make = Callable[..., LoopbackFederation]


def order() -> RunRequest:
    parameters = {"n_components": 2, "solver": "ssi", "max_rounds": 3, "tol": 0.0, "random_state": 0}
    return RunRequest(new_run(), "FederatedPCA", parameters, retries=0)


def read_names(kit: Path) -> tuple[str, ...] | None:
    return Policy.read(kit).approvals.researchers


def test_researchers_are_added_and_removed_in_the_sites_own_file(make_gated: Make) -> None:
    three = make_gated()
    kit = three.sites["north"]
    assert "anybody whom the coordinator gave a kit" in call("site", "researchers", kit).stdout
    assert_refused(call("site", "researchers", kit, "--remove", BOB), 2, "names no researchers", "--add")
    before = (kit / "local" / "fedspan.toml").read_text(encoding="utf-8").splitlines()
    assert ADA in call("site", "researchers", kit, "--add", ADA).stdout
    assert read_names(kit) == (ADA,)
    after = (kit / "local" / "fedspan.toml").read_text(encoding="utf-8").splitlines()
    assert [line for line in before if not line.lstrip("# ").startswith("researchers")] == [
        line for line in after if not line.lstrip("# ").startswith(("researchers", "[allow]")) or line in before
    ]
    assert call("site", "researchers", kit, "--add", BOB).exit_code == 0
    assert read_names(kit) == (ADA, BOB)
    assert call("site", "researchers", kit, "--remove", ADA).exit_code == 0
    assert read_names(kit) == (BOB,)
    assert_refused(call("site", "researchers", kit, "--remove", ADA), 2, "is not among the researchers", BOB)
    assert f"{ADA} may not run jobs at this site" in three.carry_out(order()).get("error", "")
    assert sum("whose jobs may run here" in line for line in describe_book(kit)) == 3


def test_a_list_over_several_lines_is_left_alone(make_gated: Make) -> None:
    kit = make_gated(researchers=[ADA]).sites["north"]
    path = kit / "local" / "fedspan.toml"
    text = path.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("researchers"))
    path.write_text(text.replace(line, f'researchers = [\n  "{ADA}",\n]'), encoding="utf-8")
    written = path.read_bytes()
    done = call("site", "researchers", kit, "--add", BOB)
    assert done.exit_code != 0
    assert path.read_bytes() == written


@pytest.mark.parametrize("decision", ["approve", "refuse"])
def test_an_order_is_shown_in_words_and_decided_about(make_gated: Make, decision: str) -> None:
    three = make_gated(approval="each", researchers=[ADA])
    request, kits = order(), list(three.sites.values())
    assert "no job waits" in call("site", "pending", kits[0]).stdout
    assert "waiting for the approval" in three.carry_out(request).get("error", "")
    shown = call("site", "pending", kits[0]).stdout
    assert ADA in shown
    assert request.run in shown
    digest = shown.partition("digest ")[2].split()[0]
    assert_refused(call("site", "approve", kits[0], digest[:4]), 2, "at least 8 characters")
    if decision == "refuse":
        assert call("site", "refuse", kits[0], digest[:12], "--reason", "not before May").exit_code == 0
        assert "not before May" in three.carry_out(request).get("error", "")
        assert "not before May" in call("site", "pending", kits[0], "--all").stdout
        return
    for kit in kits:
        assert call("site", "approve", kit, digest[:16]).exit_code == 0
    assert three.carry_out(request) == {"done": True}
    assert "no job waits" in call("site", "pending", kits[0]).stdout
