"""The server's end of a federation, whatever carries the messages: the same `Hub` as in one process, and what only a
network brings: sites that are slow, that die, and that answer nonsense.

A site that did not answer in time is asked on, but not waited for while others answer, until it answers again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedspan._types import Arrays
from fedspan.channel import wire
from fedspan.channel.stage import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Replies, Server, Sum, tasks_of
from fedspan.core.run import Session
from fedspan.data.remote_table import RemoteTable
from fedspan.engines.hub import Collector, Hub
from fedspan.engines.site import explain
from fedspan.engines.start import Opening
from fedspan.errors import ClientError, FedspanError, InputError, ProtocolError
from fedspan.secure.session import SecureSession, threshold

GRACE = 0.05  # seconds that a site on probation is waited for when the others have answered


class Transport(Protocol):
    """Calls one site, and returns what it said. Raises TimeoutError, or what else went wrong."""

    def __call__(self, site: str, method: str, timeout: float, *arguments: Any) -> Any: ...


def told(answer: Any, site: str) -> dict[str, Any]:
    """A site's answer in JSON, or what it refused."""
    tree = json.loads(answer) if isinstance(answer, str) else None
    if not isinstance(tree, dict):
        raise ClientError(f"need an answer in JSON from site {site!r}, got {type(answer).__name__}")
    if "error" in tree:
        kind = InputError if tree.get("input") else ClientError
        raise kind(f"site {site!r} refused: {tree['error']}")
    return tree


class RemoteEngine:
    """An engine over sites. `tables` are what they said of their data; `where` is which table a job asks for."""

    def __init__(self, transport: Transport, sites: Sequence[str], run: str, *, timeout: float = 60.0) -> None:
        self.transport, self.sites, self.run, self.timeout = transport, tuple(sorted(sites)), run, timeout
        self.where: Mapping[str, Any] = {}
        self.tables: Mapping[str, Any] = {}
        self.parts = 0
        self.away: set[str] = set()  # did not answer the last question in time
        self.pending: dict[str, Future[Any]] = {}
        self.pool = ThreadPoolExecutor(max_workers=2 * len(self.sites) + 2, thread_name_prefix="fedspan-site")

    def __call__(self, tables: Mapping[str, Any]) -> RemoteEngine:
        """For `engine=` of an estimator: the tables with what their sites are to be told."""
        self.tables = tables
        return self

    @property
    def clients(self) -> Sequence[str]:
        return self.sites

    def start(self, server: Server[Any], channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        plan, secure = (protection.plan, protection.secure) if protection else (None, None)
        least = protection.min_clients if protection else None
        t = threshold(secure, channel, len(self.sites), least) if secure else None
        opening = Opening(self.run, self.parts, server, channel, seed, self.sites, plan, t, self.where)
        self.parts += 1
        inner = RemoteSession(self, server, opening)
        if t is None:
            return inner
        public = [name for name, task in tasks_of(server.client).items() if task.public]
        return SecureSession(inner, t, least or len(self.sites), public)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class _Reply(NamedTuple):
    arrays: Arrays | None
    bytes_up: int
    seconds: float
    failure: str | None = None
    wrong: str | None = None  # the site says that its input is wrong: no use in going on


class RemoteSession:
    """One run over the sites of an engine."""

    def __init__(self, engine: RemoteEngine, server: Server[Any], opening: Opening) -> None:
        self.engine, self.server, self.opening = engine, server, opening
        self.hub = Hub(opening.channel, opening.seed)
        self.opened: set[str] = set()
        self.round, self.saved, self.kept = 0, -1, -1  # kept: the last round that surely is in a checkpoint

    def close(self) -> None:
        """The sites keep what they remember: another part, or a resumption, may follow."""

    def snapshot(self) -> Any:
        """The server's ends only: what clients remember stays with them, by rounds."""
        self.kept, self.saved = self.saved, self.round  # what is saved now is not yet on disk
        return {"hub": self.hub.snapshot(), "sites": {}}

    def restore(self, saved: Any, after: int) -> None:
        self.hub.restore(saved["hub"])
        self.opening, self.saved = replace(self.opening, after=after), after

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        self.round = round
        engine, sent, blobs = self.engine, dict[str, int](), dict[tuple[Any, ...], bytes]()
        futures: dict[str, Future[Any]] = {}
        for client, message in self.hub.address(ask, cohort, round, exchange):
            key = (id(message.arrays), message.number, message.base, message.ack)
            blob = blobs[key] = blobs.get(key) or wire.encode(message)
            sent[client] = len(blob)
            busy = engine.pending.get(client)
            if busy is None or busy.done():
                futures[client] = engine.pending[client] = engine.pool.submit(self._ask, client, blob)
        blobs.clear()
        self._wait(futures)
        collector, costs = Collector(ask, cohort), dict[str, tuple[int, float]]()
        replies = {client: self._reply(client, futures.get(client), ask) for client in cohort}
        wrong = next(((client, reply.wrong) for client, reply in replies.items() if reply.wrong), None)
        if wrong:
            raise InputError(f"client {wrong[0]!r}: {wrong[1]}")
        if isinstance(ask.want, Sum):
            replies = _alike(replies, ask.want.names)
        for client in cohort:
            reply = replies[client]
            costs[client] = (reply.bytes_up, reply.seconds)
            collector.add(client, reply.arrays, reply.failure)
        event = Exchange(
            round, exchange, ask.task, cohort, tuple(sent[c] for c in cohort), tuple(costs[c][0] for c in cohort),
            tuple(costs[c][1] for c in cohort), tuple(collector.missing), collector.failures,
        )  # fmt: skip
        return collector.replies(), event

    def _ask(self, client: str, blob: bytes) -> tuple[Any, float]:
        """In a thread of its own: open the site if it is not, ask, and say how long it took."""
        started, call, timeout = time.perf_counter(), self.engine.transport, self.engine.timeout
        if client not in self.opened:
            table = self.engine.tables.get(client)
            own = table.told if isinstance(table, RemoteTable) else {}
            told(call(client, "open", timeout, replace(self.opening, told=own).to_json()), client)
            self.opened.add(client)
        answer = call(client, "exchange", timeout, blob, self.kept)
        return answer, time.perf_counter() - started

    def _wait(self, futures: Mapping[str, Future[Any]]) -> None:
        """Until all have answered or the time is up; those who were late before only if nobody else is asked."""
        engine, end = self.engine, time.monotonic() + self.engine.timeout
        trusted = [future for client, future in futures.items() if client not in engine.away]
        wait(trusted or futures.values(), timeout=engine.timeout)
        rest = [future for future in futures.values() if not future.done()]
        if trusted and rest:
            wait(rest, timeout=min(GRACE, max(0.0, end - time.monotonic())))

    def _reply(self, client: str, future: Future[Any] | None, ask: Ask) -> _Reply:
        """What became of one question."""
        away = self.engine.away
        if future is None or not future.done():
            away.add(client)
            state = "still busy with a question before" if future is None else "no answer"
            return _Reply(None, 0, self.engine.timeout, f"{state} within {self.engine.timeout:g} s; see run.timeout")
        try:
            answer, seconds = future.result()
        except InputError as error:
            return _Reply(None, 0, 0.0, wrong=str(error))
        except TimeoutError:
            away.add(client)
            return _Reply(None, 0, self.engine.timeout, f"no answer within {self.engine.timeout:g} s; see run.timeout")
        except FedspanError as error:
            return _Reply(None, 0, 0.0, str(error))
        except Exception as error:
            away.add(client)
            return _Reply(None, 0, 0.0, f"could not be asked ({explain(error)})")
        away.discard(client)
        if isinstance(answer, str):
            return self._refused(answer, client, seconds)
        try:
            if not isinstance(answer, bytes):
                raise ProtocolError(f"need a message in bytes, got {type(answer).__name__}")
            arrays = self._checked(ask, self.hub.receive(client, wire.decode(answer)), client)
        except Exception as error:
            return _Reply(None, len(answer) if isinstance(answer, bytes) else 0, seconds, explain(error))
        return _Reply(arrays, len(answer), seconds)

    def _refused(self, answer: str, client: str, seconds: float) -> _Reply:
        try:
            told(answer, client)
        except InputError as error:
            return _Reply(None, len(answer), seconds, wrong=str(error))
        except (FedspanError, ValueError) as error:
            return _Reply(None, len(answer), seconds, str(error))
        return _Reply(None, len(answer), seconds, "an answer that is none")

    def _checked(self, ask: Ask, arrays: Arrays, client: str) -> Arrays:
        """The reply, if it is what the task declares to release; masked sums are whole numbers modulo 2^64."""
        if ask.task.startswith("@"):
            return arrays
        task = tasks_of(self.server.client)[ask.task]
        masked = self.opening.threshold is not None and not task.public
        names = set(ask.want.names) if masked and isinstance(ask.want, Sum) else set(task.releases)
        if set(arrays) != names:
            raise ProtocolError(f"need {sorted(names)} in the reply to {ask.task!r}, got {sorted(arrays)[:5]}")
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or (masked and array.dtype != np.uint64):
                raise ProtocolError(f"need numbers as {name!r} in the reply to {ask.task!r}, got dtype {array.dtype}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ProtocolError(
                    f"need finite numbers as {name!r} in the reply to {ask.task!r}, got NaN or infinity"
                )
        return arrays


def _alike(replies: dict[str, _Reply], names: Sequence[str]) -> dict[str, _Reply]:
    """The replies whose arrays have the shape that most have; one that differs counts as a failure of that site."""

    def layout(reply: _Reply) -> tuple[Any, ...]:
        assert reply.arrays is not None  # noqa: S101 - for the type checker
        return tuple((reply.arrays[name].shape, reply.arrays[name].dtype.kind) for name in names)

    come = {client: layout(reply) for client, reply in replies.items() if reply.arrays is not None}
    shapes = Counter(come.values()).most_common(2)
    if len(shapes) < 2 or shapes[0][1] == shapes[1][1]:
        return replies  # all alike, or nobody can say who is right: the sum refuses it
    usual = shapes[0][0]
    return {
        client: reply._replace(arrays=None, failure=f"need arrays of {usual} as from most sites, got {come[client]}")
        if client in come and come[client] != usual
        else reply
        for client, reply in replies.items()
    }


def handshake(
    call: Transport, sites: Sequence[str], asked: Mapping[str, Any], *, timeout: float, same_columns: bool = True
) -> dict[str, RemoteTable]:
    """What each site says of its table, if all of them mean the same columns (`same_columns`: views do not)."""
    with ThreadPoolExecutor(max_workers=len(sites)) as pool:
        text = json.dumps(asked)
        futures = {site: pool.submit(call, site, "describe", timeout, text) for site in sorted(sites)}
        said = {site: told(_result(site, future, timeout), site) for site, future in futures.items()}
    first = next(iter(said))
    for site, tree in said.items():
        if same_columns and tree["digest"] != said[first]["digest"]:
            raise InputError(_difference(first, said[first], site, tree))
    tables = {}
    for site, tree in said.items():
        labels = None
        if tree.get("labels"):
            labels = dict(zip(tree["labels"], tree.get("counts") or [None] * len(tree["labels"]), strict=True))
        names = None if tree["names"] is None else tuple(tree["names"])
        tables[site] = RemoteTable(int(tree["n_features"]), names, int(tree["rows"]), labels)
    return tables


def _result(site: str, future: Future[Any], timeout: float) -> Any:
    try:
        return future.result()
    except TimeoutError:
        raise ClientError(f"need an answer from site {site!r}, got none within {timeout:g} s; is it running?") from None
    except FedspanError:
        raise
    except Exception as error:
        raise ClientError(f"site {site!r} could not be asked: {explain(error)}") from None


def _difference(first: str, ours: Mapping[str, Any], site: str, theirs: Mapping[str, Any]) -> str:
    """The first difference between two schemas, as far as the sites say what their columns are called."""
    if ours["n_features"] != theirs["n_features"]:
        return (
            f"need {ours['n_features']} features as at site {first!r}, got {theirs['n_features']} (site {site!r}); "
            "give all sites the same columns"
        )
    for column, unit in ours.get("units", {}).items():
        if theirs.get("units", {}).get(column, unit) != unit:
            has = theirs["units"][column]
            return f"need column {column!r} in {unit!r} as at site {first!r}, got {has!r} (site {site!r}); convert it"
    for a, b in zip(ours["names"] or (), theirs["names"] or (), strict=False):
        if a != b:
            at = ours["names"].index(a)
            return (
                f"need feature {at} to be {a!r} as at site {first!r}, got {b!r} (site {site!r}); rename or reorder it"
            )
    return f"need the columns of site {first!r} at site {site!r}, their digests differ; compare their names and order"
