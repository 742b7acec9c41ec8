"""The runs of a site, as its book tells them: one line of a table for each, the latest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from fedspan._types import Json
from fedspan.deployment.site_rules.book import BookLine


@dataclass(frozen=True)
class SiteRun:
    """One run at this site, so far.

    `state` "open": it was opened and may go on; "ended": its job is over; "refused": the last word was a refusal.
    """

    run: str
    by: str
    algorithm: str
    table: str
    begun: str
    last: str  # when something was written of it last
    rounds: int  # at most
    round: int = 0  # of the last answer
    answers: int = 0
    bytes: int = 0
    charges: Mapping[int, float] = field(default_factory=dict)  # epsilon, by its parts that have ended
    state: str = "open"
    reason: str = ""  # of a refusal

    @property
    def charged(self) -> float | None:
        """At most this epsilon was spent by what has ended; None: no noise was added."""
        return sum(self.charges.values()) if self.charges else None

    def silent_for(self, now: datetime | None = None) -> float:
        """For how many seconds nothing was written of it."""
        return ((now or datetime.now(UTC)) - datetime.fromisoformat(self.last)).total_seconds()


def list_site_runs(entries: Iterable[BookLine]) -> list[SiteRun]:
    """All runs that a book's lines tell of, the one that was heard of last first."""
    found: dict[str, SiteRun] = {}
    for entry in entries:
        name = entry.facts.get("run")
        if not isinstance(name, str) or not entry.when:
            continue
        known = found.pop(name, None)
        if entry.event == "opened":
            opened = _open_run(name, entry)
            known = opened if known is None else _go_on(known, opened)
        elif known is not None:
            known = _add_line(known, entry)
        if known is not None:
            found[name] = known  # in the order of their last lines
    return list(reversed(found.values()))


def _open_run(name: str, entry: BookLine) -> SiteRun:
    facts = entry.facts
    by, algorithm, table = (str(facts.get(key, "")) for key in ("by", "algorithm", "table"))
    return SiteRun(name, by, algorithm, table, entry.when, entry.when, _to_count(facts.get("rounds")))


def _go_on(known: SiteRun, opened: SiteRun) -> SiteRun:
    """A further part of a run, or the same one once more."""
    return replace(
        known,
        by=opened.by or known.by,
        algorithm=opened.algorithm,
        last=opened.last,
        rounds=opened.rounds,
        state="open",
        reason="",
    )


def _add_line(known: SiteRun, entry: BookLine) -> SiteRun:
    facts, known = entry.facts, replace(known, last=entry.when)
    if entry.event == "answered":
        size = known.bytes + _to_count(facts.get("bytes"))
        return replace(known, round=_to_count(facts.get("round")), answers=known.answers + 1, bytes=size)
    if entry.event == "refused":
        return replace(known, state="refused", reason=str(facts.get("reason") or f"code {facts.get('code', '?')}"))
    if entry.event == "ended":
        charges, charged = dict(known.charges), facts.get("charged")
        if isinstance(charged, int | float):
            charges[_to_count(facts.get("part"))] = float(charged)  # of all that the part has sent, resumed or not
        return replace(known, charges=charges, state="refused" if known.state == "refused" else "ended")
    return known


def _to_count(value: Json) -> int:
    return value if type(value) is int else 0
