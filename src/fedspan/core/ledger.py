"""The ledger: every exchange and every round of a run, as it happened. Costs are sums over it.

It grows while the run goes on, and nothing is taken back: a round that was cut off by a crash and repeated is in it
twice, because its bytes were sent twice.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from fedspan._files import write_whole
from fedspan.errors import InputError
from fedspan.privacy.accountant import epsilon


@dataclass(frozen=True)
class Exchange:
    """One question to a cohort. The lists run along `clients`; bytes are those of the encoded messages."""

    round: int
    exchange: int
    task: str
    clients: tuple[str, ...]
    bytes_down: tuple[int, ...]
    bytes_up: tuple[int, ...]
    seconds: tuple[float, ...]
    missing: tuple[str, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    noise: float = 0.0  # deviation of the noise over the sensitivity of what left; 0: none was added
    secure: bool = False  # the server saw the sum over the clients only
    sampled: float = 1.0  # the probability with which a row was in it, by a draw that only the client saw


@dataclass(frozen=True)
class RoundEnd:
    """A round is over: how long it took, and what the server knows of its progress. Round 0 is the opening."""

    round: int
    seconds: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Started:
    """A run began: the algorithm's class, the family it belongs to, its options, the seed, and why it was chosen.

    `why` is a phrase for a report: "as requested", "the fastest by the cost model: …".
    """

    algorithm: str
    family: str
    options: dict[str, object]
    seed: int
    why: str


@dataclass(frozen=True)
class Note:
    """A sentence for the person who reads the report: a resumption, a forecast, a warning."""

    text: str


Event = Started | Exchange | RoundEnd | Note
_EVENT_KINDS: dict[str, type[Started] | type[Exchange] | type[RoundEnd] | type[Note]] = {
    "started": Started,
    "exchange": Exchange,
    "round": RoundEnd,
    "note": Note,
}
_EVENT_NAMES = {kind: name for name, kind in _EVENT_KINDS.items()}


class Ledger:
    """A list of events; with a path, also a file of JSON lines that grows with it."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.events: list[Event] = []
        self._file: IO[str] | None = None
        if path is not None:
            if Path(path).exists():
                self.events = list(_read(Path(path)))
                self.save(path)  # drops a last line that a crash cut short
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - kept open while the run goes on

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """The ledger in a file, which stays as it is."""
        ledger = cls()
        ledger.events = list(_read(Path(path)))
        return ledger

    def add(self, event: Event) -> None:
        """Append, and hand the line to the operating system at once."""
        self.events.append(event)
        if self._file:
            self._file.write(_to_line(event))
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    @property
    def rounds(self) -> int:
        """Rounds of the algorithm. The opening (round 0: sizes, mean, scale) is not one; its bytes are counted."""
        return len({e.round for e in self.events if isinstance(e, RoundEnd) and e.round > 0})

    @property
    def exchanges(self) -> int:
        """Questions and answers, the opening's included: what latency multiplies."""
        return sum(1 for _ in self._exchanges())

    def count(self, task: str) -> int:
        """How often that task was asked for."""
        return sum(1 for e in self._exchanges() if e.task == task)

    @property
    def bytes_up(self) -> int:
        return sum(sum(e.bytes_up) for e in self._exchanges())

    @property
    def bytes_down(self) -> int:
        return sum(sum(e.bytes_down) for e in self._exchanges())

    @property
    def seconds(self) -> float:
        return sum(e.seconds for e in self.events if isinstance(e, RoundEnd))

    @property
    def started(self) -> Started | None:
        """How the last run in this ledger began; None in ledgers from before this event existed."""
        return next((e for e in reversed(self.events) if isinstance(e, Started)), None)

    @property
    def notes(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Note)]

    def epsilon(self, delta: float) -> float:
        """The ε of everything that left the client that released most: infinite if anything left without noise.

        A release counts when it leaves, whether or not it arrives. The server knows which clients it asks, so partial
        participation does not amplify privacy: a client only saves what it was not asked for.
        """
        if not 0 < delta < 1:
            raise InputError(f"delta must be between 0 and 1, but is {delta!r}.")
        spent: dict[str, Counter[tuple[float, float]]] = {}
        for event in self._exchanges():
            for client, sent in zip(event.clients, event.bytes_up, strict=True):
                if sent and event.noise == 0:
                    return math.inf
                if sent:
                    spent.setdefault(client, Counter())[event.noise, event.sampled] += 1
        if not spent:
            return 0.0
        distinct = {frozenset(releases.items()) for releases in spent.values()}
        return max(epsilon(dict(releases), delta) for releases in distinct)

    def history(self) -> list[dict[str, float]]:
        """One dict per round: its metrics, and bytes and seconds so far."""
        rows, up, down, seconds = [], 0, 0, 0.0
        for event in self.events:
            if isinstance(event, Exchange):
                up, down = up + sum(event.bytes_up), down + sum(event.bytes_down)
            elif isinstance(event, RoundEnd):
                seconds += event.seconds
                sums = {"bytes_up": up, "bytes_down": down, "seconds": seconds}
                rows.append({"round": event.round, **event.metrics, **sums})
        return rows

    def rows(self) -> list[dict[str, object]]:
        """One dict per event."""
        return [{"event": _EVENT_NAMES[type(e)], **asdict(e)} for e in self.events]

    def save(self, path: str | os.PathLike[str]) -> None:
        write_whole(path, "".join(map(_to_line, self.events)))

    def _exchanges(self) -> Iterator[Exchange]:
        return (e for e in self.events if isinstance(e, Exchange))


def event_from(row: Mapping[str, object]) -> Event:
    """The event that a line of a ledger holds."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    make: Callable[..., Event] = _EVENT_KINDS[str(fields.pop("event"))]
    return make(**fields)


def _to_line(event: Event) -> str:
    return json.dumps({"event": _EVENT_NAMES[type(event)], **asdict(event)}, separators=(",", ":")) + "\n"


def _read(path: Path) -> Iterator[Event]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line else None
            if row is not None:
                yield event_from(row)
        except (ValueError, KeyError, TypeError, AttributeError):
            if number < len(lines):
                raise InputError(
                    f"Line {number} of {path} is not an event of a ledger. Restore the file from a copy."
                ) from None
