"""Matching of ids by tags: what all methods have in common, and what a client guards, whatever the method.

Notation: n parties; each shuffles its ids in secret and pads them; a tag is what the server compares in place of an id;
J entities are common, or in at least one list (`how`).

    declare_ids      its number of ids, rounded up, and a digest that says whether all parties have the same secret
    …                what makes tags (match_ring.py, match_digests.py)
    confirm_common   how many entities were found is told, and the client may refuse before anyone is told positions
    keep_rows        where its own rows stand in the common order: the client remembers it
"""

from __future__ import annotations

import hmac
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.algorithms.matching.canonical_ids import canonical_ids, digest_table
from fedspan.core.checkpoint import build
from fedspan.core.protocol import Ask, Client, Needs, Replay, Round, Server, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import CheckpointError, ClientError, InputError, PolicyRefusal, ProtocolError

How = Literal["intersection", "union"]
MOST_PARTIES = 10
ENDING = (Turn("confirm_common", after=["declare_ids"]), Turn("keep_rows", after=["confirm_common"]))
_SECRET_DIGEST = 16  # bytes
_PROCESS_SECRET = secrets.token_hex(32)  # for clients in one process that were given no secret


@dataclass(frozen=True)
class IdList:
    """The ids of a client's rows, and what it demands of a run that matches them.

    Parameters:
        ids: One id for each row.
        secret: A secret of the clients that the server does not have. The ring need not have one; with it, nobody
            without it can test guesses.
        least: The fewest entities in common at which positions are told; of a union, the fewest that others have too.
        most: The largest set that is accepted, from this client and from others.
        pad: The number of ids that others are to see at least.
        workers: Processes that blind; 0: one for each core.
        progress: Is told how many points were blinded since it was told last.
    """

    ids: Sequence[object] | Array
    secret: str = ""
    least: int = 1
    most: int = 10_000_000
    pad: int = 0
    workers: int = 0
    progress: Callable[[int], None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class MatchedRows:
    """What a client remembers: which of its rows is entity 0, 1, … (-1: it has none), and a digest of its ids then."""

    rows: Array | None = None  # (J,)
    table: Array | None = None  # (16,) bytes


def read_matched_rows(saved: object) -> MatchedRows | None:
    """What a client remembered of where its rows stand; None if that is something else, or nothing."""
    try:
        matched = build(MatchedRows, saved)
    except CheckpointError:
        return None
    return None if matched.rows is None or matched.table is None else matched


class IdClient(Client[MatchedRows]):
    """The ids in a secret order, padded; `how` and the number of parties come from the algorithm."""

    State = MatchedRows
    needs: ClassVar[Needs] = "ids"

    def __init__(self, data: IdList, how: How, parties: int) -> None:
        self.data, self.how, self.parties = data, how, parties
        self.spelled = canonical_ids(data.ids)
        n = len(self.spelled)
        if not n:
            raise InputError("There are no ids to match.")
        if n > data.most:
            raise InputError(f"At most {data.most} ids may be matched here, but the table has {n}. Raise max_ids.")
        self.size = n if how == "union" else pad_size(max(n, data.pad))
        if self.size > data.most:
            self.size = data.most
        self.order = np.argsort(np.frombuffer(secrets.token_bytes(8 * self.size), dtype=np.uint64))  # n and more: none
        self.confirmed: int | None = None

    def init(self) -> MatchedRows:
        return MatchedRows()

    @task(
        releases={"n": None, "secret": None},
        shows="its number of ids (for an intersection rounded up, by padding), and whether its secret is that of the "
        "others",
    )
    def declare_ids(self, state: MatchedRows, arrays: Arrays, rng: Streams) -> tuple[MatchedRows, Arrays]:
        """The size of its padded set, and a digest of the clients' secret; zeros if there is none."""
        digest = bytes(_SECRET_DIGEST)
        if self.data.secret:
            digest = hmac.digest(self.data.secret.encode(), b"which secret" + arrays["key"].tobytes(), "sha256")
        secret = np.frombuffer(digest[:_SECRET_DIGEST], dtype=np.uint8)
        return state, {"n": np.array(self.size), "secret": secret}

    @task(releases={}, shows="")
    def confirm_common(self, state: MatchedRows, arrays: Arrays, rng: Streams) -> tuple[MatchedRows, Arrays]:
        """Refuse before anyone is told positions, if too few entities are common."""
        entities, common = int(arrays["entities"]), int(arrays["common"])
        if common < self.data.least:
            raise PolicyRefusal(
                f"Rows are matched here only if at least {self.data.least} entities are common (min_common), and they "
                "are fewer. Nobody was told which."
            )
        self.confirmed = entities
        return state, {}

    @task(releases={}, shows="")
    def keep_rows(self, state: MatchedRows, arrays: Arrays, rng: Streams) -> tuple[MatchedRows, Arrays]:
        """Remember which of its rows is which entity, if what the server says can be true."""
        at = arrays["at"]
        if at.ndim != 1 or at.dtype != np.int64 or len(at) != self.confirmed:
            raise ProtocolError("The positions that were told are not those of the entities that were counted.")
        own = at[at >= 0]
        if (at < -1).any() or (own >= self.size).any() or len(np.unique(own)) < len(own):
            raise ProtocolError("The positions that were told are not those of different ids of this client.")
        rows = np.where(at < 0, -1, self.order[np.maximum(at, 0)])
        n = len(self.spelled)
        if (rows >= n).any():
            raise ProtocolError("The server says that padding is an entity of others.")
        complete = len(own) == (n if self.how == "union" else len(at))
        if not complete or (self.how == "intersection" and len(own) < self.data.least):
            raise ProtocolError(f"The positions that were told are not those of an {self.how}.")
        table = np.frombuffer(digest_table(self.spelled), dtype=np.uint8)
        return MatchedRows(rows.astype(np.int64), table), {}

    def shuffle_and_pad(self, digests: Array, padding: Array) -> Array:
        """What stands for the ids, and for padding, in this client's secret order."""
        return np.concatenate([digests, padding])[self.order]


@dataclass(frozen=True)
class MatchState:
    """How many entities there are in the common order, and the (padded) size of every party's set."""

    entities: int
    sizes: dict[str, int]


@dataclass(frozen=True)
class MatchByTags(Server[MatchState]):
    """What all methods have in common: sizes first, then tags, then positions if no party objects.

    Everything happens in the opening, so that there is no round to resume from: what was cut off begins again.
    """

    parties: int = 2
    how: How = "intersection"

    State: ClassVar[type] = MatchState
    family: ClassVar[str] = "matching"

    def __post_init__(self) -> None:
        if not 2 <= self.parties <= MOST_PARTIES:
            raise InputError(f"From 2 to {MOST_PARTIES} clients can be matched, but there are {self.parties}.")
        if self.how not in ("intersection", "union"):
            raise InputError(f"how must be 'intersection' or 'union', but is {self.how!r}.")

    def client_options(self) -> dict[str, float | int | str | bool]:
        return {"how": self.how, "parties": self.parties}

    def replay(self) -> Replay | str:
        return "tags of ids are no sums"

    @abstractmethod
    def tag(self, sizes: Mapping[str, int], rng: Streams) -> Round[dict[str, Array]]:
        """The tags of every party's ids."""

    def init(self, rng: Streams) -> Round[MatchState]:
        key = rng("key").integers(0, 256, 32, dtype=np.uint8)
        declared = (yield from complete(Ask("declare_ids", {"key": key}))).each
        _check_secrets(declared)
        sizes = {name: int(arrays["n"]) for name, arrays in declared.items()}
        if len(sizes) != self.parties:
            raise InputError(f"This run is for {self.parties} clients, but there are {len(sizes)}.")
        found = find_entities((yield from self.tag(sizes, rng)), self.how)
        if not any(found.common.values()):
            raise InputError(
                "The clients have no entity in common. Check that the column of ids holds the same kind of id "
                "everywhere."
            )
        entities = np.array(found.entities)
        counts = {name: {"entities": entities, "common": np.array(n)} for name, n in found.common.items()}
        yield from complete(Ask("confirm_common", privately=counts))
        yield from complete(Ask("keep_rows", privately={name: {"at": at} for name, at in found.at.items()}))
        return MatchState(found.entities, sizes)

    def round(self, state: MatchState, rng: Streams) -> Round[MatchState]:
        yield from ()
        return state

    def done(self, state: MatchState) -> bool:
        return True

    def estimate(self, state: MatchState) -> Array:
        return np.array([float(state.entities)])

    def metrics(self, state: MatchState) -> dict[str, float]:
        return {"entities": float(state.entities)}


def own_secret(data: IdList) -> str:
    """The clients' common secret; in one process, if there is none, one that all clients of the process share."""
    return data.secret or _PROCESS_SECRET


def pad_size(n: int) -> int:
    """The size that a set of n is padded to: n with its last bits rounded up, at most 12 % more.

    Nikitin et al., Reducing metadata leakage from encrypted files and communication with PURBs, PoPETs 2019 (Padmé):
    of n, only O(log log n) bits can be seen.
    """
    if n < 2:
        return n
    exponent = n.bit_length() - 1
    last = exponent - exponent.bit_length()
    mask = (1 << max(last, 0)) - 1
    return (n + mask) & ~mask


@dataclass(frozen=True)
class FoundEntities:
    """What the server makes of the tags."""

    entities: int
    common: dict[str, int]  # by party: how many of its ids are in the intersection, or at another party of a union
    at: dict[str, Array]  # by party: where in its own set each entity stands, -1: nowhere


def find_entities(tags: Mapping[str, Array], how: How) -> FoundEntities:
    """The entities in the order of their tags, which nobody can foresee, and where they are in each party's set."""
    plain = {name: as_words(rows) for name, rows in tags.items()}
    words, owners = np.unique(np.concatenate(list(plain.values())), return_counts=True)
    kept = words if how == "union" else words[owners == len(plain)]
    shared = words[owners > 1] if how == "union" else kept
    common = {name: int(np.isin(own, shared).sum()) for name, own in plain.items()}
    at = {}
    for name, own in plain.items():
        order = np.argsort(own)
        place = np.minimum(np.searchsorted(own[order], kept), len(own) - 1)
        at[name] = np.where(own[order][place] == kept, order[place], -1).astype(np.int64)
    return FoundEntities(len(kept), common, at)


def as_words(rows: Array) -> Array:
    """Every row of bytes as one value that can be compared and sorted; numpy's text would lose zeros at the end."""
    marked = np.concatenate([rows, np.ones((len(rows), 1), dtype=np.uint8)], axis=1)
    return np.ascontiguousarray(marked).view(f"S{marked.shape[1]}").ravel()


def count_different(rows: Array) -> int:
    """How many rows differ."""
    return len(np.unique(as_words(rows)))


def check_set(party: str, rows: Array, shape: tuple[int, int]) -> Array:
    """What a party answered, if it is as many different points or tags as there must be."""
    if rows.shape != shape or rows.dtype != np.uint8:
        raise ClientError(
            f"Client {party!r} must answer with {shape[0]} rows of {shape[1]} bytes, but sent {rows.shape} of "
            f"{rows.dtype}. Nobody was told positions."
        )
    if count_different(rows) < len(rows):
        raise ClientError(f"Client {party!r} sent some points more than once. Nobody was told positions.")
    return rows


def _check_secrets(declared: Mapping[str, Arrays]) -> None:
    """Refuse clients with different secrets: none of their ids would be equal."""
    first, *others = declared
    for other in others:
        if not np.array_equal(declared[first]["secret"], declared[other]["secret"]):
            raise InputError(
                f"Clients {first!r} and {other!r} have different secrets for ids, or only one of them has one, so no "
                "id of theirs would match. Give all clients the same secret, or none."
            )
