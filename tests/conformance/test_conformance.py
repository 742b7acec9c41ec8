"""Every algorithm × every property that no algorithm may break."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from table import TABLE, Row

from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.learning.count_samples import CountClasses
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.algorithms.registry import ALGORITHMS, MATCHINGS, OPENINGS
from fedspan.channel import IDENTITY, Channel, Stage, delta, only, quantize, wire
from fedspan.core.checkpoint import Checkpoint, flatten
from fedspan.core.ledger import Ledger
from fedspan.core.run import Info, Result, run
from fedspan.engines import InProcess, inprocess
from fedspan.numerics.orthonormal import largest_angle

PLAIN = "no channel"
CHANNELS: dict[str, Channel] = {
    PLAIN: Channel(),
    "quantize": Channel(up=quantize(4), down=quantize(4)),
    "delta": Channel(up=delta(quantize(3)), down=delta(quantize(3))),
    "only some": Channel(up=only(["Y", "G"], delta(quantize(5))), down=only(["Z"], quantize(6))),
    "up only": Channel(up=delta(quantize(8))),
    "down only": Channel(down=quantize(16)),
}


def marked(names: Iterable[str]) -> list[Any]:
    """Rows of the table; all tests of a row go to one process, which then makes its undisturbed runs once."""
    return [pytest.param(TABLE[name], id=name, marks=pytest.mark.xdist_group(name)) for name in names]


every_row = pytest.mark.parametrize("row", marked(TABLE))
# Those that promise the centralised answer.
every_exact_row = pytest.mark.parametrize("row", marked(name for name, row in TABLE.items() if row.angle is not None))
# Those whose messages a channel may change.
every_open_row = pytest.mark.parametrize("row", marked(name for name, row in TABLE.items() if row.privacy is None))
# Private runs are tested over the channel that they may have.
every_row_and_channel = pytest.mark.parametrize(
    ("row", "channel"),
    [
        pytest.param(row, channel, id=f"{name}-{channel}", marks=pytest.mark.xdist_group(name))
        for name, row in TABLE.items()
        for channel in CHANNELS
        if row.privacy is None or channel == PLAIN
    ],
)


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    """Hundreds of checkpoints are written here, and no power is cut; hundreds of runs look for the same BLAS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(inprocess, "ThreadpoolController", cache(inprocess.ThreadpoolController))
        yield


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture
def folder(shelf: Path) -> Path:
    """An empty folder: the same for all tests, since thousands of folders take longer than what is tested."""
    for left in shelf.iterdir():
        left.unlink()
    return shelf


def start(
    row: Row, clients: Any = None, channel: Channel | str = PLAIN, kind: type[InProcess] = InProcess, **more: Any
) -> Result[Any]:
    engine = kind(row.clients() if clients is None else clients, threads=1, wire=more.pop("wire", False))
    link = CHANNELS[channel] if isinstance(channel, str) else channel
    return run(row.server, engine, **{"rounds": row.rounds, "seed": 3, "channel": link, "privacy": row.plan()} | more)


def bits(result: Result[Any]) -> tuple[Any, ...]:
    """All that a run ends with, to the bit."""
    skeleton, arrays = flatten(result.state)
    data = [(a.dtype, a.shape, np.ascontiguousarray(a).tobytes()) for a in arrays.values()]
    return result.rounds, result.converged, repr(skeleton), data


class Undisturbed(NamedTuple):
    bits: tuple[Any, ...]
    rounds: int
    ledger: Ledger


@cache
def undisturbed(row: Row, channel: str = PLAIN) -> Undisturbed:
    """What a run ends with that nobody cuts, watches or sends through bytes: most tests compare with it."""
    result = start(row, channel=channel)
    return Undisturbed(bits(result), result.rounds, result.ledger)


class ThroughBytes(NamedTuple):
    bits: tuple[Any, ...]
    ledger: Ledger
    lengths: list[int]  # of all messages, in the order in which they were made


@cache
def through_bytes(row: Row, channel: str) -> ThroughBytes:
    """The same run with every message made to bytes and read back."""
    lengths: list[int] = []
    encode = wire.encode

    def counted(message: wire.Message) -> bytes:
        blob = encode(message)
        lengths.append(len(blob))
        return blob

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "encode", counted)
        result = start(row, channel=channel, wire=True)
    return ThroughBytes(bits(result), result.ledger, lengths)


def test_every_algorithm_has_a_row() -> None:
    """But for those that end with their opening: tests/algorithms, tests/data and tests/privacy test them."""
    tested = {type(row.server) for row in TABLE.values()}
    assert set(ALGORITHMS.values()) - tested == {AgreeOnColumns, CompareOrder, CountClasses, *MATCHINGS, *OPENINGS}


@every_row_and_channel
def test_the_order_in_which_clients_are_given_does_not_matter(row: Row, channel: str) -> None:
    """To the bit: replies are added in the order of the names, so the same sums are made in the same order."""
    clients = dict(row.clients())
    orders = [list(reversed(clients))]
    if channel == PLAIN:
        orders.append(sorted(clients, key=lambda name: name[::-1]))
    for names in orders:
        assert bits(start(row, {name: clients[name] for name in names}, channel)) == undisturbed(row, channel).bits


@every_row
def test_a_list_is_a_mapping_from_its_numbers(row: Row) -> None:
    """To the bit: names and their order are the same, and so is all that follows from them. Two rounds show it."""
    data = list(row.clients().values()) * 3  # more than ten: the numbers have two digits
    numbered = {f"{i:02d}": x for i, x in reversed(list(enumerate(data)))}
    assert bits(start(row, numbered, rounds=2)) == bits(start(row, data, rounds=2))


@pytest.mark.parametrize("parts", [1, 2, 9])
@every_exact_row
def test_rows_that_are_split_have_the_centralised_answer(row: Row, parts: int) -> None:
    pooled = np.vstack(list(row.clients().values()))
    cuts = np.sort(np.random.default_rng(parts).choice(np.arange(1, len(pooled)), parts - 1, replace=False))
    clients = {f"client {i}": rows for i, rows in enumerate(np.split(pooled, cuts))}
    result = start(row, clients, rounds=row.enough)
    assert result.converged
    assert largest_angle(row.server.estimate(result.state).T, row.answer(row.server, clients)) <= row.angle


class Cut(Exception):
    """A run ends here, and not by its own will."""


def cut(_: Info) -> None:
    raise Cut


@every_row_and_channel
def test_a_run_cut_after_every_round_and_resumed_ends_to_the_bit_as_one_that_was_not(
    row: Row, channel: str, folder: Path
) -> None:
    """All that a round needs of the rounds before is in the checkpoint: nothing else lives longer than a round.

    To the bit: each round does the same operations on the same numbers, which lie in memory as they lay.
    """
    want = undisturbed(row, channel)
    for _ in range(want.rounds):
        with pytest.raises(Cut):
            start(row, channel=channel, checkpoint=Checkpoint(folder), callback=cut)
    assert bits(start(row, channel=channel, checkpoint=Checkpoint(folder))) == want.bits


@every_row
def test_a_run_cut_after_any_round_and_resumed_ends_to_the_bit_as_one_that_was_not(row: Row, folder: Path) -> None:
    """One cut in each run: what clients made before it and did not save would be there in the one, not in the other.

    To the bit: each round does the same operations on the same numbers, which lie in memory as they lay.
    """
    checkpoint, kept = Checkpoint(folder), []
    want = start(row, checkpoint=checkpoint, callback=lambda _: kept.append(checkpoint.path.read_bytes()))
    assert bits(want) == undisturbed(row).bits
    for number, saved in enumerate(kept, 1):
        checkpoint.path.write_bytes(saved)
        assert bits(start(row, checkpoint=checkpoint)) == undisturbed(row).bits, f"cut after round {number}"


@every_row_and_channel
def test_a_round_cut_off_in_the_middle_is_repeated_to_the_bit(row: Row, channel: str, folder: Path) -> None:
    """What the cut round did to clients and memories must not survive it: then the round is the same operations."""
    want = undisturbed(row, channel)

    class Failing(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange

            def fail(ask: Any, cohort: Any, round: int, number: int) -> Any:
                answer = exchange(ask, cohort, round, number)
                if round == want.rounds:
                    raise Cut
                return answer

            session.exchange = fail  # type: ignore[method-assign]
            return session

    with pytest.raises(Cut):
        start(row, channel=channel, kind=Failing, checkpoint=Checkpoint(folder))
    assert bits(start(row, channel=channel, checkpoint=Checkpoint(folder))) == want.bits


@every_row_and_channel
def test_the_ledger_counts_the_bytes_of_the_wire(row: Row, channel: str) -> None:
    """To the byte, and the same number whether or not the messages were really made."""
    _, ledger, lengths = through_bytes(row, channel)
    assert ledger.bytes_down == sum(lengths[::2])  # one thread: a request, its reply, the next request
    assert ledger.bytes_up == sum(lengths[1::2])
    assert len(lengths) == 2 * sum(len(row["clients"]) for row in ledger.rows() if row["event"] == "exchange")
    counted_only = undisturbed(row, channel).ledger
    assert (counted_only.bytes_down, counted_only.bytes_up) == (ledger.bytes_down, ledger.bytes_up)


@every_row_and_channel
def test_messages_through_bytes_give_the_same_result(row: Row, channel: str) -> None:
    """To the bit: arrays come out of their bytes as they went in, and lie in memory as they lay."""
    assert through_bytes(row, channel).bits == undisturbed(row, channel).bits


def as_bytes() -> Stage:
    """Every array as its bytes and back, and a count of messages as memory: loses nothing."""

    def encode(arrays: Any, n: int, _: Any) -> Any:
        return {f"{k}~{a.dtype.str}~{a.shape}": np.frombuffer(a.tobytes(), np.uint8) for k, a in arrays.items()}, n + 1

    def decode(arrays: Any, n: int) -> Any:
        out = {}
        for key, packed in arrays.items():
            name, dtype, shape = key.split("~")
            dims = [int(part) for part in shape.strip("(,)").split(",") if part]
            out[name] = np.frombuffer(packed.tobytes(), dtype).reshape(dims)
        return out, n + 1

    return Stage("as bytes", ("quantize",), lambda: (0, 0), encode, decode, remembers=True)


@pytest.mark.parametrize("in_bytes", [False, True])
@every_row
def test_a_lossless_channel_is_no_channel(row: Row, in_bytes: bool) -> None:
    """To the bit: what arrives is what was sent."""
    lossless = Channel(up=as_bytes(), down=as_bytes())
    assert bits(start(row, channel=lossless, wire=in_bytes)) == undisturbed(row).bits


def odd(calls: list[str], factor: float = 1.01) -> Stage:
    """Arrays arrive larger by 1 %."""

    def scaled(name: str) -> Callable[..., Any]:
        def step(arrays: Any, state: Any, *_: Any) -> Any:
            calls.append(name)
            by = factor if name == "encode" else 1.0
            return {k: a * by if a.dtype.kind == "f" else a for k, a in arrays.items()}, state

        return step

    return Stage("odd", ("quantize",), lambda: ((), ()), scaled("encode"), scaled("decode"))


@pytest.mark.parametrize("link", ["up", "down"])
@every_open_row
def test_an_odd_stage_is_visibly_applied(row: Row, link: str) -> None:
    calls: list[str] = []
    result = start(row, channel=Channel(**{link: odd(calls)}))
    assert bits(result) != undisturbed(row).bits
    messages = sum(len(row["clients"]) for row in result.ledger.rows() if row["event"] == "exchange")
    assert calls.count("decode") == messages
    assert calls.count("encode") == (messages if link == "up" else result.ledger.exchanges)  # a broadcast is coded once


@every_row
def test_the_callback_is_told_the_estimate_of_its_round(row: Row) -> None:
    """To the bit: it is the estimate of the same state."""
    told: list[Info] = []
    result = start(row, callback=told.append)
    assert [info.round for info in told] == list(range(1, result.rounds + 1))
    np.testing.assert_array_equal(told[-1].estimate, row.server.estimate(result.state))
    assert all(np.isfinite(info.estimate).all() for info in told)


@every_exact_row
def test_another_seed_is_another_run_to_the_same_answer(row: Row) -> None:
    """The tests of rows that are split begin with seed 3, and end at this answer too."""
    clients = row.clients()
    result = start(row, clients, rounds=row.enough, seed=1)
    assert largest_angle(row.server.estimate(result.state).T, row.answer(row.server, clients)) <= row.angle


@every_row
def test_identity_is_no_channel(row: Row) -> None:
    """To the bit: nothing is done to any array."""
    assert bits(start(row, channel=Channel(up=IDENTITY, down=IDENTITY))) == undisturbed(row).bits
