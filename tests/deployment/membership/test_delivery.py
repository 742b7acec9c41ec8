"""Who has noted a list of removed names, and who has not: from what sites say to the notice that reaches them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedspan.deployment.approval.waiting import find_refusal
from fedspan.deployment.membership import delivery
from fedspan.deployment.membership.delivery import deliver_removals
from fedspan.deployment.membership.removals import REMOVAL_NOTICE, REMOVALS_TAKEN
from fedspan.deployment.operations.federation_status import SiteStatus

REMOVALS = {"federation": "study", "number": 3, "names": ["bob@x.org"], "signature": "…"}


class Queue:
    """What delivery uses of `flare_admin`, with a queue in which the named sites note the list."""

    def __init__(self, noting: list[str]) -> None:
        self.noting = noting
        self.asked: dict[str, Any] = {}
        self.changed: list[tuple[str, bool]] = []
        self.aborted = False

    @contextmanager
    def connect(self, kit: Path) -> Iterator[None]:
        yield None

    def change_site(self, session: None, site: str, *, enabled: bool) -> None:
        self.changed.append((site, enabled))

    def send_job(self, session: None, path: Path) -> str:
        self.asked = json.loads((path / "meta.json").read_text(encoding="utf-8"))["resource_spec"]
        return "job"

    def read_meta(self, session: None, job: str) -> dict[str, list[str]]:
        words = "; ".join(f"{site}: {REMOVALS_TAKEN}" for site in self.noting)
        return {"schedule_history": [f"2026: failed. Details: {words}"]}

    def abort(self, session: None, job: str) -> None:
        self.aborted = True


@pytest.fixture
def deliver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def send(queue: Queue, sites: list[SiteStatus], site: str | None = None, *, gone: bool = True) -> Any:
        monkeypatch.setattr(delivery, "flare_admin", queue)
        monkeypatch.setattr(delivery, "survey_sites", lambda session: sites)
        monkeypatch.setattr(delivery, "_NOTICE_PATIENCE", 0.3)
        monkeypatch.setattr(delivery, "_NOTICE_POLL", 0.01)
        return deliver_removals(Path("kit"), REMOVALS, site, gone=gone)

    return send


def there(*names: str) -> list[SiteStatus]:
    return [SiteStatus(name, answers=True) for name in names]


def test_all_sites_that_are_there_note_it(deliver: Callable[..., Any]) -> None:
    names = [f"hospital-{i:02}" for i in range(40)]  # their words are longer than a line
    queue = Queue(names)
    done = deliver(queue, there(*names))
    assert done.noted == tuple(names)
    assert done.missing == ()
    assert queue.aborted
    assert queue.changed == []
    assert queue.asked == {name: {REMOVAL_NOTICE: REMOVALS} for name in names}


def test_those_that_are_away_or_silent_are_named(deliver: Callable[..., Any]) -> None:
    queue = Queue(["north"])
    done = deliver(queue, [*there("east", "north"), SiteStatus("south", answers=False)])
    assert done.noted == ("north",)
    assert done.missing == ("east", "south")


def test_a_removed_site_is_cut_off_and_not_waited_for(deliver: Callable[..., Any]) -> None:
    queue = Queue(["north"])
    done = deliver(queue, there("east", "north"), "east")
    assert queue.changed == [("east", False)]
    assert done.noted == ("north",)
    assert done.missing == ()
    back = Queue(["east", "north"])
    assert deliver(back, there("east", "north"), "east", gone=False).noted == ("east", "north")
    assert back.changed == [("east", True)]


def test_with_nobody_there_nothing_is_sent(deliver: Callable[..., Any]) -> None:
    queue = Queue([])
    done = deliver(queue, [SiteStatus("east", answers=False)])
    assert (done.noted, done.missing) == ((), ("east",))
    assert queue.asked == {}


def test_a_site_that_talks_without_end_is_cut_off() -> None:
    line = f"2026: failed. Details: east: refused: {'x' * 50_000}; north: {REMOVALS_TAKEN}"
    assert len(find_refusal(line)) < 1100
