"""The transport in memory by itself: time-outs, faults, and what it lets through."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedspan
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.site_service import SiteService
from fedspan.engines import Loopback
from fedspan.engines.loopback import Call, Deliver

ASKED = json.dumps({"fedspan": fedspan.__version__, "table": {}})


@pytest.fixture
def services(make_three: Callable[..., LoopbackFederation]) -> dict[str, SiteService]:
    return {name: SiteService(name, folder) for name, folder in make_three().sites.items()}


def test_a_site_answers_as_it_would_anywhere(services: dict[str, SiteService]) -> None:
    answer = Loopback(services).describe("north", ASKED, 60.0)
    assert answer == services["north"].describe(ASKED)
    assert json.loads(answer)["rows"] == 90


def test_a_late_site_goes_on_after_its_caller_gave_up(services: dict[str, SiteService]) -> None:
    released, ended = threading.Event(), threading.Event()

    def wait_first(call: Call, deliver: Deliver) -> Any:
        released.wait()
        answer = deliver(call)
        ended.set()
        return answer

    transport = Loopback(services, wait_first)
    with pytest.raises(TimeoutError, match=r"^Site 'north' did not answer within 0.05 s.$"):
        transport.describe("north", ASKED, 0.05)
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)


def test_what_is_between_can_change_questions_and_answers_and_lose_them(services: dict[str, SiteService]) -> None:
    def tamper(call: Call, deliver: Deliver) -> Any:
        if call.site == "north":
            return deliver(call._replace(message=json.dumps({"fedspan": "0.0.1", "table": {}})))
        if call.site == "south":
            return deliver(call)[::-1]
        raise TimeoutError("lost")

    transport = Loopback(services, tamper)
    assert "The server has fedspan 0.0.1" in json.loads(transport.describe("north", ASKED, 60.0))["error"]
    assert transport.describe("south", ASKED, 60.0) == services["south"].describe(ASKED)[::-1]
    with pytest.raises(TimeoutError, match=r"^lost$"):
        transport.describe("east", ASKED, 60.0)


def test_a_site_that_raises_raises_at_its_caller(services: dict[str, SiteService]) -> None:
    def fail(call: Call, deliver: Deliver) -> Any:
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        Loopback(services, fail).describe("north", ASKED, 60.0)


@pytest.mark.parametrize("message", [{"fedspan": "0.1.0"}, np.zeros(2), None, 1.5, True, b"{}"])
def test_only_what_a_network_would_carry_is_carried(services: dict[str, SiteService], message: Any) -> None:
    with pytest.raises(TypeError, match="Only text travels to 'describe' of a site"):
        Loopback(services).describe("north", message, 60.0)
    with pytest.raises(TypeError, match="A question travels as bytes"):
        Loopback(services).exchange("north", "{}" if isinstance(message, bytes) else message, -1, 60.0)
