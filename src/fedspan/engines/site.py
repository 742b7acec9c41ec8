"""The client's end of every engine: one message in, one declared task, one message out."""

from __future__ import annotations

from fedspan._types import Arrays
from fedspan.channel.link import Receiver, Sender
from fedspan.channel.stage import Channel
from fedspan.channel.wire import Message
from fedspan.core.checkpoint import build, to_c_order
from fedspan.core.protocol import AnyClient, check_release, find_task, tasks_of
from fedspan.core.rng import Streams
from fedspan.core.snapshot import SiteSnapshot
from fedspan.data.clients import blame_client
from fedspan.errors import FedspanError
from fedspan.privacy.guard import Guard
from fedspan.secure.masking import Party, digest_request, split_request


class Site:
    """One client of one run: what it remembers (its state and the memories of its links), and how it answers.

    The client object itself, which holds the data, is handed in with every message: the engine may close it and open
    it again. With a `vault` every array that leaves is masked; its secrets are in no snapshot, so after a restart new
    keys are agreed on.
    """

    __slots__ = ("down", "guard", "kind", "name", "seed", "started", "state", "up", "vault")

    def __init__(
        self,
        name: str,
        kind: type[AnyClient],
        channel: Channel,
        seed: int,
        guard: Guard | None = None,
        vault: Party | None = None,
    ) -> None:
        self.name, self.kind, self.seed = name, kind, seed
        self.guard, self.vault = guard, vault
        self.down = Receiver(channel.down) if channel.down.kinds else None
        self.up = Sender(channel.up, channel.up.init()[0]) if channel.up.kinds else None
        self.state: object = None
        self.started = False

    def handle(self, message: Message, client: AnyClient) -> Message:
        """Decode, do the task, check that only what it declares leaves, mask it, encode."""
        if self.up:
            self.up.commit(message.ack)
        arrays = self.down.decode(message) if self.down else message.arrays
        rng = Streams(self.seed, message.round, message.exchange, self.name)
        state, place = self.state, (message.round, message.exchange)
        reply: Arrays | None = None
        if self.vault:
            own = message.task.startswith("@")
            reply = self.vault.answer(message.task, arrays, place) if own else self.vault.find_sent(place)
        if reply is None:
            task = find_task(tasks_of(self.kind), message.task)
            vault = None if task.public else self.vault
            asked = digest_request(message.task, arrays) if vault else b""
            arrays, wanted = split_request(arrays, task.releases) if vault else (arrays, list(task.releases))
            if not self.started:
                state, self.started = client.init(), True
                self.state = state
            with blame_client(self.name):
                state, released = task.call(client, self.state, arrays, rng)
                reply = check_release(task, released)
                if self.guard:
                    reply = self.guard.protect(task.name, task.releases, reply, rng)
                if vault:
                    reply = vault.mask({name: reply[name] for name in wanted}, place, asked)
        out = message._replace(arrays=to_c_order(reply), ack=self.down.last if self.down else 0)
        if self.up:
            out = self.up.encode(out, rng)
        if state is not self.state:
            self.state = to_c_order(state)
        return out

    def snapshot(self) -> SiteSnapshot:
        """What must survive a crash."""
        return SiteSnapshot(
            self.state,
            self.up.snapshot() if self.up else None,
            self.down.snapshot() if self.down else None,
            self.guard.snapshot() if self.guard else None,
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


def explain(error: Exception) -> str:
    """One line for the ledger and for the person at the other end: no traceback leaves a site."""
    return str(error) if isinstance(error, FedspanError) else f"{type(error).__name__}: {error}"
