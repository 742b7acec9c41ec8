"""The server's half of an algorithm, repeated at a site: what it must ask next, given what it has been told.

It goes through the very steps of `core.run.run`, from the same seed, on sums that the site has checked. A question is
compared with the expected one and then adopted, so that the rounding of two machines does not add up. What was asked
in a round already and is asked again (because a narrow sum wrapped around) must come as it came before, to the bit:
otherwise a server that says so would have several questions instead of one, each within what rounding allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.checkpoint import build, to_c_order, to_writable
from fedspan.core.protocol import AnyServer, Ask, Replies, Round
from fedspan.core.replay import adopt_question, check_question
from fedspan.core.rng import SERVER, Streams
from fedspan.errors import ProtocolError
from fedspan.secure.masking import Place


@dataclass(frozen=True)
class Heard:
    """What an exchange gave: the sums, or the replies that are public; and who is missing.

    With `wrapped` there is no sum yet, because those columns of a narrow array (`Ask.narrow`) are asked for again.
    """

    total: dict[str, Array] = field(default_factory=dict)
    each: dict[str, dict[str, Array]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    wrapped: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One exchange of the round that is under way: the question as it came, and what was heard (None: not yet)."""

    question: dict[str, Array]
    heard: Heard | None = None


@dataclass(frozen=True)
class ReplicaMemory:
    """Where a replica stands: the rounds that are over, the server's state after them, and the steps since then."""

    done: int
    state: object
    steps: tuple[Step, ...]


class Replica:
    """The server as a site expects it. `rounds` is the most that the run may take."""

    def __init__(self, server: AnyServer, seed: int, clients: tuple[str, ...], rounds: int) -> None:
        how = server.replay()
        if isinstance(how, str):
            raise ProtocolError(f"{type(server).__name__} cannot be verified with these options, because {how}.")
        self.server, self.seed, self.clients, self.rounds, self.how = server, seed, clients, rounds, how
        self.done, self.state = -1, None  # no round is over, not even round 0
        self.steps: list[Step] = []
        self.ask: Ask | None = None
        self._begin()

    @property
    def place(self) -> Place:
        """The round and exchange of the question that is expected, or that waits for its answer."""
        heard = sum(step.heard is not None for step in self.steps)
        return self.done + 1, heard

    @property
    def waits(self) -> bool:
        """Whether a question was asked, and what it gave is not known yet."""
        return bool(self.steps) and self.steps[-1].heard is None

    def _begin(self) -> None:
        """Begin the next round, if there is one."""
        rng = Streams(self.seed, self.done + 1, 0, SERVER)
        self.ask, self.steps = None, []
        if self.done < 0:
            self._generator: Round[Any] = self.server.init(rng)
        elif self.done < self.rounds and not self.server.done(self.state):
            self._generator = self.server.round(self.state, rng)
        else:
            return
        self._advance(None)

    def _advance(self, replies: Replies | None) -> None:
        try:
            ask = next(self._generator) if replies is None else self._generator.send(replies)
        except StopIteration as stop:
            self.done, self.state = self.done + 1, _to_own(stop.value)
            self._begin()
            return
        self.ask = replace(ask, arrays={name: _to_writable(x) for name, x in ask.arrays.items()})

    def take(self, task: str, arrays: Arrays, place: Place) -> Ask:
        """The expected question, once what came is found to be it; then it is what came."""
        try:
            ask = self._compare(task, arrays, place)
        except ProtocolError:
            if not self._restart(arrays):
                raise
            ask = self._compare(task, arrays, place)
        adopt_question(ask.arrays, arrays)
        self.steps.append(Step({name: np.array(x) for name, x in arrays.items()}))
        return ask

    def _compare(self, task: str, arrays: Arrays, place: Place) -> Ask:
        ask = self.expect(place)
        if ask.task != task:
            raise ProtocolError(f"The next question is {ask.task!r}, not {task!r}.")
        check_question(self.how[task], ask.arrays, arrays)
        self._check_repeated(ask.arrays, arrays)
        return ask

    def _check_repeated(self, expected: Arrays, came: Arrays) -> None:
        """Refuse other arrays than before, where the algorithm asks with the same ones again."""
        for name, x in expected.items():
            before = [step.question[name] for step in self.steps if name in step.question]
            if any(np.array_equal(x, y) for y in before) and not np.array_equal(x, came[name]):
                raise ProtocolError(f"{name!r} is asked again in a round, and must be what it was before.")

    def expect(self, place: Place) -> Ask:
        """The question that must come next, at that place."""
        if self.ask is None:
            raise ProtocolError("The run is over, so no question is answered.")
        if self.waits or self.place != place:
            raise ProtocolError(f"A question for round and exchange {place} is not the next one.")
        return self.ask

    def _restart(self, arrays: Arrays) -> bool:
        """Begin the round again from another state that the sums lead to as well, if the algorithm says so."""
        if self.done < 0 or self.steps or self.done >= self.rounds:
            return False
        state = self.server.accept(self.state, arrays)
        if state is None:
            return False
        self.state = _to_own(state)
        self._begin()
        return self.ask is not None

    def pass_over(self, place: Place) -> Ask:
        """The expected question, which goes to others only."""
        ask = self.expect(place)
        self.steps.append(Step({}))
        return ask

    def feed(self, heard: Heard) -> None:
        """Go on with what the last question gave."""
        if self.ask is None or not self.waits:
            raise ProtocolError("An answer came without a question.")
        to = self.clients if self.ask.to is None else self.ask.to
        self.steps[-1] = replace(self.steps[-1], heard=heard)
        replies = Replies(to, heard.missing, heard.each, heard.total, wrapped=heard.wrapped)
        try:
            self._advance(replies)
        except Exception as error:  # as at the server, which ends the run
            self.ask = None
            raise ProtocolError(f"The run cannot go on: {error}") from None

    def snapshot(self) -> ReplicaMemory:
        """Plain data from which `restore` goes on."""
        return ReplicaMemory(self.done, self.state, tuple(self.steps))

    def restore(self, saved: ReplicaMemory) -> None:
        """Go on where a replica stood: the steps of its round are taken again."""
        self.done = saved.done
        self.state = None if saved.done < 0 else _to_own(build(self.server.State, saved.state))
        self._begin()
        for step in saved.steps:
            if self.ask is None:
                raise ProtocolError("What this site remembers of the run does not fit together. Start a new run.")
            adopt_question({name: self.ask.arrays[name] for name in step.question}, step.question)
            self.steps.append(replace(step, heard=None))
            if step.heard is not None:
                self.feed(step.heard)


def _to_writable(x: Array) -> Array:
    """The array itself, as what is adopted must reach the algorithm; a copy only of what cannot be written."""
    return x if x.flags.writeable else np.array(x)


def _to_own(state: Any) -> Any:
    """A state in C order as the server holds it, with arrays that can be written."""
    return to_writable(to_c_order(state))
