"""Which row of each client is which entity, found without showing ids: `fedspan.match_entities`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.matching.match_by_tags import How, IdList, MatchByTags, MatchedRows, pad_size
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import MatchRing
from fedspan.algorithms.matching.points import count_workers
from fedspan.channel import Channel
from fedspan.core.ledger import Ledger
from fedspan.core.protection import RETRIES, Protection
from fedspan.core.protocol import AnyServer
from fedspan.core.run import Engine, Session, run
from fedspan.data.clients import blame_client, name_clients
from fedspan.engines.inprocess import InProcess
from fedspan.errors import FedspanError, InputError

Method = Literal["psi", "digest"]
METHODS: dict[str, type[MatchByTags]] = {"psi": MatchRing, "digest": MatchDigests}


@dataclass(frozen=True, eq=False, repr=False)
class MatchedEntities(Mapping[str, Array]):
    """Where each entity is at each client: a mapping from the client's name to the positions of its rows.

    `matched["bank"][j]` is the row of `bank` that is entity j, and -1 if it has none (in a union only). So
    `X[matched["bank"]]` are the rows of `bank` in the common order, which is that of the first client's rows (then, in
    a union, that of the rows of the next client that no client before it has).

    Attributes:
        entities: J, how many entities there are.
        method: "psi" or "digest".
        how: "intersection" or "union".
        counts: By client, how many ids it has.
        ledger: What was exchanged.
    """

    rows: Mapping[str, Array]  # (J,) each
    entities: int
    method: str
    how: str
    counts: Mapping[str, int]
    ledger: Ledger

    def __getitem__(self, client: str | int) -> Array:
        """The positions of a client, by its name or its number."""
        return self.rows[list(self.rows)[client] if isinstance(client, int) else client]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{self.how} of the ids of {len(self)} clients: {self.entities} entities, found by {self.method}>"

    def describe_left_out(self) -> str:
        """Which clients have rows that are no entity, in words; empty if none has."""
        left = {name: n - int(np.sum(self.rows[name] >= 0)) for name, n in self.counts.items()}
        return ", ".join(f"{n} of {self.counts[name]} rows of {name!r}" for name, n in left.items() if n)


def match_entities(
    clients_ids: Mapping[str, Sequence[object] | Array] | Sequence[Sequence[object] | Array],
    *,
    method: Method = "psi",
    how: How = "intersection",
    secret: str = "",
    min_common: int = 1,
    max_ids: int = 10_000_000,
    pad: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    engine: Callable[..., Engine] | None = None,
    retries: int = RETRIES,
    ledger: Ledger | None = None,
) -> MatchedEntities:
    """Find out which row of each client is the same entity, without showing ids.

    Parameters:
        clients_ids: The ids of every client's rows, by name or in a list: text or whole numbers. 1, 1.0, "1" and " 1 "
            are one id, "007" and 7 are not; letters count without their case. Gaps, fractions and duplicates are
            refused before anything is sent.
        method: "psi" blinds ids in a ring: nobody can undo it. "digest" compares digests under the clients' `secret`:
            quick, but whoever knows the secret can test guesses against what the server has.
        how: "intersection" keeps the entities that all clients have, "union" those that at least one has.
        secret: A text that all clients know and the server does not. "psi" does not need one, but with it a server
            that breaks the protocol cannot test guesses, either.
        min_common: Nobody is told positions if fewer entities than this are common.
        max_ids: Larger sets are refused.
        pad: The number of ids that the others are to see at least; any number is rounded up by a few percent. A union
            cannot hide it.
        workers: Processes that blind for each client; None: the cores of this machine, shared by the clients.
        progress: `progress(done, total)` is called now and then with the number of points that were blinded.
        engine: A function from the clients' data to the engine that runs them; None: `InProcess`.
        retries: How often a client that did not answer is asked again.
        ledger: Where to write what happens; by default a new `Ledger`.

    Returns:
        A mapping from each client's name to the positions of its rows in the common order.

    Examples:
        >>> from fedspan import match_entities
        >>> matched = match_entities({"bank": ["Ann", "Bo", "Cy"], "shop": [" CY ", "ann", "Dee"]}, method="digest")
        >>> matched.entities, matched["bank"].tolist(), matched["shop"].tolist()
        (2, [0, 2], [1, 0])
    """
    if method not in METHODS:
        raise InputError(f"method must be 'psi' or 'digest', but is {method!r}.")
    lists = {name: _check_list(name, ids) for name, ids in name_clients(clients_ids).items()}
    algorithm = METHODS[method](parties=len(lists), how=how)
    told = None
    if progress is not None:
        sizes = [len(ids) if how == "union" else pad_size(max(len(ids), pad)) for ids in lists.values()]
        told = _Counter(progress, total=len(lists) * sum(sizes))
    share = workers if workers is not None else max(1, count_workers() // len(lists))
    data = {name: IdList(ids, secret, min_common, max_ids, pad, share, told) for name, ids in lists.items()}
    remembering = RememberingEngine(engine(data) if callable(engine) else InProcess(data))
    ledger = ledger if ledger is not None else Ledger()
    why = "rows of different clients are matched by their ids"
    entities = run(algorithm, remembering, rounds=0, seed=0, retries=retries, ledger=ledger, why=why).state.entities
    rows = remembering.get_rows(list(lists))
    order = _order_by_first_client(rows)
    counts = {name: len(ids) for name, ids in lists.items()}
    return MatchedEntities({name: own[order] for name, own in rows.items()}, entities, method, how, counts, ledger)


def _check_list(name: str, ids: Iterable[object]) -> list[object]:
    with blame_client(name):
        if isinstance(ids, str | bytes) or (not isinstance(ids, Sequence | np.ndarray | range) and not _is_column(ids)):
            raise InputError(f"Ids must be a list or a column with one id for each row, but are {type(ids).__name__}.")
        return list(ids)


def _is_column(ids: object) -> bool:
    """Whether that is a column of pandas, polars or Arrow."""
    return isinstance(ids, Iterable) and isinstance(ids, Sized) and not isinstance(ids, Mapping | set)


def _order_by_first_client(rows: Mapping[str, Array]) -> Array:
    """The entities in the order of the first client's rows, then of the next client's that those before it lack.

    In a run all of them are in an order that nobody can foresee; here, where everything is known, in one that repeats.
    """
    key = np.full(len(next(iter(rows.values()))), -1, dtype=np.int64)
    start = 0
    for own in rows.values():
        open_places = (key < 0) & (own >= 0)
        key[open_places] = start + own[open_places]
        start += int(own.max(initial=0)) + 1
    return np.argsort(key, kind="stable")


class _Counter:
    """Adds up what all clients have blinded."""

    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self.progress, self.total = progress, total
        self.done, self.lock = 0, Lock()

    def __call__(self, more: int) -> None:
        with self.lock:
            self.done += more
            self.progress(self.done, self.total)


class RememberingEngine:
    """An engine whose last session can be asked where its clients' rows stand."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session: Session | None = None

    @property
    def clients(self) -> Sequence[str]:
        return self.engine.clients

    def start(self, server: AnyServer, channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        self.session = self.engine.start(server, channel, seed, protection)
        return self.session

    def get_rows(self, names: Sequence[str]) -> dict[str, Array]:
        """By client, the row that is each entity."""
        sites = self.session.snapshot().sites if self.session else {}
        states = {name: site.state for name, site in sites.items() if isinstance(site.state, MatchedRows)}
        rows = {name: state.rows for name, state in states.items() if state.rows is not None}
        if any(name not in rows for name in names):
            raise FedspanError("This engine leaves the positions at the clients; match where the model is fitted.")
        return {name: rows[name] for name in names}
