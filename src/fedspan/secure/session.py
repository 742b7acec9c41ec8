"""The server's half of secure aggregation, around any engine's session: one ask becomes the protocol's phases.

It fails closed: if a sum cannot be formed, every client asked counts as missing, because nobody's part is in a sum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel.stage import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protection import RETRIES, SecureSums
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.run import Session
from fedspan.core.snapshot import SessionSnapshot
from fedspan.errors import ClientError, InputError, ProtocolError
from fedspan.secure import fixed
from fedspan.secure.keys import require_library
from fedspan.secure.masking import (
    SEALED,
    SUM,
    TAG,
    Place,
    digest_roster,
    recover_seed,
    remove_masks,
    stack_bytes,
    to_bytes,
)


def find_threshold(secure: SecureSums, channel: Channel, clients: int, min_clients: int | None) -> int:
    """The least number of clients in a sum, for a run over that channel; refuses a channel that masks cannot pass."""
    for stage in (channel.up, channel.down):
        if set(stage.kinds) - {"pack"}:
            raise InputError(
                f"A secure sum cannot be taken with {stage.name!r} in the channel, because steps or memories differ "
                "between clients. Leave it out, or use bits='auto' of krylov, which rounds to one grid at all clients."
            )
    require_library()
    return secure.threshold_for(clients, min_clients)


class _Costs:
    """What each client spent in all phases of one exchange."""

    def __init__(self, cohort: tuple[str, ...]) -> None:
        self.spent = {client: [0, 0, 0.0] for client in cohort}
        self.failures: dict[str, str] = {}
        self.exhausted: dict[str, None] = {}  # who did not answer a phase however often it was asked

    def add(self, event: Exchange) -> None:
        for client, *spent in zip(event.clients, event.bytes_down, event.bytes_up, event.seconds, strict=True):
            self.spent[client] = [a + b for a, b in zip(self.spent[client], spent, strict=True)]

    def give_up(self, why: Mapping[str, str]) -> None:
        """Note clients that have used up their tries, and why."""
        self.failures |= why
        self.exhausted |= dict.fromkeys(why)

    def event(self, ask: Ask, place: Place, missing: tuple[str, ...]) -> Exchange:
        down, up, seconds = zip(*self.spent.values(), strict=True)
        return Exchange(*place, ask.task, tuple(self.spent), down, up, seconds, missing, self.failures, secure=True)


class _NoSumError(Exception):
    """This exchange ends without a sum."""


class SecureSession:
    """A session in which the server sees only sums. At least `need` clients must answer, or all of a smaller cohort.

    Tasks that are `public` release nothing that depends on the values in the rows, and are asked as they are.
    """

    def __init__(
        self, inner: Session, threshold: int, need: int, public: Collection[str] = (), retries: int = RETRIES
    ) -> None:
        self.inner, self.t, self.need, self.public = inner, threshold, need, public
        self.tries = retries + 1  # how often those who do not answer are asked in one phase
        self.roster: tuple[str, ...] = ()  # of the epoch; empty: new keys are needed
        self.context = b""
        self.shares: dict[str, Array] = {}  # (m, SEALED) from each, for each other

    def close(self) -> None:
        self.inner.close()

    def snapshot(self) -> SessionSnapshot:
        return self.inner.snapshot()

    def restore(self, saved: SessionSnapshot, after: int) -> None:
        self.inner.restore(saved, after)
        self.roster = ()

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        if ask.task in self.public:
            replies, event = self.inner.exchange(ask, cohort, round, exchange)
            return replies, replace(event, secure=True)  # nothing that needed a mask left without one
        if not isinstance(ask.want, Sum):
            raise ProtocolError(
                f"Under secure aggregation the server sees sums only, but {ask.task!r} asks for every client's own "
                "reply. Use an algorithm that asks for sums (gram, krylov, ssi, faps), or secure=False."
            )
        if len(cohort) < self.t:
            raise ClientError(
                f"A secure sum must be over at least {self.t} clients, but {ask.task!r} asks {len(cohort)} "
                f"({', '.join(map(repr, cohort[:5]))}). Ask more clients per round, or set a lower "
                "threshold; if clients are missing, bring them back and resume from the checkpoint."
            )
        costs, place = _Costs(cohort), (round, exchange)
        try:
            if self.roster != cohort:
                self._agree_on_keys(cohort, place, costs)
            total, present = self._sum(ask, place, costs)
        except _NoSumError:
            replies = Replies(cohort, cohort, failures=costs.failures, exhausted=tuple(costs.exhausted))
            return replies, costs.event(ask, place, cohort)
        missing = tuple(client for client in cohort if client not in present)
        costs.failures = {client: why for client, why in costs.failures.items() if client in missing}
        total = fixed.from_lanes(total, len(present))
        exhausted = tuple(client for client in costs.exhausted if client in missing)
        replies = Replies(cohort, missing, total=total, failures=costs.failures, exhausted=exhausted)
        return replies, costs.event(ask, place, missing)

    def _least(self, cohort: tuple[str, ...]) -> int:
        return max(self.t, min(self.need, len(cohort)))

    def _phase(
        self, ask: Ask, to: tuple[str, ...], place: Place, costs: _Costs, expected: Mapping[str, tuple[int, ...]]
    ) -> dict[str, dict[str, Array]]:
        """Ask for byte arrays of the expected shapes; those who do not send them are asked again."""
        each: dict[str, dict[str, Array]] = {}
        missing = to
        for _ in range(self.tries):
            replies, event = self.inner.exchange(ask, missing, *place)
            costs.add(event)
            why = dict.fromkeys(replies.missing, f"no answer to {ask.task!r} in {self.tries} tries")
            why |= replies.failures
            for client, arrays in replies.each.items():
                if _have_shapes(arrays, expected):
                    each[client] = {name: arrays[name] for name in expected}
                else:
                    why[client] = f"sent something else in reply to {ask.task!r}"
            missing = tuple(client for client in missing if client not in each)
            if not missing:
                break
        costs.give_up({client: why[client] for client in missing})
        return {client: each[client] for client in to if client in each}

    def _collect(
        self, ask: Ask, to: tuple[str, ...], place: Place, costs: _Costs
    ) -> tuple[dict[str, Array], tuple[str, ...]]:
        """The sum of the masked arrays, and whose it is; those who did not answer are asked again."""
        total: dict[str, Array] = {}
        missing = to
        for _ in range(self.tries):
            replies, event = self.inner.exchange(ask, missing, *place)
            costs.add(event)
            why = dict.fromkeys(missing, f"no answer to {ask.task!r} in {self.tries} tries")
            why |= replies.failures
            odd = [name for name, x in replies.total.items() if name in total and total[name].shape != x.shape]
            if odd:  # of those who were asked again: nothing of it is added
                has, need = replies.total[odd[0]].shape, total[odd[0]].shape
                why = dict.fromkeys(missing, f"{odd[0]!r} has shape {has}, but that of the other clients has {need}")
                continue
            for name, x in replies.total.items():
                total[name] = total[name] + x if name in total else x
            missing = replies.missing
            if not missing:
                break
        costs.give_up({client: why[client] for client in missing})
        return total, tuple(client for client in to if client not in missing)

    def _agree_on_keys(self, cohort: tuple[str, ...], place: Place, costs: _Costs) -> None:
        """A new epoch among those of the cohort who are there."""
        self.roster, people = (), cohort
        while len(people) >= self._least(cohort):
            epoch = os.urandom(16)
            heard = self._phase(
                Ask("@keys", {"epoch": stack_bytes([epoch], 16)[0]}), people, place, costs, {"key": (32,)}
            )
            people = tuple(heard)
            if len(people) < self._least(cohort):
                break
            keys = np.stack([heard[client]["key"] for client in people])
            roster = {"names": to_bytes(json.dumps(people)), "keys": keys}
            sealed = (len(people) if self.t < len(people) else 0, SEALED)  # nothing is shared where all must answer
            met = self._phase(Ask("@roster", roster), people, place, costs, {"shares": sealed})
            if len(met) == len(people):
                self.roster, self.context = people, digest_roster(epoch, self.t, people, keys)
                self.shares = {client: arrays["shares"] for client, arrays in met.items()}
                return
            people = tuple(met)
        raise _NoSumError

    def _sum(self, ask: Ask, place: Place, costs: _Costs) -> tuple[dict[str, Array], tuple[str, ...]]:
        """The sum (still as lanes), and whose."""
        roster, m, cohort = self.roster, len(self.roster), tuple(costs.spent)
        assert isinstance(ask.want, Sum)  # noqa: S101 - for the type checker
        names = ask.want.names
        arrays = {**ask.arrays, SUM: to_bytes(" ".join(names))}
        masked, present = self._collect(Ask(ask.task, arrays, Sum(*names, fixed.COUNTS)), roster, place, costs)
        if len(present) < self._least(cohort):
            raise _NoSumError
        if self.t == m:
            return masked, present

        marks = _marks(roster, present)
        agreed = self._phase(Ask("@agree", {"present": marks}), present, place, costs, {"tags": (m, TAG)})
        if len(agreed) < self.t:
            raise _NoSumError
        nothing = np.zeros((m, TAG), dtype=np.uint8)
        by_sender = np.stack([agreed[client]["tags"] if client in agreed else nothing for client in roster])
        tags = {client: {"tags": by_sender[:, i]} for i, client in enumerate(roster)}
        unmask = Ask("@unmask", {"agreed": _marks(roster, tuple(agreed))}, privately=tags)
        gone = [j for j in range(m) if not marks[j]]
        revealed = self._phase(unmask, present, place, costs, {"seed": (32,), "pairs": (len(gone), 32)})
        seeds = {client: arrays["seed"].tobytes() for client, arrays in revealed.items()}
        lost = tuple(client for client in present if client not in revealed)
        if gone or lost:
            self.roster = ()  # these keys have served
        if lost:
            if gone:
                raise _NoSumError  # nobody can take off the masks that the lost and the gone share
            seeds |= self._recover(lost, tuple(revealed), roster, place, costs)
        pairs = {
            (roster.index(client), j): revealed[client]["pairs"][row].tobytes()
            for client in present
            for row, j in enumerate(gone)
        }
        return remove_masks(masked, list(seeds.values()), pairs), present

    def _recover(
        self,
        lost: tuple[str, ...],
        there: tuple[str, ...],
        roster: tuple[str, ...],
        place: Place,
        costs: _Costs,
    ) -> dict[str, bytes]:
        """The seeds of clients that answered and were lost before they could unmask."""
        sealed = {
            client: {"shares": np.stack([self.shares[j][roster.index(client)] for j in lost])} for client in there
        }
        ask = Ask("@recover", {"lost": _marks(roster, lost)}, privately=sealed)
        given = self._phase(ask, there, place, costs, {"shares": (len(lost), 16)})
        if len(given) < self.t:
            raise _NoSumError
        seeds = {}
        for row, client in enumerate(lost):
            shares = {roster.index(giver): arrays["shares"][row].tobytes() for giver, arrays in given.items()}
            seeds[client] = recover_seed(shares, self.t, self.context, place)
        return seeds


def _have_shapes(arrays: Arrays, expected: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether those are byte arrays of the expected names and shapes."""
    return arrays.keys() == expected.keys() and all(
        arrays[name].dtype == np.uint8 and arrays[name].shape == shape for name, shape in expected.items()
    )


def _marks(roster: tuple[str, ...], chosen: tuple[str, ...]) -> Array:
    return np.array([client in chosen for client in roster], dtype=np.uint8)
