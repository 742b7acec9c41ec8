"""Invitations, requests, certificates: keys stay where they are made, and a name has one key."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joined import ADA, BOSS, ask, inside, told

from fedspan.deployment.approval.gate import ask_gate
from fedspan.deployment.approval.signed_order import sign_order, verify_order
from fedspan.deployment.kit import check_certificates, init_site
from fedspan.deployment.membership import invitation as invitations
from fedspan.deployment.membership.register import Register
from fedspan.deployment.membership.removals import REMOVAL_NOTICE, REMOVALS_TAKEN, read_removed
from fedspan.deployment.run_request import RunRequest
from fedspan.deployment.site_rules.book import Book
from fedspan.errors import PolicyRefusal
from typed import assert_refused, call

pytestmark = pytest.mark.xdist_group("membership")
REQUEST = RunRequest("0" * 16, "FederatedPCA", {"n_components": 2})


class World:
    """A coordinator, the site north and the researcher Ada, each in a folder of their own; no server, no process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.register = folder, folder / "coordinator"
        ask("federation", "found", "--server", "fl.example.org", "--coordinator", BOSS, *self.place)

    @property
    def place(self) -> tuple[str, ...]:
        return ("--folder", str(self.register))

    def invite(self, name: str, *options: str) -> Path:
        ask("federation", "invite", name, *options, *self.place)
        return self.register / "invitations" / f"{name}.invitation.json"

    def request(self, name: str, invitation: Path, where: str = "") -> tuple[Path, str]:
        """The request, and what its owner reads out."""
        with inside(self.folder / (where or name)):
            said = ask("site", "join", invitation)
            return Path.cwd() / f"{name}.request.json", told(said, "fingerprint of your key:")

    def join(self, name: str) -> Path:
        request, key = self.request(name, self.invite(name))
        ask("federation", "approve", request, "--fingerprint", key, *self.place, "--days", 60)
        with inside(self.folder / name):
            ask("site", "join", "--finish", self.register / "signed" / f"{name}.signed.zip")
        return self.folder / name / name


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def north(world: World) -> Path:
    kit = world.join("north")
    table = world.folder / "x.csv"
    table.write_text("a,b\n" + "1,2\n" * 20)
    init_site(kit, {"default": {"path": str(table), "columns": ["a", "b"]}}, replace=True)
    return kit


@pytest.fixture(scope="module")
def ada(world: World) -> Path:
    return world.join(ADA)


def keys_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]


def test_a_key_is_made_at_the_site_and_nowhere_else(world: World, north: Path) -> None:
    (own,) = keys_in(world.folder / "north")  # and what it was made in is gone
    assert own == north / "startup" / "client.key"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    key = load_pem_private_key(own.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate((north / "startup" / "client.crt").read_bytes())
    assert certificate.public_key() == key.public_key()
    text = own.read_bytes().splitlines()[5]
    for path in world.register.rglob("*"):
        assert not path.is_file() or text not in path.read_bytes()
    names = {path.name for path in keys_in(world.register)}
    assert names == {"rootCA.key", "client.key"}  # the root's and the coordinator's own
    check_certificates(north)


def test_a_fingerprint_that_differs_is_not_approved(world: World) -> None:
    invitation = world.invite("west")
    with inside(world.folder / "west"):
        assert_refused(call("site", "join", invitation, "--fingerprint", "0000-1111"), 2, "not the coordinator's")
        assert not (world.folder / "west" / "west.keys").exists()
    request, key = world.request("west", invitation)
    assert_refused(call("federation", "approve", request, *world.place), 2, "over the telephone", "--fingerprint")
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    done = call("federation", "approve", request, "--fingerprint", wrong, *world.place)
    assert_refused(done, 2, "They differ", "not approved")
    assert "west" not in Register(world.register).read().members


def test_two_sites_with_one_name(world: World, north: Path) -> None:
    """Whoever has the invitation, too, has another key: it is refused, before and after the first was approved."""
    assert_refused(call("federation", "invite", "north", *world.place), 2, "'north' has a key already", "renew")
    invitation = world.register / "invitations" / "north.invitation.json"
    request, key = world.request("north", invitation, where="impostor")
    done = call("federation", "approve", request, "--fingerprint", key, *world.place)
    assert_refused(done, 2, "'north' has a certificate for another key", "Ask who sent it")


def test_an_expired_invitation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    invitation = world.invite("east", "--days", "3")
    request, key = world.request("east", invitation)

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + timedelta(days=4)

    monkeypatch.setattr(invitations, "datetime", Later)
    words = ("The invitation of 'east' expired on", "fedspan federation invite east")
    assert_refused(call("federation", "approve", request, "--fingerprint", key, *world.place), 2, *words)
    assert_refused(call("site", "join", invitation), 2, *words)


def test_a_foreign_request(world: World, tmp_path: Path) -> None:
    """Another federation of the same name has invited a site of a name that is invited here, too."""
    other = World(tmp_path / "other")
    world.invite("abroad")
    request, key = other.request("abroad", other.invite("abroad"))
    done = call("federation", "approve", request, "--fingerprint", key, *world.place)
    assert_refused(done, 2, "an invitation that is not this federation's", "Do not approve it")


def test_a_request_for_somebody_else_than_its_invitation(world: World) -> None:
    """The public key in it is right, but the certificate would be the server's."""
    honest, key = world.request("plain", world.invite("plain"))
    forged = json.loads(honest.read_text())
    other, _ = world.request("cunning", world.invite("cunning"))
    forged["request"] = json.loads(other.read_text())["request"]
    path = world.folder / "forged.request.json"
    path.write_text(json.dumps(forged))
    done = call("federation", "approve", path, "--fingerprint", key, *world.place)
    assert done.exit_code == 2, done.output
    for damage in ("{}", "[]", '{"invitation": {}, "request": "%%"}', "", '{"request": ""}'):
        path.write_text(damage)
        assert call("federation", "approve", path, "--fingerprint", key, *world.place).exit_code == 2


def test_a_kit_is_finished_only_where_its_key_is(world: World, north: Path, tmp_path: Path) -> None:
    signed = world.register / "signed" / "north.signed.zip"
    with inside(tmp_path / "elsewhere"):
        assert_refused(call("site", "join", "--finish", signed), 2, "There is no key for 'north'", "where its key was")


def test_a_renewed_certificate_fits_only_its_kit(world: World, north: Path, ada: Path) -> None:
    before = x509.load_pem_x509_certificate((north / "startup" / "client.crt").read_bytes())
    ask("federation", "renew", "north", "--days", 300, *world.place)
    renewed = world.register / "signed" / "north.renewed.crt"
    assert_refused(call("site", "renew", ada, renewed), 2, "another name than this kit's")
    ask("site", "renew", north, renewed)
    after = x509.load_pem_x509_certificate((north / "startup" / "client.crt").read_bytes())
    assert after.public_key() == before.public_key()
    assert after.not_valid_after_utc - before.not_valid_after_utc > timedelta(days=230)
    assert {e.oid for e in after.extensions} == {e.oid for e in before.extensions}
    assert_refused(call("site", "renew", north, renewed), 2, "does not last longer")
    assert "299 days left" in ask("federation", "members", *world.place)


def test_who_was_removed_is_refused_by_a_site_at_once(world: World, north: Path, ada: Path) -> None:
    signed = sign_order(ada, [REQUEST], ["north", "south"])
    assert verify_order(north, signed).submitter.name == ADA
    ask("federation", "remove-researcher", ADA, "--offline", *world.place)
    removed = Register(world.register).removals
    assert ask_gate(north, {REMOVAL_NOTICE: removed}, "job") == (False, REMOVALS_TAKEN)
    with pytest.raises(PolicyRefusal, match="was removed from this federation by its coordinator"):
        verify_order(north, signed)
    lines = len(list(Book(north).read()))
    assert any(ADA in str(line.facts.get("act")) for line in Book(north).read())
    assert ask_gate(north, {REMOVAL_NOTICE: removed}, "again") == (False, REMOVALS_TAKEN)
    assert len(list(Book(north).read())) == lines, "who sends a list again and again fills no disk"
    ask("federation", "restore", ADA, "--offline", *world.place)
    back = Register(world.register).removals
    assert ask_gate(north, {REMOVAL_NOTICE: back}, "job") == (False, REMOVALS_TAKEN)
    assert verify_order(north, signed).submitter.name == ADA
    told = ask_gate(north, {REMOVAL_NOTICE: removed}, "job")  # a server brings the old list again
    assert not told[0]
    assert "has a newer" in told[1]
    assert verify_order(north, signed).submitter.name == ADA


@pytest.mark.parametrize("forge", [{"names": [ADA]}, {"number": 99}, {"signature": "AAAA"}, {"federation": "other"}])
def test_a_list_of_removed_names_that_the_coordinator_has_not_signed(
    world: World, north: Path, ada: Path, forge: dict[str, object]
) -> None:
    ask("federation", "restore", ADA, "--offline", *world.place)
    before = read_removed(north)
    allowed, why = ask_gate(north, {REMOVAL_NOTICE: {**Register(world.register).removals, **forge}}, "job")
    assert not allowed
    assert "not signed by this federation's coordinator" in why
    assert read_removed(north) == before


def test_a_damaged_list_lets_nothing_run(world: World, north: Path, ada: Path) -> None:
    path = north / "fedspan" / "removed.json"
    kept = path.read_bytes() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    signed = sign_order(ada, [REQUEST], ["north", "south"])
    allowed, why = ask_gate(north, {"fedspan": signed.to_json()}, "job")
    assert not allowed
    assert "cannot look at the job" in why
    path.unlink()
    if kept is not None:
        path.write_bytes(kept)


def test_a_certificate_from_a_clock_that_is_a_day_ahead(world: World, north: Path, tmp_path: Path) -> None:
    """The coordinator's clock was a day ahead, or this machine's is a day behind."""
    from certificates_in_time import shift_certificate

    kept = (north / "startup" / "client.crt").read_bytes()
    try:
        (north / "startup" / "client.crt").write_bytes(shift_certificate(kept, world.register / "ca", days=1))
        assert_refused(call("site", "start", north), 2, "is valid only from", "clock")
    finally:
        (north / "startup" / "client.crt").write_bytes(kept)


def test_what_is_not_a_federation_or_a_name(world: World, tmp_path: Path) -> None:
    assert_refused(call("federation", "members", "--folder", tmp_path), 2, "is not the folder of a federation")
    assert_refused(call("federation", "invite", "no rth", *world.place), 2, "letters, digits")
    assert_refused(call("federation", "invite", "../x", *world.place), 2, "letters, digits")
    assert_refused(call("federation", "invite", "ada@", *world.place), 2, "e-mail address")
    assert_refused(call("federation", "invite", "other.org", "--server", *world.place), 2, "is 'fl.example.org'")
    assert_refused(call("federation", "remove", "nobody", *world.place), 2, "There is no member 'nobody'")
    assert_refused(call("federation", "remove", BOSS, *world.place), 2, "coordinator of this federation")
    words = ("federation", "found", "--server", "x.org", "--coordinator", BOSS, "--folder", tmp_path / "new")
    assert_refused(call(*words, "--port", "70000"), 2, "from 1 to 65535")
    assert_refused(call(*words, "--driver", "pigeon"), 2, "grpc, http")
    assert_refused(call("federation", "found", *words[2:6], "--folder", world.register), 2, "already exists")
    assert_refused(call("site", "join"), 2, "Give either the invitation, or --finish")
    assert not (tmp_path / "new").exists()


def test_a_name_that_is_being_approved_keeps_its_key(world: World) -> None:
    """The key is written down before anything is signed, so that a crash between the two gives no second one."""
    register = Register(world.register)
    request, key = world.request("slow", world.invite("slow"))
    issued = register.read()
    read = register.read_checked(request)
    from fedspan.deployment.membership.register import Member

    register.write(replace(issued, members={**issued.members, "slow": Member("site", read.public_print, "")}))
    other, other_key = world.request("slow", world.register / "invitations" / "slow.invitation.json", where="second")
    assert_refused(call("federation", "approve", other, "--fingerprint", other_key, *world.place), 2, "for another key")
    ask("federation", "approve", request, "--fingerprint", key, *world.place)
