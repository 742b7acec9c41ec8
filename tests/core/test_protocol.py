"""What a client may be asked and what may leave it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toy import Giver

from fedspan.core.protocol import (
    Ask,
    Replies,
    Sensitivity,
    Sum,
    Task,
    check_release,
    complete,
    find_task,
    task,
    tasks_of,
)
from fedspan.errors import ProtocolError


class Quiet(Giver):
    """Overrides a task without declaring it, and declares one more."""

    def leak(self, state: Any, arrays: Any, rng: Any) -> Any:
        return state, {}

    @task(releases={"y": Sensitivity(2)}, shows="one number")
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
    with pytest.raises(ProtocolError, match=rf"^'{name}' is not a declared task\. (Did you mean '|Known: )"):
        find_task(tasks_of(Giver), name)


def test_a_mistyped_task_is_told_the_nearest() -> None:
    with pytest.raises(ProtocolError, match="Did you mean 'complain'"):
        find_task(tasks_of(Giver), "compain")


RELEASE = Task("t", lambda: (None, {}), {"x": None})


@pytest.mark.parametrize("x", [np.ones(3), np.array(1), np.zeros((0, 2)), np.array([True]), np.ones(2, np.uint8)])
def test_declared_finite_numbers_may_leave(x: np.ndarray) -> None:
    assert check_release(RELEASE, {"x": x})["x"] is x


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"x": np.ones(2), "secret": np.ones(2)}, r"declares \['x'\], but returned \['secret', 'x'\]"),
        ({}, r"declares \['x'\], but returned \[\]"),
        ({"y": np.ones(2)}, r"declares \['x'\], but returned \['y'\]"),
        ({"x": np.array([1.0, np.nan])}, "would release NaN or infinity in 'x', so nothing was sent"),
        ({"x": np.array([-np.inf], np.float32)}, "would release NaN or infinity in 'x', so nothing was sent"),
        ({"x": 3.0}, "must release numeric arrays, but 'x' is float"),
        ({"x": [1, 2]}, "must release numeric arrays, but 'x' is list"),
        ({"x": np.array([None])}, "must release numeric arrays"),
        ({"x": np.array(["a"])}, "must release numeric arrays"),
        ({"x": np.array([1j])}, "must release numeric arrays"),
    ],
)
def test_anything_else_may_not(arrays: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        check_release(RELEASE, arrays)


def test_complete_asks_the_same_of_everyone() -> None:
    """That those who did not answer are asked again is the run's work: see test_retries.py."""
    ask = Ask("multiply", {"Z": np.ones(1)}, Sum("Y"), ("ada", "bo"), {"ada": {"own": np.ones(2)}})
    generator = complete(ask)
    assert next(generator) == replace(ask, everyone=True)
    replies = Replies(("ada", "bo"), total={"Y": np.ones(1)})
    with pytest.raises(StopIteration) as stop:
        generator.send(replies)
    assert stop.value.value is replies
