"""What a site checks of the questions of a run that is not verified: less than a replay, but more than nothing.

Numbers are finite and of the type that the algorithm sends; a block that it declares as orthonormal is. The server
keeps to the algorithm's course (core/course.py): the order of its tasks, and how often each is asked, in how many ways.
Mean and scale are told after the sums that they follow from, and are the same in all questions. What follows from sums
(the mean, the next block) a site cannot work out without the sums: that is what verified runs are for. But it binds its
masks to all that it was told, so that what is told to some sites only gives no sum.

A question that comes once more is no new one: after a lost answer, or in a run that goes on from a checkpoint. If such
a run has lost a client, or goes on at another machine, it may ask otherwise than before, and may do so `AGAIN` times.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple, Protocol

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel.stage import Channel
from fedspan.channel.wire import Message
from fedspan.core.course import SHIFT, UNIT, Course, Turn
from fedspan.core.protocol import AnyServer
from fedspan.core.replay import COARSE_BLOCK, ORTHONORMAL, Basis, Replay, WeightedBasis, departure
from fedspan.errors import ProtocolError
from fedspan.secure.masking import SUM, digest_request

AGAIN = 3  # how often a run may come back to a round, and ask in another way there
_TOLD = "="
_CODES = (np.dtype(np.int8), np.dtype(np.int16))


class AskedOnce(NamedTuple):
    """A question that was asked; or, with `_TOLD` and a name as task, an array that was told in one."""

    round: int
    task: str
    digest: bytes


_Ways = dict[str, dict[int, set[bytes]]]  # task → round → digests of questions


class AskedRecord(Protocol):
    """What was asked in a run, over all its openings at this site."""

    def load(self) -> Iterable[AskedOnce]: ...
    def add(self, asked: AskedOnce) -> None: ...


class CourseCheck:
    """Holds a server to the course of its algorithm, over all openings of a run.

    `after` is the round after which this opening goes on: what was told later is repeated, and counts when it is told
    again. Else sites of which some had heard it before all broke off would bind their masks to different things.
    """

    def __init__(self, course: Course, record: AskedRecord | None = None, after: int = -1) -> None:
        self.course, self.record = course, record
        self.ever: _Ways = {}  # over all openings
        self.now: _Ways = {}  # in this one
        self.told: dict[str, bytes] = {}  # the mean and scale that were told last
        round = -1  # in which something was told: that of the question before it in the record
        for asked in record.load() if record else ():
            _add(self.ever, asked)
            if not asked.task.startswith(_TOLD):
                round = asked.round
            elif round <= after:
                self.told[asked.task] = asked.digest
        self.place = (-1, 0)  # the round, and whose turn it is in it

    def check(self, round: int, task: str, question: Arrays) -> None:
        """Refuse a question whose turn it is not, or that is asked too often."""
        turns = self.course.turns(round)
        at = next((i for i, turn in enumerate(turns) if task in turn.tasks), None)
        if at is None:
            raise ProtocolError(f"This algorithm does not ask for {task!r} in {_name_round(round)}.")
        if (round, at) < self.place:
            raise ProtocolError(f"{task!r} is out of order in {_name_round(round)}.")
        asked, turn = AskedOnce(round, task, digest_request(task, question)), turns[at]
        self._check_counts(asked, turn)
        told = self._read_told(asked, turn, question)
        self.place = (round, at)
        for one in (asked, *told):
            if _add(self.ever, one) and self.record:
                self.record.add(one)
            _add(self.now, one)
        self.told |= {one.task: one.digest for one in told}

    def _check_counts(self, asked: AskedOnce, turn: Turn) -> None:
        missing = [task for task in turn.after if task not in self.ever]
        if missing:
            raise ProtocolError(f"{asked.task!r} is asked after {missing[0]!r} only, which was not asked.")
        now, ever = (_count_ways(ways, asked) for ways in (self.now, self.ever))
        if now > turn.most or ever > turn.most * (1 + AGAIN):
            raise ProtocolError(
                f"{asked.task!r} is asked in at most {turn.most} {'way' if turn.most == 1 else 'ways'} in "
                f"{_name_round(asked.round)}, but comes in another one."
            )
        rounds = {asked.round, *self.ever.get(asked.task, {})}
        if turn.rounds is not None and len(rounds) > turn.rounds + AGAIN:
            raise ProtocolError(f"{asked.task!r} is asked in at most {turn.rounds} rounds, and comes in another one.")

    def _read_told(self, asked: AskedOnce, turn: Turn, question: Arrays) -> list[AskedOnce]:
        """What the question tells of mean and scale, if it is what it may tell."""
        if turn.tells is None:
            return []
        if {name for name in SHIFT if name in question} - set(turn.tells) or not set(turn.tells) <= question.keys():
            names = " and ".join(turn.tells) or "neither mean nor scale"
            raise ProtocolError(f"{asked.task!r} of this algorithm tells {names}, but this question tells others.")
        told = []
        for name in (*turn.tells, *(name for name in UNIT if name in question)):
            x = question[name]
            if x.dtype != np.float64 or x.ndim > 1 or (name in ("scale", *UNIT) and not (x > 0).all()):
                raise ProtocolError(f"The {name} in {asked.task!r} must be float64, (d,), and a scale above 0.")
            one = AskedOnce(0, f"{_TOLD}{name}", digest_request(name, {name: x}))
            if _count_ways(self.now, one) > 1 or _count_ways(self.ever, one) > 1 + AGAIN:
                raise ProtocolError(f"The {name} in {asked.task!r} is not the one that was told before in this run.")
            told.append(one)
        return told


def _add(ways: _Ways, asked: AskedOnce) -> bool:
    """Whether it is new among them."""
    digests = ways.setdefault(asked.task, {}).setdefault(asked.round, set())
    new = asked.digest not in digests
    digests.add(asked.digest)
    return new


def _count_ways(ways: _Ways, asked: AskedOnce) -> int:
    """In how many ways its task is asked in its round, with this one."""
    return len({asked.digest, *ways.get(asked.task, {}).get(asked.round, ())})


def _name_round(round: int) -> str:
    return f"round {round}" if round else "the opening"


class QuestionCheck:
    """One run at one site. A block that comes through a lossy channel is orthonormal only about, and not checked.

    `opening` is a digest of how the run was opened.
    """

    def __init__(
        self,
        server: AnyServer,
        channel: Channel,
        rounds: int,
        record: AskedRecord | None = None,
        opening: bytes = b"",
        after: int = -1,
    ) -> None:
        how, lossy = server.replay(), bool(set(channel.down.kinds) - {"pack"})
        self.how: Replay = {} if isinstance(how, str) or lossy else how
        self.rounds = rounds  # 0: not known
        self.last = (-1, -1)
        self.course, self.opening = CourseCheck(server.course(), record, after), opening

    def bind(self, asked: bytes) -> bytes:
        """A digest of a request with all that it depends on: masks of sites that were told otherwise do not cancel."""
        told = repr(sorted(self.course.told.items())).encode()
        return sha256(b"fedspan told" + self.opening + asked + told).digest()

    def check(self, message: Message, arrays: Arrays) -> None:
        """Refuse a question that no server of this algorithm would ask."""
        place, question = (message.round, message.exchange), {n: x for n, x in arrays.items() if n != SUM}
        if place < self.last or (self.rounds and message.round > self.rounds):
            raise ProtocolError(f"A question for round and exchange {place} is out of order.")
        self.last = place
        for name, x in question.items():
            self._check_array(name, x)
        for name, kind in self.how.get(message.task, {}).items():
            if name in question and isinstance(kind, Basis):
                _check_block(name, question[name], question.get(kind.grid) if kind.grid else None)
            if name in question and isinstance(kind, WeightedBasis):
                for block in question[name].reshape(-1, *question[name].shape[-2:]):
                    _check_block(name, block, None)
        self.course.check(message.round, message.task, question)

    def _check_array(self, name: str, x: Array) -> None:
        if x.dtype.kind == "f":
            if x.dtype.itemsize < 4 or not np.isfinite(x).all():
                raise ProtocolError(f"{name!r} of a question must be finite numbers of 32 or 64 bits.")
        elif x.ndim > 1 and x.dtype.itemsize > 2:
            raise ProtocolError(f"{name!r} of a question is a block of wide integers, which no algorithm sends.")


def _check_block(name: str, V: Array, step: Array | None) -> None:
    """Refuse a block that is not orthonormal, or has another type than one is sent in."""
    fits = V.dtype == np.float64 if step is None else V.dtype in _CODES
    if V.ndim != 2 or not fits:
        raise ProtocolError(f"{name!r} of a question must be a block of float64, or of codes, but is {V.dtype}.")
    most = ORTHONORMAL
    if step is not None:
        V = V * step
        most = max(COARSE_BLOCK, float(np.linalg.norm(step)) * np.sqrt(len(V)))  # what rounding to the grid can do
    if not departure(V) <= most:
        raise ProtocolError(f"The columns of {name!r} in a question are not orthonormal.")
