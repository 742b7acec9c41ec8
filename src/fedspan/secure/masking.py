"""Secure aggregation after Bonawitz et al. (CCS 2017): the server learns the sum over the clients, and nothing else.

Notation: m clients of a roster, t the threshold, e an exchange, x_i what client i would say (integers modulo 2^64),
s_ij the secret that i and j agreed on, r_i the root of i's own masks, N(i) the clients that i shares masks with: all
others, or among very many clients its neighbours in the graph of Bell et al. (graph.py). Client i sends

    y_i = x_i + PRG(b_i^e) + Σ_{j>i} PRG(k_ij^e) - Σ_{j<i} PRG(k_ij^e),   b_i^e = HMAC(r_i, e),  k_ij^e = HMAC(s_ij, e),

with j in N(i), where e stands for the exchange's number and, in k_ij^e, also for the request: a server that asks two
clients different things (so that all but one answer zero) finds masks that do not cancel.

Phases:  @commit  a digest of its public key from each              once per epoch, only if N(i) is not all others
         @keys    (all digests to all;) a public key from each      once per epoch
         @roster  all keys to all; sealed shares of r_i from each   once per epoch
         (task)   y_i
         @agree   who answered (U) to all; a tag on U for each of N(i) from each
         @unmask  the tags to whom they are for; b_i^e from each, and k_ij^e for every j in N(i) that did not answer
         @recover only if some of U did not unmask: shares of their r_i, from which b_i^e follows

Where t = m nobody may be missing, so no mask ever has to be taken off: there are no b_i, and Σ y_i is the sum.

Differs from the paper, so that keys can serve many exchanges: (1) of a client that did not answer, the others reveal
this exchange's k_ij^e instead of shares of its private key, which would unmask what it sent before; (2) a client that
answered reveals b_i^e itself, its shares serve only if it is lost after that: no Shamir in an exchange without losses;
(3) so the consistency check of the paper's malicious variant, @agree, is always made; (4) an epoch in which anything
but b_i^e was revealed is over. A loss before and another after masking ends without a sum.

Why the two kinds of masks of one client never leave together. Let t' be the threshold in a neighbourhood: t if all
share masks with all. A client agrees to one U in an exchange, and reveals b_i^e only when t' - 1 of N(i), all in U,
have sent it a valid tag on the same U. Let j be an honest one of them: j never reveals k_ij^e, because i is in j's U,
and i does not, because j is in i's. So k_ij^e stays, and x_i can be seen only in a sum that contains x_j too; and so
on for the neighbours of j. With c colluding clients in N(i) that is a sum over at least t' - c honest clients, all of
whom agreed to U. The other way to b_i^e are t' shares of r_i. A client gives its share of r_i only for a U that is the
whole roster, and only while its epoch is not over, so it has revealed k_ij^e in no exchange of the epoch: again at
least t' - c honest clients' masks with i stay. In all this i relies on tags and shares of its neighbours alone, and on
nothing that the server says of others; so it is enough if it verifies those, and that it has derived N(i) from
keys which were fixed before its own was known (@commit).

What a client refuses depends on what it is asked, never on its numbers (fixed.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from typing import Literal

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import AnyServer
from fedspan.errors import InputError, ProtocolError
from fedspan.secure import fixed, graph
from fedspan.secure.keys import (
    PrivateKey,
    new_key,
    purpose_key,
    same,
    seal,
    shared_secret,
    stream,
    unseal,
)
from fedspan.secure.opening import Groups, make_groups
from fedspan.secure.packing import CHECK, Exponents, check_sums, fit_widths, is_width, pack_lane
from fedspan.secure.shamir import SECRET, SHARE, combine_shares, split_secret

TAG = 16
SUM = "@sum"  # travels with a task: the names of the arrays to sum
SEALED = SHARE + 16  # a share and its tag
Place = tuple[int, int]  # round and exchange: e


@dataclass(frozen=True)
class Secure:
    """Secure aggregation: the server sees sums over the clients only.

    Parameters:
        threshold: No sum is over fewer clients; None: all that are asked, or, if the run may go on without some
            (min_clients), more than two thirds of all clients and at least min_clients.
        verified: Whether every client checks what the server asks and shows, by repeating its steps: then a server can
            neither open a sum nor steer the run. All clients (of a group) must answer. "auto": where the algorithm
            with its options allows it, and there are three clients or more.
        groups: For verified sums, the clients in groups: their names, or the size of a group; None: one group of all.
            If a client is missing, its group is left out of that sum.
    """

    threshold: int | None = None
    verified: bool | Literal["auto"] = False
    groups: Sequence[Sequence[str]] | int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and not self.verified:
            raise InputError("groups are for verified sums. Write Secure(verified=True, groups=…), or leave them out.")
        if self.threshold is not None and self.verified is True:
            raise InputError(
                "A verified sum has no threshold: all clients of a group must answer. Leave threshold out, and give "
                "groups if the run is to go on without some clients."
            )

    def is_verified(self, server: AnyServer, clients: int, min_clients: int | None = None) -> bool:
        """Whether the sums of that run are to be verified; a run that cannot be, though it must, is refused."""
        why = server.replay()
        if self.verified is True and isinstance(why, str):
            raise InputError(
                f"{type(server).__name__} cannot run with verified sums, because {why}. Choose another solver, or "
                "leave out verified."
            )
        if self.verified == "auto":
            flexible = self.threshold is not None or (min_clients is not None and self.groups is None)
            return not isinstance(why, str) and clients >= 3 and not flexible
        return bool(self.verified)

    def allow_participation(self) -> Secure:
        """The request for a run in which only some clients are asked in a round: such a run cannot be verified."""
        if self.verified is True:
            raise InputError(
                "A verified run asks all clients in every round, so it cannot be combined with participation. Leave "
                "one of them out."
            )
        return replace(self, verified=False, groups=None)

    def partition(self, clients: Sequence[str]) -> Groups:
        """The groups over which verified sums are taken."""
        return make_groups(self.groups, clients)

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
    """A request without what it says of sums, and the arrays to sum; a server that names none gets nothing."""
    names = _take_bytes(arrays, SUM, -1).tobytes().decode(errors="replace").split()
    _require(
        bool(names) and set(names) <= set(released), f"sums must be of {sorted(released)}, but {names} is asked for"
    )
    return {name: x for name, x in arrays.items() if name != SUM and not is_width(name)}, names


def digest_request(task: str, arrays: Arrays) -> bytes:
    """A digest of a request."""
    digest = blake2b(repr(task).encode(), digest_size=32)
    for name in sorted(arrays):
        x = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, x.dtype.str, arrays[name].shape)).encode())
        digest.update(x.reshape(-1).view(np.uint8).data)
    return digest.digest()


def digest_roster(epoch: bytes, threshold: int, names: Sequence[str], keys: Array) -> bytes:
    """A digest of what must be the same for all clients of an epoch."""
    return sha256(repr((epoch, threshold, tuple(names), keys.tobytes())).encode()).digest()


def digest_key(epoch: bytes, public: bytes) -> bytes:
    """What a client shows of its key before it has seen what the others show of theirs."""
    return sha256(b"fedspan key" + epoch + public).digest()


@dataclass
class _Circle:
    """A client's view of its epoch's roster."""

    names: list[str]
    me: int
    context: bytes
    members: list[int]  # N(i) and i itself
    threshold: int  # t'
    secrets: dict[int, bytes]  # s_ij by j in N(i)
    sealed: Array  # (members, SEALED) shares of r_i for each of them; no rows if t = m
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
    digest: bytes = b""  # of U
    lost: tuple[int, ...] = ()  # whose shares were given
    unmasked: bool = False


class Party:
    """One client's half: keeps its secrets (in memory only), masks, and refuses whatever would show more than a sum.

    `saturated` says whether the numbers that it masked last were too large or not finite. Only the client knows.
    """

    def __init__(self, name: str, threshold: int) -> None:
        self.name, self.t = name, threshold
        self.epoch = b""
        self.key: PrivateKey | None = None
        self.public = self.root = b""
        self.shown = False  # whether the public key of this epoch has left
        self.digests: dict[str, bytes] = {}  # of the keys of all clients, from before it left
        self.circle: _Circle | None = None
        self.sent: _Sent | None = None
        self.last: Place = (-1, -1)  # the exchange masked last, in whichever epoch
        self.saturated = False  # whether the numbers masked last were too large or not finite

    def answer(self, phase: str, arrays: Arrays, place: Place) -> Arrays:
        """The reply to one of the protocol's own phases."""
        phases: dict[str, Callable[[Arrays, Place], Arrays]] = {
            "@commit": self._commit,
            "@keys": self._keys,
            "@roster": self._roster,
            "@agree": self._agree,
            "@unmask": self._unmask,
            "@recover": self._recover,
        }
        _require(phase in phases, f"{phase!r} is not a phase")
        return phases[phase](arrays, place)

    def _enter(self, epoch: bytes) -> None:
        """New secrets for a new epoch; the same again if it is asked again."""
        if epoch != self.epoch:
            self.epoch, self.root, self.circle, self.sent = epoch, os.urandom(SECRET), None, None
            self.key, self.public = new_key()
            self.shown, self.digests = False, {}

    def _commit(self, arrays: Arrays, place: Place) -> Arrays:
        self._enter(_take_bytes(arrays, "epoch", 16).tobytes())
        return {"digest": stack_bytes([digest_key(self.epoch, self.public)], 32)[0]}

    def _keys(self, arrays: Arrays, place: Place) -> Arrays:
        self._enter(_take_bytes(arrays, "epoch", 16).tobytes())
        digests: dict[str, bytes] = {}
        if "digests" in arrays:
            names = _take_names(arrays)
            shown = _take_bytes(arrays, "digests", len(names), 32)
            digests = {name: digest.tobytes() for name, digest in zip(names, shown, strict=True)}
        _require(not self.shown or digests == self.digests, "the digests of the keys have changed since the key left")
        self.shown, self.digests = True, digests
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
            _require(
                publics[names.index(self.name)] == self.public, f"the key of {self.name!r} in the roster is not its own"
            )
            self.circle = self._join(names, publics, context)
        return {"shares": self.circle.sealed}

    def _join(self, names: list[str], publics: list[bytes], context: bytes) -> _Circle:
        """The circle of this client among those of the roster: secrets with its neighbours, and shares for them."""
        m, me, degree = len(names), names.index(self.name), graph.choose_degree(len(names))
        if degree is not None:
            self._check_promises(names, publics)
        members = graph.find_circle(context, m, degree, me)
        assert self.key is not None  # noqa: S101 - there is one as soon as there is an epoch
        secrets = {j: shared_secret(self.key, publics[j], context) for j in members if j != me}
        threshold = self.t if degree is None else degree.threshold
        circle = _Circle(names, me, context, members, threshold, secrets, np.zeros((0, SEALED), dtype=np.uint8))
        if self.t < m:
            shares = split_secret(self.root, threshold, [j + 1 for j in members])
            sealed = [_seal_share(circle, j, share) for j, share in zip(members, shares, strict=True)]
            circle.sealed = stack_bytes(sealed, SEALED)
        return circle

    def _check_promises(self, names: list[str], publics: list[bytes]) -> None:
        """Refuse a roster on which anything was chosen when this client's key was known: it would choose neighbours.

        Another order of the names, or leaving out one of them, is such a choice as well as another key.
        """
        _require(names == list(self.digests), "the clients of the roster are not those whose digests were shown before")
        for name, public in zip(names, publics, strict=True):
            _require(
                self.digests[name] == digest_key(self.epoch, public),
                f"the key of {name!r} is not the one whose digest was shown before",
            )

    def _current_circle(self) -> _Circle:
        if self.circle is None:
            raise ProtocolError("Secure aggregation refused: no keys were agreed on in this epoch.")
        return self.circle

    def find_sent(self, place: Place) -> Arrays | None:
        """What was sent in that exchange, if anything: two messages under the same masks show their difference."""
        return self.sent.arrays if self.sent is not None and self.sent.place == place else None

    def check_ready(self, place: Place) -> _Circle:
        """Refuse an exchange that cannot be masked, before anything is computed for it."""
        circle = self._current_circle()
        _require(not circle.over, "these keys were used up; a new epoch is needed")
        _require(place > self.last, f"exchange {place} was masked already, or is over")
        return circle

    def mask(self, arrays: Arrays, place: Place, asked: bytes = b"", exponents: Exponents | None = None) -> Arrays:
        """y_i: each array as uint64 of shape (lanes, *shape), uniform to whoever does not know the masks.

        `asked` is a digest of the request: the masks of two clients cancel only if both were asked the same. Of arrays
        with `exponents` only so many low bits leave, as bytes, with check sums (packing.py).
        """
        circle = self.check_ready(place)
        x = fixed.to_lanes(arrays, len(circle.names))
        _require(set(exponents or {}) <= set(x), "there are widths for what does not leave")
        widths = {name: fit_widths(x[name], given, name) for name, given in (exponents or {}).items()}
        for name in widths:
            x[CHECK + name] = check_sums(x[name], place, name)
        x = _in_order(x)
        y = np.concatenate([lanes.reshape(-1) for lanes in x.values()])
        space = bytearray(8 * y.size)
        for j in circle.secrets:
            mask = stream(circle.pair(j, "mask", place, asked), y.size, space)
            y = np.add(y, mask, out=y) if j > circle.me else np.subtract(y, mask, out=y)
        if self.t < len(circle.names):
            y += stream(own_seed(self.root, circle.context, place), y.size, space)
        masked = _cut(y, x)
        masked |= {name: pack_lane(masked[name], bits) for name, bits in widths.items()}
        self.last, self.sent, self.saturated = place, _Sent(place, asked, masked), fixed.has_saturated(x)
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
        sent.present, sent.digest = present, sha256(repr(present).encode()).digest()
        tags = [_tag_set(circle, sent, circle.me, j) if j != circle.me else bytes(TAG) for j in circle.members]
        return {"tags": stack_bytes(tags, TAG)}

    def _unmask(self, arrays: Arrays, place: Place) -> Arrays:
        circle, sent = self._during(place)
        tags = _take_bytes(arrays, "tags", len(circle.members), TAG)
        _require(bool(sent.present), "asked to unmask before all agreed on who is in the sum")
        present = set(sent.present)
        agreeing = 1 + sum(
            same(_tag_set(circle, sent, j, circle.me), tag.tobytes())
            for j, tag in zip(circle.members, tags, strict=True)
            if j in present and j != circle.me
        )
        _require(agreeing >= circle.threshold, f"at least {circle.threshold} clients must agree, but {agreeing} do")
        missing = [j for j in circle.members if j not in present]
        sent.unmasked, circle.over = True, circle.over or len(present) < len(circle.names)
        return {
            "seed": stack_bytes([own_seed(self.root, circle.context, place)], 32)[0],
            "pairs": stack_bytes([circle.pair(j, "mask", place, sent.asked) for j in missing], 32),
        }

    def _recover(self, arrays: Arrays, place: Place) -> Arrays:
        circle, sent = self._during(place)
        lost = _take_marks(arrays, "lost", len(circle.names))
        near = [j for j in lost if j in circle.secrets]
        _require(sent.unmasked, "asked for shares before all agreed on who is in the sum")
        _require(len(sent.present) == len(circle.names), "masks of clients that did not answer were revealed already")
        _require(circle.me not in lost, "asked for shares of a client that is not in the sum, or is not lost")
        _require(sent.lost in ((), lost), "asked for shares of two different sets of clients")
        sealed = _take_bytes(arrays, "shares", len(near), SEALED)
        shares = [_open_share(circle, j, share.tobytes()) for j, share in zip(near, sealed, strict=True)]
        sent.lost, circle.over = lost, True
        return {
            "shares": stack_bytes([share or bytes(SHARE) for share in shares], SHARE),
            "opened": np.array([share is not None for share in shares], dtype=np.uint8),
        }


def _tag_set(circle: _Circle, sent: _Sent, giver: int, reader: int) -> bytes:
    """The tag that says to the reader: the giver holds this set of clients for present, in this exchange."""
    other = reader if giver == circle.me else giver
    return circle.pair(other, "agree", giver, reader, sent.place, sent.asked, sent.digest)[:TAG]


def _seal_share(circle: _Circle, j: int, share: bytes) -> bytes:
    if j == circle.me:
        return bytes(SEALED)
    return seal(circle.pair(j, "share", circle.me, j), share, circle.context)


def _open_share(circle: _Circle, j: int, sealed: bytes) -> bytes | None:
    """What j sealed for this client; None if it does not open: j or the server has spoiled it then, not this client."""
    try:
        return unseal(circle.pair(j, "share", j, circle.me), sealed, circle.context)
    except ProtocolError:
        return None


def own_seed(root: bytes, context: bytes, place: Place) -> bytes:
    """b_i^e."""
    return purpose_key(root, "own", context, *place)


def _in_order(lanes: Arrays) -> dict[str, Array]:
    """The lanes in the order in which a mask covers them: by name, the counts last."""
    return {name: lanes[name] for name in sorted(lanes, key=lambda name: (name == fixed.COUNTS, name))}


def _cut(flat: Array, like: Arrays) -> dict[str, Array]:
    """One vector cut into arrays of those names and shapes."""
    cuts = np.cumsum([x.size for x in like.values()])[:-1]
    return {n: part.reshape(x.shape) for (n, x), part in zip(like.items(), np.split(flat, cuts), strict=True)}


def recover_seed(shares: Mapping[int, bytes], threshold: int, context: bytes, place: Place) -> bytes | None:
    """b_i^e of a client that was lost, from shares of its root (by the number of who gave them); None if too few fit.

    If there are more than needed, others are tried in turn: a single wrong share does no harm.
    """
    given = [(number + 1, share) for number, share in shares.items()]
    for start in range(len(given) if len(given) > threshold else 1):
        some = (given[start:] + given[:start])[:threshold]
        if len(some) < threshold:
            return None
        try:
            return own_seed(combine_shares(dict(some)), context, place)
        except ProtocolError:
            continue
    return None


def remove_masks(total: Arrays, seeds: Sequence[bytes], pairs: Mapping[tuple[int, int], bytes]) -> dict[str, Array]:
    """The sum of the y_i of U without its masks: b_i^e of all in U, k_ij^e of all i in U and j not in U."""
    total = _in_order(total)
    y = np.concatenate([lanes.reshape(-1) for lanes in total.values()])
    space = bytearray(8 * y.size)
    for seed in seeds:
        y -= stream(seed, y.size, space)
    for (i, j), seed in pairs.items():
        mask = stream(seed, y.size, space)
        y = np.subtract(y, mask, out=y) if j > i else np.add(y, mask, out=y)
    return _cut(y, total)
