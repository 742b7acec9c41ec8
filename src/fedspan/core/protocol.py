"""The vocabulary: what a server asks, what a client may be asked, what comes back.

An algorithm is a `Server` and a `Client` written side by side. The server's round is a generator: it yields an `Ask`,
is sent the `Replies`, and returns its new state, which is plain data. It knows nothing of engines, bytes or files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from fedspan._types import Array as Array
from fedspan._types import Arrays as Arrays
from fedspan.core.rng import Streams
from fedspan.errors import ClientError, ProtocolError, nearest

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


Want = Each | Sum


@dataclass(frozen=True)
class Ask:
    """What the server wants of every client of this round's cohort (or of the clients named in `to`)."""

    task: str
    arrays: Arrays = field(default_factory=dict)
    want: Want = Each()
    to: tuple[str, ...] | None = None
    privately: Mapping[str, Arrays] = field(default_factory=dict)  # what one client only is told, sent as it is


@dataclass(frozen=True)
class Replies:
    """What came back. `each` is filled for `Each`, in the order of client ids; `total` for `Sum`."""

    asked: tuple[str, ...]
    missing: tuple[str, ...] = ()
    each: Mapping[str, Arrays] = field(default_factory=dict)
    total: Arrays = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)  # why a missing client failed, if it said so


Round = Generator[Ask, Replies, S]


class Server(Protocol[S]):
    """The server's half. Subclasses are frozen dataclasses of options, so that their repr names the run.

    `init` is a generator too: what must be known before the first round (sizes, mean) it asks of *all* clients, as
    round 0. `State` is a frozen dataclass of arrays, numbers, strings and such dataclasses: a checkpoint is a file.
    """

    State: ClassVar[type]
    client: type[Client[Any]]

    def init(self, rng: Streams) -> Round[S]: ...
    def round(self, state: S, rng: Streams) -> Round[S]: ...
    def done(self, state: S) -> bool: ...
    def estimate(self, state: S) -> Array: ...
    def metrics(self, state: S) -> dict[str, float]: ...

    def client_options(self) -> dict[str, float | int | str | bool]:
        """What the client's constructor is told besides its data: plain values, so that a job file can carry them."""
        return {}

    def asks(self) -> frozenset[str]:
        """The tasks that a run may ask for. In a federation a site answers no others."""
        return frozenset(tasks_of(self.client))


class Client(Protocol[C]):
    """The client's half, made next to its data (and made again if it was closed meanwhile): only `C` is remembered.

    `State` is its type: a frozen dataclass of plain data, or NoneType for a client that remembers nothing. `needs` says
    what its constructor is given as data: "rows", "entities" (rows with ids), "labelled" rows, or a "network" too.
    """

    State: ClassVar[type]
    needs: ClassVar[str] = "rows"

    def init(self) -> C: ...


@dataclass(frozen=True)
class Sensitivity:
    """One row of norm at most C changes the released array by at most C**power in Frobenius norm."""

    power: int

    def bound(self, C: float, replace_one: bool = False) -> float:
        """By how much one row more or less changes the array; or one row in the place of another.

        Replacing is removing and adding: at most twice as much. Counts change by 1 still, and for releases of second
        order, positive semidefinite as aaᵀ is, ‖aaᵀ - bbᵀ‖_F ≤ √2 C² (nothing is negative in their inner product).
        """
        return C**self.power * ({0: 1.0, 2: 2**0.5}.get(self.power, 2.0) if replace_one else 1.0)


@dataclass(frozen=True)
class Public:
    """The released array says nothing of the values in the rows: shapes, or digests of ids that all clients hold."""


PUBLIC = Public()
Declared = Sensitivity | Public | None


@dataclass(frozen=True)
class Task:
    """A declared task: its function and what it releases. An array without a sensitivity cannot be combined with DP."""

    name: str
    call: Callable[..., tuple[Any, Arrays]]
    releases: Mapping[str, Declared]

    @property
    def public(self) -> bool:
        """Whether nothing that it releases needs protection."""
        return all(isinstance(declared, Public) for declared in self.releases.values())


def task(*, releases: Mapping[str, Declared]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a client method `(self, state, arrays, rng) -> (state, arrays)` as callable over the wire."""

    def declare(method: Callable[..., Any]) -> Callable[..., Any]:
        odd = [name for name in (method.__name__, *releases) if not (name.isascii() and name.isidentifier())]
        if odd:
            raise ProtocolError(f"need plain ASCII names for tasks and arrays, got {odd[0]!r}")
        method.__fedspan_task__ = Task(method.__name__, method, dict(releases))  # type: ignore[attr-defined]
        return method

    return declare


@cache
def tasks_of(client: type) -> dict[str, Task]:
    """The declared tasks of a client class: nothing else can be called over the wire."""
    found = (getattr(getattr(client, name), "__fedspan_task__", None) for name in dir(client))
    return {task.name: task for task in found if isinstance(task, Task)}


def declared(tasks: Mapping[str, Task], name: str) -> Task:
    """The task of that name, or a refusal."""
    if name not in tasks:
        raise ProtocolError(f"need a declared task, got {name!r}; {nearest(name, tasks)}")
    return tasks[name]


def checked_release(task: Task, arrays: Arrays) -> Arrays:
    """The arrays, if they are just those that the task declares, numeric and finite; else nothing leaves."""
    if arrays.keys() != task.releases.keys():
        raise ProtocolError(f"task {task.name!r} declares {sorted(task.releases)}, returned {sorted(arrays)}")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ProtocolError(f"task {task.name!r} must release numeric arrays, {name!r} is {type(array).__name__}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ProtocolError(f"task {task.name!r} would release NaN or infinity in {name!r}; nothing was sent")
    return arrays


def complete(ask: Ask, retries: int = 30) -> Round[Replies]:
    """Ask until everyone has answered, the missing ones again: the sum over a subset answers another problem."""
    replies = yield ask
    asked, each, total = replies.asked, dict(replies.each), dict(replies.total)
    for _ in range(retries):
        if not replies.missing:
            return Replies(asked, (), {name: each[name] for name in asked if name in each}, total)
        replies = yield Ask(ask.task, ask.arrays, ask.want, to=replies.missing)
        each.update(replies.each)
        total = {k: total[k] + v if k in total else v for k, v in replies.total.items()} or total
    why = "".join(f" ({client!r}: {reason})" for client, reason in list(replies.failures.items())[:1])
    raise ClientError(
        f"need an answer to {ask.task!r} from every client, {', '.join(map(repr, replies.missing[:5]))} did not "
        f"answer in {retries + 1} tries{why}; bring the client back and resume, or use fedpower with participation"
    )
