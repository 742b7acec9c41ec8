"""What a client may be asked and what may leave it; and asking until everyone has answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import Giver

from fedspan.core.protocol import (
    Ask,
    Each,
    Replies,
    Sensitivity,
    Sum,
    Task,
    checked_release,
    complete,
    declared,
    task,
    tasks_of,
)
from fedspan.errors import ClientError, ProtocolError


class Quiet(Giver):
    """Overrides a task without declaring it, and declares one more."""

    def leak(self, state: Any, arrays: Any, rng: Any) -> Any:
        return state, {}

    @task(releases={"y": Sensitivity(2)})
    def more(self, state: Any, arrays: Any, rng: Any) -> Any:
        return state, {"y": np.ones(1)}


def test_only_declared_methods_are_tasks() -> None:
    assert tasks_of(Giver).keys() == {"give", "leak", "forget", "poison", "write", "fail", "complain", "grow"}
    assert tasks_of(Giver)["give"].releases == {"x": None, "times": None}


def test_a_subclass_inherits_adds_and_withdraws_tasks() -> None:
    assert tasks_of(Quiet).keys() == (tasks_of(Giver).keys() | {"more"}) - {"leak"}
    assert tasks_of(Quiet)["more"].releases == {"y": Sensitivity(2)}


@pytest.mark.parametrize("name", ["peek", "init", "__init__", "__class__", "data", "", "giv"])
def test_what_is_not_declared_cannot_be_asked_for(name: str) -> None:
    with pytest.raises(ProtocolError, match=rf"need a declared task, got '{name}'; (did you mean '|known: )"):
        declared(tasks_of(Giver), name)


def test_a_mistyped_task_is_told_the_nearest() -> None:
    with pytest.raises(ProtocolError, match="did you mean 'complain'"):
        declared(tasks_of(Giver), "compain")


RELEASE = Task("t", lambda: (None, {}), {"x": None})


@pytest.mark.parametrize("x", [np.ones(3), np.array(1), np.zeros((0, 2)), np.array([True]), np.ones(2, np.uint8)])
def test_declared_finite_numbers_may_leave(x: np.ndarray) -> None:
    assert checked_release(RELEASE, {"x": x})["x"] is x


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": np.ones(2), "secret": np.ones(2)}, r"declares \['x'\], returned \['secret', 'x'\]"),
        ({}, r"declares \['x'\], returned \[\]"),
        ({"y": np.ones(2)}, r"declares \['x'\], returned \['y'\]"),
        ({"x": np.array([1.0, np.nan])}, "would release NaN or infinity in 'x'; nothing was sent"),
        ({"x": np.array([-np.inf], np.float32)}, "would release NaN or infinity in 'x'; nothing was sent"),
        ({"x": 3.0}, "must release numeric arrays, 'x' is float"),
        ({"x": [1, 2]}, "must release numeric arrays, 'x' is list"),
        ({"x": np.array([None])}, "must release numeric arrays"),
        ({"x": np.array(["a"])}, "must release numeric arrays"),
        ({"x": np.array([1j])}, "must release numeric arrays"),
    ],
)
def test_anything_else_may_not(arrays: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        checked_release(RELEASE, arrays)


NAMES = ("ada", "bo", "cy", "dee")
attempts = st.lists(st.sets(st.sampled_from(NAMES)), max_size=6)


def answered(want: Any, asked: tuple[str, ...], silent: set[str]) -> Replies:
    """What an engine returns when those clients are silent: client i answers with 2^i."""
    here = [name for name in asked if name not in silent]
    arrays = {name: {"Y": np.array([2.0 ** NAMES.index(name)])} for name in here}
    missing = tuple(name for name in asked if name in silent)
    if isinstance(want, Sum):
        total = {"Y": sum(a["Y"] for a in arrays.values())} if arrays else {}
        return Replies(asked, missing, total=total)
    return Replies(asked, missing, each=arrays)


@given(silence=attempts)
@pytest.mark.parametrize("want", [Each(), Sum("Y")], ids=["each", "sum"])
def test_complete_asks_the_missing_ones_again_until_all_have_answered(want: Any, silence: list[set[str]]) -> None:
    generator, to = complete(Ask("multiply", {"Z": np.ones(1)}, want)), NAMES
    ask = next(generator)
    assert ask.to is None
    for silent in [*silence, set()]:
        reply = answered(want, to, silent)
        to = reply.missing
        try:
            ask = generator.send(reply)
        except StopIteration as stop:
            replies = stop.value
            break
        assert (ask.task, ask.want, ask.to) == ("multiply", want, to)
    assert (replies.asked, replies.missing) == (NAMES, ())
    if isinstance(want, Sum):
        assert replies.total["Y"] == 1 + 2 + 4 + 8  # everyone once
    else:
        assert list(replies.each) == list(NAMES)


def test_complete_gives_up_and_names_the_silent() -> None:
    generator = complete(Ask("multiply"), retries=3)
    next(generator)
    for _ in range(3):
        generator.send(answered(Each(), NAMES, {"cy"}))
    with pytest.raises(
        ClientError, match="need an answer to 'multiply' from every client, 'cy' did not answer in 4 tri"
    ):
        generator.send(answered(Each(), NAMES, {"cy"}))
