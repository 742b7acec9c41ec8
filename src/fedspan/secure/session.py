"""The server's half of secure aggregation, around any engine's session: one ask becomes the protocol's phases.

It fails closed: if a sum cannot be formed, every client asked counts as missing, because nobody's part is in a sum.
Whatever a client sends is checked as far as it can be: one that sends something else than the phase asks for is asked
again and then counts as missing, and the others go on without it, if they are enough.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.channel.stage import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protection import RETRIES, SecureSums
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.run import Session
from fedspan.core.snapshot import SessionSnapshot
from fedspan.errors import ClientError, FedspanError, InputError, ProtocolError
from fedspan.secure import fixed, graph
from fedspan.secure.keys import is_public_key, require_library
from fedspan.secure.masking import (
    SEALED,
    SUM,
    TAG,
    Place,
    digest_key,
    digest_roster,
    recover_seed,
    remove_masks,
    stack_bytes,
    to_bytes,
)
from fedspan.secure.packing import CHECK, PackedSum, check_columns_of, find_widths, resolve, tell_widths
from fedspan.secure.shamir import SHARE

Shapes = Mapping[str, tuple[int, ...]]  # of the byte arrays of a reply
Check = Callable[[str, Arrays], str | None]  # what is wrong with a client's reply of the right shapes, if anything


def find_threshold(secure: SecureSums, channel: Channel, clients: int, min_clients: int | None) -> int:
    """The least number of clients in a sum, for a run over that channel; refuses a channel that masks cannot pass."""
    check_channel(channel)
    return secure.threshold_for(clients, min_clients)


def check_channel(channel: Channel) -> None:
    """Refuse a channel that masks cannot pass, and an installation without the libraries."""
    for stage in (channel.up, channel.down):
        if set(stage.kinds) - {"pack"}:
            raise InputError(
                f"A secure sum cannot be taken with {stage.name!r} in the channel, because steps or memories differ "
                "between clients. Leave it out, or use bits='auto' of krylov, which rounds to one grid at all clients."
            )
    require_library()


class PhaseCosts:
    """What each client spent in all phases of one exchange."""

    def __init__(self, cohort: tuple[str, ...]) -> None:
        self.spent = {client: [0, 0, 0.0] for client in cohort}
        self.failures: dict[str, str] = {}
        self.exhausted: dict[str, None] = {}  # who did not answer a phase however often it was asked

    def include(self, clients: Collection[str]) -> None:
        """Count also what these clients spend, though the question is not for them."""
        self.spent |= {client: [0, 0, 0.0] for client in clients if client not in self.spent}

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


def refuse_single_replies(ask: Ask) -> FedspanError:
    """What ends a run whose sums are secure, but whose server asks for something else."""
    if ask.hidden:
        return InputError(ask.hidden)
    return ProtocolError(
        f"Under secure aggregation the server sees sums only, but {ask.task!r} asks for every client's own reply. Use "
        "an algorithm that asks for sums (gram, krylov, ssi, faps), or secure=False."
    )


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
        self.threshold = threshold  # t', that of a neighbourhood
        self.circles = self.mirror = np.zeros((0, 0), dtype=np.int64)  # (m, k + 1), see graph.py
        self.shares = np.zeros((0, 0, SEALED), dtype=np.uint8)  # (m, k + 1, SEALED) from each, for each of its circle

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
            raise refuse_single_replies(ask)
        if len(cohort) < self.t:
            raise ClientError(
                f"A secure sum must be over at least {self.t} clients, but {ask.task!r} asks {len(cohort)} "
                f"({', '.join(map(repr, cohort[:5]))}). Ask more clients per round, or set a lower "
                "threshold; if clients are missing, bring them back and resume from the checkpoint."
            )
        costs, place = PhaseCosts(cohort), (round, exchange)
        try:
            if self.roster != cohort:
                self._agree_on_keys(cohort, place, costs)
            roster = self.roster
            total, present = self._sum(ask, place, costs)
        except _NoSumError:
            replies = Replies(cohort, cohort, failures=costs.failures, exhausted=tuple(costs.exhausted))
            return replies, costs.event(ask, place, cohort)
        there = set(present)
        missing = tuple(client for client in cohort if client not in there)
        costs.failures = {client: why for client, why in costs.failures.items() if client not in there}
        exhausted = tuple(client for client in costs.exhausted if client not in there)
        special = {*ask.narrow, *(CHECK + name for name in ask.narrow)}
        wide = {name: lanes for name, lanes in total.items() if name not in special}
        numbers = fixed.from_lanes(wide, len(present), len(roster))
        wrapped = {}
        for name, narrow in ask.narrow.items():
            found = resolve(total[name], narrow)
            numbers[name], wrapped[name] = check_columns_of(found, total[CHECK + name], narrow, place, name)
        replies = Replies(cohort, missing, {}, numbers, costs.failures, exhausted, wrapped)
        return replies, costs.event(ask, place, missing)

    def _least(self, cohort: tuple[str, ...]) -> int:
        return max(self.t, min(self.need, len(cohort)))

    def _phase(
        self,
        ask: Ask,
        to: tuple[str, ...],
        place: Place,
        costs: PhaseCosts,
        expected: Shapes | Callable[[str], Shapes],
        check: Check = lambda client, arrays: None,
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
                shapes = expected(client) if callable(expected) else expected
                if not _have_shapes(arrays, shapes):
                    why[client] = f"sent something else in reply to {ask.task!r}"
                elif wrong := check(client, arrays):
                    why[client] = f"sent {wrong} in reply to {ask.task!r}"
                else:
                    each[client] = {name: arrays[name] for name in shapes}
            missing = tuple(client for client in missing if client not in each)
            if not missing:
                break
        costs.give_up({client: why[client] for client in missing})
        return {client: each[client] for client in to if client in each}

    def _collect(
        self, ask: Ask, to: tuple[str, ...], place: Place, costs: PhaseCosts
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
        gone = set(missing)
        costs.give_up({client: why[client] for client in missing})
        return total, tuple(client for client in to if client not in gone)

    def _agree_on_keys(self, cohort: tuple[str, ...], place: Place, costs: PhaseCosts) -> None:
        """A new epoch among those of the cohort who are there."""
        self.roster, people = (), cohort
        while len(people) >= self._least(cohort):
            epoch = os.urandom(16)
            heard, promised = self._ask_keys(epoch, people, place, costs)
            people = tuple(heard)
            if len(people) < self._least(cohort):
                break
            degree = graph.choose_degree(len(people))
            if degree is not None and people != promised:
                continue  # whoever may withhold keys chooses who is whose neighbour, so all need new ones
            keys = np.stack(list(heard.values()))
            context = digest_roster(epoch, self.t, people, keys)
            circles = graph.find_circles(context, len(people), degree)
            roster = {"names": to_bytes(json.dumps(people)), "keys": keys}
            sealed = (circles.shape[1] if self.t < len(people) else 0, SEALED)  # not shared where all must answer
            met = self._phase(Ask("@roster", roster), people, place, costs, {"shares": sealed})
            if len(met) == len(people):
                self.roster, self.context = people, context
                self.threshold = self.t if degree is None else degree.threshold
                self.circles, self.mirror = circles, graph.mirror_circles(circles)
                self.shares = np.stack([arrays["shares"] for arrays in met.values()])
                return
            people = tuple(met)
        raise _NoSumError

    def _ask_keys(
        self, epoch: bytes, people: tuple[str, ...], place: Place, costs: PhaseCosts
    ) -> tuple[dict[str, Array], tuple[str, ...]]:
        """The public keys of all who send one that can be used; and, among very many, who promised one before."""
        arrays = {"epoch": stack_bytes([epoch], 16)[0]}
        promised: dict[str, bytes] = {}
        if graph.choose_degree(len(people)) is not None:
            said = self._phase(Ask("@commit", arrays), people, place, costs, {"digest": (32,)})
            people = tuple(said)
            if not people:
                return {}, ()
            promised = {client: answer["digest"].tobytes() for client, answer in said.items()}
            digests = stack_bytes(list(promised.values()), 32)
            arrays |= {"names": to_bytes(json.dumps(people)), "digests": digests}

        def check(client: str, reply: Arrays) -> str | None:
            key = reply["key"].tobytes()
            if promised and promised[client] != digest_key(epoch, key):
                return "another key than it had promised"
            return None if is_public_key(key) else "a key that is none of X25519"

        heard = self._phase(Ask("@keys", arrays), people, place, costs, {"key": (32,)}, check)
        keys = {client: answer["key"] for client, answer in heard.items()}
        count = Counter(key.tobytes() for key in keys.values())
        twice = {client: key for client, key in keys.items() if count[key.tobytes()] > 1}
        costs.give_up(dict.fromkeys(twice, "sent the key of another client in reply to '@keys', or the other did"))
        return {client: key for client, key in keys.items() if client not in twice}, tuple(promised)

    def _sum(self, ask: Ask, place: Place, costs: PhaseCosts) -> tuple[dict[str, Array], tuple[str, ...]]:
        """The sum (still as lanes), and whose."""
        roster, m, cohort = self.roster, len(self.roster), tuple(costs.spent)
        assert isinstance(ask.want, Sum)  # noqa: S101 - for the type checker
        names = ask.want.names
        arrays = {**ask.arrays, SUM: to_bytes(" ".join(names)), **tell_widths(ask.narrow)}
        widths = {name: find_widths(narrow.rows, narrow.columns) for name, narrow in ask.narrow.items()}
        want = PackedSum(*names, *(CHECK + name for name in widths), fixed.COUNTS, widths=widths)
        masked, present = self._collect(Ask(ask.task, arrays, want), roster, place, costs)
        if len(present) < self._least(cohort):
            raise _NoSumError
        if self.t == m:
            return masked, present

        at = {client: i for i, client in enumerate(roster)}
        there = _mark_clients(roster, present)
        size = self.circles.shape[1]
        agreed = self._phase(Ask("@agree", {"present": there}), present, place, costs, {"tags": (size, TAG)})
        if len(agreed) < self.t:
            raise _NoSumError
        tags = np.zeros((m, size, TAG), dtype=np.uint8)
        for client, arrays in agreed.items():
            tags[at[client]] = arrays["tags"]
        delivered = tags.reshape(-1, TAG)[self.mirror]  # to each client, those of its circle
        gone = {client: self.circles[at[client]][there[self.circles[at[client]]] == 0] for client in present}
        unmask = Ask("@unmask", privately={client: {"tags": delivered[at[client]]} for client in present})
        revealed = self._phase(
            unmask, present, place, costs, lambda client: {"seed": (32,), "pairs": (len(gone[client]), 32)}
        )
        seeds = {client: answer["seed"].tobytes() for client, answer in revealed.items()}
        lost = tuple(client for client in present if client not in revealed)
        if len(present) < m or lost:
            self.roster = ()  # these keys have served
        if lost:
            if len(present) < m:
                raise _NoSumError  # nobody can take off the masks that the lost and the gone share
            seeds |= self._recover([at[client] for client in lost], tuple(revealed), roster, place, costs)
        pairs = {
            (at[client], int(j)): pair.tobytes()
            for client, answer in revealed.items()
            for j, pair in zip(gone[client], answer["pairs"], strict=True)
        }
        return remove_masks(masked, list(seeds.values()), pairs), present

    def _recover(
        self, lost: Sequence[int], there: tuple[str, ...], roster: tuple[str, ...], place: Place, costs: PhaseCosts
    ) -> dict[str, bytes]:
        """The seeds of clients that answered and were lost before they could unmask."""
        marks = _mark_clients(roster, [roster[i] for i in lost])
        near = marks[self.circles] == 1  # (m, k + 1) who of its circle is lost, for each client
        row = {client: i for i, client in enumerate(roster)}
        asked = tuple(client for client in there if near[row[client]].any())
        shares = self.shares.reshape(-1, SEALED)
        sealed = {client: {"shares": shares[self.mirror[row[client]][near[row[client]]]]} for client in asked}

        def expect(client: str) -> Shapes:
            count = len(sealed[client]["shares"])
            return {"shares": (count, SHARE), "opened": (count,)}

        ask = Ask("@recover", {"lost": marks}, privately=sealed)
        given = self._phase(ask, asked, place, costs, expect)
        found: dict[int, dict[int, bytes]] = {i: {} for i in lost}
        for client, arrays in given.items():
            giver = row[client]
            owners = self.circles[giver][near[giver]].tolist()
            for owner, share, opened in zip(owners, arrays["shares"], arrays["opened"], strict=True):
                if opened:
                    found[owner][giver] = share.tobytes()
        seeds = {roster[i]: recover_seed(found[i], self.threshold, self.context, place) for i in lost}
        why = f"was lost, and fewer than {self.threshold} clients have a share of its mask that opens"
        costs.give_up(dict.fromkeys([client for client, seed in seeds.items() if seed is None], why))
        if None in seeds.values():
            raise _NoSumError
        return {client: seed for client, seed in seeds.items() if seed is not None}


def _have_shapes(arrays: Arrays, expected: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether those are byte arrays of the expected names and shapes."""
    return arrays.keys() == expected.keys() and all(
        arrays[name].dtype == np.uint8 and arrays[name].shape == shape for name, shape in expected.items()
    )


def _mark_clients(roster: Sequence[str], chosen: Collection[str]) -> Array:
    """A 1 for each client of the roster that is among the chosen."""
    among = set(chosen)
    return np.array([client in among for client in roster], dtype=np.uint8)
