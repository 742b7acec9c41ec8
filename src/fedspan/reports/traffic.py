"""The report's sections on what went over the wire: what each exchange showed, and each client's part in the run."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from fedspan.cli.progress import duration, size
from fedspan.core.ledger import Exchange, Ledger
from fedspan.reports.page import Html, figure, table
from fedspan.reports.points import participation
from fedspan.reports.releases import shown

_CLIENTS, _STRIPS = 500, 40  # how many are listed, and how many drawn
AUDITED = "audit.txt"  # what an audit found, for the report that is written after it


def exchanges(ledger: Ledger) -> str:
    """Every kind of question: when, how many bytes, and what its answers told."""
    groups: dict[str, list[Exchange]] = {}
    for event in ledger.events:
        if isinstance(event, Exchange):
            groups.setdefault(event.task, []).append(event)
    rows = []
    for task, events in groups.items():
        rounds = sorted({e.round for e in events})
        when = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        up, down = (sum(sum(getattr(e, name)) for e in events) for name in ("bytes_up", "bytes_down"))
        rows.append([when, task, size(up), size(down), shown(ledger, task) or "nothing"])
    every = [e for events in groups.values() for e in events]
    who = "of all clients together" if all(e.secure for e in every) else "of each client"
    who += ", with noise" if every and all(e.noise > 0 for e in every) else ""
    return table(["round", "exchange", "up", "down", f"what the server saw {who}"], rows, numbers={2, 3}, kind="wordy")


def audit(folder: Path | None) -> str:
    """What an audit found, or how to make one."""
    if folder is None:
        return ""
    found = folder / AUDITED
    if found.is_file():
        items = "".join(f"<li>{escape(line)}</li>" for line in found.read_text(encoding="utf-8").splitlines())
        return f'<p>The audit (<a href="audit.html">audit.html</a>) found:</p><ul>{items}</ul>'
    place = shlex.quote(str(folder))
    if (folder / "transcript").is_dir():
        how = f"To try it: <code>fedspan audit {escape(place)}</code>"
    else:
        how = (
            "To try it, keep the messages of a run and attack them: <code>fedspan run job.toml --transcript --out "
            "DIR</code>, then <code>fedspan audit DIR</code>"
        )
    return f"<p>What a server could work out from these answers has not been tried. {how}</p>"


@dataclass
class Part:
    """What one client did."""

    up: int = 0
    down: int = 0
    seconds: float = 0.0
    asked: int = 0
    answered: int = 0
    rounds: dict[int, int] = field(default_factory=dict)  # round → 2: answered, 1: was asked and did not


def parts(ledger: Ledger) -> dict[str, Part]:
    """Each client's part in the run, by name."""
    found: dict[str, Part] = {}
    for event in ledger.events:
        if isinstance(event, Exchange):
            lists = zip(event.clients, event.bytes_up, event.bytes_down, event.seconds, strict=True)
            for client, up, down, seconds in lists:
                part, there = found.setdefault(client, Part()), client not in event.missing
                part.up, part.down, part.seconds = part.up + up, part.down + down, part.seconds + seconds
                part.asked, part.answered = part.asked + 1, part.answered + there
                if event.round > 0:
                    part.rounds[event.round] = max(part.rounds.get(event.round, 0), 1 + there)
    return dict(sorted(found.items()))


def clients(ledger: Ledger) -> str:
    """A table of all clients, and a picture of who took part when, if not all did always."""
    found, rounds = parts(ledger), ledger.rounds
    slowest = max((part.seconds for part in found.values()), default=0.0) or 1.0
    missed = any(part.answered < part.asked for part in found.values())
    head = ["client", "up", "down", "time", "rounds", *(["answered"] if missed else [])]
    rows = [
        [
            name,
            size(part.up),
            size(part.down),
            _meter(part.seconds, slowest),
            f"{Counter(part.rounds.values())[2]} of {rounds}",
            *([f"{part.answered} of {part.asked}"] if missed else []),
        ]
        for name, part in list(found.items())[:_CLIENTS]
    ]
    more = f"<p>And {len(found) - _CLIENTS:,} more, in ledger.jsonl.</p>" if len(found) > _CLIENTS else ""
    return _strips(found, rounds) + table(head, rows, numbers=set(range(1, len(head)))) + more


def _meter(seconds: float, most: float) -> Html:
    bar = f'<span class="meter"><span style="width:{100 * seconds / most:.0f}%"></span></span>'
    return Html(f"{bar}{escape(duration(seconds))}")


def _strips(found: dict[str, Part], rounds: int) -> str:
    if rounds < 2 or all(Counter(part.rounds.values())[2] == rounds for part in found.values()):
        return ""
    some = list(found.items())[:_STRIPS]
    strips = {name: [part.rounds.get(r, 0) for r in range(1, rounds + 1)] for name, part in some}
    caption = "Who took part when (blue: answered; orange: was asked and did not; empty: not asked)"
    caption += f"; the first {_STRIPS} of {len(found):,}" if len(found) > _STRIPS else ""
    return f'<div class="charts">{figure(caption, participation(strips, caption))}</div>'
