"""A federation that `federation provision` made, key and all, goes on with a register of its members."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from joined import ADA, BOSS, ask, inside, told

from fedspan.deployment.approval.signed_order import sign_order, verify_order
from fedspan.deployment.kit import init_site
from fedspan.deployment.membership.register import Register
from fedspan.deployment.operations.warm_start import switch_warm
from fedspan.deployment.run_request import RunRequest
from typed import assert_refused, call

pytestmark = pytest.mark.xdist_group("membership")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    ask(
        "federation",
        "new",
        folder / "study.yml",
        "--server",
        "localhost",
        "--sites",
        "north,south",
        "--researcher",
        ADA,
    )
    ask("federation", "provision", folder / "study.yml", "--out", folder / "kits")
    return folder / "kits" / "study" / "prod_00"


def test_old_kits_are_members_that_can_be_renewed_and_joined_by_new_ones(kits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    place = ("--folder", folder)
    assert_refused(call("federation", "upgrade", kits, *place), 2, "add --coordinator")
    said = ask("federation", "upgrade", kits, "--coordinator", BOSS, *place)
    assert "north, " in said
    issued = Register(folder).read()
    assert {name: member.kind for name, member in issued.members.items()} == {
        "localhost": "server",
        "north": "site",
        "south": "site",
        ADA: "researcher",
        BOSS: "coordinator",
    }
    assert (issued.profile.server, issued.profile.port, issued.profile.admin_port) == ("localhost", 8002, 8003)
    done = call("federation", "renew", "north", "--days", "700", *place)  # `provision` makes all of one length
    assert_refused(done, 2, "none lasts longer than the root certificate, which ends on")
    said = ask("federation", "invite", "west", *place)
    with inside(tmp_path / "west"):
        own = ask("site", "join", folder / "invitations" / "west.invitation.json")
        key = told(own, "fingerprint of your key:")
        ask("federation", "approve", "west.request.json", "--fingerprint", key, *place)
        ask("site", "join", "--finish", folder / "signed" / "west.signed.zip")
    signed = sign_order(kits / ADA, [RunRequest("0" * 16, "FederatedPCA")], ["north", "west"])
    assert verify_order(tmp_path / "west" / "west", signed).submitter.name == ADA  # one root for the old and the new
    told_old = json.loads((kits / "south" / "startup" / "fed_client.json").read_text())["servers"][0]
    told_new = json.loads((tmp_path / "west" / "west" / "startup" / "fed_client.json").read_text())["servers"][0]
    assert told_new["service"]["target"] == told_old["service"]["target"]
    assert told_new["name"] == told_old["name"]


def test_an_old_server_learns_what_a_coordinator_may(kits: Path) -> None:
    path = kits / "localhost" / "local" / "authorization.json"
    rights = json.loads(path.read_text())
    del rights["permissions"]["org_admin"]["disable_client"]
    path.write_text(json.dumps(rights))
    ask("federation", "upgrade", kits / "localhost")
    rights = json.loads(path.read_text())["permissions"]
    assert rights["org_admin"]["disable_client"] == "any"
    assert "disable_client" not in rights["lead"]
    assert rights["org_admin"]["shell_commands"] == "none"
    resources = (kits / "localhost" / "local" / "resources.json").read_bytes()
    ask("site", "warm", kits / "localhost")
    ask("federation", "upgrade", kits / "localhost")
    assert b"WarmServer" in (kits / "localhost" / "local" / "resources.json").read_bytes()  # what was set stays
    ask("site", "warm", kits / "localhost", "--off")
    assert (kits / "localhost" / "local" / "resources.json").read_bytes() == resources
    ask("federation", "upgrade", kits / "south")
    site = json.loads((kits / "south" / "local" / "authorization.json").read_text())["permissions"]
    assert site["lead"]["report_resources"] == "any"
    assert "nothing in it has to change" in ask("federation", "upgrade", kits / ADA)


def test_a_warm_start_is_switched_on_and_off(kits: Path) -> None:
    for name, launcher in (("south", "WarmSite"), ("localhost", "WarmServer")):
        kit = kits / name
        if name == "south":
            init_site(kit, {"default": {"path": "x.csv", "columns": ["x"]}}, replace=True)
        before = (kit / "local" / "resources.json").read_bytes()
        assert "start" in ask("site", "warm", kit)
        assert launcher in (kit / "local" / "resources.json").read_text()
        assert not switch_warm(kit, on=True)
        ask("site", "warm", kit, "--off")
        assert (kit / "local" / "resources.json").read_bytes() == before
    assert_refused(call("site", "warm", kits / ADA), 2, "researcher's kit")
    assert_refused(call("site", "warm", kits / "north"), 2, "site init")
