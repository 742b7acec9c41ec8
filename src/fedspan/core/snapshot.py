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
    """One client: its state, its ends of the two links, and what it has released under a plan (guard.py).

    `witness` is what it remembers of a verified run (`secure.witness.WitnessMemory`).
    """

    state: object
    up: SenderMemory | None = None
    down: ReceiverMemory | None = None
    released: dict[str, dict[str, str]] | None = None
    witness: object = None


@dataclass(frozen=True)
class SessionSnapshot:
    """A whole session. In a federation the sites keep what they remember themselves, so `sites` is empty.

    `past` are exchanges of a verified run that sites have yet to be shown (`secure.verified_session.KeptPast`).
    """

    hub: HubSnapshot
    sites: dict[str, SiteSnapshot]
    past: object = None
