"""An engine in one process that remembers every question, and for whom it was."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedspan.core.ledger import Exchange
from fedspan.core.protection import Protection
from fedspan.core.protocol import Arrays, Ask, Replies
from fedspan.engines import InProcess


class Heard(NamedTuple):
    """One question to one client."""

    client: str
    round: int
    task: str
    arrays: Arrays


class _SpiedSession:
    def __init__(self, inner: Any, heard: list[Heard]) -> None:
        self.inner, self.heard = inner, heard

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        for client in cohort:
            self.heard.append(Heard(client, round, ask.task, {**ask.arrays, **ask.privately.get(client, {})}))
        replies: tuple[Replies, Exchange] = self.inner.exchange(ask, cohort, round, exchange)
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Spy(InProcess):
    """Keeps what was asked in `heard`."""

    def start(self, server: Any, channel: Any, seed: int, protection: Protection | None = None) -> Any:
        self.heard: list[Heard] = []
        return _SpiedSession(super().start(server, channel, seed, protection), self.heard)
