"""The transcript: all bytes of the ledger, and on replay what the two sides had in their hands."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutting import Cut, cut_within
from fedspan.algorithms import FedPower, Gram, Krylov, Ssi
from fedspan.algorithms._moments import RowsClient
from fedspan.channel import Channel, delta, only, pack, quantize
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Exchange, Ledger
from fedspan.core.protocol import Arrays, Sensitivity, task
from fedspan.core.run import Result, run
from fedspan.engines import Faults, InProcess
from fedspan.engines.hub import Hub
from fedspan.engines.transcript import Talk, Transcript
from fedspan.errors import InputError

CHANNELS = {  # those of the conformance table, and the lossless one of Krylov
    "no channel": Channel(),
    "quantize": Channel(up=quantize(4), down=quantize(4)),
    "delta": Channel(up=delta(quantize(3)), down=delta(quantize(3))),
    "only some": Channel(up=only(["Y", "G"], delta(quantize(5))), down=only(["Z"], quantize(6))),
    "up only": Channel(up=delta(quantize(8))),
    "down only": Channel(down=quantize(16)),
    "pack": Channel(up=pack(), down=pack()),
}


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@dataclass
class Spy:
    """What each client was asked, as it had it, and what the server had of its answer: overheard inside the two."""

    client: Any = None
    asked: dict[tuple[int, int, str], Arrays] = field(default_factory=dict)
    answered: dict[tuple[int, int, str], Arrays] = field(default_factory=dict)

    def ssi(self) -> Ssi:
        """The algorithm, with clients that are overheard."""

        class Overheard(Ssi):
            client = self.client

        return Overheard(k=3, tol=0)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    out, receive = Spy(), Hub.receive

    def overhear(self: Hub, client: str, message: Any) -> Arrays:
        arrays = receive(self, client, message)
        out.answered[message.round, message.exchange, client] = arrays
        return arrays

    class Spied(RowsClient):
        @task(releases={"Y": Sensitivity(2)}, shows="its products")
        def multiply(self, state: Any, arrays: Arrays, rng: Any) -> Any:
            out.asked[rng.round, rng.exchange, rng.client] = {name: np.array(a) for name, a in arrays.items()}
            return super().multiply(state, arrays, rng)

    monkeypatch.setattr(Hub, "receive", overhear)
    out.client = Spied
    return out


def start(folder: Path | None, clients: Any, algorithm: Any, channel: Channel, **more: Any) -> Result[Any]:
    engine = InProcess(clients, threads=more.pop("threads", 1), faults=more.pop("faults", None), transcript=folder)
    return run(algorithm, engine, **{"rounds": 5, "seed": 3, "channel": channel} | more)


def exchanges(ledger: Ledger) -> list[Exchange]:
    return [e for e in ledger.events if isinstance(e, Exchange)]


def same(a: Arrays, b: Arrays) -> bool:
    return list(a) == list(b) and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)


def check(talks: list[Talk], spy: Spy) -> None:
    """Every answer that the server had, and every question to `multiply`, to the bit."""
    by_place = {(t.round, t.exchange, t.client): t for t in talks}
    assert len(by_place) == len(talks)
    assert spy.answered.keys() <= by_place.keys()
    assert all(same(by_place[at].answer, arrays) for at, arrays in spy.answered.items())
    assert spy.asked.keys() == {at for at, t in by_place.items() if t.task == "multiply"}
    assert all(same(by_place[at].question, arrays) for at, arrays in spy.asked.items())


@pytest.mark.parametrize("name", CHANNELS)
def test_it_replays_to_what_both_sides_had_and_holds_the_bytes_of_the_ledger(
    name: str, hospitals: Any, spy: Spy, tmp_path: Path
) -> None:
    result = start(tmp_path / "t", hospitals, spy.ssi(), CHANNELS[name])
    transcript = Transcript(tmp_path / "t")
    talks = list(transcript.talks(CHANNELS[name]))
    check(talks, spy)
    got = [(t.round, t.exchange, t.task, t.client, t.bytes_down, t.bytes_up) for t in talks]
    want = [
        (e.round, e.exchange, e.task, *row)
        for e in exchanges(result.ledger)
        for row in zip(e.clients, e.bytes_down, e.bytes_up, strict=True)
    ]
    assert got == want
    assert transcript.answers() == len(talks) == 5 * len(exchanges(result.ledger))
    assert sum(t.bytes_up for t in talks) == result.ledger.bytes_up


@pytest.mark.parametrize(
    "algorithm", [Gram(k=2), FedPower(k=2), Krylov(k=2, rounded=True)], ids=lambda a: type(a).__name__
)
def test_the_bytes_of_other_algorithms(algorithm: Any, hospitals: Any, tmp_path: Path) -> None:
    channel = CHANNELS["pack"]
    ledger = start(tmp_path / "t", hospitals, algorithm, channel).ledger
    talks = list(Transcript(tmp_path / "t").talks(channel))
    assert sum(t.bytes_up for t in talks) == ledger.bytes_up
    assert sum(t.bytes_down for t in talks) == ledger.bytes_down


def test_recording_changes_nothing_and_threads_do_not_matter(hospitals: Any, tmp_path: Path) -> None:
    plain = start(None, hospitals, Ssi(k=3, tol=0), CHANNELS["delta"])
    files = []
    for threads in (1, 3):
        kept = start(tmp_path / str(threads), hospitals, Ssi(k=3, tol=0), CHANNELS["delta"], threads=threads)
        np.testing.assert_array_equal(kept.state.Z, plain.state.Z)
        files.append({p.name: p.read_bytes() for p in (tmp_path / str(threads)).iterdir()})
    assert files[0] == files[1]


def test_a_broadcast_is_kept_once_and_the_names_sort(hospitals: Any, tmp_path: Path) -> None:
    start(tmp_path / "t", hospitals, Ssi(k=3, tol=0), Channel(), rounds=12)
    names = sorted(p.name for p in (tmp_path / "t").iterdir())
    assert sum("down" in name for name in names) == sum("-ada-up" in name for name in names)
    assert names[0] == "message-000000-0000-000-@all-down.safetensors"
    rounds = [int(name.split("-")[1]) for name in names]
    assert rounds == sorted(rounds)


def test_odd_names_of_clients_come_back(tmp_path: Path) -> None:
    names = ["a/b", "..", "Zürich 1", "x-up.safetensors", "100%", "z" * 200]
    rng = np.random.default_rng(0)
    clients = {name: rng.normal(size=(9, 4)) for name in names}
    start(tmp_path / "t", clients, Gram(k=2), Channel())
    assert {t.client for t in Transcript(tmp_path / "t").talks(Channel())} == set(names)
    with pytest.raises(InputError, match="is too long for the files of a transcript"):
        start(tmp_path / "u", {"z" * 201: clients["100%"]}, Gram(k=2), Channel())


@pytest.mark.parametrize("name", ["no channel", "delta", "only some"])
def test_lost_messages_do_not_set_it_apart(name: str, hospitals: Any, spy: Spy, tmp_path: Path) -> None:
    faults = Faults(lose_request=0.15, lose_reply=0.2)
    channel = CHANNELS[name]
    result = start(tmp_path / "t", hospitals, spy.ssi(), channel, faults=faults, rounds=20, retries=30)
    talks = list(Transcript(tmp_path / "t").talks(channel))
    check(talks, spy)
    assert len(talks) > len(spy.answered)  # replies that were lost were on the wire
    assert sum(t.bytes_up for t in talks) == result.ledger.bytes_up


@pytest.mark.parametrize("name", ["no channel", "delta"])
@pytest.mark.parametrize("every", [1, 3])
def test_a_resumed_run_appends(name: str, every: int, hospitals: Any, spy: Spy, tmp_path: Path) -> None:
    """Cut off within round 5: what was sent is sent again after, and both are there."""
    channel, ledger = CHANNELS[name], Ledger()

    def go(kind: type[InProcess]) -> Result[Any]:
        engine, checkpoint = kind(hospitals, threads=1, transcript=tmp_path / "t"), Checkpoint(tmp_path / "c", every)
        return run(spy.ssi(), engine, rounds=8, seed=3, channel=channel, ledger=ledger, checkpoint=checkpoint)

    with pytest.raises(Cut):
        go(cut_within(5))
    first = {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()}
    go(InProcess)
    now = {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()}
    assert first.items() < now.items()
    talks = list(Transcript(tmp_path / "t").talks(channel))
    again = range(5, 6) if every == 1 else range(4, 6)
    check([t for t in talks if t.sitting == 1 or t.round not in again], spy)
    assert {t.round for t in talks if t.sitting == 0} == set(range(6))
    assert {t.round for t in talks if t.sitting == 1} == set(range(again[0], 9))
    twice = [t for t in talks if t.round in again]
    assert len(twice) == 2 * len(again) * 5
    for t in twice:
        (other,) = [u for u in twice if (u.round, u.client) == (t.round, t.client) and u.sitting != t.sitting]
        assert same(t.answer, other.answer)


def damaged(folder: Path, what: str) -> str:
    at = folder / "message-000002-0000-000-bo-up.safetensors"
    if what == "cut short":
        at.write_bytes(at.read_bytes()[:-9])
        return r"damaged in message-000002-0000-000-bo-up.*whole"
    if what == "not a message":
        at.write_bytes(b"hello")
        return "damaged in .*5 bytes are not a safetensors message"
    if what == "another round":
        at.write_bytes((folder / "message-000003-0000-000-bo-up.safetensors").read_bytes())
        return "damaged: .* holds a message of round 3, exchange 0"
    if what == "no question":
        (folder / "message-000002-0000-000-@all-down.safetensors").unlink()
        return "the question to message-000002-0000-000-ada-up.safetensors is missing"
    if what == "no answer":
        at.unlink()
        return "Cannot decode message-000003.*a message before it is missing"
    (folder / "notes.txt").write_text("mine")
    return "'notes.txt' in the transcript .* is not a message"


@pytest.mark.parametrize("what", ["cut short", "not a message", "another round", "no question", "no answer", "foreign"])
def test_a_damaged_transcript_is_refused_with_a_reason(what: str, hospitals: Any, tmp_path: Path) -> None:
    channel = Channel(up=delta(quantize(6)))
    start(tmp_path / "t", hospitals, Ssi(k=2, tol=0), channel)
    reason = damaged(tmp_path / "t", what)
    with pytest.raises(InputError, match=reason):
        list(Transcript(tmp_path / "t").talks(channel))


def test_a_folder_that_cannot_be_written_stops_the_run(hospitals: Any, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file")
    with pytest.raises(InputError, match=r"Cannot write the transcript in .*File exists"):
        start(tmp_path / "t", hospitals, Gram(k=2), Channel())


def test_no_folder_no_messages(tmp_path: Path) -> None:
    assert Transcript(tmp_path / "none").answers() == 0
    assert list(Transcript(tmp_path / "none").talks(Channel())) == []
