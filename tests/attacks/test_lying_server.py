"""A server that deviates: each attack is refused, and succeeds if the defence against it is switched off."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from verified_world import (
    ALGORITHM,
    AT,
    SITES,
    LyingServer,
    Refused,
    World,
    answer_everything,
    bind_places_only,
    replace_block,
    second_moments,
    tell,
)

from fedspan.algorithms import Gram, Krylov, VerticalSgd
from fedspan.algorithms.spectral.krylov import Prior
from fedspan.channel import Channel, wire
from fedspan.core.protocol import Ask, Sum
from fedspan.core.rng import SERVER, Streams
from fedspan.deployment import site_service
from fedspan.deployment.kit_identity import KitIdentity
from fedspan.deployment.site_rules import verified_rules
from fedspan.engines import start as start_module
from fedspan.engines.loopback import Call, Deliver
from fedspan.engines.site import Site
from fedspan.errors import ProtocolError
from fedspan.numerics.swish import Swish
from fedspan.secure import tags
from fedspan.secure import witness as witness_module
from fedspan.secure.identity import LocalIdentity, make_identities
from fedspan.secure.keys import stream
from fedspan.secure.masking import Secure
from fedspan.secure.opening import RunOpening
from fedspan.secure.past import Exchanged, to_blob
from fedspan.secure.witness import Witness

ONE_HOT = np.eye(6)[:, 3:5]

defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_honest_server_is_answered_to_the_end(world: World) -> None:
    server = world.server()
    server.drive()
    assert server.algorithm.done(server.state)
    expected = np.linalg.eigvalsh(second_moments(*SITES))[::-1][:2]
    np.testing.assert_allclose(server.state.theta, expected, rtol=1e-9)


# ---------------------------------------------------------------------------------------- questions to all sites

QUESTIONS = {
    "one-hot": (ONE_HOT, 1.0),
    "huge": (ONE_HOT * 1e9, 1e9),
    "integers": ((ONE_HOT * 2**32).astype(np.int64), 2.0**32),
    "scaled a little": (ONE_HOT * (1 + 1e-6), 1 + 1e-6),
}


@defences
@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_question_that_does_not_follow(
    world: World, kind: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, scale = QUESTIONS[kind]
    server = world.server()
    if defended:
        with pytest.raises(Refused, match=r"does not span|not orthonormal|is int64"):
            server.drive(replace_block(AT, block))
        with pytest.raises(Refused, match="takes part no more"):  # the run is closed at the sites
            server.ask(Ask("multiply", {"Z": ONE_HOT}, Sum("Y")), (3, 0))
        return
    answer_everything(monkeypatch)
    got = server.drive(replace_block(AT, block), until=(3, 0))[AT].total["Y"]
    np.testing.assert_allclose(got / scale, second_moments(*SITES)[:, 3:5], rtol=1e-9)  # columns of all second moments


@defences
def test_a_question_out_of_order(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = world.server()
    if not defended:
        answer_everything(monkeypatch)
    server.drive(until=AT)
    again = Ask("count", want=Sum("n", "total"))
    if defended:
        with pytest.raises(Refused, match="The next question is 'multiply', not 'count'"):
            server.ask(again, AT)
    else:
        assert int(server.ask(again, AT).total["n"]) == 80


@defences
def test_a_question_after_the_end(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = world.server()
    if not defended:
        answer_everything(monkeypatch)
    last = max(server.drive())
    more = Ask("multiply", {"Z": ONE_HOT}, Sum("Y"))
    if defended:
        with pytest.raises(Refused, match="The run is over"):
            server.ask(more, (last[0] + 1, 0))
    else:
        assert server.ask(more, (last[0] + 1, 0)).total["Y"].shape == (6, 2)


@defences
def test_more_rounds_than_the_opening_said(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = world.server(rounds=2)
    if not defended:
        answer_everything(monkeypatch)
    server.rounds = 4
    if defended:
        with pytest.raises(Refused, match="The run is over"):
            server.drive()
    else:
        assert (3, 0) in server.drive()


@defences
@pytest.mark.parametrize("kind", ["seed", "prior"])
def test_a_start_that_is_not_in_the_opening(
    world: World, kind: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server begins from another seed, or from a block of its own choice as if it were a prior."""
    server = world.server()
    chosen = {"seed": 1} if kind == "seed" else {"algorithm": Krylov(k=2, prior=Prior(ONE_HOT, np.ones(2)))}
    if defended:
        with pytest.raises(Refused, match="does not span"):
            server.drive(**chosen)
    else:
        answer_everything(monkeypatch)
        assert (1, 0) in server.drive(until=AT, **chosen)


def test_a_prior_cannot_be_verified(world: World) -> None:
    with pytest.raises(Exception, match="starts from an earlier model, which the sites do not have"):
        world.server(algorithm=Krylov(k=2, prior=Prior(ONE_HOT, np.ones(2))))


# ---------------------------------------------------------------------------------------- different things to sites


@defences
def test_poisoned_settle_to_all_but_one(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one are told to divide by 1e100, so that the sum would be of one site alone."""
    huge = np.full(6, 1e100)
    server = world.server(tamper=tell(SITES[1:], "settle", lambda arrays: {**arrays, "scale": huge}))
    if defended:
        with pytest.raises(Refused, match="has the arrays"):
            server.drive()
        return
    answer_everything(monkeypatch)
    bind_places_only(monkeypatch)
    alone = server.drive(until=(1, 0))[(0, 1)].total["energy"]
    np.testing.assert_allclose(alone, np.trace(second_moments("ada")), rtol=1e-9)


@defences
def test_the_smallest_difference_to_one_site(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within what rounding allows, so the replica takes it; but the masks know."""
    nudged = tell(("bo",), "multiply", lambda arrays: {**arrays, "Z": np.nextafter(arrays["Z"], 2.0)})
    server = world.server(tamper=nudged)
    if defended:
        with pytest.raises(Refused, match="did not cancel"):
            server.drive()
    else:
        bind_places_only(monkeypatch)
        assert AT in server.drive(until=(3, 0))


@defences
def test_other_openings_to_some(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.method == "open" and call.site == "bo" and isinstance(call.message, str):
            tree = json.loads(call.message)
            tree["told"] = {"weights": [1e200]}
            call = call._replace(message=json.dumps(tree))
        return deliver(call)

    server = world.server(tamper=tamper)
    if defended:
        with pytest.raises(Refused, match="is not signed by it for this run"):
            server.drive()
    else:
        monkeypatch.setattr(start_module, "digest_opening", lambda told: bytes(32))
        server.drive()
        assert server.algorithm.done(server.state)


# ---------------------------------------------------------------------------------------- sums that are none


def forge(server: LyingServer, change: Callable[[list[Exchanged]], Exchanged]) -> Callable[[tuple[int, int]], None]:
    """Change what the sites are shown of the exchange before AT."""

    def before(place: tuple[int, int]) -> None:
        if place == AT:
            server.verified.past[-1] = change(server.verified.past)

    return before


def change_a_unit(past: list[Exchanged]) -> Exchanged:
    lanes = {name: np.array(x) for name, x in past[-1].lanes.items()}
    lanes["Y"].reshape(-1)[-1] += np.uint64(1)
    return replace(past[-1], lanes=lanes)


def invent_a_sum(past: list[Exchanged]) -> Exchanged:
    lanes = {name: np.array(x) for name, x in past[-1].lanes.items()}
    lanes["Y"] = np.zeros_like(lanes["Y"])
    lanes["Y"][0, 3, 0] = lanes["Y"][0, 4, 1] = np.uint64(100)  # so that the next block would be one-hot
    return replace(past[-1], lanes=lanes)


@defences
@pytest.mark.parametrize("change", [change_a_unit, invent_a_sum])
def test_a_forged_sum(
    world: World, change: Callable[..., Exchanged], defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = world.server()
    if defended:
        with pytest.raises(Refused, match="not the sum of the sites"):
            server.drive(before=forge(server, change))
        return
    monkeypatch.setattr(Witness, "_check_tag", lambda *arguments: None)
    if change is change_a_unit:
        assert AT in server.drive(before=forge(server, change), until=(3, 0))
        return
    # A site that believes it expects what follows from it, and then answers for a block of the server's choice.
    server.drive(until=AT)
    server.verified.past[-1] = change(server.verified.past)
    first = server.verified.past[-1].question["Z"]
    steered = np.linalg.qr(ONE_HOT - first @ (first.T @ ONE_HOT))[0]
    got = server.ask(Ask("multiply", {"Z": steered}, Sum("Y")), AT).total["Y"]
    np.testing.assert_allclose(got, second_moments(*SITES) @ steered, rtol=1e-9)


@defences
def test_a_sum_that_differs_by_the_modulus_of_a_small_prime(
    world: World, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modulo 2^61 - 1 it would be the same sum, and a number of 2e18 in it would turn the next block as one likes."""
    if not defended:

        def weak(key: bytes, x: np.ndarray) -> int:
            r = stream(key, x.size).tolist()
            return sum(a * b for a, b in zip(r, x.view(np.int64).tolist(), strict=True)) % (2**61 - 1)

        monkeypatch.setattr(witness_module, "make_tag", lambda key, group, x, clients: weak(key, x))
        check = lambda tag, key, x, sizes, clients: tag % (2**61 - 1) == weak(key, x)  # noqa: E731
        monkeypatch.setattr(witness_module, "is_tag_of", check)

    def shift(past: list[Exchanged]) -> Exchanged:
        lanes = {name: np.array(x) for name, x in past[-1].lanes.items()}
        lanes["Y"][0, 3, :1] += np.uint64(2**61 - 1)  # an array may wrap around without a warning
        return replace(past[-1], lanes=lanes)

    server = world.server()
    why = "not the sum of the sites" if defended else "does not span"  # the sites believed it, and expect what follows
    with pytest.raises(Refused, match=why):
        server.drive(before=forge(server, shift))


@defences
def test_a_sum_of_another_shape(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same integers, but the server says that they are 4 × 3 numbers instead of 6 × 2."""

    def reshape(past: list[Exchanged]) -> Exchanged:
        lanes = dict(past[-1].lanes)
        return replace(past[-1], lanes={**lanes, "Y": lanes["Y"].reshape(2, 4, 3)})

    if not defended:
        monkeypatch.setattr(witness_module, "_tell_layout", lambda lanes, order: "")
    server = world.server()
    with pytest.raises(Refused, match="not the sum of the sites" if defended else "The run cannot go on"):
        server.drive(before=forge(server, reshape))


@defences
def test_the_sum_of_an_earlier_exchange(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A true sum with its true tag, but of the exchange before."""
    server, kept = world.server(), []

    def before(place: tuple[int, int]) -> None:
        if place == AT:
            kept.append(server.verified.past[-1].lanes)
        if place == (3, 0):
            server.verified.past[-1] = replace(server.verified.past[-1], lanes=kept[0])

    if defended:
        with pytest.raises(Refused, match="not the sum of the sites"):
            server.drive(before=before)
    else:
        monkeypatch.setattr(Witness, "_check_tag", lambda *arguments: None)
        with pytest.raises(Refused, match=r"does not span|run is over"):  # taken for the sum: something else follows
            server.drive(before=before)


@defences
def test_a_combination_of_group_sums_whose_tag_is_right(
    tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags add up: but for the pads, twice the sum of one group has the right tag. Its marks are wrong, too."""
    world, taken = World(tmp_path), {}
    original = Witness._mask

    def spy(self: Witness, *reply: Any) -> Any:
        taken[self.name] = out = original(self, *reply)
        return out

    monkeypatch.setattr(Witness, "_mask", spy)
    server = world.server(groups=[["ada", "bo"], ["cy", "dee"]])

    def twice(past: list[Exchanged]) -> Exchanged:
        lanes = {name: 2 * (taken["ada"][name] + taken["bo"][name]) for name in past[-1].lanes}
        return replace(past[-1], lanes=lanes)

    if defended:
        with pytest.raises(Refused, match="not over whole groups, each of them once"):
            server.drive(before=forge(server, twice))
    else:
        monkeypatch.setattr(tags, "_find_pad", lambda key, group: 0)
        monkeypatch.setattr(Witness, "_find_inside", lambda self, counts: list(range(len(self.opening.groups))))
        with pytest.raises(Refused, match="does not span"):  # taken for the sum of all
            server.drive(before=forge(server, twice))


@defences
def test_an_exchange_that_is_left_out(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sites are not shown what came of the last question, so that they could not know what follows."""
    server = world.server()
    if not defended:
        answer_everything(monkeypatch)

    def before(place: tuple[int, int]) -> None:
        if place == AT:
            for site in SITES:
                server.verified.at[site] += 1

    if defended:
        with pytest.raises(Refused, match="is not the next one"):
            server.drive(before=before)
    else:
        assert AT in server.drive(before=before, until=(3, 0))


@defences
@pytest.mark.parametrize("asked", [True, False], ids=["it answered", "it was not asked"])
def test_a_public_reply_that_is_not_the_sites_own(asked: bool, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says that one site has a single row, from which all batches would then be drawn."""
    clients = {name: (np.ones((9, 2)) * i, np.arange(9) % 2) for i, name in enumerate(SITES)}
    server = VerticalSgd(Swish(2, 2), batch=0, rounds=2)
    opening = RunOpening(server, 0, 2, (SITES,), bytes(32))
    witness = Witness("ada", opening, make_identities(SITES)["ada"])
    site = Site("ada", server.client, Channel(), 0, witness=witness)
    client = server.client(clients["ada"], **server.client_options())  # type: ignore[call-arg]
    if asked:
        site.handle(wire.Message("open", 0, 0, {}), client)
    replies = {name: {"n": np.array(1), "features": np.array(2)} for name in SITES}
    past = to_blob(Exchanged((0, 0), "open", (), each=replies), asked=asked)
    if not defended:
        monkeypatch.setattr(witness_module, "_same_arrays", lambda a, b: True)
        if not asked:
            witness.said = {}
            monkeypatch.setattr(Witness, "_hear", keep_said(Witness._hear))
    omega = server.model.start(8, Streams(0, 0, 0, SERVER)("start"))
    W1 = server.model.split(omega)[1]
    take = {"omega": W1[:2], "first": np.array(0), "features": np.array(8), "@past 0": past}
    message = wire.Message("take", 1, 0, take)
    if defended:
        with pytest.raises(ProtocolError, match="is said to be this site's own, and is not"):
            site.handle(message, client)
    else:
        assert site.handle(message, client).arrays == {}


def keep_said(original: Any) -> Any:
    """Let a site forget whether it has answered."""

    def hear(self: Witness, *question: Any) -> Any:
        want = original(self, *question)
        self.said = {}
        return want

    return hear


# ---------------------------------------------------------------------------------------- resumptions


@defences
@pytest.mark.parametrize("far", [False, True], ids=["within rounding", "one-hot"])
def test_another_question_after_going_back(
    world: World, far: bool, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server resumes after an older round and asks something else than before: two sums instead of one."""
    server = world.server()
    server.drive(until=AT)
    kept = server.verified.snapshot()
    question = Ask("multiply", {"Z": np.array(server.state.next)}, Sum("Y"))
    server.ask(question, AT)
    world.restart()
    again = world.server(run=server.run)
    again.session.inner.message = replace(again.session.inner.message, after=1)
    again.verified.past, again.verified.before = list(kept.past.exchanges), kept.past.before
    block = ONE_HOT if far else np.nextafter(question.arrays["Z"], 2.0)
    if not defended:
        monkeypatch.setattr(verified_rules.AskedOnDisk, "note", lambda self, before, digest: True)
        if far:
            answer_everything(monkeypatch)
        assert again.ask(Ask("multiply", {"Z": block}, Sum("Y")), AT).total["Y"].shape == (6, 2)
        return
    why = "does not span" if far else "another question was asked before"
    with pytest.raises(Refused, match=why):
        again.ask(Ask("multiply", {"Z": block}, Sum("Y")), AT)


def test_the_same_question_after_going_back_is_answered(world: World) -> None:
    server = world.server()
    server.drive(until=AT)
    kept, question = server.verified.snapshot(), Ask("multiply", {"Z": np.array(server.state.next)}, Sum("Y"))
    first = server.ask(question, AT).total["Y"]
    world.restart()
    again = world.server(run=server.run)
    again.session.inner.message = replace(again.session.inner.message, after=1)
    again.verified.past, again.verified.before = list(kept.past.exchanges), kept.past.before
    np.testing.assert_array_equal(again.ask(question, AT).total["Y"], first)  # integers add up to the same


@defences
def test_two_openings_of_one_run(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.server()
    first.drive(until=AT)
    second = world.server(run=first.run, seed=7)
    if defended:
        with pytest.raises(Refused, match="This run was opened before, and not like this"):
            second.drive()
    else:
        monkeypatch.setattr(site_service, "check_same_opening", lambda folder, digest: None)
        second.drive(until=AT)


# ---------------------------------------------------------------------------------------- keys and certificates


@defences
@pytest.mark.parametrize("kind", ["invented", "swapped"])
def test_a_roster_with_other_keys(world: World, kind: str, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One site is shown keys that the server made, or those of others in their place: it would share its masks."""

    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        keys = np.array(arrays["keys"])
        keys[[2, 3]] = keys[[3, 2]] if kind == "swapped" else keys[[2, 3]] ^ 1
        return {**arrays, "keys": keys}

    server = world.server(tamper=tell(("ada",), "@roster", change))
    if defended:
        with pytest.raises(Refused, match="is not signed by it for this run"):
            server.drive()
        return
    monkeypatch.setattr(LocalIdentity, "check", lambda *_: None)
    seen: list[bool] = []
    original = Witness._roster

    def watch(self: Witness, arrays: Any) -> Any:
        out = original(self, arrays)
        seen.append(self.name == "ada")
        return out

    monkeypatch.setattr(Witness, "_roster", watch)
    with pytest.raises(Refused):
        server.drive()
    assert any(seen)  # it took them for the others' keys


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kits as FLARE makes them: of two sites, of a researcher, of a site whose time is over, of a foreign root."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    folder, now = tmp_path_factory.mktemp("kits"), datetime.now(UTC)

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def issue(key: Any, subject: str, issuer: Any, by: Any, end: datetime, ca: bool) -> Any:
        made = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(issuer)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(9)).not_valid_after(end)
        return made.add_extension(x509.BasicConstraints(ca, None), True).sign(by, hashes.SHA256())

    def pem(certificate: Any) -> bytes:
        return bytes(certificate.public_bytes(serialization.Encoding.PEM))

    kits = {}
    for root in ("root", "foreign"):
        ca_key = rsa.generate_private_key(65537, 2048)
        ca = issue(ca_key, "root", name("root"), ca_key, now + timedelta(9), True)
        people = ("ada", "bo", "alice@x.org", "late") if root == "root" else ("bo",)
        for one in people:
            kit = folder / root / one / "startup"
            kit.mkdir(parents=True)
            key = rsa.generate_private_key(65537, 2048)
            end = now - timedelta(1) if one == "late" else now + timedelta(9)
            certificate = issue(key, "bo" if one == "late" else one, ca.subject, ca_key, end, False)
            plain = serialization.NoEncryption()
            form = serialization.PrivateFormat.TraditionalOpenSSL
            (kit / "client.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
            (kit / "client.crt").write_bytes(pem(certificate))
            (kit / "rootCA.pem").write_bytes(pem(ca))
            kits[f"{root}/{one}"] = kit.parent
    return kits


def test_a_kit_signs_what_another_kit_believes(certificates: dict[str, Path]) -> None:
    ada, bo = KitIdentity(certificates["root/ada"]), KitIdentity(certificates["root/bo"])
    ada.check("bo", bo.certificate, b"key", bo.sign(b"key"))


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("foreign/bo", "not issued by this federation's root"),
        ("root/alice@x.org", "is another's"),
        ("root/late", "Renew the certificate, or set the clock"),
        ("root/ada", "is another's"),
    ],
)
def test_a_certificate_that_is_not_the_sites(certificates: dict[str, Path], who: str, why: str) -> None:
    """Each signs well, under its own certificate; who it is makes the difference."""
    ada, other = KitIdentity(certificates["root/ada"]), KitIdentity(certificates[who])
    with pytest.raises(ProtocolError, match=why):
        ada.check("bo", other.certificate, b"key", other.sign(b"key"))


def test_a_signature_for_something_else(certificates: dict[str, Path]) -> None:
    ada, bo = KitIdentity(certificates["root/ada"]), KitIdentity(certificates["root/bo"])
    with pytest.raises(ProtocolError, match="not signed by it for this run"):
        ada.check("bo", bo.certificate, b"another key", bo.sign(b"key"))


@defences
def test_a_researcher_among_the_sites(tmp_path: Path, defended: bool) -> None:
    """Whose certificate is as good as a site's: only the list in the site's own file tells them apart."""
    rules = {} if defended else {"sites": None, "verified": False}
    world = World(tmp_path, **rules)
    sites = (*SITES[:3], "researcher")
    world.services["researcher"] = world.services["dee"]
    server = world.server(sites=sites)
    answer = world.services["ada"].open(server.session.inner.message.to_json())
    refused = "takes part in verified runs of ada, bo, cy, dee only" in json.loads(answer).get("error", "")
    assert refused == defended


# ---------------------------------------------------------------------------------------- what a policy demands


@defences
@pytest.mark.parametrize("algorithm", [ALGORITHM, Gram(k=2)])
def test_a_run_that_is_not_verified(tmp_path: Path, algorithm: Any, defended: bool) -> None:
    world = World(tmp_path, verified=defended)
    server = world.server(secure=Secure(), algorithm=algorithm)
    if defended:
        with pytest.raises(Refused, match=r"accepts verified runs only.*\(gram, krylov, ssi"):
            server.drive()
    else:
        server.drive()
        assert server.algorithm.done(server.state)


@defences
def test_groups_smaller_than_the_site_demands(tmp_path: Path, defended: bool) -> None:
    world = World(tmp_path, others=2 if defended else 1)
    server = world.server(groups=2)
    if defended:
        with pytest.raises(Refused, match="needs at least 2 other sites in every sum"):
            server.drive()
    else:
        server.drive()
