"""A lying server and narrow lanes: neither widths nor what it says of columns that wrapped around opens anything."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from verified_world import SITES, LyingServer, Refused, World, bind_places_only, second_moments

from fedspan.algorithms import Krylov
from fedspan.channel import wire
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.rng import SERVER, Streams
from fedspan.deployment.site_rules import verified_rules
from fedspan.engines.loopback import Call, Deliver
from fedspan.secure.replica import Replica
from fedspan.secure.witness import Witness

GRID = Krylov(k=2, tol=1e-9, rounded=True)
AT = (2, 0)  # where the lies begin: the second product

defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def question_at(server: LyingServer) -> Ask:
    """The question that an honest server would ask next."""
    ask = next(GRID.round(server.state, Streams(0, AT[0], 0, SERVER)))
    return replace(ask, arrays={name: np.array(x) for name, x in ask.arrays.items()})


def say_wrapped(server: LyingServer) -> None:
    """Tell the sites that all columns of the last sum wrapped around, which they did not."""
    last = server.verified.past[-1]
    server.verified.past[-1] = replace(last, lanes={}, wrapped={"Y": np.ones(2, dtype=bool)})


def test_an_honest_server_is_answered_to_the_end(world: World) -> None:
    server = world.server(algorithm=GRID)
    server.drive()
    assert server.algorithm.done(server.state)
    expected = np.linalg.eigvalsh(second_moments(*SITES))[::-1][:2]
    np.testing.assert_allclose(server.state.theta, expected, rtol=1e-7)


@defences
def test_widening_is_no_second_question(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One code of the block is moved by a unit, far within what rounding allows: the difference is a column of M."""
    server = world.server(algorithm=GRID)
    server.drive(until=AT)
    ask = question_at(server)
    first = server.ask(ask, AT).total["Y"]
    say_wrapped(server)
    moved = np.array(ask.arrays["Z"])
    moved[3, 0] += 1 if moved[3, 0] < 100 else -1
    again = replace(ask, arrays={**ask.arrays, "Z": moved})
    if defended:
        with pytest.raises(Refused, match="'Z' is asked again in a round, and must be what it was before"):
            server.ask(again, (2, 1))
        with pytest.raises(Refused, match="takes part no more"):
            server.ask(ask, (2, 1))
        return
    monkeypatch.setattr(Replica, "_check_repeated", lambda self, expected, came: None)
    second = server.ask(again, (2, 1)).total["Y"]
    turned = (moved[3, 0].astype(int) - ask.arrays["Z"][3, 0]) * ask.arrays["scale"][0]
    column = (second - first)[:, 0] * float(ask.arrays["step"]) / turned
    np.testing.assert_allclose(column, second_moments(*SITES)[:, 3], rtol=1e-4)


def test_a_lie_about_wrapping_gives_the_same_sum_again_and_ends(world: World) -> None:
    server = world.server(algorithm=GRID)
    server.drive(until=AT)
    ask = question_at(server)
    sums = []
    for exchange in range(3):
        sums.append(server.ask(ask, (2, exchange)).total["Y"])
        say_wrapped(server)
    np.testing.assert_array_equal(sums[1], sums[0])
    np.testing.assert_array_equal(sums[2], sums[0])
    with pytest.raises(Refused, match="does not have its check sums, even at full width"):
        server.ask(ask, (2, 3))


@defences
def test_a_prediction_that_is_off_by_whole_turns(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The low bits are those of the sum, so the masks tell nothing; the server shows the sum that it would like."""
    server = world.server(algorithm=GRID)
    if not defended:
        monkeypatch.setattr(Witness, "_check_tag", lambda *arguments: None)
    honest = server.ask

    def ask(asked: Ask, place: tuple[int, int]) -> Replies:
        replies = honest(asked, place)
        if place != (1, 0):
            return replies
        wanted = replies.total["Y"] + (np.arange(12).reshape(6, 2) % 5 << 40)
        past = server.verified.past[-1]
        server.verified.past[-1] = replace(past, lanes={**past.lanes, "Y": wanted.view(np.uint64)[None]})
        return replace(replies, total={"Y": wanted})

    monkeypatch.setattr(server, "ask", ask)
    if defended:
        with pytest.raises(Refused, match="not the sum of the sites"):
            server.drive()
    else:
        steered = server.drive(until=(3, 0))[AT].total["Y"]  # a block that follows from the invented sum is answered
        assert np.abs(steered).max() > 0


@defences
def test_other_widths_to_one_site(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both mean 64 bits, so that only the transcripts differ."""

    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.method == "exchange" and isinstance(call.message, bytes) and wire.decode(call.message).round == 2:
            message = wire.decode(call.message)
            if message.task == "multiply_on_grid":
                wide = np.full(2, 60 if call.site == "bo" else 61, dtype=np.int8)
                arrays = {**message.arrays, "@rows Y": np.zeros(6, dtype=np.int8), "@columns Y": wide}
                call = call._replace(message=wire.encode(message._replace(arrays=arrays)))
        return deliver(call)

    server = world.server(algorithm=GRID, tamper=tamper)
    server.drive(until=AT)
    honest = question_at(server)
    known = honest.narrow["Y"]
    wide = replace(known, rows=np.zeros(6, dtype=np.int8), columns=np.full(2, 61, dtype=np.int8))
    ask = replace(honest, narrow={"Y": wide})
    if defended:
        with pytest.raises(Refused, match="did not cancel"):
            server.ask(ask, AT)
    else:
        bind_places_only(monkeypatch)
        assert server.ask(ask, AT).total["Y"].shape == (6, 2)


@defences
def test_other_widths_after_going_back(world: World, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one transcript there is one question, and the widths are part of it."""
    server = world.server(algorithm=GRID)
    server.drive(until=AT)
    kept, ask = server.verified.snapshot(), question_at(server)
    first = server.ask(ask, AT).total["Y"]
    world.restart()
    again = world.server(algorithm=GRID, run=server.run)
    again.session.inner.message = replace(again.session.inner.message, after=1)
    again.verified.past, again.verified.before = list(kept.past.exchanges), kept.past.before
    known = ask.narrow["Y"]
    other = replace(ask, narrow={"Y": replace(known, columns=known.columns + np.int8(1))})
    if defended:
        with pytest.raises(Refused, match="another question was asked before"):
            again.ask(other, AT)
    else:
        monkeypatch.setattr(verified_rules.AskedOnDisk, "note", lambda self, before, digest: True)
        np.testing.assert_array_equal(again.ask(other, AT).total["Y"], first)


@pytest.mark.parametrize(
    ("widths", "why"),
    [
        ({"@rows Y": np.zeros(7, np.int8), "@columns Y": np.zeros(2, np.int8)}, "the widths do not fit 'Y'"),
        ({"@rows Y": np.zeros(60_000, np.int8), "@columns Y": np.zeros(60_000, np.int8)}, "the widths do not fit 'Y'"),
        ({"@rows X": np.zeros(6, np.int8), "@columns X": np.zeros(2, np.int8)}, "the widths do not fit 'X'"),
        ({"@rows Y": np.zeros(6, np.int8)}, "must be small integers by row and by column"),
        ({"@rows Y": np.zeros(6), "@columns Y": np.zeros(2)}, "must be small integers by row and by column"),
        ({"@columns Y": np.zeros(2, np.int8)}, "widths come without an array"),
    ],
)
def test_widths_that_fit_nothing(world: World, widths: dict[str, Any], why: str) -> None:
    """No array is made by them: 60,000 rows and columns would take 28 GB."""
    server = world.server(algorithm=GRID)
    server.drive(until=AT)
    ask = question_at(server)
    with pytest.raises(Refused, match=why):
        server.ask(replace(ask, arrays={**ask.arrays, **widths}, narrow={}), AT)


@pytest.mark.parametrize(
    ("wrapped", "why"),
    [
        ({"Y": np.ones(3, dtype=bool)}, "'Y' cannot have wrapped around"),
        ({"Y": np.zeros(2, dtype=bool)}, "'Y' cannot have wrapped around"),
        ({"X": np.ones(2, dtype=bool)}, "'X' cannot have wrapped around"),
    ],
)
def test_columns_that_cannot_have_wrapped(world: World, wrapped: dict[str, Any], why: str) -> None:
    server = world.server(algorithm=GRID)
    server.drive(until=AT)
    ask = question_at(server)
    server.ask(ask, AT)
    server.verified.past[-1] = replace(server.verified.past[-1], lanes={}, wrapped=wrapped)
    with pytest.raises(Refused, match=why):
        server.ask(ask, (2, 1))


def test_a_sum_of_floats_cannot_have_wrapped(world: World) -> None:
    server = world.server()
    server.drive(until=AT)
    server.verified.past[-1] = replace(server.verified.past[-1], lanes={}, wrapped={"Y": np.ones(2, dtype=bool)})
    with pytest.raises(Refused, match="'Y' cannot have wrapped around"):
        server.ask(Ask("multiply", {"Z": np.array(server.state.next)}, Sum("Y")), AT)
