"""The server's end of a federation over the loopback transport: who is sent what, and what is made of lies."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from fedspan._types import Arrays
from fedspan.algorithms.registry import ALGORITHMS
from fedspan.channel import Channel, delta, quantize, wire
from fedspan.core.ledger import Exchange, Ledger
from fedspan.core.protocol import AnyClient, Array, Ask, Client, Each, Round, Server, Sum, Want, task
from fedspan.core.rng import Streams
from fedspan.core.run import Result, run
from fedspan.engines import Loopback
from fedspan.engines.handshake import handshake
from fedspan.engines.loopback import Call, Deliver, Tamper
from fedspan.engines.remote import RemoteEngine
from fedspan.engines.site import Site, explain
from fedspan.engines.start import StartMessage
from fedspan.errors import ClientError, FedspanError, InputError, ProtocolError
from fedspan.secure.masking import Party, Secure

SITES = tuple(f"s{i:02d}" for i in range(12))
FIVE = SITES[:5]
ROUNDS = 3


class Holder(Client[None]):
    """Holds one number, and gives it back multiplied by what it is told."""

    State = type(None)

    def __init__(self, data: float) -> None:
        self.data = data

    def init(self) -> None:
        return None

    @task(releases={"x": None}, shows="its number")
    def give(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        own = arrays.get("own", np.array(0.0))
        return state, {"x": np.array([self.data, self.data * rng.round, float(own)])}


@dataclass(frozen=True)
class Heard:
    each: tuple[Array, ...] = ()
    t: int = 0


@dataclass(frozen=True)
class Listener(Server[Heard]):
    """Asks every site once a round, tells each of them something of its own, and keeps what it hears."""

    sums: bool = False
    private: bool = True

    State = Heard
    client: ClassVar[type[AnyClient]] = Holder

    def asks(self) -> frozenset[str]:
        return frozenset({"give"})

    def init(self, rng: Streams) -> Round[Heard]:
        return Heard()
        yield

    def round(self, state: Heard, rng: Streams) -> Round[Heard]:
        own = (
            {site: {"own": np.full((), 100.0 * rng.round + i)} for i, site in enumerate(SITES)} if self.private else {}
        )
        want: Want = Sum("x") if self.sums else Each()
        replies = yield Ask("give", {"common": np.ones(3)}, want, privately=own)
        found = (replies.total["x"],) if self.sums else tuple(arrays["x"] for arrays in replies.each.values())
        return Heard((*state.each, *found), state.t + 1)

    def done(self, state: Heard) -> bool:
        return False

    def estimate(self, state: Heard) -> Array:
        return np.array(state.each)

    def metrics(self, state: Heard) -> dict[str, float]:
        return {}


class Endpoint:
    """A site without a disk and without rules."""

    def __init__(self, name: str, data: float) -> None:
        self.name, self.data = name, data
        self.heard: list[bytes] = []
        self.site: Site | None = None

    def describe(self, asked: str) -> str:
        digest = "same" if self.name != "odd" else "other"
        told = {"versions": {}, "secure": False, "others": 1, "n_features": 3, "digest": digest, "units": {}}
        more = {"names": None, "columns": None, "categories": {}, "rows": 7, "ids": False, "keyed": False, "kinds": {}}
        return json.dumps({**told, **more})

    def open(self, start: str) -> str:
        message = StartMessage.from_json(start)
        vault = Party(self.name, message.threshold) if message.threshold else None
        self.site = Site(self.name, message.algorithm.client, message.channel, message.seed, None, vault)
        return json.dumps({"opened": message.run})

    def exchange(self, blob: bytes, kept: int) -> bytes | str:
        self.heard.append(blob)
        assert self.site is not None
        try:
            return wire.encode(self.site.handle(wire.decode(blob), Holder(self.data)))
        except Exception as error:
            return json.dumps({"error": explain(error), "input": isinstance(error, InputError)})


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "Listener", Listener)


@contextmanager
def remote(
    sites: Mapping[str, Endpoint], tamper: Tamper | None = None, timeout: float = 20.0
) -> Iterator[RemoteEngine]:
    engine = RemoteEngine(Loopback(sites, tamper), list(sites), "0123456789abcdef", timeout=timeout)
    try:
        yield engine
    finally:
        engine.close()


def start(
    names: tuple[str, ...],
    tamper: Tamper | None = None,
    *,
    timeout: float = 20.0,
    algorithm: Any = None,
    **options: Any,
) -> tuple[Result[Heard], dict[str, Endpoint]]:
    sites = {name: Endpoint(name, 2.0**i) for i, name in enumerate(names)}
    with remote(sites, tamper, timeout) as engine:
        return run(algorithm or Listener(), engine, **{"rounds": ROUNDS, "seed": 1} | options), sites


@pytest.mark.parametrize("channel", [None, Channel(down=delta(quantize(8)), up=delta(quantize(8)))])
@pytest.mark.parametrize("reused", [False, True], ids=["as it comes", "addresses reused"])
def test_every_site_is_sent_its_own_message_and_no_others(
    channel: Channel | None, reused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Private messages are made and freed one after the other: they must not be told apart by their addresses.

    When Python gives a new object the address of one that is gone, is up to its allocator; here it always does.
    """
    if reused:
        monkeypatch.setattr("fedspan.engines.remote.id", lambda _: 0, raising=False)
    result, sites = start(SITES, rounds=20, channel=channel)
    for i, name in enumerate(SITES):
        told = [wire.decode(blob) for blob in sites[name].heard]
        assert [float(message.arrays["own"]) for message in told] == [100.0 * t + i for t in range(1, 21)]
    if channel is None:
        own = np.array(result.state.each).reshape(20, 12, 3)[:, :, 2]
        np.testing.assert_array_equal(own, 100.0 * np.arange(1, 21)[:, None] + np.arange(12))
    sizes = [(name, len(blob)) for name in SITES for blob in sites[name].heard]
    counted = [e for e in result.ledger.events if isinstance(e, Exchange)]
    assert sum(size for _, size in sizes) == sum(sum(e.bytes_down) for e in counted)


def test_a_message_for_all_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, encode = [], wire.encode

    def count(message: wire.Message) -> bytes:
        if "common" in message.arrays:
            made.append(message.round)
        return encode(message)

    monkeypatch.setattr(wire, "encode", count)
    start(SITES, algorithm=Listener(private=False))
    assert made == [1, 2, 3]


# Lies

Change = Callable[[wire.Message], wire.Message]


def lie(site: str, change: Change, times: int = 99, task: str = "give") -> Tamper:
    """The site's replies to a task are changed, that often."""
    left = [times]

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        answer = deliver(call)
        if call.site != site or call.method != "exchange" or isinstance(answer, str):
            return answer
        message = wire.decode(answer)
        if message.task != task or left[0] == 0:
            return answer
        left[0] -= 1
        return wire.encode(change(message))

    return tamper


def with_arrays(**arrays: Any) -> Change:
    return lambda message: message._replace(arrays=arrays)


LIES: dict[str, tuple[Change, str]] = {
    "shape": (with_arrays(x=np.ones(4)), "shape"),
    "shape that numpy would spread": (with_arrays(x=np.ones(1)), "shape"),
    "another name": (with_arrays(y=np.ones(3)), r"must contain \['x'\], but contains \['y'\]"),
    "one name more": (lambda m: m._replace(arrays={**m.arrays, "z": np.ones(3)}), r"must contain \['x'\]"),
    "nothing": (with_arrays(), r"must contain \['x'\], but contains \[\]"),
    "truth values": (with_arrays(x=np.ones(3, bool)), "type"),
    "integers": (with_arrays(x=np.ones(3, np.int64)), "type"),
    "infinity": (with_arrays(x=np.array([1.0, np.inf, 0.0])), "must be finite"),
    "another task": (lambda m: m._replace(task="leak"), "reply to 'leak' in round"),
    "a round before": (lambda m: m._replace(round=m.round - 1), "asked was 'give' in round"),
    "another exchange": (lambda m: m._replace(exchange=m.exchange + 7), "exchange 10; asked was"),
}


@pytest.mark.parametrize("what", LIES)
def test_a_lie_is_not_added_to_a_sum(what: str) -> None:
    change, why = LIES[what]
    with pytest.raises(ClientError, match=rf"client 's03' failed: .*{why}"):
        start(FIVE, lie("s03", change), algorithm=Listener(sums=True))


@pytest.mark.parametrize("what", LIES)
def test_a_site_that_lies_once_is_asked_again(what: str) -> None:
    result, _ = start(FIVE, lie("s03", LIES[what][0], times=1), algorithm=Listener(sums=True))
    np.testing.assert_array_equal([total[0] for total in result.state.each], [31.0] * ROUNDS)
    (failed,) = [e for e in result.ledger.events if isinstance(e, Exchange) and e.failures]
    assert failed.missing == ("s03",)


@pytest.mark.parametrize("what", [what for what, (_, why) in LIES.items() if why not in ("shape", "type")])
def test_a_lie_is_not_taken_for_a_reply_of_its_own(what: str) -> None:
    change, why = LIES[what]
    with pytest.raises(ClientError, match=rf"client 's03' failed: .*{why}"):
        start(FIVE, lie("s03", change))


def test_a_reply_that_is_played_again_is_refused() -> None:
    old: dict[str, bytes | str] = {}

    def replay(call: Call, deliver: Deliver) -> bytes | str:
        if call.method != "exchange":
            return deliver(call)
        return old.setdefault(call.site, deliver(call)) if call.site == "s02" else deliver(call)

    ledger = Ledger()
    with pytest.raises(
        ClientError, match=r"client 's02' failed: This is a reply to 'give' in round 1, exchange 0; ask"
    ):
        start(FIVE, replay, ledger=ledger)
    assert ledger.rounds == 1


@pytest.mark.parametrize("secure", [None, Secure(), Secure(3)], ids=["plain", "all", "shares"])
def test_replies_that_are_swapped_between_sites_do_not_change_a_sum(secure: Secure | None) -> None:
    """Who said what does not matter to a sum; where it does (what is revealed of those who are gone), there is none."""
    waiting: dict[tuple[int, str], dict[str, bytes | str]] = defaultdict(dict)
    changed = threading.Condition()

    def swap(call: Call, deliver: Deliver) -> bytes | str:
        answer = deliver(call)
        if call.method != "exchange" or call.site not in ("s01", "s02"):
            return answer
        assert isinstance(call.message, bytes)
        message = wire.decode(call.message)
        if message.task != "give":
            return answer
        other = "s02" if call.site == "s01" else "s01"
        with changed:
            met = waiting[message.round, message.task]
            met[call.site] = answer
            changed.notify_all()
            changed.wait_for(lambda: other in met, timeout=10)
            return met[other]

    result, _ = start(FIVE, swap, algorithm=Listener(sums=True, private=False), secure=secure)
    np.testing.assert_array_equal([total[0] for total in result.state.each], [31.0] * ROUNDS)


# Time


def test_late_replies_are_not_taken_for_those_to_the_next_question() -> None:
    """A site that is late misses the question, and the next ones as long as it works; what it sends late is dropped."""
    go, asked = threading.Event(), []

    def be_late(call: Call, deliver: Deliver) -> bytes | str:
        answer = deliver(call)
        if call.site == "s04" and call.method == "exchange":
            asked.append(call)
            if len(asked) == 1:
                go.wait(10)
        return answer

    def release(info: Any) -> None:
        if info.round == 2:
            go.set()

    options: dict[str, Any] = {"min_clients": 4, "timeout": 0.2, "rounds": 6, "callback": release}
    result, _ = start(FIVE, be_late, algorithm=Listener(sums=True), **options)
    totals = [total[:2].tolist() for total in result.state.each]
    assert totals[0] == [15.0, 15.0]
    for t, total in enumerate(totals, 1):
        assert total in ([15.0, 15.0 * t], [31.0, 31.0 * t])  # never a number of another round
    (first, *_) = [e for e in result.ledger.events if isinstance(e, Exchange)]
    assert first.failures == {"s04": "did not answer within 0.2 s; see run.timeout"}


def test_a_lost_question_and_a_lost_answer_are_asked_again() -> None:
    lost: set[tuple[str, int]] = set()

    def lose(call: Call, deliver: Deliver) -> bytes | str:
        if call.method == "exchange" and isinstance(call.message, bytes):
            key = (call.site, wire.decode(call.message).round)
            if call.site in ("s01", "s03") and key not in lost:
                lost.add(key)
                if call.site == "s03":
                    deliver(call)
                raise ConnectionError("cut off")
        return deliver(call)

    result, _ = start(FIVE, lose, algorithm=Listener(sums=True, private=False))
    np.testing.assert_array_equal([total[0] for total in result.state.each], [31.0] * ROUNDS)
    assert len(lost) == 2 * ROUNDS


def test_the_order_in_which_sites_answer_changes_nothing() -> None:
    come: dict[int, list[str]] = defaultdict(list)
    changed = threading.Condition()

    def reverse(call: Call, deliver: Deliver) -> bytes | str:
        answer = deliver(call)
        if call.method == "exchange" and isinstance(call.message, bytes):
            order, after = come[wire.decode(call.message).round], len(FIVE) - 1 - FIVE.index(call.site)
            with changed:
                changed.wait_for(lambda: len(order) >= after, timeout=10)
                order.append(call.site)
                changed.notify_all()
        return answer

    result, _ = start(FIVE, reverse)
    plain, _ = start(FIVE)
    np.testing.assert_array_equal(result.state.each, plain.state.each)
    assert list(come.values()) == [list(FIVE[::-1])] * ROUNDS


def test_a_site_that_refuses_ends_the_run_with_its_reason() -> None:
    def refuse(call: Call, deliver: Deliver) -> bytes | str:
        if call.site == "s01" and call.method == "exchange":
            return json.dumps({"error": "Column 'age' must be numeric.", "input": True})
        return deliver(call)

    with pytest.raises(InputError, match=r"^Site 's01' refused: Column 'age' must be numeric\.$"):
        start(FIVE, refuse)


@pytest.mark.parametrize("nonsense", ["", "[1]", "null", "{", "{}", "hello"])
@pytest.mark.parametrize("method", ["open", "exchange"])
def test_text_that_is_no_answer_is_named_by_site(method: str, nonsense: str) -> None:
    def talk(call: Call, deliver: Deliver) -> bytes | str:
        return nonsense if call.site == "s01" and call.method == method else deliver(call)

    if method == "open" and nonsense == "{}":
        return  # a site may open a run without a word
    with pytest.raises(ClientError, match=r"client 's01' failed: (Site 's01' must answer in JSON|sent text in place)"):
        start(FIVE, talk)


# Before a run

ASKED: Any = {"fedspan": "0", "table": {}}


@pytest.mark.parametrize(
    "said",
    ["{}", "[]", "hello", '{"digest": 1}', json.dumps({**json.loads(Endpoint("a", 0.0).describe("")), "rows": "many"})],
)
def test_a_description_that_is_none_is_named_by_site(said: str) -> None:
    def talk(call: Call, deliver: Deliver) -> bytes | str:
        return said if call.site == "b" else deliver(call)

    transport = Loopback({name: Endpoint(name, 0.0) for name in "ab"}, talk)
    with pytest.raises(ClientError, match=r"^Site 'b' must (answer in JSON|describe its table)"):
        handshake(transport, "ab", ASKED, timeout=5.0)


def test_sites_that_mean_other_columns_are_named() -> None:
    transport = Loopback({name: Endpoint(name, 0.0) for name in ("a", "odd")})
    with pytest.raises(InputError, match="The columns of sites 'a' and 'odd' differ"):
        handshake(transport, ("a", "odd"), ASKED, timeout=5.0)
    tables = handshake(transport, ("a", "odd"), ASKED, timeout=5.0, same_columns=False)
    assert {name: table.rows for name, table in tables.items()} == {"a": 7, "odd": 7}


# Secure sums: whoever is lost wherever, the sum is right or there is none

WHY = ("gone", "no answer", "did not agree", "sent something else")
PHASES = ("@keys", "@roster", "give", "@agree", "@unmask", "@recover")


def lose_at(losses: Mapping[str, str], *, heard: bool, for_good: bool = True) -> Tamper:
    """Each site of `losses` is lost at that phase: its question (`heard` False) or its answer."""
    gone: set[str] = set()

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        if call.method != "exchange" or not isinstance(call.message, bytes):
            return deliver(call)
        if call.site in gone and for_good:
            raise ConnectionError("gone")
        if wire.decode(call.message).task == losses.get(call.site) and call.site not in gone:
            gone.add(call.site)
            if heard:
                deliver(call)
            raise ConnectionError("gone")
        return deliver(call)

    return tamper


def check_sums(tamper: Tamper, t: int, min_clients: int) -> int:
    """Run secure sums; every total must be that of those present. How many rounds had a sum."""
    ledger = Ledger()
    sums: list[Array] = []
    options: dict[str, Any] = {"secure": Secure(t), "min_clients": min_clients, "retries": 1, "rounds": 2}
    options["callback"] = lambda info: sums.append(info.estimate[-1])
    try:
        start(FIVE, tamper, algorithm=Listener(sums=True, private=False), ledger=ledger, **options)
    except ClientError as error:
        assert any(why in str(error) for why in WHY)  # noqa: PT017
    except ProtocolError as error:
        assert "did not cancel" in str(error)  # noqa: PT017
    events = [e for e in ledger.events if isinstance(e, Exchange) and len(e.missing) < len(e.clients)]
    for event, total in zip(events, sums, strict=False):
        present = [2.0 ** FIVE.index(name) for name in event.clients if name not in event.missing]
        assert len(present) >= max(t, min_clients)
        np.testing.assert_array_equal(total[:2], [sum(present), sum(present) * event.round])
    return len(sums)


@pytest.mark.parametrize("site", FIVE)
@pytest.mark.parametrize("phase", PHASES[:-1])
@pytest.mark.parametrize("heard", [False, True], ids=["question", "answer"])
def test_a_site_that_is_lost_at_any_phase_leaves_the_sum_of_the_others(site: str, phase: str, heard: bool) -> None:
    assert check_sums(lose_at({site: phase}, heard=heard), 3, 3) == 2


@pytest.mark.parametrize("other", FIVE[1:])
@pytest.mark.parametrize("heard", [False, True], ids=["question", "answer"])
def test_a_site_that_is_lost_when_another_is_recovered(other: str, heard: bool) -> None:
    """The first is lost before it unmasks, the other when it should give its share of the first's secret."""
    assert check_sums(lose_at({"s00": "@unmask", other: "@recover"}, heard=heard), 3, 3) >= 1


@pytest.mark.parametrize("before", ["give", "@agree", "@unmask"])
@pytest.mark.parametrize("after", PHASES)
@pytest.mark.parametrize("heard", [False, True], ids=["question", "answer"])
def test_two_losses_give_a_right_sum_or_none(before: str, after: str, heard: bool) -> None:
    check_sums(lose_at({"s01": before, "s03": after}, heard=heard), 3, 3)


def record(tamper: Tamper, questions: list[tuple[str, wire.Message]]) -> Tamper:
    """Keep every question that the server sends, whatever becomes of it."""

    def recorder(call: Call, deliver: Deliver) -> bytes | str:
        if call.method == "exchange" and isinstance(call.message, bytes):
            questions.append((call.site, wire.decode(call.message)))
        return tamper(call, deliver)

    return recorder


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("heard", [False, True], ids=["question", "answer"])
def test_a_message_that_is_lost_once_is_sent_again_as_it_was(phase: str, heard: bool) -> None:
    """Asked again, a site is told again what is for it alone (its tags, its sealed shares), and keeps its place."""
    once = lose_at({"s02": phase}, heard=heard, for_good=False)
    # A secret must be recovered only if somebody is lost who has answered.
    lost = lose_at({"s00": "@unmask"} if phase == "@recover" else {}, heard=False)
    questions: list[tuple[str, wire.Message]] = []
    tamper = record(lambda call, deliver: lost(call, lambda c: once(c, deliver)), questions)
    options = {"secure": Secure(3), "min_clients": 3, "retries": 1, "rounds": 1}
    result, _ = start(FIVE, tamper, algorithm=Listener(sums=True, private=False), **options)
    assert float(result.state.each[0][0]) == 31.0  # s00 had answered before it was lost
    first, second = [message for site, message in questions if site == "s02" and message.task == phase]
    assert first.arrays.keys() == second.arrays.keys()
    assert all(np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays)
    if phase in ("@unmask", "@recover"):
        others = [message for site, message in questions if site == "s03" and message.task == phase]
        own = "tags" if phase == "@unmask" else "shares"
        assert not np.array_equal(others[0].arrays[own], second.arrays[own])  # it is told something of its own


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize(("t", "min_clients"), [(None, None), (3, None), (3, 3)])
@pytest.mark.parametrize("phase", ["@keys", "give"])
def test_a_lost_site_is_asked_as_often_as_retries_says(
    phase: str, t: int | None, min_clients: int | None, retries: int
) -> None:
    """Phases of a secure sum are repeated, and so are exchanges: together not more often than that."""
    questions: list[tuple[str, wire.Message]] = []
    tamper = record(lose_at({"s02": phase}, heard=False), questions)
    options: dict[str, Any] = {"secure": Secure(t), "min_clients": min_clients, "retries": retries, "rounds": 1}
    algorithm = Listener(sums=True, private=False)
    if min_clients:
        result, _ = start(FIVE, tamper, algorithm=algorithm, **options)
        assert float(result.state.each[0][0]) == 27.0
    else:
        with pytest.raises(ClientError, match=f"in {retries + 1} tries" if retries else "needs answers"):
            start(FIVE, tamper, algorithm=algorithm, **options)
    asked = [message.task for site, message in questions if site == "s02" and message.task == phase]
    assert len(asked) == retries + 1


@pytest.mark.parametrize("heard", [False, True], ids=["question", "answer"])
def test_a_private_message_that_is_lost_is_sent_again(heard: bool) -> None:
    """Without secure sums, too: the repetition has what is for this site alone."""
    questions: list[tuple[str, wire.Message]] = []
    tamper = record(lose_at({"s01": "give"}, heard=heard, for_good=False), questions)
    start(FIVE, tamper, rounds=1, retries=1)
    own = [float(message.arrays["own"]) for site, message in questions if site == "s01"]
    assert own == [101.0, 101.0]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("change", ["names", "shape", "dtype", "values", "nothing"])
def test_a_lie_in_a_phase_never_gives_a_wrong_sum(phase: str, change: str) -> None:
    def distort(message: wire.Message) -> wire.Message:
        arrays = dict(message.arrays)
        if change == "names":
            return message._replace(arrays={"password": np.zeros(3)})
        if change == "nothing":
            return message._replace(arrays={})
        for name, array in arrays.items():
            if change == "shape":
                arrays[name] = np.concatenate([array.ravel(), array.ravel()])
            elif change == "dtype":
                arrays[name] = array.astype(np.float32)
            elif name != "x":  # a site may well give other numbers; not other counts
                arrays[name] = array ^ array.dtype.type(0x5A)
        return message._replace(arrays=arrays)

    losses = lose_at({"s00": "@unmask"} if phase == "@recover" else {}, heard=False)
    liar = lie("s02", distort, task=phase)
    check_sums(lambda call, deliver: losses(call, lambda c: liar(c, deliver)), 3, 3)


def test_errors_of_the_network_are_errors_of_fedspan() -> None:
    with pytest.raises(FedspanError, match="could not be asked"):
        start(FIVE, lose_at(dict.fromkeys(FIVE, "give"), heard=False), retries=0)
