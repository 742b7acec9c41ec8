"""Every algorithm × every property that no algorithm may break."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table import TABLE, Row

from fedspan import algorithms
from fedspan.channel import IDENTITY, Channel, Stage, delta, error_feedback, only, quantize, wire
from fedspan.checkpoint import Checkpoint, flatten
from fedspan.engines import InProcess
from fedspan.numerics.orthonormal import largest_angle
from fedspan.run import Info, Result, run

CHANNELS: dict[str, Channel] = {
    "no channel": Channel(),
    "quantize": Channel(up=quantize(4), down=quantize(4)),
    "delta": Channel(up=delta(quantize(3)), down=delta(quantize(3))),
    "error feedback": Channel(up=error_feedback(quantize(4)), down=error_feedback(quantize(4))),
    "only some": Channel(up=only(["Y", "G"], delta(quantize(5))), down=only(["Z"], quantize(6))),
    "up only": Channel(up=delta(quantize(8))),
    "down only": Channel(down=quantize(16)),
}


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of checkpoints are written here, and no power is cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(params=TABLE)
def row(request: pytest.FixtureRequest) -> Row:
    return TABLE[request.param]


@pytest.fixture(params=[name for name, row in TABLE.items() if row.angle is not None])
def exact(request: pytest.FixtureRequest) -> Row:
    """An algorithm that promises the centralised answer."""
    return TABLE[request.param]


@pytest.fixture(params=CHANNELS)
def channel(request: pytest.FixtureRequest, row: Row) -> Channel:
    """Private runs are tested over the channel that they may have."""
    return CHANNELS[request.param] if row.privacy is None else Channel()


@pytest.fixture(params=[name for name, row in TABLE.items() if row.privacy is None])
def open_row(request: pytest.FixtureRequest) -> Row:
    """An algorithm whose messages a channel may change."""
    return TABLE[request.param]


def start(
    row: Row, clients: Any = None, channel: Channel | None = None, wire: bool = False, **more: Any
) -> Result[Any]:
    engine = InProcess(row.clients() if clients is None else clients, threads=1, wire=wire)
    return run(
        row.server, engine, **{"rounds": row.rounds, "seed": 3, "channel": channel, "privacy": row.plan()} | more
    )


def bits(result: Result[Any]) -> tuple[Any, ...]:
    """All that a run ends with, to the bit."""
    skeleton, arrays = flatten(result.state)
    data = [(a.dtype, a.shape, np.ascontiguousarray(a).tobytes()) for a in arrays.values()]
    return result.rounds, result.converged, repr(skeleton), data


def test_every_algorithm_has_a_row() -> None:
    exported = (getattr(algorithms, name) for name in algorithms.__all__)
    assert {kind for kind in exported if hasattr(kind, "round")} <= {type(row.server) for row in TABLE.values()}


def test_the_order_in_which_clients_are_given_does_not_matter(row: Row, channel: Channel) -> None:
    clients = dict(row.clients())
    want = bits(start(row, clients, channel))
    for names in (reversed(clients), sorted(clients, key=lambda name: name[::-1])):
        assert bits(start(row, {name: clients[name] for name in names}, channel)) == want


def test_a_list_is_a_mapping_from_its_numbers(row: Row) -> None:
    data = list(row.clients().values()) * 3
    numbered = {f"{i:02d}": x for i, x in reversed(list(enumerate(data)))}
    assert bits(start(row, numbered)) == bits(start(row, data))


@pytest.mark.parametrize("parts", [1, 2, 9])
def test_rows_that_are_split_have_the_centralised_answer(exact: Row, parts: int) -> None:
    pooled = np.vstack(list(exact.clients().values()))
    cuts = np.sort(np.random.default_rng(parts).choice(np.arange(1, len(pooled)), parts - 1, replace=False))
    clients = {f"client {i}": rows for i, rows in enumerate(np.split(pooled, cuts))}
    result = start(exact, clients, rounds=exact.enough)
    assert result.converged
    assert largest_angle(exact.server.estimate(result.state).T, exact.answer(exact.server, clients)) <= exact.angle


def test_a_run_cut_after_any_round_and_resumed_ends_to_the_bit_as_one_that_was_not(
    row: Row, channel: Channel, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "whole")

    def keep(info: Info) -> None:
        (tmp_path / str(info.round)).mkdir()
        shutil.copy(checkpoint.path, tmp_path / str(info.round))

    want = start(row, channel=channel, checkpoint=checkpoint, callback=keep)
    assert bits(want) == bits(start(row, channel=channel))
    for cut in range(1, want.rounds + 1):
        got = start(row, channel=channel, checkpoint=Checkpoint(tmp_path / str(cut)))
        assert bits(got) == bits(want), f"cut after round {cut}"


def test_a_round_cut_off_in_the_middle_is_repeated_to_the_bit(row: Row, channel: Channel, tmp_path: Path) -> None:
    """What the cut round did to clients and memories must not survive it."""

    class Killed(Exception):
        pass

    class Failing(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange

            def fail(ask: Any, cohort: Any, round: int, number: int) -> Any:
                answer = exchange(ask, cohort, round, number)
                if round == last:
                    raise Killed
                return answer

            session.exchange = fail  # type: ignore[method-assign]
            return session

    want = start(row, channel=channel)
    last = want.rounds
    options: dict[str, Any] = {"rounds": row.rounds, "seed": 3, "channel": channel, "privacy": row.plan()}
    with pytest.raises(Killed):
        run(row.server, Failing(row.clients(), threads=1), checkpoint=Checkpoint(tmp_path), **options)
    assert bits(start(row, channel=channel, checkpoint=Checkpoint(tmp_path))) == bits(want)


def test_the_ledger_counts_the_bytes_of_the_wire(row: Row, channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, and the same number whether or not the messages were really made."""
    lengths: list[int] = []
    encode = wire.encode

    def counted(message: wire.Message) -> bytes:
        blob = encode(message)
        lengths.append(len(blob))
        return blob

    monkeypatch.setattr(wire, "encode", counted)
    ledger = start(row, channel=channel, wire=True).ledger
    assert ledger.bytes_down == sum(lengths[::2])  # one thread: a request, its reply, the next request
    assert ledger.bytes_up == sum(lengths[1::2])
    assert len(lengths) == 2 * sum(len(row["clients"]) for row in ledger.rows() if row["event"] == "exchange")
    counted_only = start(row, channel=channel).ledger
    assert (counted_only.bytes_down, counted_only.bytes_up) == (ledger.bytes_down, ledger.bytes_up)


def test_messages_through_bytes_give_the_same_result(row: Row, channel: Channel) -> None:
    assert bits(start(row, channel=channel, wire=True)) == bits(start(row, channel=channel))


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


@pytest.mark.parametrize("through_bytes", [False, True])
def test_a_lossless_channel_is_no_channel(row: Row, through_bytes: bool) -> None:
    lossless = Channel(up=as_bytes(), down=as_bytes())
    assert bits(start(row, channel=lossless, wire=through_bytes)) == bits(start(row))


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
def test_an_odd_stage_is_visibly_applied(open_row: Row, link: str) -> None:
    calls: list[str] = []
    result = start(open_row, channel=Channel(**{link: odd(calls)}))
    assert bits(result) != bits(start(open_row))
    messages = sum(len(row["clients"]) for row in result.ledger.rows() if row["event"] == "exchange")
    assert calls.count("decode") == messages
    assert calls.count("encode") == (messages if link == "up" else result.ledger.exchanges)  # a broadcast is coded once


def test_the_callback_is_told_the_estimate_of_its_round(row: Row) -> None:
    told: list[Info] = []
    result = start(row, callback=told.append)
    assert [info.round for info in told] == list(range(1, result.rounds + 1))
    np.testing.assert_array_equal(told[-1].estimate, row.server.estimate(result.state))
    assert all(np.isfinite(info.estimate).all() for info in told)


def test_another_seed_is_another_run_to_the_same_answer(exact: Row) -> None:
    one, other = (start(exact, rounds=exact.enough, seed=seed) for seed in (1, 2))
    estimates = [exact.server.estimate(result.state).T for result in (one, other)]
    assert largest_angle(*estimates) <= 2 * exact.angle


def test_identity_is_no_channel(row: Row) -> None:
    assert bits(start(row, channel=Channel(up=IDENTITY, down=IDENTITY))) == bits(start(row))
