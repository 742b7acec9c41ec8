"""The server's half of secure aggregation, around any engine's session: one ask becomes the protocol's phases.

It fails closed: if a sum cannot be formed, every client asked counts as missing, because nobody's part is in a sum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel.stage import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.run import Session
from fedspan.errors import ClientError, InputError, ProtocolError
from fedspan.secure import fixed
from fedspan.secure.keys import require
from fedspan.secure.masking import SUM, TAG, Secure, recovered, rows, to_bytes, transcript, unmasked

TRIES = 4  # a phase is asked of those who did not answer that often


def threshold(secure: Secure, channel: Channel, clients: int, min_clients: int | None) -> int:
    """The least number of clients in a sum, for a run over that channel; refuses a channel that masks cannot pass."""
    for stage in (channel.up, channel.down):
        if set(stage.kinds) - {"pack"}:
            raise InputError(
                f"a secure sum cannot be taken with {stage.name!r} in the channel, because steps or memories differ "
                "between clients; leave it out, or use bits='auto' of krylov, which rounds at all clients to one grid"
            )
    require()
    return secure.among(clients, min_clients)


class _Costs:
    """What one client after the other spent in the phases of one exchange."""

    def __init__(self, cohort: tuple[str, ...]) -> None:
        self.spent = {client: [0, 0, 0.0] for client in cohort}
        self.failures: dict[str, str] = {}

    def add(self, event: Exchange) -> None:
        for client, *spent in zip(event.clients, event.bytes_down, event.bytes_up, event.seconds, strict=True):
            self.spent[client] = [a + b for a, b in zip(self.spent[client], spent, strict=True)]

    def event(self, ask: Ask, place: tuple[int, int], missing: tuple[str, ...]) -> Exchange:
        down, up, seconds = zip(*self.spent.values(), strict=True)
        return Exchange(*place, ask.task, tuple(self.spent), down, up, seconds, missing, self.failures, secure=True)


class _NoSumError(Exception):
    """This exchange ends without a sum."""


class SecureSession:
    """A session in which the server sees sums only. `need` clients at least must answer (all of a smaller cohort).

    Tasks that are `public` release nothing that depends on the values in the rows, and are asked as they are.
    """

    def __init__(self, inner: Session, threshold: int, need: int, public: Collection[str] = ()) -> None:
        self.inner, self.t, self.need, self.public = inner, threshold, need, public
        self.roster: tuple[str, ...] = ()  # of the epoch; empty: new keys are needed
        self.context = b""
        self.shares: dict[str, Array] = {}  # (m, SEALED) from each, for each other

    def close(self) -> None:
        self.inner.close()

    def snapshot(self) -> Any:
        return self.inner.snapshot()

    def restore(self, saved: Any, after: int) -> None:
        self.inner.restore(saved, after)
        self.roster = ()

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        if ask.task in self.public:
            replies, event = self.inner.exchange(ask, cohort, round, exchange)
            return replies, replace(event, secure=True)  # nothing that needed a mask left without one
        if not isinstance(ask.want, Sum):
            raise ProtocolError(
                f"under secure aggregation the server sees sums only, {ask.task!r} asks for every client's own reply; "
                "use an algorithm that asks for sums (gram, krylov, ssi, faps), or secure=False"
            )
        if len(cohort) < self.t:
            raise ClientError(
                f"need at least {self.t} clients in a secure sum, {ask.task!r} asks {len(cohort)} "
                f"({', '.join(map(repr, cohort[:5]))}); bring back those who are missing and resume from the "
                "checkpoint, or give a lower threshold"
            )
        costs, place = _Costs(cohort), (round, exchange)
        try:
            if self.roster != cohort:
                self._agree_on_keys(cohort, place, costs)
            total, present = self._sum(ask, place, costs)
        except _NoSumError:
            return Replies(cohort, cohort, failures=costs.failures), costs.event(ask, place, cohort)
        missing = tuple(client for client in cohort if client not in present)
        costs.failures = {client: why for client, why in costs.failures.items() if client in missing}
        replies = Replies(cohort, missing, total=fixed.decode(total, len(present)), failures=costs.failures)
        return replies, costs.event(ask, place, missing)

    def _least(self, cohort: tuple[str, ...]) -> int:
        return max(self.t, min(self.need, len(cohort)))

    def _phase(self, ask: Ask, to: tuple[str, ...], place: tuple[int, int], costs: _Costs) -> Replies:
        """Ask, and ask those who did not answer again."""
        each: dict[str, Arrays] = {}
        total: dict[str, Array] = {}
        missing, why = to, {}
        for _ in range(TRIES):
            replies, event = self.inner.exchange(ask, missing, *place)
            costs.add(event)
            each.update(replies.each)
            for name, x in replies.total.items():
                if name in total and total[name].shape != x.shape:
                    raise ProtocolError(
                        f"need {name!r} of shape {total[name].shape}, got {x.shape}; check the features"
                    )
                total[name] = total[name] + x if name in total else x
            missing, why = replies.missing, dict(replies.failures)
            if not missing:
                break
        for client in missing:
            costs.failures[client] = why.get(client, f"no answer to {ask.task!r} in {TRIES} tries")
        return Replies(to, missing, {client: each[client] for client in to if client in each}, total)

    def _agree_on_keys(self, cohort: tuple[str, ...], place: tuple[int, int], costs: _Costs) -> None:
        """A new epoch among those of the cohort who are there."""
        self.roster, people = (), cohort
        while len(people) >= self._least(cohort):
            epoch = os.urandom(16)
            heard = self._phase(Ask("@keys", {"epoch": rows([epoch], 16)[0]}), people, place, costs).each
            people = tuple(heard)
            if len(people) < self._least(cohort):
                break
            keys = np.stack([heard[client]["key"] for client in people])
            roster = {"names": to_bytes(json.dumps(people)), "keys": keys}
            met = self._phase(Ask("@roster", roster), people, place, costs)
            if not met.missing:
                self.roster, self.context = people, transcript(epoch, self.t, people, keys)
                self.shares = {client: arrays["shares"] for client, arrays in met.each.items()}
                return
            people = tuple(met.each)
        raise _NoSumError

    def _sum(self, ask: Ask, place: tuple[int, int], costs: _Costs) -> tuple[dict[str, Array], tuple[str, ...]]:
        """The sum (still as lanes), and whose."""
        roster, m, cohort = self.roster, len(self.roster), tuple(costs.spent)
        assert isinstance(ask.want, Sum)  # noqa: S101 - for the type checker
        names = ask.want.names
        arrays = {**ask.arrays, SUM: to_bytes(" ".join(names))}
        masked = self._phase(Ask(ask.task, arrays, Sum(*names, fixed.COUNTS)), roster, place, costs)
        present = tuple(client for client in roster if client not in masked.missing)
        if len(present) < self._least(cohort):
            raise _NoSumError
        if self.t == m:
            return dict(masked.total), present

        marks = _marks(roster, present)
        agreed = self._phase(Ask("@agree", {"present": marks}), present, place, costs).each
        if len(agreed) < self.t:
            raise _NoSumError
        nothing = np.zeros((m, TAG), dtype=np.uint8)
        by_sender = np.stack([agreed[client]["tags"] if client in agreed else nothing for client in roster])
        tags = {client: {"tags": by_sender[:, i]} for i, client in enumerate(roster)}
        unmask = Ask("@unmask", {"agreed": _marks(roster, tuple(agreed))}, privately=tags)
        revealed = self._phase(unmask, present, place, costs).each
        seeds = {client: arrays["seed"].tobytes() for client, arrays in revealed.items()}
        gone = [j for j in range(m) if not marks[j]]
        lost = tuple(client for client in present if client not in revealed)
        if gone or lost:
            self.roster = ()  # these keys have served
        if lost:
            if gone:
                raise _NoSumError  # what the lost and the gone share, nobody can take off
            seeds |= self._recover(lost, tuple(revealed), roster, place, costs)
        pairs = {
            (roster.index(client), j): revealed[client]["pairs"][row].tobytes()
            for client in present
            for row, j in enumerate(gone)
        }
        return unmasked(masked.total, list(seeds.values()), pairs), present

    def _recover(
        self,
        lost: tuple[str, ...],
        there: tuple[str, ...],
        roster: tuple[str, ...],
        place: tuple[int, int],
        costs: _Costs,
    ) -> dict[str, bytes]:
        """The seeds of clients that answered and were lost before they could unmask."""
        sealed = {
            client: {"shares": np.stack([self.shares[j][roster.index(client)] for j in lost])} for client in there
        }
        given = self._phase(Ask("@recover", {"lost": _marks(roster, lost)}, privately=sealed), there, place, costs).each
        if len(given) < self.t:
            raise _NoSumError
        return {
            client: recovered(
                {roster.index(j): arrays["shares"][row].tobytes() for j, arrays in given.items()},
                self.t, self.context, place,
            )
            for row, client in enumerate(lost)
        }  # fmt: skip


def _marks(roster: tuple[str, ...], chosen: tuple[str, ...]) -> Array:
    return np.array([client in chosen for client in roster], dtype=np.uint8)
