"""A site's half of verified sums: it masks its part, checks the sums that it is shown, and answers no question but the
one that the algorithm must ask next. So a server can neither open a sum nor steer the run.

Notation: m sites, s_ij the secret of sites i and j, K a key that all sites share and the server does not have,
h the transcript: h₀ = H(opening), then H(h, place, question), then H(h, what came of it). x_i what site i would say
(integers modulo 2^64), with a mark of its group. Site i sends

    y_i = [x_i, tag_i] + Σ_{j>i} PRG(k_ij) - Σ_{j<i} PRG(k_ij),   k_ij = HMAC(s_ij, h),   tag_i by K and h (tags.py)

with j in its own group only. Everybody in a group must answer, or there is no sum over it: no mask is ever taken off.
Of narrow arrays (packing.py) only the low bits of y_i leave, as many as the question says, so the widths are in h. The
tag is of all the bits of x_i, and of all its columns: sites believe nothing but a whole sum. (Only the
marks of fixed.py are not in it. A site whose numbers did not fit sends random numbers in place of its tag.) If the
server says that some columns wrapped around, they are shown no sum, and answer the same question, to the bit, with
other widths.

Phases:  @keys    a public key from each, signed for this opening and epoch       once per epoch
         @roster  all keys to all; K from the first site, sealed for each other   once per epoch
         @group   K to each                                                       once per epoch
         (task)   what came of earlier exchanges, as far as this site has not seen it, and the question; y_i

What each defends: signatures against sites that the server invents; h in the masks against a server that tells sites
different things, whose masks then do not cancel; the tag against a sum that is not one (the marks in it, against adding
some groups twice); the replica (replica.py) against questions that do not follow. A question that does not fit closes
the run at this site.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol, TypeVar

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import Ask, Each, Sum, Task, tasks_of
from fedspan.errors import ProtocolError
from fedspan.secure import fixed
from fedspan.secure.identity import Identity
from fedspan.secure.keys import PrivateKey, new_key, purpose_key, seal, shared_secret, stream, unseal
from fedspan.secure.masking import Place, digest_request, stack_bytes
from fedspan.secure.opening import RunOpening
from fedspan.secure.packing import CHECK, Exponents, check_sums, fit_widths, is_width, pack_lane, read_exponents
from fedspan.secure.past import Exchanged, from_blob
from fedspan.secure.replica import Heard, Replica, ReplicaMemory
from fedspan.secure.tags import PRESENT, PRIME, TAGS, from_limbs, is_tag_of, make_tag, to_limbs

PAST = "@past "  # begins the names of what a question says of earlier exchanges
SEALED_KEY = 48  # K and the tag of its seal
_KEY_LABEL = b"fedspan verified key 1"
T = TypeVar("T")


class QuestionMemory(Protocol):
    """What a site remembers of questions: after one transcript there is one question, however often it is asked."""

    def note(self, before: bytes, question: bytes) -> bool:
        """Remember the question; False if another one was asked after the same transcript."""
        ...


class AskedHere:
    """Remembers as long as the process lives."""

    def __init__(self) -> None:
        self.known: dict[bytes, bytes] = {}

    def note(self, before: bytes, question: bytes) -> bool:
        return self.known.setdefault(before, question) == question


@dataclass(frozen=True)
class WitnessMemory:
    """What must survive a crash. Keys and digests are in hexadecimal; `groups` are the K of epochs, by their digest."""

    h: str
    at: int
    groups: dict[str, str]
    replica: ReplicaMemory
    said: dict[str, Array] | None


@dataclass
class _Epoch:
    """The keys of an epoch."""

    name: bytes
    key: PrivateKey
    public: bytes
    context: bytes = b""
    secrets: dict[str, bytes] | None = None  # s_ij by site
    group: bytes = b""  # K


@dataclass(frozen=True)
class Admitted:
    """A question that may be answered: its arrays for the task, and what is to leave."""

    arrays: Arrays
    wanted: tuple[str, ...]
    digest: bytes  # of all that was asked
    exponents: Exponents  # of arrays of which only the low bits leave


@dataclass
class _Answered:
    place: Place
    question: bytes
    arrays: Arrays


class Witness:
    """One site in one verified run."""

    def __init__(self, name: str, opening: RunOpening, identity: Identity, asked: QuestionMemory | None = None) -> None:
        if name not in opening.clients:
            raise ProtocolError(f"{name!r} is not in any group of the run.")
        self.name, self.opening, self.identity = name, opening, identity
        self.asked: QuestionMemory = asked or AskedHere()
        self.replica = Replica(opening.server, opening.seed, opening.clients, opening.rounds)
        self.tasks = tasks_of(opening.server.client)
        self.h = sha256(b"fedspan opening" + opening.digest).digest()
        self.at = 0  # how many exchanges are over
        self.groups: dict[str, bytes] = {}  # K by epoch
        self.epoch: _Epoch | None = None
        self.sent: _Answered | None = None
        self.said: dict[str, Array] | None = None  # the public reply that waits to be shown again
        self.closed = False
        self.saturated = False  # whether the numbers masked last were too large or not finite

    # ------------------------------------------------------------------------------------------------ phases

    def answer(self, phase: str, arrays: Arrays) -> Arrays:
        """The reply to one of the protocol's own phases."""
        phases: dict[str, Callable[[Arrays], Arrays]] = {
            "@keys": self._keys,
            "@roster": self._roster,
            "@group": self._group,
        }
        _refuse_unless(phase in phases, f"{phase!r} is not a phase")
        return self._guarded(lambda: phases[phase](arrays))

    def _guarded(self, work: Callable[[], T]) -> T:
        """What the work gives; a refusal closes the run here."""
        _refuse_unless(not self.closed, "this site has refused a message of the run, and takes part no more")
        try:
            return work()
        except ProtocolError:
            self.closed = True
            raise

    def _keys(self, arrays: Arrays) -> Arrays:
        name = _take(arrays, "epoch", 16).tobytes()
        if self.epoch is None or self.epoch.name != name:
            self.epoch, self.sent = _Epoch(name, *new_key()), None
        signature = self.identity.sign(self._to_sign(name, self.epoch.public))
        return {
            "key": stack_bytes([self.epoch.public], 32)[0],
            "signature": np.frombuffer(signature, dtype=np.uint8),
            "certificate": np.frombuffer(self.identity.certificate, dtype=np.uint8),
            "at": np.array(self.at),
        }

    def _to_sign(self, epoch: bytes, public: bytes) -> bytes:
        return _KEY_LABEL + self.opening.digest + epoch + public

    def _roster(self, arrays: Arrays) -> Arrays:
        epoch, clients = self._current(), self.opening.clients
        m, me = len(clients), clients.index(self.name)
        keys = _take(arrays, "keys", m, 32)
        context = sha256(self.opening.digest + epoch.name + json.dumps(clients).encode() + keys.tobytes()).digest()
        if epoch.secrets is None:
            publics = [key.tobytes() for key in keys]
            _refuse_unless(publics[me] == epoch.public, f"the key of {self.name!r} in the roster is not its own")
            _refuse_unless(len(set(publics)) == m, "two sites have the same key")
            for i, site in enumerate(clients):
                certificate = _take(arrays, f"certificate {i}", -1).tobytes()
                signature = _take(arrays, f"signature {i}", -1).tobytes()
                self.identity.check(site, certificate, self._to_sign(epoch.name, publics[i]), signature)
            epoch.context = context
            epoch.secrets = {
                site: shared_secret(epoch.key, publics[i], context) for i, site in enumerate(clients) if i != me
            }
            if me == 0:
                self._set_group(os.urandom(32))
        _refuse_unless(epoch.context == context, "there is another roster in this epoch already")
        if me != 0:
            return {"sealed": np.zeros((0, SEALED_KEY), dtype=np.uint8)}
        sealed = [seal(self._pair(site, "group"), epoch.group, context) for site in clients[1:]]
        return {"sealed": stack_bytes([bytes(SEALED_KEY), *sealed], SEALED_KEY)}

    def _group(self, arrays: Arrays) -> Arrays:
        epoch = self._current()
        if not epoch.group:
            sealed = _take(arrays, "sealed", SEALED_KEY).tobytes()
            self._set_group(unseal(self._pair(self.opening.clients[0], "group"), sealed, epoch.context))
        return {"ready": np.ones(1, dtype=np.uint8)}

    def _set_group(self, group: bytes) -> None:
        epoch = self._current()
        epoch.group = group
        self.groups[epoch.name.hex()] = group

    def _pair(self, site: str, *purpose: object) -> bytes:
        """A key for one purpose that this site and another share."""
        secrets = self._current().secrets
        if secrets is None:
            raise ProtocolError("Verified sums refused: no keys were agreed on in this epoch.")
        other = sorted((site, self.name))
        return purpose_key(secrets[site], *purpose, *other)

    def _current(self) -> _Epoch:
        if self.epoch is None:
            raise ProtocolError("Verified sums refused: a roster came before the keys.")
        return self.epoch

    # ------------------------------------------------------------------------------------------------ questions

    def find_sent(self, task: str, arrays: Arrays, place: Place) -> Arrays | None:
        """What was sent at that place, if anything: the same question again gets the same bytes."""
        if self.sent is None or self.sent.place != place:
            return None
        _refuse_unless(not self.closed, "this site has refused a message of the run, and takes part no more")
        question = digest_request(task, _split_past(arrays)[0])
        _refuse_unless(question == self.sent.question, f"exchange {place} was asked already, and not like this")
        return self.sent.arrays

    def admit(self, task: Task, arrays: Arrays, place: Place) -> Admitted:
        """The question without what came with it, if it is the next one; and what is to leave."""
        _refuse_unless(place >= self.replica.place, f"exchange {place} is over")  # a late message: no harm is meant

        def work() -> Admitted:
            question, past = _split_past(arrays)
            for blob in past:
                self._learn(*from_blob(blob))
            ask, digest = self._hear(task.name, question, place)
            if not isinstance(ask.want, Sum):
                _refuse_unless(task.public, f"{task.name!r} asks for every site's own reply")
            wanted = ask.want.names if isinstance(ask.want, Sum) else tuple(task.releases)
            plain = {name: x for name, x in question.items() if not is_width(name)}
            return Admitted(plain, wanted, digest, _check_exponents(ask, question))

        return self._guarded(work)

    def _hear(self, task: str, question: Arrays, place: Place) -> tuple[Ask, bytes]:
        """Take a question as the next one; what is asked, and the digest of the question."""
        ask = self.replica.take(task, {name: x for name, x in question.items() if not is_width(name)}, place)
        _check_exponents(ask, question)
        digest = digest_request(task, question)
        _refuse_unless(self.asked.note(self.h, digest), "another question was asked before, after the same exchanges")
        self._bind(place, digest if ask.to is None or ask.to == self.opening.clients else repr(ask.to).encode())
        _refuse_unless(ask.to is None or self.name in ask.to, f"{task!r} is not for this site")
        _refuse_unless(isinstance(ask.want, Sum | Each), f"{task!r} asks for parts")
        self.said = None
        return ask, digest

    def _bind(self, place: Place, what: bytes | memoryview) -> None:
        digest = sha256(self.h + repr(place).encode())
        digest.update(what)
        self.h = digest.digest()

    def _learn(self, past: Exchanged, asked: bool) -> None:
        """Take in an exchange that is over. One that this site knows already is passed over."""
        if past.place < self.replica.place:
            return
        _refuse_unless(past.place == self.replica.place, "an exchange is left out")
        if not self.replica.waits:
            ask = self.replica.expect(past.place)
            if ask.to is not None and self.name not in ask.to:
                self.replica.pass_over(past.place)
                self._bind(past.place, repr(ask.to).encode())
            else:
                _refuse_unless(not asked, "an exchange comes without its question")
                self._hear(past.task, past.question, past.place)
        self._settle(past)

    def _settle(self, past: Exchanged) -> None:
        """Check what came of the question that waits, and go on with it."""
        ask = self.replica.ask
        assert ask is not None  # noqa: S101 - one waits
        to = self.opening.clients if ask.to is None else ask.to
        if past.wrapped:
            heard = self._check_wrapped(past, ask)
        elif isinstance(ask.want, Sum):
            heard = self._check_sum(past, ask.task, ask.want.names)
        else:
            _refuse_unless(set(past.each) <= set(to), "a reply comes from a site that was not asked")
            mine = past.each.get(self.name)
            told = mine is None or (self.said is not None and _same_arrays(mine, self.said))
            _refuse_unless(told, "a reply is said to be this site's own, and is not")
            each = {site: past.each[site] for site in to if site in past.each}
            heard = Heard(each=each, missing=tuple(site for site in to if site not in each))
            self._bind(past.place, b"".join(site.encode() + digest_request("", each[site]) for site in each))
        self.said, self.sent = None, None
        self.at += 1
        self.replica.feed(heard)

    def _check_wrapped(self, past: Exchanged, ask: Ask) -> Heard:
        """The columns that are said to have wrapped around. If it is a lie, the server gets the same sum again."""
        for name, marks in past.wrapped.items():
            known = ask.narrow.get(name)
            columns = () if known is None else known.columns.shape
            _refuse_unless(bool(marks.any()) and marks.shape == columns, f"{name!r} cannot have wrapped around")
        told = sorted((name, marks.tolist()) for name, marks in past.wrapped.items())
        self._bind(past.place, b"wrapped" + repr(told).encode())
        return Heard(wrapped=past.wrapped)

    def _check_sum(self, past: Exchanged, task: str, names: tuple[str, ...]) -> Heard:
        lanes = past.lanes
        order = [*sorted(names), PRESENT]
        _refuse_unless(set(lanes) == {*order, fixed.COUNTS, TAGS}, "a sum does not consist of what was asked for")
        flat = _flatten(lanes, order)
        inside = self._find_inside(lanes[PRESENT].reshape(-1).tolist())
        self._check_tag(past.epoch, flat, _tell_layout(lanes, order), inside, lanes[TAGS])
        here = {site for i in inside for site in self.opening.groups[i]}
        total = fixed.from_lanes({name: lanes[name] for name in (*names, fixed.COUNTS)}, len(here))
        if self.opening.plan:
            total = self.opening.plan.to_numbers(task, self.tasks[task].releases, total)
        self._bind(past.place, digest_request(repr(inside), total))
        return Heard(total=dict(total), missing=tuple(s for s in self.opening.clients if s not in here))

    def _check_tag(self, epoch: str, flat: Array, layout: str, inside: Sequence[int], tag: Array) -> None:
        """Refuse a sum that the sites of that epoch did not make after this transcript."""
        _refuse_unless(epoch in self.groups, "a sum is from an epoch that this site does not know")
        key = purpose_key(self.groups[epoch], "tag", layout, self.h)
        sizes = {i: len(self.opening.groups[i]) for i in inside}
        told = from_limbs(tag)
        good = told is not None and is_tag_of(told, key, flat, sizes, len(self.opening.clients))
        _refuse_unless(good, "a sum is not the sum of the sites")

    def _find_inside(self, counts: list[int]) -> list[int]:
        """The groups that a sum says are in it, each whole and once; by their numbers."""
        sizes = [len(group) for group in self.opening.groups]
        _refuse_unless(len(counts) == len(sizes), "a sum does not say which groups are in it")
        inside = [i for i, (n, size) in enumerate(zip(counts, sizes, strict=True)) if n == size]
        _refuse_unless(
            bool(inside) and sum(counts) == sum(sizes[i] for i in inside),
            "a sum is not over whole groups, each of them once",
        )
        return inside

    # ------------------------------------------------------------------------------------------------ replies

    def release(self, reply: Arrays, place: Place, question: bytes, exponents: Exponents | None = None) -> Arrays:
        """What leaves in reply to the question that was admitted: masked with its tag, or as it is if it is public."""
        ask = self.replica.ask
        assert ask is not None  # noqa: S101 - it was admitted
        if isinstance(ask.want, Sum):
            out: Arrays = self._mask(reply, place, exponents or {})
        else:
            out = reply
            self.said = {name: np.array(x) for name, x in reply.items()}
        self.sent = _Answered(place, question, out)
        return out

    def _mask(self, reply: Arrays, place: Place, exponents: Exponents) -> Arrays:
        epoch, groups = self._current(), self.opening.groups
        _refuse_unless(bool(epoch.group), "no keys were agreed on in this epoch")
        lanes = fixed.to_lanes(reply, len(self.opening.clients))
        self.saturated = fixed.has_saturated(lanes)
        own = next(i for i, group in enumerate(groups) if self.name in group)
        lanes[PRESENT] = np.array([[i == own for i in range(len(groups))]], dtype=np.uint64)
        order = [*sorted(reply), PRESENT]
        flat = _flatten(lanes, order)
        key = purpose_key(epoch.group, "tag", _tell_layout(lanes, order), self.h)
        tag = secrets.randbelow(PRIME) if self.saturated else make_tag(key, own, flat, len(self.opening.clients))
        lanes = {name: lanes[name] for name in order} | {fixed.COUNTS: lanes[fixed.COUNTS], TAGS: to_limbs(tag)}
        widths = {name: fit_widths(lanes[name], given, name) for name, given in exponents.items()}
        for name in widths:
            lanes[CHECK + name] = check_sums(lanes[name], place, name)
        y = np.concatenate([flat, *(lanes[name].reshape(-1) for name in list(lanes)[len(order) :])])
        space = bytearray(8 * y.size)
        for site in groups[own]:
            if site != self.name:
                mask = stream(self._pair(site, "mask", self.h), y.size, space)
                y = np.add(y, mask, out=y) if site > self.name else np.subtract(y, mask, out=y)
        cuts = np.cumsum([x.size for x in lanes.values()])[:-1]
        out = {n: part.reshape(x.shape) for (n, x), part in zip(lanes.items(), np.split(y, cuts), strict=True)}
        return out | {name: pack_lane(out[name], bits) for name, bits in widths.items()}

    # ------------------------------------------------------------------------------------------------ memory

    def snapshot(self) -> WitnessMemory:
        """What must survive a crash; the secrets of the epoch do not."""
        groups = {epoch: key.hex() for epoch, key in self.groups.items()}
        return WitnessMemory(self.h.hex(), self.at, groups, self.replica.snapshot(), self.said)

    def restore(self, saved: WitnessMemory) -> None:
        """Go on from a snapshot."""
        self.h, self.at, self.said = bytes.fromhex(saved.h), saved.at, saved.said
        self.groups = {epoch: bytes.fromhex(key) for epoch, key in saved.groups.items()}
        self.replica.restore(saved.replica)


def _refuse_unless(fact: bool, refusal: str) -> None:
    if not fact:
        raise ProtocolError(f"Verified sums refused: {refusal}.")


def _take(arrays: Arrays, name: str, *shape: int) -> Array:
    """A byte array of that shape out of a message (-1: any length)."""
    x = arrays.get(name)
    if x is None or x.dtype != np.uint8 or x.ndim != len(shape):
        raise ProtocolError(f"Verified sums refused: {name!r} must be bytes of shape {shape}.")
    _refuse_unless(
        all(want in (-1, has) for want, has in zip(shape, x.shape, strict=True)), f"{name!r} has another shape"
    )
    return np.ascontiguousarray(x)


def _split_past(arrays: Arrays) -> tuple[dict[str, Array], list[Array]]:
    """The question itself, and what it says of earlier exchanges, in their order."""
    question = {name: x for name, x in arrays.items() if not name.startswith(PAST)}
    names = sorted((name for name in arrays if name.startswith(PAST)), key=lambda name: (len(name), name))
    return question, [arrays[name] for name in names]


def _check_exponents(ask: Ask, question: Arrays) -> Exponents:
    """In how many bits arrays are to leave; refused for arrays of which nothing is known, or of other shapes.

    Which widths they are is the server's choice: whatever they are, it sees low bits of the sum and no more.
    """
    exponents = read_exponents(question)
    for name, (rows, columns) in exponents.items():
        known = ask.narrow.get(name)
        shapes = None if known is None else (known.rows.shape, known.columns.shape)
        _refuse_unless((rows.shape, columns.shape) == shapes, f"the widths do not fit {name!r}")
    _refuse_unless(sum(map(is_width, question)) == 2 * len(exponents), "widths come without an array")
    return exponents


def _flatten(lanes: Arrays, order: list[str]) -> Array:
    for name in order:
        _refuse_unless(lanes[name].dtype == np.uint64, f"{name!r} of a sum is not of whole numbers")
    return np.concatenate([lanes[name].reshape(-1) for name in order])


def _tell_layout(lanes: Arrays, order: list[str]) -> str:
    """Where each array of a sum is among its integers: a tag is for one layout only."""
    return json.dumps([(name, lanes[name].shape) for name in order])


def _same_arrays(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and np.array_equal(a[n], b[n]) for n in a)
