"""The ledger: sums over events, and a file that a crash can cut but not spoil."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd
from fedspan.errors import InputError

EVENTS = [
    Note("solver gram: asked for; seed 3, «ü»"),
    Exchange(0, 0, "count", ("ada", "bo"), (100, 100), (50, 60), (0.1, 0.2)),
    RoundEnd(0, 0.5, {"objective": 0.0, "kkt": math.inf}),
    Exchange(1, 0, "gram", ("ada", "bo"), (10, 10), (500, 0), (0.1, 0.2), ("bo",), {"bo": "OSError: gone"}),
    Exchange(1, 1, "gram", ("bo",), (10,), (600,), (0.1,)),
    RoundEnd(1, 1.5, {"objective": 2.5, "kkt": 1e-9}),
]

text = st.text(max_size=10)
counts = st.integers(0, 10**15)
finite = st.floats(allow_nan=False)
events = st.one_of(
    st.builds(Note, text),
    st.builds(RoundEnd, counts, finite, st.dictionaries(text, finite, max_size=3)),
    st.integers(0, 3).flatmap(
        lambda n: st.builds(
            Exchange, counts, counts, text,
            *(st.tuples(*[kind] * n) for kind in (text, counts, counts, finite)),
            st.lists(text, max_size=2).map(tuple), st.dictionaries(text, text, max_size=2),
        )
    ),
)  # fmt: skip


def filled(path: Path | None = None) -> Ledger:
    ledger = Ledger(path)
    for event in EVENTS:
        ledger.add(event)
    return ledger


def test_costs_are_sums_over_events() -> None:
    ledger = filled()
    assert (ledger.rounds, ledger.exchanges) == (1, 3)
    assert (ledger.bytes_up, ledger.bytes_down) == (50 + 60 + 500 + 600, 230)
    assert ledger.seconds == 2.0
    assert ledger.notes == [EVENTS[0].text]
    assert ledger.history() == [
        {"round": 0, "objective": 0.0, "kkt": math.inf, "bytes_up": 110, "bytes_down": 200, "seconds": 0.5},
        {"round": 1, "objective": 2.5, "kkt": 1e-9, "bytes_up": 1210, "bytes_down": 230, "seconds": 2.0},
    ]
    assert [row["event"] for row in ledger.rows()] == ["note", "exchange", "round", "exchange", "exchange", "round"]


def test_a_round_that_was_repeated_after_a_crash_is_one_round_paid_twice() -> None:
    ledger = filled()
    for event in EVENTS[3:]:
        ledger.add(event)
    assert ledger.rounds == 1
    assert ledger.bytes_up == 110 + 2 * 1100


def test_epsilon_is_nothing_before_and_infinite_after_a_release_without_noise() -> None:
    ledger = Ledger()
    assert ledger.epsilon(1e-6) == 0
    ledger.add(EVENTS[1])
    assert ledger.epsilon(1e-6) == math.inf
    for delta in (0, 1, -1, 2):
        with pytest.raises(InputError, match="delta must be between 0 and 1"):
            ledger.epsilon(delta)


@given(st.lists(events, max_size=5))
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, written: list) -> None:  # type: ignore[type-arg]
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger()
    for event in written:
        ledger.add(event)
    ledger.save(path)
    assert Ledger(path).events == written


def test_the_file_grows_with_every_event(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for n, event in enumerate(EVENTS, 1):
        ledger.add(event)
        lines = (tmp_path / "ledger.jsonl").read_text().splitlines()  # read while the ledger is open: it was flushed
        assert len(lines) == n
        assert json.loads(lines[-1])["event"] in ("note", "exchange", "round")


def test_a_ledger_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path).close()
    again = Ledger(path)
    again.add(Note("resumed after round 1"))
    again.close()
    assert Ledger(path).events == [*EVENTS, Note("resumed after round 1")]


def test_a_last_line_cut_anywhere_is_dropped_and_the_next_event_starts_a_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path).close()
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole) - 1):
        path.write_bytes(whole[:end])
        ledger = Ledger(path)
        assert ledger.events == EVENTS[:-1]
        ledger.add(EVENTS[-1])
        ledger.close()
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "line",
    [b'{"event":"round","rou', b'{"event":"party"}', b'{"event":"note"}', b'{"event":"note","text":"a","more":1}',
     b"5", b'"words"', b"null!", b"[1]", b"\xff\xfe", b'{"no":"event"}'],
)  # fmt: skip
def test_a_damaged_line_before_the_last_is_refused_by_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path).close()
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=r"Line 3 of .*ledger\.jsonl is not an event of a ledger"):
        Ledger(path)
    assert path.read_bytes() == b"\n".join(lines)


def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    with pytest.raises(InputError, match=r"Line 1 of .* is not an event of a ledger"):
        Ledger(path)
    assert path.read_bytes() == b"\x89PNG\r\n\x1a\n\x00\x00"


def test_reading_a_ledger_leaves_its_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path).close()
    torn = path.read_bytes()[:-9]
    path.write_bytes(torn)
    assert Ledger.read(path).events == EVENTS[:-1]
    assert path.read_bytes() == torn
