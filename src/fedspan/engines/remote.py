"""The server's end of a federation, whatever carries the messages: the same `Hub` as in one process, and what only a
network brings: sites that are slow, that die, and that answer nonsense.

A site that did not answer in time is still asked, but not waited for while others answer, until it answers again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedspan._types import Arrays
from fedspan.channel import wire
from fedspan.channel.stage import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protection import RETRIES, Protection
from fedspan.core.protocol import AnyServer, Ask, Parts, Replies, Sum, tasks_of
from fedspan.core.run import RefusedExchange, Session
from fedspan.core.snapshot import SessionSnapshot
from fedspan.data.remote_tables import RemoteTable
from fedspan.engines.hub import Collector, Hub, find_blocks
from fedspan.engines.site import explain
from fedspan.engines.start import StartMessage, TableRequest
from fedspan.engines.transport import Transport, read_answer
from fedspan.errors import FedspanError, InputError, PrivacyError, ProtocolError, SiteRefusal
from fedspan.secure.opening import Groups
from fedspan.secure.packing import PackedParts, PackedSum
from fedspan.secure.session import SecureSession, check_channel, find_threshold
from fedspan.secure.verified_session import VerifiedSession

GRACE = 0.05  # seconds that a site on probation is waited for when the others have answered


class RemoteEngine:
    """An engine over sites. `tables` are what they said of their data; `where` says which table a job asks for."""

    def __init__(self, transport: Transport, sites: Sequence[str], run: str, *, timeout: float = 60.0) -> None:
        self.transport, self.sites, self.run, self.timeout = transport, tuple(sorted(sites)), run, timeout
        self.where: TableRequest = {}
        self.tables: Mapping[str, object] = {}
        self.parts = 0
        self.away: set[str] = set()  # did not answer the last question in time
        self.refused: set[str] = set()  # refused in this job for a reason that they keep to themselves
        self.pending: dict[str, Future[_SiteAnswer]] = {}
        self.pool = ThreadPoolExecutor(max_workers=2 * len(self.sites) + 2, thread_name_prefix="fedspan-site")

    def __call__(self, tables: Mapping[str, object]) -> RemoteEngine:
        """For `engine=` of an estimator: the tables with what their sites are to be told."""
        self.tables = tables
        return self

    @property
    def clients(self) -> Sequence[str]:
        return self.sites

    def start(self, server: AnyServer, channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        plan, secure = (protection.plan, protection.secure) if protection else (None, None)
        least = protection.min_clients if protection else None
        retries = protection.retries if protection else RETRIES
        public = [name for name, task in tasks_of(server.client).items() if task.public]
        verified = protection is not None and secure is not None and secure.is_verified(server, len(self.sites), least)
        groups: Groups = ()
        t = None
        if secure and verified:
            check_channel(channel)
            groups = secure.partition(self.sites)
            t = min(len(group) for group in groups)
        elif secure:
            t = find_threshold(secure, channel, len(self.sites), least)
        message = StartMessage(
            self.run,
            self.parts,
            server,
            channel,
            seed,
            self.sites,
            plan.request if plan else None,
            t,
            self.where,
            rounds=protection.rounds if protection and (verified or plan is None) else 0,
            verified=verified,
            groups=groups,
        )
        if plan and message.plan != plan:
            raise PrivacyError(
                "The sites would plan other noise than this run counts on: it must be that of all releases of the "
                "algorithm, shared by all sites of a secure sum."
            )
        self.parts += 1
        inner = RemoteSession(self, message)
        if verified:
            return VerifiedSession(inner, groups, public, retries)
        if t is None:
            return inner
        return SecureSession(inner, t, least or len(self.sites), public, retries)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class _SiteAnswer(NamedTuple):
    """What came over the transport, and how long it took."""

    content: bytes | str
    seconds: float


class _Reply(NamedTuple):
    """What became of one question."""

    arrays: Arrays | None
    bytes_up: int
    seconds: float
    failure: str | None = None
    wrong: str | None = None  # the site says that its input is wrong: no use in going on


class _Encoder:
    """Makes the bytes of messages; those that several sites are sent alike, once."""

    def __init__(self) -> None:
        self._common: dict[tuple[int, int, int, int], tuple[Arrays, bytes]] = {}

    def encode(self, message: wire.Message, private: bool) -> bytes:
        """The bytes of a message. One that holds something for a single site is never taken for another's."""
        if private:
            return wire.encode(message)
        key = (id(message.arrays), message.number, message.base, message.ack)
        if key not in self._common:  # the arrays are kept, too: as long as they are there, no others have their id
            self._common[key] = (message.arrays, wire.encode(message))
        return self._common[key][1]


class RemoteSession:
    """One run over the sites of an engine."""

    def __init__(self, engine: RemoteEngine, message: StartMessage) -> None:
        self.engine, self.message = engine, message
        self.hub = Hub(message.channel, message.seed)
        self.opened: set[str] = set()
        self.round, self.saved, self.kept = 0, -1, -1  # kept: the last round that surely is in a checkpoint

    def close(self) -> None:
        """The sites keep what they remember: another part, or a resumption, may follow."""

    def snapshot(self) -> SessionSnapshot:
        """The server's ends only: what clients remember stays with them, by rounds."""
        self.kept, self.saved = self.saved, self.round  # what is saved now is not yet on disk
        return SessionSnapshot(self.hub.snapshot(), {})

    def restore(self, saved: SessionSnapshot, after: int) -> None:
        self.hub.restore(saved.hub)
        self.message, self.saved = replace(self.message, after=after), after

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        self.round = round
        bytes_down, futures = self._send(ask, cohort, round, exchange)
        self._wait(futures)
        replies = {client: self._read_reply(client, futures.get(client), ask, (round, exchange)) for client in cohort}
        event = Exchange(
            round,
            exchange,
            ask.task,
            cohort,
            bytes_down=tuple(bytes_down[client] for client in cohort),
            bytes_up=tuple(replies[client].bytes_up for client in cohort),
            seconds=tuple(replies[client].seconds for client in cohort),
        )
        for reply in replies.values():
            if reply.wrong:
                silent = tuple(client for client, reply in replies.items() if reply.arrays is None)
                raise RefusedExchange(reply.wrong, replace(event, missing=silent))
        if isinstance(ask.want, Sum):
            replies = _check_same_layout(replies, ask.want.names)
        collector = Collector(ask, cohort, find_blocks(self.engine.clients))
        for client, reply in replies.items():
            collector.add(client, reply.arrays, reply.failure)
        return collector.replies(), replace(event, missing=tuple(collector.missing), failures=collector.failures)

    def _send(
        self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int
    ) -> tuple[dict[str, int], dict[str, Future[_SiteAnswer]]]:
        """Send the question to all who are not still at work; returns its bytes for each, and the answers to come."""
        engine, encoder = self.engine, _Encoder()
        sizes: dict[str, int] = {}
        futures: dict[str, Future[_SiteAnswer]] = {}
        for client, message in self.hub.address(ask, cohort, round, exchange):
            blob = encoder.encode(message, private=client in ask.privately)
            sizes[client] = len(blob)
            busy = engine.pending.get(client)
            if busy is None or busy.done():
                futures[client] = engine.pending[client] = engine.pool.submit(self._ask, client, blob)
        return sizes, futures

    def _ask(self, client: str, blob: bytes) -> _SiteAnswer:
        """In a thread of its own: open the site if it is not, ask, and say how long it took."""
        started, transport, timeout = time.perf_counter(), self.engine.transport, self.engine.timeout
        if client not in self.opened:
            table = self.engine.tables.get(client)
            told = table.told if isinstance(table, RemoteTable) else {}
            read_answer(transport.open(client, replace(self.message, told=told).to_json(), timeout), client)
            self.opened.add(client)
        content = transport.exchange(client, blob, self.kept, timeout)
        return _SiteAnswer(content, time.perf_counter() - started)

    def _wait(self, futures: Mapping[str, Future[_SiteAnswer]]) -> None:
        """Wait until all have answered or time is up; for those who were late before, only if no others are asked."""
        engine, end = self.engine, time.monotonic() + self.engine.timeout
        trusted = [future for client, future in futures.items() if client not in engine.away]
        wait(trusted or futures.values(), timeout=engine.timeout)
        rest = [future for future in futures.values() if not future.done()]
        if trusted and rest:
            wait(rest, timeout=min(GRACE, max(0.0, end - time.monotonic())))

    def _read_reply(self, client: str, future: Future[_SiteAnswer] | None, ask: Ask, place: tuple[int, int]) -> _Reply:
        """What became of one question."""
        engine = self.engine
        late = f"did not answer within {engine.timeout:g} s; see run.timeout"
        if future is None or not future.done():
            again = client in engine.away
            engine.away.add(client)
            return _Reply(None, 0, engine.timeout, f"{late}, nor an earlier question" if again else late)
        try:
            content, seconds = future.result()
        except InputError as error:
            return _Reply(None, 0, 0.0, wrong=str(error))
        except TimeoutError:
            engine.away.add(client)
            return _Reply(None, 0, engine.timeout, late)
        except SiteRefusal as error:
            engine.refused.add(client)
            return _Reply(None, 0, 0.0, str(error))
        except FedspanError as error:
            return _Reply(None, 0, 0.0, str(error))
        except Exception as error:
            engine.away.add(client)
            return _Reply(None, 0, 0.0, f"could not be asked ({explain(error)})")
        engine.away.discard(client)
        if isinstance(content, str):
            reply = _read_refusal(content, client, seconds, engine.refused)
            phase = ask.task.startswith("@")  # it is not about the site's data, so it is no reason to end the run
            return reply._replace(failure=reply.failure or reply.wrong, wrong=None) if phase else reply
        size = len(content) if isinstance(content, bytes) else 0
        try:
            if not isinstance(content, bytes):
                raise ProtocolError(f"A reply must be bytes, but this one is a {type(content).__name__}.")
            message = wire.decode(content)
            _check_place(message, ask.task, place)
            return _Reply(self._check_arrays(ask, self.hub.receive(client, message)), size, seconds)
        except Exception as error:
            return _Reply(None, size, seconds, explain(error))

    def _check_arrays(self, ask: Ask, arrays: Arrays) -> Arrays:
        """The reply, if it is what the task declares to release; masked sums are whole numbers modulo 2^64."""
        if ask.task.startswith("@"):
            return arrays
        if isinstance(ask.want, PackedSum | PackedParts):
            arrays = ask.want.unpack(arrays)
        task = tasks_of(self.message.algorithm.client)[ask.task]
        masked = self.message.threshold is not None and not task.public
        summed = ask.want.names if isinstance(ask.want, Sum | Parts) else ()
        names = set(summed) if masked and summed else set(task.releases)
        if set(arrays) != names:
            raise ProtocolError(
                f"The reply to {ask.task!r} must contain {sorted(names)}, but contains {sorted(arrays)[:5]}."
            )
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or (masked and array.dtype != np.uint64):
                kind = "whole numbers modulo 2^64" if masked else "numbers"
                raise ProtocolError(f"{name!r} in the reply to {ask.task!r} must be {kind}, but is {array.dtype}.")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ProtocolError(
                    f"{name!r} in the reply to {ask.task!r} must be finite, but contains NaN or infinity."
                )
        return arrays


def _check_place(message: wire.Message, task: str, place: tuple[int, int]) -> None:
    """Refuse the reply to another question: one that was answered before, say."""
    if (message.task, message.round, message.exchange) != (task, *place):
        raise ProtocolError(
            f"This is a reply to {message.task!r} in round {message.round}, exchange {message.exchange}; asked was "
            f"{task!r} in round {place[0]}, exchange {place[1]}."
        )


def _read_refusal(content: str, client: str, seconds: float, refused: set[str]) -> _Reply:
    """What a site said instead of a reply; those that refuse without a reason are noted."""
    try:
        read_answer(content, client)
    except InputError as error:
        return _Reply(None, len(content), seconds, wrong=str(error))
    except SiteRefusal as error:
        refused.add(client)
        return _Reply(None, len(content), seconds, str(error))
    except FedspanError as error:
        return _Reply(None, len(content), seconds, str(error))
    return _Reply(None, len(content), seconds, "sent text in place of a reply")


def _check_same_layout(replies: dict[str, _Reply], names: Sequence[str]) -> dict[str, _Reply]:
    """The replies whose arrays have the shapes that most have; one that differs counts as a failure of that site."""
    layouts = {
        client: tuple((reply.arrays[name].shape, reply.arrays[name].dtype.kind) for name in names)
        for client, reply in replies.items()
        if reply.arrays is not None
    }
    common = Counter(layouts.values()).most_common(2)
    if len(common) < 2 or common[0][1] == common[1][1]:
        return replies  # all the same, or nobody can say who is right: the sum refuses it
    usual = common[0][0]
    checked = dict(replies)
    for client, layout in layouts.items():
        if layout != usual:
            why = f"its arrays have the shapes {_format(layout)}, but those of most sites have {_format(usual)}"
            checked[client] = replies[client]._replace(arrays=None, failure=why)
    return checked


def _format(layout: tuple[tuple[tuple[int, ...], str], ...]) -> str:
    kinds = {"f": "floating point", "i": "integers", "u": "unsigned integers", "b": "truth values"}
    return ", ".join(f"{shape} of {kinds[kind]}" for shape, kind in layout)
