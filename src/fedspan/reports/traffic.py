"""The report's sections on messages: what each exchange showed to the server, and each client's part in the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedspan.core.ledger import Exchange, Ledger
from fedspan.reports.disclosure import describe_task
from fedspan.reports.drawing.client_charts import draw_participation
from fedspan.reports.format import Html, escape, format_bytes, format_duration
from fedspan.reports.page import render_charts, render_figure, render_table

_CLIENTS, _STRIPS = 500, 40  # how many are listed, and how many drawn
_ASKED, _ANSWERED = 1, 2  # a client's part in a round
AUDIT_FINDINGS = "audit.txt"  # what an audit found, for the report that is written after it


def render_exchanges(ledger: Ledger) -> str:
    """A table of every kind of question: when it was asked, how many bytes it took, and what its answers showed."""
    groups: dict[str, list[Exchange]] = {}
    for event in ledger.events:
        if isinstance(event, Exchange):
            groups.setdefault(event.task, []).append(event)
    rows = []
    for task, events in groups.items():
        rounds = sorted({e.round for e in events})
        when = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        up, down = sum(sum(e.bytes_up) for e in events), sum(sum(e.bytes_down) for e in events)
        shown = describe_task(ledger.started, task) or "nothing"
        rows.append([when, task, format_bytes(up), format_bytes(down), shown])
    every = [e for events in groups.values() for e in events]
    whose = "summed over all clients" if every and all(e.secure for e in every) else "of each client"
    noise = ", with noise" if every and all(e.noise > 0 for e in every) else ""
    head = ["round", "exchange", "up", "down", f"what the server saw, {whose}{noise}"]
    return render_table(head, rows, numbers={2, 3}, kind="wordy", save_as="exchanges")


def render_audit_link(folder: Path | None) -> str:
    """What an audit found, or how to run one."""
    if folder is None:
        return ""
    found = folder / AUDIT_FINDINGS
    if found.is_file():
        items = "".join(f"<li>{escape(line)}</li>" for line in found.read_text(encoding="utf-8").splitlines())
        return f'<p>The audit (<a href="audit.html">audit.html</a>) found:</p><ul>{items}</ul>'
    place = escape(shlex.quote(folder.name))
    if (folder / "transcript").is_dir():
        return f"<p>No attack has been run on this transcript yet. To run one: <code>fedspan audit {place}</code></p>"
    return (
        "<p>No attack has been run on these answers, because the messages were not kept. To keep and attack them: "
        "<code>fedspan run job.toml --transcript --out DIR</code>, then <code>fedspan audit DIR</code></p>"
    )


@dataclass
class ClientPart:
    """What one client did in a run."""

    up: int = 0
    down: int = 0
    seconds: float = 0.0
    asked: int = 0
    answered: int = 0
    rounds: dict[int, int] = field(default_factory=dict)  # round → whether it answered, or was only asked

    @property
    def rounds_answered(self) -> int:
        return sum(part == _ANSWERED for part in self.rounds.values())


def collect_parts(ledger: Ledger) -> dict[str, ClientPart]:
    """Each client's part in the run, by name."""
    found: dict[str, ClientPart] = {}
    for event in ledger.events:
        if not isinstance(event, Exchange):
            continue
        for client, up, down, seconds in zip(
            event.clients, event.bytes_up, event.bytes_down, event.seconds, strict=True
        ):
            part, answered = found.setdefault(client, ClientPart()), client not in event.missing
            part.up, part.down, part.seconds = part.up + up, part.down + down, part.seconds + seconds
            part.asked, part.answered = part.asked + 1, part.answered + answered
            if event.round > 0:
                here = _ANSWERED if answered else _ASKED
                part.rounds[event.round] = max(part.rounds.get(event.round, 0), here)
    return dict(sorted(found.items()))


def render_clients(ledger: Ledger) -> str:
    """A table of all clients, and a chart of who took part when, if not all did always."""
    found, rounds = collect_parts(ledger), ledger.rounds
    slowest = max((part.seconds for part in found.values()), default=0.0) or 1.0
    missed = any(part.answered < part.asked for part in found.values())
    head = ["client", "up", "down", "time", "rounds", *(["answered"] if missed else [])]
    rows = [
        [
            name,
            format_bytes(part.up),
            format_bytes(part.down),
            _render_meter(part.seconds, slowest),
            f"{part.rounds_answered} of {rounds}",
            *([f"{part.answered} of {part.asked}"] if missed else []),
        ]
        for name, part in list(found.items())[:_CLIENTS]
    ]
    rest = len(found) - _CLIENTS
    more = f"<p>{rest:,} more clients are in ledger.jsonl.</p>" if rest > 0 else ""
    table = render_table(head, rows, numbers=set(range(1, len(head))), save_as="clients")
    return _render_strips(found, rounds) + table + more


def _render_meter(seconds: float, most: float) -> Html:
    bar = f'<span class="meter"><span style="width:{100 * seconds / most:.0f}%"></span></span>'
    return Html(f"{bar}{escape(format_duration(seconds))}")


def _render_strips(found: Mapping[str, ClientPart], rounds: int) -> str:
    if rounds < 2 or all(part.rounds_answered == rounds for part in found.values()):
        return ""
    some = list(found.items())[:_STRIPS]
    strips = {name: [part.rounds.get(r, 0) for r in range(1, rounds + 1)] for name, part in some}
    caption = "Participation by round (blue: answered; orange: asked, but did not answer; blank: not asked)"
    caption += f"; the first {_STRIPS} of {len(found):,} clients" if len(found) > _STRIPS else ""
    return render_charts([render_figure(caption, draw_participation(strips, caption))])
