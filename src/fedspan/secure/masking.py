"""Secure aggregation after Bonawitz et al. (CCS 2017): the server learns the sum over the clients, and nothing else.

Notation: m clients of a roster, t the threshold, e an exchange, x_i what client i would say (integers modulo 2^64),
s_ij the secret that i and j agreed on, r_i the root of i's own masks. Client i sends

    y_i = x_i + PRG(b_i^e) + Σ_{j>i} PRG(k_ij^e) - Σ_{j<i} PRG(k_ij^e),   b_i^e = HMAC(r_i, e),  k_ij^e = HMAC(s_ij, e),

where e stands for the exchange's number and, in k_ij^e, also for the request: a server that asks two clients different
things (so that all but one answer zero) finds masks that do not cancel.

Phases:  @keys    a public key from each                            once per epoch
         @roster  all keys to all; sealed shares of r_i from each   once per epoch
         (task)   y_i
         @agree   who answered (U) to all; a tag on U for each other client from each
         @unmask  the tags to whom they are for; b_i^e from each, and k_ij^e for every j that did not answer
         @recover only if some of U did not unmask: shares of their r_i, from which b_i^e follows

Where t = m nobody may be missing, so no mask ever has to be taken off: there are no b_i, and Σ y_i is the sum.

Differs from the paper, so that keys can serve many exchanges: (1) of a client that did not answer, the others reveal
this exchange's k_ij^e instead of shares of its private key, which would unmask what it sent before; (2) a client that
answered reveals b_i^e itself, its shares serve only if it is lost after that: no Shamir in an exchange without losses;
(3) so the consistency check of the paper's malicious variant, @agree, is always made: b_i^e leaves i only if t clients
hold i for present, and k_ij^e leaves j only if t clients hold i for missing. (4) An epoch in which anything but b_i^e
was revealed is over: never both kinds for one client. A loss before and another after masking ends without a sum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.errors import InputError, ProtocolError
from fedspan.secure import fixed
from fedspan.secure.keys import (
    PrivateKey,
    combine_shares,
    new_key,
    purpose_key,
    same,
    seal,
    shared_secret,
    split_secret,
    stream,
    unseal,
)

TAG = 16
SUM = "@sum"  # travels with a task: the names of the arrays to sum
SEALED = 32  # a share of 16 bytes and its tag
Place = tuple[int, int]  # round and exchange: e


@dataclass(frozen=True)
class Secure:
    """Secure aggregation: the server sees sums over the clients only.

    Parameters:
        threshold: No sum is over fewer clients; None: all that are asked, or, if the run may go on without some
            (min_clients), more than two thirds of all clients and at least min_clients.
    """

    threshold: int | None = None

    def threshold_for(self, clients: int, min_clients: int | None = None) -> int:
        """The threshold for that many clients."""
        t = self.threshold
        if t is None:
            t = clients if min_clients is None else max(2 * clients // 3 + 1, min_clients)
        if clients < 2:
            raise InputError("A secure sum needs at least two clients: the sum of one shows that one.")
        if isinstance(t, bool) or not isinstance(t, int | np.integer) or not 2 <= t <= clients:
            raise InputError(f"threshold must be from 2 to the {clients} clients, but is {t!r}.")
        return int(t)


def to_bytes(text: str) -> Array:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def stack_bytes(items: Sequence[bytes], width: int) -> Array:
    """Byte strings of one width as an array."""
    return np.frombuffer(b"".join(items), dtype=np.uint8).reshape(len(items), width)


def _require(fact: bool, refusal: str) -> None:
    if not fact:
        raise ProtocolError(f"Secure aggregation refused: {refusal}.")


def _take_bytes(arrays: Arrays, name: str, *shape: int) -> Array:
    """A byte array of that shape out of a message (-1: any length)."""
    x = arrays.get(name)
    good = x is not None and x.dtype == np.uint8 and x.ndim == len(shape)
    good = good and all(want in (-1, has) for want, has in zip(shape, x.shape, strict=True))  # type: ignore[union-attr]
    _require(good, f"{name!r} must be bytes of shape {shape}")
    return np.ascontiguousarray(x)


def _take_marks(arrays: Arrays, name: str, m: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(_take_bytes(arrays, name, m)).tolist())


def _take_names(arrays: Arrays) -> list[str]:
    try:
        names = json.loads(_take_bytes(arrays, "names", -1).tobytes())
    except ValueError:
        names = None
    _require(
        isinstance(names, list) and all(isinstance(name, str) for name in names), "the roster must be a list of names"
    )
    return list(names)


def split_request(arrays: Arrays, released: Iterable[str]) -> tuple[dict[str, Array], list[str]]:
    """A request without its list of arrays to sum, and that list; a server that gives none gets nothing."""
    names = _take_bytes(arrays, SUM, -1).tobytes().decode(errors="replace").split()
    _require(
        bool(names) and set(names) <= set(released), f"sums must be of {sorted(released)}, but {names} is asked for"
    )
    return {name: x for name, x in arrays.items() if name != SUM}, names


def digest_request(task: str, arrays: Arrays) -> bytes:
    """A digest of a request."""
    parts = [(name, arrays[name].dtype.str, arrays[name].shape, arrays[name].tobytes()) for name in sorted(arrays)]
    return sha256(repr(task).encode() + b"".join(repr(p[:3]).encode() + p[3] for p in parts)).digest()


def digest_roster(epoch: bytes, threshold: int, names: Sequence[str], keys: Array) -> bytes:
    """A digest of what must be the same for all clients of an epoch."""
    return sha256(repr((epoch, threshold, tuple(names), keys.tobytes())).encode()).digest()


@dataclass
class _Circle:
    """A client's view of its epoch's roster."""

    names: list[str]
    me: int
    context: bytes
    secrets: dict[int, bytes]  # s_ij by j
    sealed: Array  # (m, SEALED) shares of r_i for each other client; no rows if t = m
    over: bool = False  # something was revealed, so these keys must not be used again

    def pair(self, j: int, *purpose: object) -> bytes:
        return purpose_key(self.secrets[j], *purpose)


@dataclass
class _Sent:
    """What a client did in the exchange it is in."""

    place: Place
    asked: bytes
    arrays: Arrays  # y_i: the same again if it is asked again
    present: tuple[int, ...] = ()  # U, once agreed to
    lost: tuple[int, ...] = ()  # whose shares were given
    unmasked: bool = False


class Party:
    """One client's half: keeps its secrets (in memory only), masks, and refuses whatever would show more than a sum."""

    def __init__(self, name: str, threshold: int) -> None:
        self.name, self.t = name, threshold
        self.epoch = b""
        self.key: PrivateKey | None = None
        self.public = self.root = b""
        self.circle: _Circle | None = None
        self.sent: _Sent | None = None
        self.last: Place = (-1, -1)  # the exchange masked last, in whichever epoch

    def answer(self, phase: str, arrays: Arrays, place: Place) -> Arrays:
        """The reply to one of the protocol's own phases."""
        phases: dict[str, Callable[[Arrays, Place], Arrays]] = {
            "@keys": self._keys,
            "@roster": self._roster,
            "@agree": self._agree,
            "@unmask": self._unmask,
            "@recover": self._recover,
        }
        _require(phase in phases, f"{phase!r} is not a phase")
        return phases[phase](arrays, place)

    def _keys(self, arrays: Arrays, place: Place) -> Arrays:
        epoch = _take_bytes(arrays, "epoch", 16).tobytes()
        if epoch != self.epoch:  # the same again if it is asked again
            self.epoch, self.root, self.circle, self.sent = epoch, os.urandom(16), None, None
            self.key, self.public = new_key()
        return {"key": stack_bytes([self.public], 32)[0]}

    def _roster(self, arrays: Arrays, place: Place) -> Arrays:
        names = _take_names(arrays)
        m, t = len(names), self.t
        keys = _take_bytes(arrays, "keys", m, 32)
        context = digest_roster(self.epoch, t, names, keys)
        if self.circle is None or self.circle.context != context:
            _require(self.circle is None, "there is another roster in this epoch already")
            _require(bool(self.epoch), "a roster came before the keys")
            _require(m >= t, f"a sum must be over at least {t} clients, but the roster has {m}")
            publics = [key.tobytes() for key in keys]
            _require(len(set(names)) == len(set(publics)) == m, "two clients have the same name or the same key")
            _require(self.name in names, f"{self.name!r} is not in the roster")
            me = names.index(self.name)
            _require(publics[me] == self.public, f"the key of {self.name!r} in the roster is not its own")
            assert self.key is not None  # noqa: S101 - there is one as soon as there is an epoch
            secrets = {j: shared_secret(self.key, publics[j], context) for j in range(m) if j != me}
            self.circle = _Circle(names, me, context, secrets, np.zeros((0, SEALED), dtype=np.uint8))
            if t < m:
                shares = split_secret(self.root, t, m)
                self.circle.sealed = stack_bytes([self._seal(j, shares[j]) for j in range(m)], SEALED)
        return {"shares": self.circle.sealed}

    def _seal(self, j: int, share: bytes) -> bytes:
        circle = self._current_circle()
        if j == circle.me:
            return bytes(SEALED)
        return seal(circle.pair(j, "share", circle.me, j), share, circle.context)

    def _current_circle(self) -> _Circle:
        if self.circle is None:
            raise ProtocolError("Secure aggregation refused: no keys were agreed on in this epoch.")
        return self.circle

    def find_sent(self, place: Place) -> Arrays | None:
        """What was sent in that exchange, if anything: two messages under the same masks show their difference."""
        return self.sent.arrays if self.sent is not None and self.sent.place == place else None

    def mask(self, arrays: Arrays, place: Place, asked: bytes = b"") -> Arrays:
        """y_i: each array as uint64 of shape (lanes, *shape), uniform to whoever does not know the masks.

        `asked` is a digest of the request: the masks of two clients cancel only if both were asked the same.
        """
        circle = self._current_circle()
        _require(not circle.over, "these keys were used up; a new epoch is needed")
        _require(place > self.last, f"exchange {place} was masked already, or is over")
        x = fixed.to_lanes(arrays, len(circle.names))
        y = np.concatenate([lanes.reshape(-1) for lanes in x.values()])
        for j in circle.secrets:
            mask = stream(circle.pair(j, "mask", place, asked), y.size)
            y = np.add(y, mask, out=y) if j > circle.me else np.subtract(y, mask, out=y)
        if self.t < len(circle.names):
            y += stream(own_seed(self.root, circle.context, place), y.size)
        self.last, self.sent = place, _Sent(place, asked, _cut(y, x))
        return self.sent.arrays

    def _during(self, place: Place) -> tuple[_Circle, _Sent]:
        circle, sent = self._current_circle(), self.sent
        if sent is None or sent.place != place:
            raise ProtocolError(f"Secure aggregation refused: {self.name!r} has not answered in exchange {place}.")
        _require(self.t < len(circle.names), "with all clients in the sum there is nothing to unmask")
        return circle, sent

    def _agree(self, arrays: Arrays, place: Place) -> Arrays:
        circle, sent = self._during(place)
        present = _take_marks(arrays, "present", len(circle.names))
        _require(not sent.present or present == sent.present, "asked to agree to two different sets of clients")
        _require(circle.me in present, f"{self.name!r} has answered, and is said not to have")
        _require(
            len(present) >= self.t, f"a sum must be over at least {self.t} clients, but {len(present)} are present"
        )
        sent.present = present
        tags = [
            circle.pair(j, "agree", circle.me, j, place, sent.asked, present)[:TAG] if j != circle.me else bytes(TAG)
            for j in range(len(circle.names))
        ]
        return {"tags": stack_bytes(tags, TAG)}

    def _unmask(self, arrays: Arrays, place: Place) -> Arrays:
        circle, sent = self._during(place)
        agreed = _take_marks(arrays, "agreed", len(circle.names))
        tags = _take_bytes(arrays, "tags", len(circle.names), TAG)
        _require(bool(sent.present), "asked to unmask before all agreed on who is in the sum")
        _require(set(agreed) <= set(sent.present), "someone who did not answer is said to agree")
        agreeing = len({*agreed, circle.me})
        _require(agreeing >= self.t, f"at least {self.t} clients must agree, but {agreeing} do")
        for j in agreed:
            if j != circle.me:
                tag = circle.pair(j, "agree", j, circle.me, place, sent.asked, sent.present)[:TAG]
                _require(same(tag, tags[j].tobytes()), f"{circle.names[j]!r} did not agree to that set of clients")
        missing = [j for j in range(len(circle.names)) if j not in sent.present]
        sent.unmasked, circle.over = True, circle.over or bool(missing)
        return {
            "seed": stack_bytes([own_seed(self.root, circle.context, place)], 32)[0],
            "pairs": stack_bytes([circle.pair(j, "mask", place, sent.asked) for j in missing], 32),
        }

    def _recover(self, arrays: Arrays, place: Place) -> Arrays:
        circle, sent = self._during(place)
        lost = _take_marks(arrays, "lost", len(circle.names))
        sealed = _take_bytes(arrays, "shares", len(lost), SEALED)
        _require(sent.unmasked, "asked for shares before all agreed on who is in the sum")
        _require(len(sent.present) == len(circle.names), "masks of clients that did not answer were revealed already")
        _require(set(lost) <= set(sent.present) - {circle.me}, "asked for shares of a client that is not in the sum")
        _require(sent.lost in ((), lost), "asked for shares of two different sets of clients")
        contents = [
            unseal(circle.pair(j, "share", j, circle.me), share.tobytes(), circle.context)
            for j, share in zip(lost, sealed, strict=True)
        ]
        sent.lost, circle.over = lost, True
        return {"shares": stack_bytes(contents, 16)}


def own_seed(root: bytes, context: bytes, place: Place) -> bytes:
    """b_i^e."""
    return purpose_key(root, "own", context, *place)


def _cut(flat: Array, like: Arrays) -> dict[str, Array]:
    """One vector cut into arrays of those names and shapes."""
    cuts = np.cumsum([x.size for x in like.values()])[:-1]
    return {n: part.reshape(x.shape) for (n, x), part in zip(like.items(), np.split(flat, cuts), strict=True)}


def recover_seed(shares: Mapping[int, bytes], threshold: int, context: bytes, place: Place) -> bytes:
    """b_i^e of a client that was lost, from `threshold` shares of its root (by the number of who gave them)."""
    return own_seed(combine_shares(dict(list(shares.items())[:threshold])), context, place)


def remove_masks(total: Arrays, seeds: Sequence[bytes], pairs: Mapping[tuple[int, int], bytes]) -> dict[str, Array]:
    """The sum of the y_i of U without its masks: b_i^e of all in U, k_ij^e of all i in U and j not in U."""
    total = {name: total[name] for name in sorted(total, key=lambda name: (name == fixed.COUNTS, name))}
    y = np.concatenate([lanes.reshape(-1) for lanes in total.values()])
    for seed in seeds:
        y -= stream(seed, y.size)
    for (i, j), seed in pairs.items():
        mask = stream(seed, y.size)
        y = np.subtract(y, mask, out=y) if j > i else np.add(y, mask, out=y)
    return _cut(y, total)
