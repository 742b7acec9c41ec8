"""The ledger: every exchange and every round of a run, as it happened. Costs are sums over it.

It grows while the run goes on, and nothing is taken back: a round that was cut off by a crash and repeated is in it
twice, because its bytes were sent twice.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, get_args, get_origin, get_type_hints

from fedspan._files import open_private, write_whole
from fedspan._foreign import parse_json
from fedspan.errors import InputError
from fedspan.privacy.accountant import epsilon
from fedspan.privacy.noised_count import NoisedCount


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
    release: str = ""  # names what left under a plan: the same name again is the same bytes, and costs nothing


@dataclass(frozen=True)
class Asked:
    """A question of a private run, written down before it is sent. If no exchange follows, all count as answering."""

    round: int
    task: str
    clients: tuple[str, ...]
    release: str
    noise: float
    sampled: float


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
class Counted:
    """A private run has counted the rows: about how many there are, and the deviation of the noise in that number."""

    rows: float
    deviation: float


@dataclass(frozen=True)
class Note:
    """A sentence for the person who reads the report: a resumption, a forecast, a warning."""

    text: str


Event = Started | Asked | Exchange | RoundEnd | Counted | Note
_EVENT_KINDS: dict[str, type[Started] | type[Asked] | type[Exchange] | type[RoundEnd] | type[Counted] | type[Note]] = {
    "started": Started,
    "asked": Asked,
    "exchange": Exchange,
    "round": RoundEnd,
    "counted": Counted,
    "note": Note,
}
_EVENT_NAMES = {kind: name for name, kind in _EVENT_KINDS.items()}
_FOREIGN_ERROR = re.compile(
    r"^(\w*(?:Error|Exception|Exit|Interrupt|Iteration|Warning)): .*", re.DOTALL
)  # see `explain`
_FIELD_TYPES = {kind: get_type_hints(kind) for kind in _EVENT_KINDS.values()}
_MEMBERS: dict[object, set[type]] = {int: {int}, float: {float, int, bool}, str: {str}, bool: {bool}}


def shorten_failures(failures: Mapping[str, str]) -> dict[str, str]:
    """Why clients failed, as it may be passed on: of errors of other libraries, which may quote data, only the kind."""
    return {client: _FOREIGN_ERROR.sub(r"\1", why) for client, why in failures.items()}


class Ledger:
    """A list of events; with a path, also a file of JSON lines that grows with it."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.events: list[Event] = []
        self._file: IO[str] | None = None
        self._mirror: Path | None = None
        if path is not None:
            if Path(path).exists():
                self.events = list(_read(Path(path)))
                write_whole(path, self._to_lines())  # drops a last line that a crash cut short
            self._file = open(path, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115 - kept open in a run

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """The ledger in a file, which stays as it is."""
        ledger = cls()
        ledger.events = list(_read(Path(path)))
        return ledger

    def add(self, event: Event) -> None:
        """Append, and hand the line to the operating system at once; what may leave is on disk before it does."""
        self.events.append(event)
        self._write(event)
        if self._mirror and isinstance(event, Asked | Exchange) and event.release:
            with self._mirror.open("a", encoding="utf-8") as file:
                file.write(_to_line(event))
                file.flush()
                os.fsync(file.fileno())

    def _write(self, event: Event) -> None:
        if self._file:
            self._file.write(_to_line(event))
            self._file.flush()
            if isinstance(event, Asked):
                os.fsync(self._file.fileno())

    def mirror(self, path: Path) -> None:
        """Also write down in that file what private runs ask for and release; and go on with what it says.

        A run that is resumed with a new ledger so knows what has left before.
        """
        self._mirror = path
        known = Counter(_to_line(event) for event in self.events)
        for event in _read(path) if path.exists() else ():
            line = _to_line(event)
            if known[line]:
                known[line] -= 1
            else:
                self.events.append(event)
                self._write(event)

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

    @property
    def questions(self) -> int:
        """Questions that were sent, or may have been: in private runs they are written down before."""
        return sum(1 for e in self.events if isinstance(e, Asked | Exchange))

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
    def counted(self) -> NoisedCount | None:
        """The noised number of rows that the last private run found; None if there was none."""
        events = (e for e in reversed(self.events) if isinstance(e, Counted))
        return next((NoisedCount(e.rows, e.deviation) for e in events), None)

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
        named: dict[str, set[str]] = {}
        for client, release, noise, sampled in self._released():
            if noise == 0:
                return math.inf
            if release not in named.setdefault(client, set()):
                spent.setdefault(client, Counter())[noise, sampled] += 1
            named[client] |= {release} if release else set()
        if not spent:
            return 0.0
        distinct = {frozenset(releases.items()) for releases in spent.values()}
        return max(epsilon(dict(releases), delta) for releases in distinct)

    def releases_of(self, run: str, task: str) -> set[str]:
        """The names of what a private run has released, or may have, with that task."""
        names = {e.release for e in self.events if isinstance(e, Asked | Exchange) and e.task == task}
        return {name for name in names if name.startswith(f"{run}:")}

    def first_answered(self, run: str) -> tuple[str, ...]:
        """Who answered the first question of a private run: the clients over which all its sums must be."""
        own = [e for e in self._exchanges() if e.release.startswith(f"{run}:")]
        first = [e for e in own if e.release == own[0].release]
        return tuple(sorted({client for e in first for client in e.clients if client not in e.missing}))

    def _released(self) -> Iterator[tuple[str, str, float, float]]:
        """(client, name, noise, sampled) of all that has left, or may have: a question whose end is not known."""
        waiting: Asked | None = None
        for event in (*self.events, None):
            if isinstance(event, Exchange):
                for client, sent in zip(event.clients, event.bytes_up, strict=True):
                    if sent:
                        yield client, event.release, event.noise, event.sampled
            elif waiting is not None:
                for client in waiting.clients:
                    yield client, waiting.release, waiting.noise, waiting.sampled
            waiting = event if isinstance(event, Asked) else None

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
        write_whole(path, self._to_lines(), public=True)

    def _to_lines(self) -> str:
        return "".join(map(_to_line, self.events))

    def _exchanges(self) -> Iterator[Exchange]:
        return (e for e in self.events if isinstance(e, Exchange))


def event_from(row: object) -> Event:
    """The event that a line of a ledger holds; what is none is a ValueError."""
    name = row.get("event") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(name, str) or name not in _EVENT_KINDS:
        raise ValueError("it is not an event")
    kind = _EVENT_KINDS[name]
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items() if name != "event"}
    for name, value in values.items():
        if name not in _FIELD_TYPES[kind] or not _is_of_type(value, _FIELD_TYPES[kind][name]):
            raise ValueError(f"{name!r} does not belong there, or is of another type")
    make: Callable[..., Event] = kind
    try:
        event = make(**values)
    except TypeError:
        raise ValueError("a field is missing") from None
    if isinstance(event, Exchange):
        _check_lists(event)
    return event


def _is_of_type(value: object, hint: object) -> bool:
    """Whether a value is of a type that the fields of events have. Lists may be long, so they are looked at as one."""
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and set(map(type, value)) <= _MEMBERS[inner[0]]
    if get_origin(hint) is dict:
        free = inner[1] is object
        return isinstance(value, dict) and (free or set(map(type, value.values())) <= _MEMBERS[inner[1]])
    return type(value) in _MEMBERS[hint]


def _check_lists(event: Exchange) -> None:
    """Refuse an exchange whose lists do not run along its clients, or whose noise is none."""
    if {len(event.bytes_down), len(event.bytes_up), len(event.seconds)} != {len(event.clients)}:
        raise ValueError("its lists are not as long as its clients are many")
    if not (event.noise >= 0 and 0 < event.sampled <= 1):
        raise ValueError(f"its noise is {event.noise!r} with samples of {event.sampled!r}")


def _to_line(event: Event) -> str:
    return json.dumps({"event": _EVENT_NAMES[type(event)], **asdict(event)}, separators=(",", ":")) + "\n"


def _read(path: Path) -> Iterator[Event]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line:
                yield event_from(parse_json(line, constants=True))
        except ValueError as error:
            if number < len(lines):
                raise InputError(
                    f"Line {number} of {path} is not an event of a ledger: {error}. Restore the file from a copy."
                ) from None
