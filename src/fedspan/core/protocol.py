"""The vocabulary: what a server asks, what a client may be asked, what comes back.

An algorithm is a `Server` and a `Client` written side by side. The server's round is a generator: it yields an `Ask`,
is sent the `Replies`, and returns its new state, which is plain data. It knows nothing of engines, bytes or files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import FunctionType
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.course import Course, Turn, course_of
from fedspan.core.replay import Replay
from fedspan.core.rng import Streams
from fedspan.errors import ProtocolError, suggest
from fedspan.privacy.release import PUBLIC, Declared, Public, Release, Sensitivity

__all__ = [
    "NOT_ASKED",
    "PUBLIC",
    "AnyClient",
    "AnyServer",
    "Array",
    "Arrays",
    "Ask",
    "Client",
    "Course",
    "Declared",
    "Each",
    "Narrow",
    "Needs",
    "Parts",
    "Release",
    "Replay",
    "Replies",
    "Round",
    "Sensitivity",
    "Server",
    "Streams",
    "Sum",
    "Task",
    "Turn",
    "Want",
    "check_release",
    "complete",
    "declared_releases",
    "find_task",
    "task",
    "tasks_of",
]

S = TypeVar("S")
C = TypeVar("C", covariant=True)


@dataclass(frozen=True)
class Each:
    """Every reply by itself."""


@dataclass(frozen=True, init=False)
class Sum:
    """Only the sum over the clients of these arrays: all that secure aggregation lets the server see."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True, init=False)
class Parts:
    """Every reply by itself, of these arrays, which are masked: a session of secure sums adds them up by groups."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


Want = Each | Sum | Parts


NOT_ASKED = -128  # the exponent of a column that need not be sent


@dataclass(frozen=True)
class Narrow:
    """In how few bits an integer array (d, k) may travel in a secure sum, because its sum is nearly known.

    Entry (j, l) of the sum is expected within 2^(rows[j] + columns[l] - 1) of `center`, and so many bits are sent. Only
    the exponents (int8) are sent to clients. Columns that are `NOT_ASKED` are not sent at all. Columns in which an
    entry is further off come back marked in `Replies.wrapped`, without a sum, to be asked for again.
    """

    center: Array  # (d, k) int64
    rows: Array  # (d,)
    columns: Array  # (k,)


@dataclass(frozen=True)
class Ask:
    """What the server asks of every client of this round's cohort (or of the clients named in `to`).

    `privately` holds arrays for single clients, which are sent uncompressed. `everyone`: the round cannot go on without
    an answer from every client that is asked, because the sum over some of them answers another problem. `optional`: in
    a run with `min_clients` nobody need answer, because the algorithm has another way to go on. `narrow` says what is
    known of the sums of integer arrays, so that a secure sum takes fewer bits; other sessions take no notice of it.
    `hidden` ends a run whose sums are secure in place of a question that only single replies could answer.

    An algorithm goes on with the very arrays that it has sent, not with copies of them: a site that repeats its steps
    (see `Server.replay`) puts what the server sent into these arrays.
    """

    task: str
    arrays: Arrays = field(default_factory=dict)
    want: Want = Each()
    to: tuple[str, ...] | None = None
    privately: Mapping[str, Arrays] = field(default_factory=dict)
    everyone: bool = False
    optional: bool = False
    narrow: Mapping[str, Narrow] = field(default_factory=dict)
    hidden: str = ""


@dataclass(frozen=True)
class Replies:
    """What came back. `each` is filled for `Each`, in the order of client ids; `total` for `Sum`.

    `wrapped` marks the columns of narrow arrays (`Ask.narrow`) whose sum could not be found.
    """

    asked: tuple[str, ...]
    missing: tuple[str, ...] = ()
    each: Mapping[str, Arrays] = field(default_factory=dict)
    total: Arrays = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)  # why a missing client failed, if it said so
    exhausted: tuple[str, ...] = ()  # missing clients that the session itself has asked as often as is allowed
    wrapped: Mapping[str, Array] = field(default_factory=dict)


Round = Generator[Ask, Replies, S]


class Server(Protocol[S]):
    """The server's half. Subclasses are frozen dataclasses of options, so that their repr names the run.

    `init` is a generator too: what must be known before the first round (sizes, mean) it asks of *all* clients, as
    round 0. `State` is a frozen dataclass of arrays, numbers, strings and such dataclasses: a checkpoint can hold it.
    """

    State: ClassVar[type]
    client: ClassVar[type[AnyClient]]
    family: ClassVar[str] = ""  # "spectral", "gcca", "personalized", "learning", "vertical": what reports group by

    def init(self, rng: Streams) -> Round[S]: ...
    def round(self, state: S, rng: Streams) -> Round[S]: ...
    def done(self, state: S) -> bool: ...
    def estimate(self, state: S) -> Array: ...
    def metrics(self, state: S) -> dict[str, float]: ...

    def client_options(self) -> dict[str, float | int | str | bool]:
        """What the client's constructor is told besides its data: plain values, so that a job file can carry them."""
        return {}

    @abstractmethod
    def asks(self) -> frozenset[str]:
        """Exactly the tasks that a run with these options may ask for. In a federation a site answers no others."""

    def course(self) -> Course:
        """In which order the tasks of `asks()` come, and in how many ways each may be asked: a site allows no more."""
        return course_of(self.asks())

    def planned(self) -> tuple[Release, ...]:
        """All that a run releases, from which its noise is planned; empty if it cannot be combined with noise."""
        return ()

    def batch_rows(self) -> int:
        """How many rows of a client a sum is over that is over a batch of them; 0: no sum is."""
        return 0

    def held_out_rows(self, rows: int) -> int:
        """How many of a client's rows are held out, over which there are sums of their own; 0: none are."""
        return 0

    def simulates(self) -> bool:
        """Whether the clients' secret draws come from the seed, so that whoever knows it can repeat them."""
        return False

    def replay(self) -> Replay | str:
        """How a site compares the server's questions with those that it expects itself, for verified sums.

        Or, in a phrase that follows "because", why runs with these options cannot be verified. A run qualifies if all
        that its server goes on with is in its options, the seed, sums, and replies that are public.
        """
        return "it does not say how its questions are to be compared"

    def accept(self, state: S, arrays: Arrays) -> S | None:
        """The state in which a round would begin by asking with these arrays, if rounding alone can have led to it.

        For questions that the sums do not determine, because a spectrum is degenerate. None: they do.
        """
        return None


Needs = Literal["rows", "entities", "labelled", "target", "network", "survey", "ids"]
"""What a client is made of: rows, rows with ids, with labels, with a number to predict, rows and a network, columns, or
ids alone."""


class Client(Protocol[C]):
    """The client's half, made next to its data, and made again if it was closed meanwhile: only `C` is remembered.

    `State` is its type: a frozen dataclass of plain data, or NoneType for a client that remembers nothing. `needs` says
    what its constructor is given as data. `least_rows` is a rule of its site: sums over some of its rows are over no
    fewer than that, whatever the server asks.
    """

    State: ClassVar[type]
    needs: ClassVar[Needs] = "rows"
    least_rows: int = 1

    def init(self) -> C: ...


def require_rows(client: Client[Any], rows: int) -> None:
    """Refuse a question whose sum would be over fewer rows than the client's site sums over; over none is no harm."""
    if 0 < rows < client.least_rows:
        raise ProtocolError(
            f"A sum over {rows} rows was asked for, but sums at this site are over at least {client.least_rows} "
            "(min_rows in its file)."
        )


AnyServer = Server[Any]
AnyClient = Client[Any]
"""An algorithm's halves where it does not matter what they remember."""


@dataclass(frozen=True)
class Task:
    """A declared task: its function, what it releases, and what that shows to the server, in words for a report.

    An array without a sensitivity cannot be combined with noise.
    """

    name: str
    call: Callable[..., tuple[object, Arrays]]
    releases: Mapping[str, Declared]
    shows: str = ""

    @property
    def public(self) -> bool:
        """Whether nothing that it releases needs protection."""
        return all(isinstance(declared, Public) for declared in self.releases.values())


F = TypeVar("F", bound=Callable[..., tuple[object, Arrays]])
_DECLARED = "__fedspan_task__"


def task(*, releases: Mapping[str, Declared], shows: str) -> Callable[[F], F]:
    """Declare a client method `(self, state, arrays, rng) -> (state, arrays)` as callable over the wire.

    `releases` names the arrays that it returns, with how much one row can change each; `shows` says in plain words what
    they show of the client's data ("its number of rows and its column sums"). The report lists them, so they may be
    empty only for a task that releases nothing.
    """

    def declare(method: F) -> F:
        odd = [name for name in (method.__name__, *releases) if not (name.isascii() and name.isidentifier())]
        if odd:
            raise ProtocolError(f"Tasks and arrays need plain ASCII names, but one is called {odd[0]!r}.")
        if releases and not shows.strip():
            raise ProtocolError(
                f"Task {method.__name__!r} releases {', '.join(releases)}, but does not say what that shows. "
                'Say it in words for the report: @task(releases=…, shows="its number of rows").'
            )
        setattr(method, _DECLARED, Task(method.__name__, method, dict(releases), shows))
        return method

    return declare


@cache
def tasks_of(client: type) -> dict[str, Task]:
    """The declared tasks of a client class: nothing else can be called over the wire."""
    members = {name: member for kind in reversed(client.__mro__) for name, member in vars(kind).items()}
    declared = [vars(member).get(_DECLARED) for member in members.values() if isinstance(member, FunctionType)]
    return {task.name: task for task in sorted(filter(None, declared), key=lambda task: task.name)}


def declared_releases(client: type) -> dict[str, Mapping[str, Declared]]:
    """What the tasks of a client class release: task → array → what is known of it."""
    return {name: task.releases for name, task in tasks_of(client).items()}


def find_task(tasks: Mapping[str, Task], name: str) -> Task:
    """The task of that name, or a refusal."""
    if name not in tasks:
        raise ProtocolError(f"{name!r} is not a declared task. {suggest(name, tasks)}")
    return tasks[name]


def check_release(task: Task, arrays: Arrays, finite: bool = True) -> Arrays:
    """The arrays, if they are exactly those that the task declares, numeric and finite; otherwise nothing leaves.

    `finite=False` for a secure sum, which counts NaN and infinity inside the sum: a refusal would say whose they are.
    """
    if arrays.keys() != task.releases.keys():
        raise ProtocolError(f"Task {task.name!r} declares {sorted(task.releases)}, but returned {sorted(arrays)}.")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ProtocolError(
                f"Task {task.name!r} must release numeric arrays, but {name!r} is {type(array).__name__}."
            )
        if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ProtocolError(f"Task {task.name!r} would release NaN or infinity in {name!r}, so nothing was sent.")
    return arrays


def complete(ask: Ask) -> Round[Replies]:
    """Ask, and wait for every client's answer: the sum over a subset answers another problem."""
    return (yield replace(ask, everyone=True))
