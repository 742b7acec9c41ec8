"""Attacks on the phases of secure sums. Each of them succeeds if its defence is switched off, and fails if it is on."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms import Krylov
from fedspan.algorithms._moments import RowsClient
from fedspan.channel import Channel, pack, wire
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array, Arrays, Ask, Narrow, Replies, Sum
from fedspan.core.run import run
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot
from fedspan.engines import InProcess, Loopback
from fedspan.engines.hub import Collector
from fedspan.engines.loopback import Call, Deliver, Tamper
from fedspan.engines.remote import RemoteEngine
from fedspan.engines.site import Site
from fedspan.engines.start import StartMessage
from fedspan.errors import FedspanError, InputError, ProtocolError
from fedspan.secure import fixed, graph, keys, masking, packing, shamir
from fedspan.secure import session as secure_session
from fedspan.secure.masking import Party, Secure, stack_bytes, to_bytes
from fedspan.secure.packing import read_exponents
from fedspan.secure.session import SecureSession

FIVE = ("a", "b", "c", "d", "e")
HERE = (1, 0)
Lie = Callable[[str, str, Arrays], Arrays]  # (task, site, its honest reply) → what it sends


class World:
    """Sites that hold one array each, a network that loses what it is told to, and one that may lie."""

    def __init__(
        self, data: Mapping[str, Arrays], t: int, lie: Lie | None = None, lost: Mapping[str, str] = {}
    ) -> None:
        self.data, self.lie, self.lost = data, lie or (lambda task, site, reply: reply), lost
        self.parties = {name: Party(name, t) for name in data}
        self.seen: list[tuple[str, str, str]] = []  # what the server can see of each reply: task, site, its shape

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        collector = Collector(ask, cohort)
        for site in cohort:
            reply, why = None, None
            try:
                reply = self.lie(ask.task, site, self._answer(site, ask, (round, exchange)))
            except FedspanError as error:
                why = str(error)
            if self.lost.get(site) == ask.task:
                reply = None
            shape = why if reply is None else repr([(name, x.dtype.str, x.shape) for name, x in reply.items()])
            self.seen.append((ask.task, site, str(shape)))
            collector.add(site, reply, why)
        ones = (1,) * len(cohort)
        return collector.replies(), Exchange(round, exchange, ask.task, cohort, ones, ones, ones)

    def _answer(self, site: str, ask: Ask, place: tuple[int, int]) -> Arrays:
        party, arrays = self.parties[site], {**ask.arrays, **ask.privately.get(site, {})}
        if ask.task.startswith("@"):
            return party.answer(ask.task, arrays, place)
        return party.find_sent(place) or party.mask(self.data[site], place, b"", read_exponents(arrays))

    def ask(self, t: int, least: int, **more: Any) -> Replies:
        session = SecureSession(self, t, least, retries=0)
        return session.exchange(Ask("give", want=Sum("x"), **more), tuple(self.data), *HERE)[0]

    def snapshot(self) -> SessionSnapshot:
        return SessionSnapshot(HubSnapshot({}, {}), {})

    def restore(self, saved: SessionSnapshot, after: int) -> None: ...
    def close(self) -> None: ...


def numbers(names: tuple[str, ...] = FIVE) -> dict[str, Arrays]:
    return {name: {"x": np.array([2**i, -i])} for i, name in enumerate(names)}


def total(*names: str) -> list[int]:
    return np.sum([numbers()[name]["x"] for name in names], axis=0).tolist()  # type: ignore[no-any-return]


def lie_in(phase: str, site: str, change: Callable[[Arrays], Arrays]) -> Lie:
    return lambda task, who, reply: change(reply) if (task, who) == (phase, site) else reply


# One site's bad reply takes that site out of the sum, and nobody else


SPOILED: dict[str, Callable[[Arrays], Arrays]] = {
    "nothing": lambda reply: {},
    "empty": lambda reply: {"key": np.zeros(0, np.uint8)},
    "short": lambda reply: {"key": np.zeros(31, np.uint8)},
    "floats": lambda reply: {"key": np.zeros(32)},
    "other names": lambda reply: {"password": np.zeros(32, np.uint8)},
}


@pytest.mark.parametrize("change", SPOILED.values(), ids=SPOILED)
def test_a_reply_of_another_shape_to_keys(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = World(numbers(), 3, lie_in("@keys", "b", change)).ask(3, 3)
    assert replies.missing == ("b",)
    assert replies.total["x"].tolist() == total("a", "c", "d", "e")
    assert "in reply to '@keys'" in replies.failures["b"]
    monkeypatch.setattr(secure_session, "_have_shapes", lambda arrays, expected: True)
    monkeypatch.setattr(secure_session, "is_public_key", lambda public: True)
    with pytest.raises((KeyError, ValueError)):  # which ends the run of all
        World(numbers(), 3, lie_in("@keys", "b", change)).ask(3, 3).total["x"]


DEGENERATE = [
    bytes(32),
    b"\x01" + bytes(31),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
]


@pytest.mark.parametrize("key", DEGENERATE, ids=["0", "1", "p", "p - 1"])
def test_a_key_with_which_no_secret_can_be_agreed_on(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    lie = lie_in("@keys", "b", lambda reply: {"key": stack_bytes([key], 32)[0]})
    replies = World(numbers(), 3, lie).ask(3, 3)
    assert replies.missing == ("b",)
    assert replies.total["x"].tolist() == total("a", "c", "d", "e")
    assert replies.failures["b"] == "sent a key that is none of X25519 in reply to '@keys'"
    monkeypatch.setattr(secure_session, "is_public_key", lambda public: True)
    assert not World(numbers(), 3, lie).ask(3, 3).total  # all others refuse such a roster


def test_the_key_of_another_site(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(numbers(), 3)
    world.lie = lie_in("@keys", "b", lambda reply: {"key": stack_bytes([world.parties["a"].public], 32)[0]})
    replies = world.ask(3, 3)
    assert set(replies.missing) == {"a", "b"}  # nobody can say who of the two has copied it
    assert replies.total["x"].tolist() == total("c", "d", "e")
    monkeypatch.setattr(secure_session, "Counter", lambda keys: defaultdict(int))
    again = World(numbers(), 3)
    again.lie = lie_in("@keys", "b", lambda reply: {"key": stack_bytes([again.parties["a"].public], 32)[0]})
    assert not again.ask(3, 3).total


def test_a_site_that_keeps_sending_bad_keys_is_named_where_all_must_answer() -> None:
    lie = lie_in("@keys", "b", SPOILED["empty"])
    replies = World(numbers(), 5, lie).ask(5, 5)
    assert not replies.total
    assert set(replies.failures) == set(replies.exhausted) == {"b"}


@pytest.mark.parametrize("phase", ["@roster", "@agree", "@unmask"])
@pytest.mark.parametrize("kind", ["nothing", "shape", "dtype"])
def test_a_reply_of_another_shape_to_a_later_phase(phase: str, kind: str) -> None:
    """Also after masking: then it counts as lost, and its mask is recovered."""

    def change(reply: Arrays) -> Arrays:
        if kind == "nothing":
            return {}
        return {n: x[..., :-1] if kind == "shape" else x.astype(np.int64) for n, x in reply.items()}

    replies = World(numbers(), 3, lie_in(phase, "b", change)).ask(3, 3)
    there = FIVE if phase != "@roster" else ("a", "c", "d", "e")
    assert replies.total["x"].tolist() == total(*there)


def test_wrong_tags_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that agrees with nobody cannot keep the others from unmasking; it could if one wrong tag were enough."""
    lie = lie_in("@agree", "b", lambda reply: {"tags": reply["tags"] ^ np.uint8(1)})
    assert World(numbers(), 3, lie).ask(3, 3).total["x"].tolist() == total(*FIVE)

    def insist(tag: bytes, other: bytes) -> bool:
        if not keys.same(tag, other):
            raise ProtocolError("a tag is wrong")
        return True

    monkeypatch.setattr(masking, "same", insist)
    assert not World(numbers(), 3, lie).ask(3, 3).total


def test_sealed_shares_that_do_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """b seals rubbish and vanishes when it should unmask. There is no sum, but nobody else is blamed for it."""
    lie = lie_in("@roster", "b", lambda reply: {"shares": reply["shares"] ^ np.uint8(1)})
    replies = World(numbers(), 3, lie, lost={"b": "@unmask"}).ask(3, 3)
    assert not replies.total
    assert replies.exhausted == ("b",)
    assert "a share of its mask that opens" in replies.failures["b"]
    monkeypatch.setattr(
        masking, "_open_share", lambda c, j, sealed: keys.unseal(c.pair(j, "share", j, c.me), sealed, c.context)
    )
    assert len(World(numbers(), 3, lie, lost={"b": "@unmask"}).ask(3, 3).exhausted) == 5  # all are blamed


def test_a_wrong_share_for_a_site_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lie = lie_in("@recover", "a", lambda reply: {**reply, "shares": reply["shares"] ^ np.uint8(1)})
    world = World(numbers(), 3, lie, lost={"b": "@unmask"})
    assert world.ask(3, 3).total["x"].tolist() == total(*FIVE)

    def combine_unchecked(shares: Mapping[int, bytes]) -> bytes:
        weights = shamir._lagrange_at_zero(tuple(shares))
        value = sum(w * int.from_bytes(s, "little") for w, s in zip(weights, shares.values(), strict=True))
        return (value % 2**128).to_bytes(16, "little")

    monkeypatch.setattr(masking, "combine_shares", combine_unchecked)
    with pytest.raises(ProtocolError, match="did not cancel"):
        World(numbers(), 3, lie, lost={"b": "@unmask"}).ask(3, 3)


# Whose numbers are too large, and how large


def refuse_large(x: Array, limit: float) -> tuple[Array, bool]:
    """As it was: a client refuses numbers that do not fit, and says how large they are."""
    if not np.abs(x).max() < limit:
        raise InputError(f"Numbers must be below {limit:.3g}, but one is {np.abs(x).max():.3g}.")
    return x.astype(np.float64), False


def watch(values: dict[str, float]) -> tuple[list[tuple[str, str, str]], str]:
    """All that the server sees of an exchange: every reply's or refusal's shape, and how it ends."""
    world = World({name: {"x": np.array([x, 1.0])} for name, x in values.items()}, 3)
    try:
        end = repr(world.ask(3, 3).missing)
    except InputError as error:
        end = str(error)
    return world.seen, end


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 2.0**61])
def test_an_overflow_does_not_tell_whose_it_is(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = watch({"a": bad, "b": 1.0, "c": 2.0}), watch({"a": 1.0, "b": bad, "c": 2.0})
    assert one == other
    assert one[1].startswith("Some numbers of one or more of the 3 clients were too large or not finite")
    assert one[0] == watch({"a": 1.0, "b": 1.0, "c": 2.0})[0]  # not even that there is one, before the sum
    monkeypatch.setattr(fixed, "_saturate", refuse_large)
    assert watch({"a": bad, "b": 1.0, "c": 2.0}) != watch({"a": 1.0, "b": bad, "c": 2.0})


def search_value(secret: float) -> float:
    """A server that asks site b, and b alone, for multiples of its number, and watches for a refusal."""
    low, high = 2.0**-20, 2.0**20
    for _ in range(40):
        middle = np.sqrt(low * high)
        values = {"a": 1.0, "b": secret * (2.0**62 / 3) / middle, "c": 1.0}
        seen, _ = watch(values)
        refused = any(task == "give" and site == "b" and "must be below" in shape for task, site, shape in seen)
        low, high = (middle, high) if refused else (low, middle)
    return float(np.sqrt(low * high))


def test_refusals_do_not_find_a_value_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_value(123.456) == search_value(0.001)  # nothing but where the search begins
    monkeypatch.setattr(fixed, "_saturate", refuse_large)
    assert abs(search_value(123.456) / 123.456 - 1) < 1e-6


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])
def test_a_sum_does_not_tell_how_many_sites_have_anything_in_a_column(
    defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare disease that only one hospital has: who knows that it is one knows that the sum is that hospital's."""
    if not defended:
        monkeypatch.setattr(fixed.secrets, "randbits", lambda bits: 1)

    def count(*have: float) -> int:
        lanes = [fixed.to_lanes({"cases": np.array([x, 0.0])}, 3)[fixed.COUNTS] for x in have]
        return int(np.sum(lanes, axis=0)[0, 2])

    found = [count(7.0, 0.0, 0.0), count(4.0, 3.0, 0.0), count(2.0, 2.0, 3.0)]
    assert (found == [1, 2, 3]) is not defended
    assert count(0.0, 0.0, 0.0) == 0  # whether anybody has any, the sum shows, too
    if defended:
        marks = np.array([count(2.0, 2.0, 3.0) for _ in range(400)], dtype=np.float64) / 2.0**64
        ones = np.array([count(7.0, 0.0, 0.0) for _ in range(400)], dtype=np.float64) / 2.0**64
        for share in (0.25, 0.5, 0.75):  # both are uniform: 400 draws miss by more than 0.2 once in 1e15
            assert abs(float(np.mean(marks < share)) - share) < 0.2
            assert abs(float(np.mean(ones < share)) - share) < 0.2


def test_a_site_knows_that_its_own_numbers_did_not_fit() -> None:
    world = World({name: {"x": np.array([x])} for name, x in zip("abc", (1.0, np.nan, 2.0), strict=True)}, 3)
    with pytest.raises(InputError, match="one or more of the 3"):
        world.ask(3, 3)
    assert {name: party.saturated for name, party in world.parties.items()} == {"a": False, "b": True, "c": False}


# The sparse graph

MANY = tuple(f"s{i:02d}" for i in range(13))


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "choose_degree", lambda clients: graph.Degree(4, 3) if clients == len(MANY) else None)


def meet(t: int, honest: tuple[str, ...] = MANY) -> tuple[dict[str, Party], dict[str, Array], Arrays]:
    """Clients that have shown digests and then keys, as a server that follows the protocol asks."""
    parties = {name: Party(name, t) for name in honest}
    epoch = {"epoch": stack_bytes([os.urandom(16)], 16)[0]}
    return parties, {name: party.answer("@commit", epoch, HERE)["digest"] for name, party in parties.items()}, epoch


def show(digests: Mapping[str, Array], epoch: Arrays) -> Arrays:
    return {**epoch, "names": to_bytes(json.dumps(list(digests))), "digests": np.stack(list(digests.values()))}


def roster_of(publics: Mapping[str, Array]) -> Arrays:
    return {"names": to_bytes(json.dumps(list(publics))), "keys": np.stack(list(publics.values()))}


def lie_about_who_answered() -> int | None:
    """Tell s00 that it is in the sum, and all others that it is not; s00's number, if both kinds of masks come."""
    parties, digests, epoch = meet(9)
    publics = {name: party.answer("@keys", show(digests, epoch), HERE)["key"] for name, party in parties.items()}
    for party in parties.values():
        party.answer("@roster", roster_of(publics), HERE)
    victim, others = parties["s00"], {name: party for name, party in parties.items() if name != "s00"}
    y = int(victim.mask({"x": np.array([4711])}, HERE)["x"][0, 0])
    for party in others.values():
        party.mask({"x": np.array([1])}, HERE)
    everyone = np.ones(len(MANY), dtype=np.uint8)
    without = np.array([name != "s00" for name in MANY], dtype=np.uint8)
    tags = {name: party.answer("@agree", {"present": without}, HERE)["tags"] for name, party in others.items()}
    victim.answer("@agree", {"present": everyone}, HERE)
    members = {name: party.circle.members for name, party in parties.items() if party.circle}
    nothing = np.zeros(masking.TAG, dtype=np.uint8)

    def deliver(name: str) -> Arrays:
        i, rows = MANY.index(name), []
        for j in members[name]:
            giver = MANY[j]
            rows.append(tags[giver][members[giver].index(i)] if giver in tags else nothing)
        return {"tags": np.stack(rows)}

    try:
        seed = victim.answer("@unmask", deliver("s00"), HERE)["seed"].tobytes()
    except ProtocolError:
        return None
    y -= int(keys.stream(seed, 1)[0])
    for name, party in others.items():
        if 0 in members[name]:
            (pair,) = party.answer("@unmask", deliver(name), HERE)["pairs"]
            y -= int(keys.stream(pair.tobytes(), 1)[0])  # s00 is the first of the roster, so it has added them all
    return y % 2**64


@pytest.mark.usefixtures("sparse")
def test_a_server_that_lies_about_who_answered_does_not_get_both_kinds_of_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lie_about_who_answered() is None
    monkeypatch.setattr(masking, "same", lambda tag, other: True)
    assert lie_about_who_answered() == 4711


def choose_neighbours(by: str) -> int | None:
    """A server with seven of thirteen clients tries rosters when it knows the others' keys, until s00 has only those.

    Then it knows all masks of s00. (Nobody may be missing here, so s00 has no mask of its own.) The rosters differ in
    one of its own keys, or in the order of the names.
    """
    rng, colluding, honest = np.random.default_rng(0), MANY[6:], MANY[:6]
    parties, digests, epoch = meet(len(MANY), honest)
    made = {name: keys.new_key() for name in colluding}
    digests |= {
        name: stack_bytes([masking.digest_key(epoch["epoch"].tobytes(), public)], 32)[0]
        for name, (_, public) in made.items()
    }
    publics = {name: party.answer("@keys", show(digests, epoch), HERE)["key"] for name, party in parties.items()}
    for _ in range(10_000):
        names = list(MANY)
        if by == "keys":
            made[MANY[-1]] = keys.new_key()
        else:
            names = rng.permutation(names).tolist()
        publics |= {name: stack_bytes([public], 32)[0] for name, (_, public) in made.items()}
        roster = roster_of({name: publics[name] for name in names})
        context = masking.digest_roster(epoch["epoch"].tobytes(), len(MANY), names, roster["keys"])
        me = names.index("s00")
        circle = graph.find_circle(context, len(MANY), graph.choose_degree(len(MANY)), me)
        if all(names[j] in colluding for j in circle if j != me):
            break
    else:
        raise AssertionError("no luck in ten thousand tries")
    try:
        parties["s00"].answer("@roster", roster, HERE)
    except ProtocolError as error:
        assert "digest" in str(error)  # noqa: PT017 - the refusal that is meant
        return None
    y = int(parties["s00"].mask({"x": np.array([4711])}, HERE)["x"][0, 0])
    for j in circle:
        if j != me:
            secret = keys.shared_secret(made[names[j]][0], parties["s00"].public, context)
            mask = int(keys.stream(keys.purpose_key(secret, "mask", HERE, b""), 1)[0])
            y = y - mask if j > me else y + mask
    return y % 2**64


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("by", ["keys", "order"])
def test_a_server_cannot_choose_the_neighbours_of_a_client(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_neighbours(by) is None
    monkeypatch.setattr(Party, "_check_promises", lambda self, names, publics: None)
    assert choose_neighbours(by) == 4711


@pytest.mark.usefixtures("sparse")
def test_a_server_cannot_leave_out_clients_when_it_knows_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """With c clients of its own it could choose among 2^c rosters."""

    def leave_out() -> bool:
        parties, digests, epoch = meet(9, (*MANY, "z"))
        publics = {name: party.answer("@keys", show(digests, epoch), HERE)["key"] for name, party in parties.items()}
        publics.pop("z")
        try:
            parties["s00"].answer("@roster", roster_of(publics), HERE)
        except ProtocolError as error:
            assert "not those whose digests were shown" in str(error)  # noqa: PT017 - the refusal that is meant
            return False
        return True

    assert not leave_out()
    monkeypatch.setattr(Party, "_check_promises", lambda self, names, publics: None)
    assert leave_out()


@pytest.mark.usefixtures("sparse")
def test_a_server_cannot_show_the_digests_after_the_key() -> None:
    """The key leaves when the digests of the others are known, or it serves no roster of so many."""
    parties, digests, epoch = meet(9)
    party = parties["s00"]
    party.answer("@keys", epoch, HERE)
    with pytest.raises(ProtocolError, match="the digests of the keys have changed since the key left"):
        party.answer("@keys", show(digests, epoch), HERE)


@pytest.mark.usefixtures("sparse")
def test_a_site_that_promised_another_key_is_left_out() -> None:
    lie = lie_in("@commit", "s05", lambda reply: {"digest": reply["digest"] ^ np.uint8(1)})
    data = {name: {"x": np.array([1])} for name in MANY}
    replies = World(data, 8, lie).ask(8, 8)
    assert replies.missing == ("s05",)
    assert "another key than it had promised" in replies.failures["s05"]
    assert replies.total["x"].tolist() == [12]


# Narrow lanes


def test_a_wrapped_entry_is_not_taken_for_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum further from the prediction than its width allows: off by a whole turn, if nothing checks it."""
    data = {name: {"x": np.array([[1000 * i], [7]])} for i, name in enumerate(FIVE)}
    narrow = Narrow(np.array([[0], [35]]), np.zeros(2, np.int8), np.array([8], np.int8))
    replies = World(data, 5).ask(5, 5, narrow={"x": narrow})
    assert replies.wrapped["x"].tolist() == [True]  # 39 turns: not to be put right
    monkeypatch.setattr(packing, "_ROWS_OF_CHECK", 0)
    replies = World(data, 5).ask(5, 5, narrow={"x": narrow})
    assert replies.wrapped["x"].tolist() == [False]
    assert replies.total["x"][1, 0] == 35
    assert replies.total["x"][0, 0] != 10_000


def count_in_sum(digest: Callable[[str, Arrays], bytes]) -> int:
    """Two sites that were told different widths; how many clients the sum of what they send says it is of."""
    parties, counts = {name: Party(name, 2) for name in "ab"}, np.zeros((1, 2), dtype=np.uint64)
    epoch = {"epoch": stack_bytes([os.urandom(16)], 16)[0]}
    publics = {name: party.answer("@keys", epoch, HERE)["key"] for name, party in parties.items()}
    for bits, party in zip((8, 9), parties.values(), strict=True):
        party.answer("@roster", roster_of(publics), HERE)
        told = {"@rows x": np.zeros(2, np.int8), "@columns x": np.array([bits], np.int8)}
        counts += party.mask({"x": np.ones((2, 1), int)}, HERE, digest("give", told), read_exponents(told))["@counts"]
    return int(counts[0, 0])


def test_masks_of_sites_that_were_told_different_widths_do_not_cancel() -> None:
    assert count_in_sum(masking.digest_request) != 2
    assert count_in_sum(lambda task, arrays: b"") == 2


# Over the transport


class Endpoint:
    """A site with rows, without a disk and without rules."""

    def __init__(self, name: str, rows: Array) -> None:
        self.name, self.client = name, RowsClient(rows)
        self.site: Site | None = None

    def describe(self, asked: str) -> str:
        return "{}"

    def open(self, start: str) -> str:
        message = StartMessage.from_json(start)
        assert message.threshold is not None
        vault = Party(self.name, message.threshold)
        self.site = Site(self.name, RowsClient, message.channel, message.seed, None, vault)
        return json.dumps({"opened": message.run})

    def exchange(self, blob: bytes, kept: int) -> bytes | str:
        assert self.site is not None
        return wire.encode(self.site.handle(wire.decode(blob), self.client))


def solve_remotely(clients: Mapping[str, Array], tamper: Tamper | None = None) -> Any:
    """Krylov on a grid over the loopback transport; a site that fails once is asked again."""
    sites = {name: Endpoint(name, rows) for name, rows in clients.items()}
    engine = RemoteEngine(Loopback(sites, tamper), list(sites), "0123456789abcdef", timeout=20.0)
    channel = Channel(up=pack(), down=pack())
    try:
        return run(KRYLOV, engine, rounds=50, seed=0, channel=channel, secure=Secure(), retries=1)
    finally:
        engine.close()


KRYLOV = Krylov(k=3, tol=1e-5, rounded=True)
SPOIL: dict[str, Callable[[Array], Array]] = {
    "longer": lambda packed: np.concatenate([packed, packed]),
    "empty": lambda packed: packed[:0],
    "a matrix": lambda packed: packed[None],
    "floats": lambda packed: packed.astype(np.float64),
}


@pytest.mark.parametrize("spoil", SPOIL.values(), ids=SPOIL)
def test_a_narrow_array_of_another_size_is_one_sites_failure(
    spoil: Callable[[Array], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, the site sends what it should have sent, and the result is that of the same run in one process."""
    rng = np.random.default_rng(0)
    clients = {name: rng.normal(size=(30, 20)) * np.arange(1, 21) for name in FIVE}
    spoiled: list[str] = []

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        answer = deliver(call)
        if call.method == "exchange" and call.site == "b" and isinstance(answer, bytes) and not spoiled:
            message = wire.decode(answer)
            if message.task == "multiply_on_grid":
                spoiled.append(call.site)
                answer = wire.encode(message._replace(arrays={**message.arrays, "Y": spoil(message.arrays["Y"])}))
        return answer

    got = solve_remotely(clients, tamper)
    assert spoiled == ["b"]
    want = run(KRYLOV, InProcess(clients), rounds=50, seed=0, secure=Secure())
    assert got.state.Z.tobytes() == want.state.Z.tobytes()
    spoiled.clear()
    monkeypatch.setattr(packing, "unpack_lane", lambda packed, widths: packed.astype(np.uint64))
    with pytest.raises((FedspanError, ValueError, IndexError)):  # unchecked, it ends the run of all
        solve_remotely(clients, tamper)


def test_a_site_whose_check_sums_are_wrong_does_not_keep_the_server_asking() -> None:
    """Columns would be asked for again for ever; at full width nothing can wrap, so somebody is not honest."""
    clients = {name: np.random.default_rng(i).normal(size=(9, 4)) for i, name in enumerate(FIVE)}
    asked: list[str] = []

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        answer = deliver(call)
        if call.method == "exchange" and call.site == "b" and isinstance(answer, bytes):
            message = wire.decode(answer)
            if message.task == "multiply_on_grid":
                asked.append(call.site)
                check = message.arrays["@check Y"] + np.uint64(1)
                answer = wire.encode(message._replace(arrays={**message.arrays, "@check Y": check}))
        return answer

    with pytest.raises(ProtocolError, match="does not have its check sums, even at full width"):
        solve_remotely(clients, tamper)
    assert len(asked) == 3


def test_a_phase_that_is_refused_with_an_input_error_is_one_sites_failure() -> None:
    """A site could say "my input is wrong" to any phase, which ends a run if it is said of a task."""
    clients = {name: np.random.default_rng(i).normal(size=(9, 4)) for i, name in enumerate(FIVE)}
    said: list[str] = []

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        if call.method == "exchange" and call.site == "b" and not said:
            said.append(wire.decode(call.message).task)  # type: ignore[arg-type]
            return json.dumps({"error": "no", "input": True})
        return deliver(call)

    assert solve_remotely(clients, tamper).converged
    assert said == ["@keys"]
