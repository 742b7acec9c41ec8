"""Clients that hold one array each and a router between them: secure aggregation without an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array, Arrays, Ask, Replies, Sum
from fedspan.engines.hub import Collector
from fedspan.errors import ProtocolError
from fedspan.secure.masking import Party, stack_bytes, to_bytes
from fedspan.secure.session import SecureSession

Fate = Callable[[str, str], tuple[bool, bool]]  # (task, client) → is the request heard, does the reply arrive
ALL_WELL: Fate = lambda task, client: (True, True)  # noqa: E731


class Router:
    """A session whose clients answer every ordinary task with the same arrays, masked."""

    def __init__(self, data: Mapping[str, Arrays], threshold: int, fate: Fate = ALL_WELL) -> None:
        self.data, self.fate = data, fate
        self.parties = {name: Party(name, threshold) for name in data}
        self.seen: list[tuple[str, str, Arrays]] = []  # what arrived at the server: task, client, arrays

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        collector = Collector(ask, cohort)
        for client in cohort:
            heard, arrives = self.fate(ask.task, client)
            reply, why = None, None
            if heard:
                try:
                    reply = self._reply(client, ask, (round, exchange))
                except ProtocolError as error:
                    why = str(error)
            if reply is not None and arrives:
                self.seen.append((ask.task, client, reply))
            collector.add(client, reply if arrives else None, why)
        sizes = (1,) * len(cohort)
        return collector.replies(), Exchange(round, exchange, ask.task, cohort, sizes, sizes, sizes)

    def _reply(self, client: str, ask: Ask, place: tuple[int, int]) -> Arrays:
        party = self.parties[client]
        if ask.task.startswith("@"):
            return party.answer(ask.task, {**ask.arrays, **ask.privately.get(client, {})}, place)
        return party.find_sent(place) or party.mask(self.data[client], place)

    def snapshot(self) -> Any:
        return None

    def restore(self, saved: Any, after: int) -> None: ...
    def close(self) -> None: ...


def numbers(m: int, seed: int = 0, size: int = 5) -> dict[str, Arrays]:
    rng = np.random.default_rng(seed)
    return {f"c{i:03d}": {"n": rng.integers(0, 100, ()), "x": rng.normal(size=(size, 2)) * 100} for i in range(m)}


def session(router: Router, threshold: int, need: int | None = None) -> SecureSession:
    return SecureSession(router, threshold, need if need is not None else len(router.data))


def ask_sum(secure: SecureSession, names: tuple[str, ...], place: tuple[int, int] = (1, 0)) -> tuple[Replies, Exchange]:
    return secure.exchange(Ask("give", want=Sum("n", "x")), names, *place)


def met(m: int, threshold: int, data: Mapping[str, Arrays] | None = None) -> tuple[Router, dict[str, Array]]:
    """Clients that have agreed on keys, by hand; and the sealed shares that each made."""
    router = Router(numbers(m) if data is None else data, threshold)
    epoch = {"epoch": stack_bytes([os.urandom(16)], 16)[0]}
    keys = [party.answer("@keys", epoch, (0, 0))["key"] for party in router.parties.values()]
    roster = {"names": to_bytes(json.dumps(list(router.parties))), "keys": np.stack(keys)}
    return router, {n: party.answer("@roster", roster, (0, 0))["shares"] for n, party in router.parties.items()}


def marks(m: int, *chosen: int) -> Array:
    out = np.zeros(m, dtype=np.uint8)
    out[list(chosen)] = 1
    return out
