"""An engine that keeps its session: what clients learned for themselves can be read when a run is over, if it is here.

In one process the clients' states are at hand. In a federation the sites keep them, and nothing comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedspan.channel import Channel
from fedspan.core.protection import Protection
from fedspan.core.protocol import Server
from fedspan.core.run import Engine, Session


class KeepingEngine:
    """The engine that it is given, and its last session."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session: Session | None = None

    @property
    def clients(self) -> Sequence[str]:
        return self.engine.clients

    def start(self, server: Server[Any], channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        self.session = self.engine.start(server, channel, seed, *([protection] if protection else []))
        return self.session

    def get_states(self) -> dict[str, object]:
        """What each client of this process remembers; nothing of clients elsewhere."""
        if self.session is None:
            return {}
        return {name: site.state for name, site in self.session.snapshot().sites.items()}
