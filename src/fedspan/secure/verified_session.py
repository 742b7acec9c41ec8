"""The server's half of verified sums, around any engine's session: see witness.py for the protocol.

It keeps what some site has not been shown yet, and sends it along with the next question. A group of which somebody
does not answer is left out of that sum; if no group is left, all count as missing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.checkpoint import build, to_c_order
from fedspan.core.ledger import Exchange
from fedspan.core.protection import RETRIES
from fedspan.core.protocol import Ask, Narrow, Parts, Replies, Sum
from fedspan.core.run import Session
from fedspan.core.snapshot import SessionSnapshot
from fedspan.errors import ClientError, ProtocolError
from fedspan.secure import fixed
from fedspan.secure.masking import Place, stack_bytes
from fedspan.secure.opening import Groups
from fedspan.secure.packing import CHECK, PackedParts, check_columns_of, find_widths, resolve, tell_widths
from fedspan.secure.past import Exchanged, to_blob
from fedspan.secure.session import PhaseCosts, refuse_single_replies
from fedspan.secure.tags import PRESENT, TAGS
from fedspan.secure.witness import PAST, SEALED_KEY


@dataclass(frozen=True)
class KeptPast:
    """Of a checkpoint: the exchanges that some site may not have seen, and how many came before them."""

    before: int
    exchanges: tuple[Exchanged, ...]


class VerifiedSession:
    """A session in which every site checks what the server asks and shows."""

    def __init__(self, inner: Session, groups: Groups, public: Collection[str] = (), retries: int = RETRIES) -> None:
        self.inner, self.groups, self.public, self.tries = inner, groups, public, retries + 1
        self.clients = tuple(sorted(name for group in groups for name in group))
        self.epoch = ""  # empty: keys are needed
        self.past: list[Exchanged] = []  # what some site has not seen, the oldest first
        self.before = 0  # how many exchanges came before those
        self.at: dict[str, int] = {}  # how many exchanges each site has seen to their end,
        self.heard: dict[str, int] = {}  # and how many questions

    def close(self) -> None:
        self.inner.close()

    def snapshot(self) -> SessionSnapshot:
        return replace(self.inner.snapshot(), past=KeptPast(self.before, tuple(self.past)))

    def restore(self, saved: SessionSnapshot, after: int) -> None:
        self.inner.restore(saved, after)
        self.epoch = ""
        if saved.past is not None:
            kept = build(KeptPast, saved.past)
            self.before, self.past = kept.before, list(kept.exchanges)

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        place, costs = (round, exchange), PhaseCosts(cohort)
        public = ask.task in self.public
        if not public and not isinstance(ask.want, Sum):
            raise refuse_single_replies(ask)
        if cohort != self.clients and not (public and ask.to is not None):
            raise ProtocolError(
                f"A verified run asks all {len(self.clients)} clients in every round, but {ask.task!r} goes to "
                f"{len(cohort)} of them. Leave participation out, or use Secure(verified=False)."
            )
        if not self.epoch and not self._agree_on_keys(costs, place):
            replies = Replies(cohort, cohort, failures=costs.failures, exhausted=cohort)
            return replies, costs.event(ask, place, cohort)
        # As it is now: the algorithm goes on with these arrays, and may change them.
        question = {name: np.array(x) for name, x in to_c_order(ask.arrays).items()} | tell_widths(ask.narrow)
        over = Exchanged(place, ask.task, (), ask.to, epoch=self.epoch, question=question)
        if public:
            replies = self._ask_public(ask, cohort, place, costs)
            over = replace(over, each={client: dict(arrays) for client, arrays in replies.each.items()})
        else:
            over, replies = self._ask_sum(ask, over, place, costs)
        if len(replies.missing) < len(cohort):
            self._keep(replace(over, missing=replies.missing))
        return replies, costs.event(ask, place, replies.missing)

    def _keep(self, over: Exchanged) -> None:
        self.past.append(over)
        seen = min(self.at[client] for client in self.clients)
        if seen > self.before:
            self.past, self.before = self.past[seen - self.before :], seen

    def _with_past(self, ask: Ask, to: tuple[str, ...]) -> Ask:
        """The question with what each site has not seen, which goes by the channel as it is."""
        blobs: dict[tuple[int, bool], Array] = {}
        private: dict[str, Arrays] = {}
        for client in to:
            own = dict(ask.privately.get(client, {}))
            for i in range(self.at[client], self._count):
                over = self.past[i - self.before]
                key = i, i < self.heard[client] or (over.to is not None and client not in over.to)
                if key not in blobs:
                    blobs[key] = to_blob(over, asked=key[1])
                own[f"{PAST}{i}"] = blobs[key]
            private[client] = own
        return replace(ask, privately=private)

    @property
    def _count(self) -> int:
        return self.before + len(self.past)

    def _note_answers(self, clients: Collection[str]) -> None:
        """Those clients have taken in all that is over, and have heard the question that is not."""
        for client in clients:
            self.at[client], self.heard[client] = self._count, self._count + 1

    def _ask_public(self, ask: Ask, cohort: tuple[str, ...], place: Place, costs: PhaseCosts) -> Replies:
        each = self._phase(ask, cohort, place, costs)
        missing = tuple(client for client in cohort if client not in each)
        return Replies(cohort, missing, each, failures=costs.failures, exhausted=missing)

    def _ask_sum(self, ask: Ask, over: Exchanged, place: Place, costs: PhaseCosts) -> tuple[Exchanged, Replies]:
        assert isinstance(ask.want, Sum)  # noqa: S101 - for the type checker
        names, narrow = ask.want.names, ask.narrow
        widths = {name: find_widths(one.rows, one.columns) for name, one in narrow.items()}
        checks = (CHECK + name for name in narrow)
        want = PackedParts(*names, *checks, fixed.COUNTS, PRESENT, TAGS, widths=widths)
        masked = Ask(ask.task, {**ask.arrays, **tell_widths(narrow)}, want)
        each = self._phase(masked, self.clients, place, costs)
        inside = [group for group in self.groups if all(client in each for client in group)]
        here = [client for group in inside for client in group]
        missing = tuple(client for client in self.clients if client not in here)
        costs.failures = {client: why for client, why in costs.failures.items() if client in missing}
        if not here:
            return over, Replies(self.clients, missing, failures=costs.failures, exhausted=missing)
        lanes = {name: np.sum([each[client][name] for client in here], axis=0) for name in each[here[0]]}
        wrapped = _resolve_narrow(lanes, narrow, place)
        order = [*sorted(names), fixed.COUNTS]
        total = fixed.from_lanes({name: lanes[name] for name in order}, len(here))
        replies = Replies(self.clients, missing, {}, total, costs.failures, missing, wrapped)
        over = replace(over, names=tuple(sorted(names)))
        gone = {name: marks for name, marks in wrapped.items() if marks.any()}
        return replace(over, wrapped=gone) if gone else replace(over, lanes=lanes), replies

    def _phase(
        self, ask: Ask, to: tuple[str, ...], place: Place, costs: PhaseCosts, *, question: bool = True
    ) -> dict[str, Arrays]:
        """The replies; those who do not send one are asked again, with the same bytes."""
        each: dict[str, Arrays] = {}
        missing = to
        asked = self._with_past(ask, to) if question else ask
        for _ in range(self.tries):
            replies, event = self.inner.exchange(asked, missing, *place)
            costs.add(event)
            why = dict.fromkeys(replies.missing, f"no answer to {ask.task!r} in {self.tries} tries")
            why |= replies.failures
            each |= replies.each
            if question:
                self._note_answers(replies.each)
            if isinstance(ask.want, Parts):
                why |= _drop_odd(each)
            missing = tuple(client for client in missing if client not in each)
            if not missing:
                break
        costs.give_up({client: why[client] for client in missing})
        return {client: each[client] for client in to if client in each}

    def _agree_on_keys(self, costs: PhaseCosts, place: Place) -> bool:
        """A new epoch among all clients; False if some did not answer."""
        epoch = os.urandom(16)
        everyone = self.clients
        costs.include(everyone)
        begin = Ask("@keys", {"epoch": stack_bytes([epoch], 16)[0]})
        met = self._phase(begin, everyone, place, costs, question=False)
        if len(met) < len(everyone):
            return False
        for client, reply in met.items():
            if set(reply) != {"key", "signature", "certificate", "at"} or reply["key"].shape != (32,):
                raise ClientError(f"Client {client!r} sent something else in reply to '@keys'.")
            self.at[client] = self.heard[client] = min(int(reply["at"]), self._count)
            if self.at[client] < self.before:
                raise ClientError(
                    f"Client {client!r} stands at exchange {self.at[client]} of the run, but what came before exchange "
                    f"{self.before} is gone: one of them was set back. Start a new run."
                )
        roster: dict[str, Array] = {"keys": np.stack([met[client]["key"] for client in everyone])}
        for i, client in enumerate(everyone):
            roster |= {f"{part} {i}": met[client][part] for part in ("signature", "certificate")}
        sealed = self._phase(Ask("@roster", roster), everyone, place, costs, question=False)
        if len(sealed) < len(everyone):
            return False
        rows = sealed[everyone[0]].get("sealed", np.zeros(0))
        if rows.shape != (len(everyone), SEALED_KEY):
            raise ClientError(f"Client {everyone[0]!r} sent something else in reply to '@roster'.")
        group = Ask("@group", privately={client: {"sealed": rows[i]} for i, client in enumerate(everyone)})
        if len(self._phase(group, everyone, place, costs, question=False)) < len(everyone):
            return False
        self.epoch = epoch.hex()
        return True


def _resolve_narrow(lanes: dict[str, Array], narrow: Mapping[str, Narrow], place: Place) -> dict[str, Array]:
    """Put the sums of narrow arrays in place of their low bits; the columns that have wrapped around."""
    wrapped = {}
    for name, one in narrow.items():
        found, checks = resolve(lanes[name], one), lanes.pop(CHECK + name)
        total, wrapped[name] = check_columns_of(found, checks, one, place, name)
        lanes[name] = total.view(np.uint64)[None]
    return wrapped


def _drop_odd(each: dict[str, Arrays]) -> dict[str, str]:
    """Take out the replies whose arrays do not have the shapes that most have; why, for each of them."""
    layouts = {client: tuple((name, x.shape, x.dtype) for name, x in reply.items()) for client, reply in each.items()}
    usual = Counter(layouts.values()).most_common(1)
    odd = [client for client, layout in layouts.items() if layout != usual[0][0]]
    for client in odd:
        del each[client]
    return dict.fromkeys(odd, "its arrays have other shapes or types than those of most clients")
