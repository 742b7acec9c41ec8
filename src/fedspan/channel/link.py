"""The two ends of one link. A memory moves on only when the other side is known to have the message.

A lost message must not set the two memories apart. So the sender codes against its old memory until the receiver has
acknowledged the new one; every message says which memory it was coded against; and the receiver keeps the memories
before and after the last message, because it cannot know whether its acknowledgement arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedspan._types import Arrays, Draw
from fedspan.channel.stage import Stage, State
from fedspan.channel.wire import Message
from fedspan.errors import ProtocolError


@dataclass(frozen=True)
class SenderMemory:
    """What the encoding end of a link must not forget."""

    base: int
    memory: State
    number: int
    pending: State


@dataclass(frozen=True)
class ReceiverMemory:
    """What the decoding end of a link must not forget: its memories, by the number of the message that led to each."""

    last: int
    memories: dict[int, State]


class Sender:
    """The end that encodes."""

    def __init__(self, stage: Stage, memory: State) -> None:
        self.stage, self.memory = stage, memory  # a stage never changes a memory, it makes a new one
        self.base: int = 0
        self.number: int = 0
        self.pending: State = None  # the memory after message `number`, the last one sent

    def encode(self, message: Message, rng: Draw) -> Message:
        """The message with its arrays encoded and numbered."""
        return self.stamp(message, *self.stage.encode(message.arrays, self.memory, rng))

    def stamp(self, message: Message, arrays: Arrays, pending: State) -> Message:
        """The message with arrays that were encoded against this memory (a broadcast encodes them once for many)."""
        self.number, self.pending = self.number + 1, pending
        return message._replace(arrays=arrays, number=self.number, base=self.base)

    def commit(self, number: int) -> None:
        """Move on to the memory after message `number`, which the receiver has acknowledged, if it is the last sent."""
        if number == self.number != self.base:
            self.base, self.memory, self.pending = self.number, self.pending, None

    def snapshot(self) -> SenderMemory:
        return SenderMemory(self.base, self.memory, self.number, self.pending)

    def restore(self, saved: SenderMemory) -> None:
        self.base, self.memory = saved.base, saved.memory
        self.number, self.pending = saved.number, saved.pending


class Receiver:
    """The end that decodes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.last = 0
        self.memories: dict[int, State] = {0: stage.init()[1]}

    def decode(self, message: Message) -> Arrays:
        """The arrays of a message, decoded against the memory it names."""
        if message.number < self.last:
            raise ProtocolError(f"Message {message.number} came after message {self.last}, so it is not used.")
        if message.base not in self.memories:
            raise ProtocolError(
                f"Message {message.number} was coded against memory {message.base}, but only the memories "
                f"{sorted(self.memories)} are known here. Restart both sides from the same checkpoint."
            )
        arrays, after = self.stage.decode(message.arrays, self.memories[message.base])
        self.memories = {message.base: self.memories[message.base], message.number: after}
        self.last = message.number
        return arrays

    def snapshot(self) -> ReceiverMemory:
        return ReceiverMemory(self.last, dict(self.memories))

    def restore(self, saved: ReceiverMemory) -> None:
        self.last, self.memories = saved.last, dict(saved.memories)
