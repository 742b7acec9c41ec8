"""What a run's two sides remember, as plain data that a checkpoint can hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedspan.channel.link import ReceiverMemory, SenderMemory


@dataclass(frozen=True)
class HubSnapshot:
    """The server's ends of all links, by client."""

    down: dict[str, SenderMemory] = field(default_factory=dict)
    up: dict[str, ReceiverMemory] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteSnapshot:
    """One client: its state, its ends of the two links, and how often it has released each task under a plan."""

    state: object
    up: SenderMemory | None = None
    down: ReceiverMemory | None = None
    released: dict[str, int] | None = None


@dataclass(frozen=True)
class SessionSnapshot:
    """A whole session. In a federation the sites keep what they remember themselves, so `sites` is empty."""

    hub: HubSnapshot
    sites: dict[str, SiteSnapshot]
