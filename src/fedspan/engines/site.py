"""The client's end of every engine: one message in, one declared task, one message out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from fedspan._foreign import printable
from fedspan._types import Array, Arrays
from fedspan.channel.link import Receiver, Sender
from fedspan.channel.stage import Channel
from fedspan.channel.wire import Message
from fedspan.core.checkpoint import build, to_c_order
from fedspan.core.protocol import AnyClient, Task, check_release, find_task, tasks_of
from fedspan.core.rng import Streams
from fedspan.core.snapshot import SiteSnapshot
from fedspan.data.clients import blame_client
from fedspan.engines.questions import QuestionCheck
from fedspan.errors import FedspanError, ProtocolError
from fedspan.privacy.guard import AdmittedAnswer, Guard
from fedspan.secure.masking import Party, digest_request, split_request
from fedspan.secure.packing import Exponents, read_exponents
from fedspan.secure.witness import Witness, WitnessMemory


class Question(NamedTuple):
    """A message that was read and may be answered: with `reply`, or by doing `task`."""

    message: Message
    arrays: Arrays
    task: Task | None = None
    wanted: tuple[str, ...] = ()  # the arrays that are to leave
    vault: Party | None = None  # masks them
    asked: bytes = b""  # a digest of the request
    exponents: Exponents | None = None  # of arrays that leave with few bits
    admitted: AdmittedAnswer | None = None  # of a private run: it is written down and charged
    reply: Arrays | None = None


class Site:
    """One client of one run: what it remembers (its state and the memories of its links), and how it answers.

    The client object itself, which holds the data, is handed in with every message: the engine may close it and open
    it again. With a `vault` every array that leaves is masked; its secrets are in no snapshot, so after a restart new
    keys are agreed on. A `witness` masks in its place, and checks what it is asked.

    With `on_not_finite`, nothing is refused because of its values, for a refusal would be an answer: a secure sum
    counts the clients with NaN, infinity or numbers that are too large, noise is added to zeros in their place, and
    what leaves without either leaves as it is, for the server to refuse. `on_not_finite` is told of it.
    """

    __slots__ = (
        "down",
        "guard",
        "kind",
        "name",
        "on_not_finite",
        "questions",
        "seed",
        "started",
        "state",
        "up",
        "vault",
        "witness",
    )

    def __init__(
        self,
        name: str,
        kind: type[AnyClient],
        channel: Channel,
        seed: int,
        guard: Guard | None = None,
        vault: Party | None = None,
        on_not_finite: Callable[[str], None] | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.name, self.kind, self.seed = name, kind, seed
        self.guard, self.vault, self.on_not_finite, self.witness = guard, vault, on_not_finite, witness
        self.down = Receiver(channel.down) if channel.down.kinds else None
        self.up = Sender(channel.up, channel.up.init()[0]) if channel.up.kinds else None
        self.questions: QuestionCheck | None = None  # of a run that is not verified, at a site of a federation
        self.state: object = None
        self.started = False

    def handle(self, message: Message, client: AnyClient) -> Message:
        """Decode, do the task, check that only what it declares leaves, mask it, encode."""
        return self.answer(self.read(message), client)

    def read(self, message: Message) -> Question:
        """Decode a message, see that it may be asked now, and charge it; the client and its data are not touched.

        Phases of secure sums, and what is asked once more, are answered here: such a question has its `reply`.
        """
        if self.up:
            self.up.commit(message.ack)
        arrays = self.down.decode(message) if self.down else message.arrays
        place = (message.round, message.exchange)
        own = message.task.startswith("@")
        reply: Arrays | None = None
        if self.vault:
            reply = self.vault.answer(message.task, arrays, place) if own else self.vault.find_sent(place)
        elif self.witness:
            known = self.witness
            reply = known.answer(message.task, arrays) if own else known.find_sent(message.task, arrays, place)
        if reply is not None:
            return Question(message, arrays, reply=reply)
        task = find_task(tasks_of(self.kind), message.task)
        if self.witness:
            may = self.witness.admit(task, arrays, place)
            question = Question(message, may.arrays, task, may.wanted, asked=may.digest, exponents=may.exponents)
        else:
            question = self._check(message, arrays, task)
        if self.guard:
            with blame_client(self.name):
                question = question._replace(admitted=self.guard.admit(task.name, question.arrays))
        return question

    def _check(self, message: Message, arrays: Arrays, task: Task) -> Question:
        """A question of a run that is not verified, if a server of this algorithm may ask it."""
        masked = self.vault is not None and not task.public
        plain, wanted = split_request(arrays, task.releases) if masked else (arrays, list(task.releases))
        if self.questions:
            self.questions.check(message, plain)
        if self.vault is None or not masked:
            return Question(message, plain, task, tuple(wanted))
        self.vault.check_ready((message.round, message.exchange))
        asked = digest_request(message.task, arrays)
        if self.questions:
            asked = self.questions.bind(asked)
        return Question(message, plain, task, tuple(wanted), self.vault, asked, read_exponents(arrays))

    def answer(self, question: Question, client: AnyClient | None) -> Message:
        """Do the task, check that only what it declares leaves, mask it, encode."""
        message, reply, state = question.message, question.reply, self.state
        rng = Streams(self.seed, message.round, message.exchange, self.name)
        if question.task is not None and client is not None:
            if not self.started:
                state, self.started = client.init(), True
                self.state = state
            with blame_client(self.name):
                if question.admitted:
                    rng = rng._replace(secret=question.admitted.secret)
                noised = self.guard.find_sent(question.admitted) if self.guard and question.admitted else None
                if noised is not None:
                    reply = self._mask(question, question.task, noised)
                else:
                    with np.errstate(all="ignore") if self.on_not_finite else nullcontext():  # it looks at them itself
                        state, released = question.task.call(client, self.state, question.arrays, rng)
                    reply = self._protect(question, question.task, released)
        if reply is None:
            raise ProtocolError(f"There is no answer to {message.task!r}.")
        out = message._replace(arrays=to_c_order(reply), ack=self.down.last if self.down else 0)
        if self.up:
            out = self.up.encode(out, rng)
        if state is not self.state:
            self.state = to_c_order(state)
        return out

    def _protect(self, question: Question, task: Task, released: Arrays) -> Arrays:
        """What leaves of what a task gave: only what it declares, with noise and masks if the run has them."""
        masked = question.vault is not None or (self.witness is not None and not task.public)
        odd = (self.guard is not None or not masked) and not _are_finite(released)
        if self.guard and self.on_not_finite:
            released = _clear_not_finite(released)
        may_be_odd = self.guard is None and (masked or self.on_not_finite is not None)
        reply = check_release(task, released, finite=not may_be_odd)
        if self.guard and question.admitted:
            reply = self.guard.protect(question.admitted, task.releases, reply)
        return self._mask(question, task, reply, odd)

    def _mask(self, question: Question, task: Task, reply: Arrays, odd: bool = False) -> Arrays:
        """The arrays that were asked for, masked if the run has masks. `odd`: some were not finite or too large."""
        place = (question.message.round, question.message.exchange)
        reply = {name: reply[name] for name in question.wanted}
        if question.vault:
            reply = question.vault.mask(reply, place, question.asked, question.exponents)
            odd = odd or question.vault.saturated
        elif self.witness:
            reply = self.witness.release(reply, place, question.asked, question.exponents)
            odd = odd or self.witness.saturated
        if odd and self.on_not_finite:
            self.on_not_finite(task.name)
        return reply

    def snapshot(self) -> SiteSnapshot:
        """What must survive a crash."""
        return SiteSnapshot(
            self.state,
            self.up.snapshot() if self.up else None,
            self.down.snapshot() if self.down else None,
            self.guard.snapshot() if self.guard else None,
            self.witness.snapshot() if self.witness else None,
        )

    def restore(self, saved: SiteSnapshot) -> None:
        """Go on from a snapshot."""
        self.state, self.started = build(self.kind.State, saved.state), True
        if self.up and saved.up:
            self.up.restore(saved.up)
        if self.down and saved.down:
            self.down.restore(saved.down)
        if self.guard:
            self.guard.restore(saved.released or {})
        if self.witness and saved.witness is not None:
            self.witness.restore(build(WitnessMemory, saved.witness))


def _are_finite(arrays: Arrays) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")


def _clear_not_finite(arrays: Arrays) -> dict[str, Array]:
    """The arrays with zeros in place of NaN and infinity."""
    return {
        name: np.asarray(np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)) if array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }


def explain(error: Exception) -> str:
    """One line for the ledger and for the person at the other end: no traceback leaves a site."""
    return printable(str(error) if isinstance(error, FedspanError) else f"{type(error).__name__}: {error}")
