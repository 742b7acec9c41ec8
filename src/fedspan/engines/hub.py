"""The server's end of every engine: what goes out to whom, and what comes back, in the order of client ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel.link import Receiver, Sender
from fedspan.channel.stage import Channel, State
from fedspan.channel.wire import Message
from fedspan.core.checkpoint import to_c_order
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.rng import SERVER, Streams
from fedspan.core.snapshot import HubSnapshot
from fedspan.errors import ProtocolError
from fedspan.secure.packing import PackedParts, PackedSum


class Hub:
    """The server's ends of all links. Without a memory there is nothing to keep per client."""

    def __init__(self, channel: Channel, seed: int) -> None:
        self.channel, self.seed = channel, seed
        self._start = channel.down.init()[0]  # shared, so that a first broadcast is encoded once
        self.down: dict[str, Sender] = {}
        self.up: dict[str, Receiver] = {}

    def address(self, ask: Ask, cohort: Iterable[str], round: int, exchange: int) -> Iterator[tuple[str, Message]]:
        """The encoded message to each client. Clients that stand at the same memory get the same arrays, coded once."""
        plain = Message(ask.task, round, exchange, to_c_order(ask.arrays))  # as the wire would give them
        rng = Streams(self.seed, round, exchange, SERVER)
        coded: dict[int, tuple[Arrays, State]] = {}
        for client in cohort:
            message = plain
            if self.channel.up.kinds:
                if client not in self.up:
                    self.up[client] = Receiver(self.channel.up)
                message = message._replace(ack=self.up[client].last)
            if self.channel.down.kinds:
                if client not in self.down:
                    self.down[client] = Sender(self.channel.down, self._start)
                sender = self.down[client]
                key = id(sender.memory)
                if key not in coded:
                    coded[key] = self.channel.down.encode(plain.arrays, sender.memory, rng)
                message = sender.stamp(message, *coded[key])
            if client in ask.privately:
                message = message._replace(arrays={**message.arrays, **to_c_order(ask.privately[client])})
            yield client, message

    def receive(self, client: str, message: Message) -> Arrays:
        """The arrays of a client's reply; its arrival also acknowledges what was sent to it."""
        if client in self.down:
            self.down[client].commit(message.ack)
        return self.up[client].decode(message) if client in self.up else message.arrays

    def snapshot(self) -> HubSnapshot:
        """The memories of all links, if the channel has any."""
        return HubSnapshot(
            {client: sender.snapshot() for client, sender in self.down.items()},
            {client: receiver.snapshot() for client, receiver in self.up.items()},
        )

    def restore(self, saved: HubSnapshot) -> None:
        """Go on from a snapshot."""
        for client, sent in saved.down.items():
            self.down[client] = Sender(self.channel.down, self._start)
            self.down[client].restore(sent)
        for client, received in saved.up.items():
            self.up[client] = Receiver(self.channel.up)
            self.up[client].restore(received)


class Collector:
    """Folds replies, which must come in the order of client ids (so that sums repeat to the bit), into `Replies`."""

    def __init__(self, ask: Ask, cohort: tuple[str, ...]) -> None:
        self.ask, self.cohort = ask, cohort
        self.each: dict[str, Arrays] = {}
        self.total: dict[str, Array] = {}
        self.missing: list[str] = []
        self.failures: dict[str, str] = {}

    def add(self, client: str, arrays: Arrays | None, failure: str | None = None) -> None:
        """One client's reply; None if it did not come, and why if that is known."""
        if arrays is None:
            self.missing.append(client)
            if failure:
                self.failures[client] = failure
        elif isinstance(self.ask.want, Sum):
            self._add_to_sums(client, arrays, self.ask.want.names)
        else:
            self.each[client] = self.ask.want.unpack(arrays) if isinstance(self.ask.want, PackedParts) else arrays

    def _add_to_sums(self, client: str, arrays: Arrays, names: tuple[str, ...]) -> None:
        if isinstance(self.ask.want, PackedSum):
            arrays = self.ask.want.unpack(arrays)
        for name in names:
            if name not in arrays:
                raise ProtocolError(f"The reply of client {client!r} to {self.ask.task!r} does not contain {name!r}.")
            if name not in self.total:
                stays = arrays[name].dtype.kind == "f" or arrays[name].dtype == np.uint64  # masked: modulo 2^64
                wide = arrays[name].dtype if stays else np.int64  # small integers would wrap
                self.total[name] = np.array(arrays[name], dtype=wide)
            elif self.total[name].shape != arrays[name].shape:
                raise ProtocolError(
                    f"{name!r} of client {client!r} has shape {arrays[name].shape}, but that of the clients before it "
                    f"has shape {self.total[name].shape}. Check that all clients have the same features."
                )
            elif self.total[name].dtype != arrays[name].dtype:
                self.total[name] = self.total[name] + arrays[name]
            else:
                self.total[name] += arrays[name]

    def replies(self) -> Replies:
        return Replies(self.cohort, tuple(self.missing), self.each, self.total, self.failures)
