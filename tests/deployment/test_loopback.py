"""The transport in memory by itself: time-outs, faults, and what it lets through."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedspan
from fedspan.deployment.loopback import Call, Deliver, LoopbackFederation, LoopbackTransport
from fedspan.deployment.site_service import Station

ASKED = json.dumps({"fedspan": fedspan.__version__, "table": {}})


@pytest.fixture
def stations(make_three: Callable[..., LoopbackFederation]) -> dict[str, Station]:
    return {name: Station(name, folder) for name, folder in make_three().sites.items()}


def test_a_site_answers_as_it_would_anywhere(stations: dict[str, Station]) -> None:
    answer = LoopbackTransport(stations)("north", "describe", 60.0, ASKED)
    assert answer == stations["north"].describe(ASKED)
    assert json.loads(answer)["rows"] == 90


def test_a_late_site_goes_on_after_its_caller_gave_up(stations: dict[str, Station]) -> None:
    released, ended = threading.Event(), threading.Event()

    def wait_first(call: Call, deliver: Deliver) -> Any:
        released.wait()
        answer = deliver(call)
        ended.set()
        return answer

    transport = LoopbackTransport(stations, wait_first)
    with pytest.raises(TimeoutError, match=r"^Site 'north' did not answer within 0.05 s.$"):
        transport("north", "describe", 0.05, ASKED)
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)


def test_what_is_between_can_change_questions_and_answers_and_lose_them(stations: dict[str, Station]) -> None:
    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.site == "north":
            return deliver(call._replace(arguments=(json.dumps({"fedspan": "0.0.1", "table": {}}),)))
        if call.site == "south":
            return deliver(call)[::-1]
        raise TimeoutError("lost")

    transport = LoopbackTransport(stations, tamper)
    assert "the server has 0.0.1" in json.loads(transport("north", "describe", 60.0, ASKED))["error"]
    assert transport("south", "describe", 60.0, ASKED) == stations["south"].describe(ASKED)[::-1]
    with pytest.raises(TimeoutError, match=r"^lost$"):
        transport("east", "describe", 60.0, ASKED)


def test_a_site_that_raises_raises_at_its_caller(stations: dict[str, Station]) -> None:
    def fail(call: Call, deliver: Deliver) -> Any:
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        LoopbackTransport(stations, fail)("north", "describe", 60.0, ASKED)


@pytest.mark.parametrize("argument", [{"fedspan": "0.1.0"}, np.zeros(2), None, 1.5, True])
def test_only_what_a_network_would_carry_is_carried(stations: dict[str, Station], argument: Any) -> None:
    with pytest.raises(TypeError, match="Only text, bytes and whole numbers travel to a site"):
        LoopbackTransport(stations)("north", "describe", 60.0, argument)


@pytest.mark.parametrize("method", ["_describe", "__init__", "kit"])
def test_only_what_a_site_publishes_can_be_called(stations: dict[str, Station], method: str) -> None:
    with pytest.raises(ValueError, match="A site answers describe, open, exchange, not"):
        LoopbackTransport(stations)("north", method, 60.0)
