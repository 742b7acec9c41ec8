"""The server's end of every engine: what goes out to whom, and what comes back, in the order of client ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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


_MOST_PARTS = 64


def find_blocks(clients: Sequence[str]) -> dict[str, int]:
    """The block of each client: sums over more than 64 clients are added up in blocks of neighbours, then over blocks.

    Blocks depend on nothing but the list of clients, so that sums are the same to the bit whoever computes them.
    """
    size = -(-len(clients) // _MOST_PARTS)
    return {client: place // size for place, client in enumerate(clients)}


class Collector:
    """Folds replies, which must come in the order of client ids (so that sums repeat to the bit), into `Replies`.

    With `blocks`, each client's reply is added to the sum of its block, and that to the sum of all; with `apart`, the
    sums of the blocks stay apart in `parts`, each with the first of its clients.
    """

    def __init__(
        self, ask: Ask, cohort: tuple[str, ...], blocks: Mapping[str, int] | None = None, *, apart: bool = False
    ) -> None:
        self.ask, self.cohort, self.apart = ask, cohort, apart
        self.blocks = blocks if apart or (blocks is not None and len(blocks) > _MOST_PARTS) else None
        self.parts: list[tuple[str, Arrays]] = []
        self.first = ""
        self.part: dict[str, Array] = {}
        self.block = -1
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
            self._add_to_sums(client, arrays, self.ask.want)
        else:
            self.each[client] = self.ask.want.unpack(arrays) if isinstance(self.ask.want, PackedParts) else arrays

    def add_part(self, client: str, part: Arrays) -> None:
        """The sum over a block of clients, of which that is the first; blocks must come in their order."""
        if part:
            self._add(self.total, client, part, tuple(part))

    def _add_to_sums(self, client: str, arrays: Arrays, want: Sum) -> None:
        if isinstance(want, PackedSum):
            arrays = want.unpack(arrays)
        if self.blocks is None:
            self._add(self.total, client, arrays, want.names)
            return
        if self.blocks[client] != self.block:
            self.close_block()
            self.block, self.first = self.blocks[client], client
        self._add(self.part, client, arrays, want.names)

    def close_block(self) -> None:
        """The sum over a block is complete."""
        part, self.part = self.part, {}
        if self.apart and part:
            self.parts.append((self.first, part))
        else:
            self.add_part(self.first, part)

    def _add(self, total: dict[str, Array], client: str, arrays: Arrays, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in arrays:
                raise ProtocolError(f"The reply of client {client!r} to {self.ask.task!r} does not contain {name!r}.")
            if name not in total:
                stays = arrays[name].dtype.kind == "f" or arrays[name].dtype == np.uint64  # masked: modulo 2^64
                wide = arrays[name].dtype if stays else np.int64  # small integers would wrap
                total[name] = np.array(arrays[name], dtype=wide)
            elif total[name].shape != arrays[name].shape:
                raise ProtocolError(
                    f"{name!r} of client {client!r} has shape {arrays[name].shape}, but that of the clients before it "
                    f"has shape {total[name].shape}. Check that all clients have the same features."
                )
            elif total[name].dtype != arrays[name].dtype:
                total[name] = total[name] + arrays[name]
            else:
                total[name] += arrays[name]

    def replies(self) -> Replies:
        self.close_block()
        return Replies(self.cohort, tuple(self.missing), self.each, self.total, self.failures)
