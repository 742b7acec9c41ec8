"""All clients in this process: for a laptop, for tests, for research. The same `Hub` and `Site` as in a federation.

Clients are opened when they are first asked and closed again when too many are open. A thread pool runs them, in
pieces of the cohort; BLAS is limited so that its threads and those of the pool together use each core once.
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

from threadpoolctl import ThreadpoolController

from fedspan._types import Arrays
from fedspan.channel import wire
from fedspan.channel.stage import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protection import Protection
from fedspan.core.protocol import AnyClient, AnyServer, Ask, Replies, tasks_of
from fedspan.core.rng import rng_for
from fedspan.core.run import Session
from fedspan.core.snapshot import SessionSnapshot
from fedspan.data.clients import blame_client, name_clients
from fedspan.engines.client_group import ClientGroup, GroupedSession, share_clients
from fedspan.engines.forked import ForkedGroup, can_fork
from fedspan.engines.hub import Collector, Hub, find_blocks
from fedspan.engines.site import Site, explain
from fedspan.engines.transcript import Transcript
from fedspan.errors import InputError, PrivacyError
from fedspan.privacy.guard import Guard, NoiseSource
from fedspan.privacy.keyring import RunKey, derive_key
from fedspan.privacy.plan import Plan
from fedspan.secure.identity import make_identities
from fedspan.secure.masking import Party
from fedspan.secure.opening import RunOpening, digest_opening
from fedspan.secure.session import SecureSession, check_channel, find_threshold
from fedspan.secure.verified_session import VerifiedSession
from fedspan.secure.witness import AskedHere, Witness

_MANY_CLIENTS = 512  # from which several processes are worth their start


def count_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Faults:
    """A bad network, for tests: probabilities of losing a request or a reply, and a mean delay in seconds.

    A reply that would take longer than `timeout` counts as lost.
    """

    lose_request: float = 0.0
    lose_reply: float = 0.0
    delay: float = 0.0
    timeout: float = float("inf")


class _Answer(NamedTuple):
    client: str
    arrays: Arrays | None  # None: no reply
    bytes_down: int
    bytes_up: int
    seconds: float
    failure: str | None


class InProcess:
    """An engine over a mapping (or a list) of clients' data.

    An entry that is callable is called to open the data, each time that the client is opened. `max_open` bounds how
    many clients are open at once. `wire=True` sends every message through its bytes (slower, the same result).
    `transcript` is a folder in which every message is kept as it was on the wire: it holds what the clients released.
    `processes`: fork that many, each with its share of the clients, for many clients or slow ones; "auto" takes one for
    each core from 512 clients on. The result and the bytes are the same to the bit.
    """

    def __init__(
        self,
        clients: Mapping[str, Any] | Sequence[Any],
        *,
        threads: int | None = None,
        max_open: int = 256,
        faults: Faults | None = None,
        wire: bool = False,
        transcript: str | os.PathLike[str] | None = None,
        processes: int | str = 1,
    ) -> None:
        self.data = dict(sorted(name_clients(clients).items()))
        self.clients: Sequence[str] = tuple(self.data)
        self.threads = count_cores() if threads is None else threads
        self.max_open, self.faults, self.wire, self.transcript = max_open, faults, wire, transcript
        if self.threads < 1 or max_open < 1:
            raise InputError(f"threads and max_open must be at least 1, but are {threads!r} and {max_open!r}.")
        self.processes = self._count_processes(processes)

    def _count_processes(self, asked: int | str) -> int:
        if asked == "auto":
            alone = len(self.data) < _MANY_CLIENTS or not can_fork() or self.faults or self.transcript is not None
            return 1 if alone else count_cores()
        if isinstance(asked, str) or asked < 1:
            raise InputError(f"processes must be an integer, 1 or more, or 'auto', but is {asked!r}.")
        if asked > 1 and (self.faults or self.transcript is not None):
            raise InputError("processes cannot be combined with faults or transcript; leave one of them out.")
        if asked > 1 and not can_fork():
            raise InputError("This system cannot fork processes; leave processes out, or use engines.Dask.")
        return min(asked, len(self.data))

    def _open(
        self,
        server: AnyServer,
        channel: Channel,
        seed: int,
        protection: Protection | None,
        threshold: int | None = None,
    ) -> Session:
        """A session in this process, or in several. With noise it is this one, which keeps account of budgets."""
        if self.processes == 1 or (protection is not None and protection.plan is not None):
            return LocalSession(self, server, channel, seed, protection, threshold)
        blocks, groups = find_blocks(self.clients), list[ForkedGroup]()
        shares = share_clients(self.clients, self.processes, blocks)
        for names in shares:
            own = InProcess(
                {name: self.data[name] for name in names}, threads=1, max_open=self.max_open, wire=self.wire
            )
            session = LocalSession(own, server, channel, seed, protection, threshold)
            group = ClientGroup(session, {name: blocks[name] for name in names})
            groups.append(ForkedGroup(group.handle, group.close, groups))
        return GroupedSession(groups, shares, blocks)

    def start(self, server: AnyServer, channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        if protection is None or protection.secure is None:
            return self._open(server, channel, seed, protection)
        public = [name for name, task in tasks_of(server.client).items() if task.public]
        if protection.secure.is_verified(server, len(self.data), protection.min_clients):
            opening = _open_verified(server, channel, seed, protection, self.clients)
            verified = LocalSession(self, server, channel, seed, protection, opening=opening)
            return VerifiedSession(verified, opening.groups, public, protection.retries)
        t = find_threshold(protection.secure, channel, len(self.data), protection.min_clients)
        inner = self._open(server, channel, seed, protection, t)
        return SecureSession(inner, t, protection.min_clients or len(self.data), public, protection.retries)


def _open_verified(
    server: AnyServer, channel: Channel, seed: int, protection: Protection, clients: Sequence[str]
) -> RunOpening:
    """What the clients of a verified run are told, in one process."""
    assert protection.secure is not None  # noqa: S101 - for the type checker
    groups = protection.secure.partition(clients)
    check_channel(channel)
    told = {
        "server": repr(server),
        "seed": seed,
        "rounds": protection.rounds,
        "groups": groups,
        "channel": channel.name,
    }
    digest = digest_opening({**told, "plan": repr(protection.plan)})
    return RunOpening(server, seed, protection.rounds, groups, digest, protection.plan)


class LocalSession:
    def __init__(
        self,
        engine: InProcess,
        server: AnyServer,
        channel: Channel,
        seed: int,
        protection: Protection | None = None,
        threshold: int | None = None,
        opening: RunOpening | None = None,
    ) -> None:
        self.opening, self.identities = opening, make_identities(engine.data) if opening else {}
        self.asked = {name: AskedHere() for name in self.identities}
        self.engine, self.kind, self.channel = engine, server.client, channel
        self.seed, self.threshold = seed, threshold
        self.hub = Hub(channel, seed)
        self.blocks = find_blocks(engine.clients)
        self.options = server.client_options()
        plan = protection.plan if protection else None
        if plan:
            self.options = {**self.options, "row_norm": plan.row_norm}  # the client's own door bounds its rows
        self.guards = self._make_guards(plan, protection.key if protection else None) if plan else {}
        self.sites: dict[str, Site] = {}
        self.opened: OrderedDict[str, AnyClient] = OrderedDict()
        self.lock = Lock()
        self.blas = ThreadpoolController()
        self.most = max((lib["num_threads"] for lib in self.blas.info() if lib["user_api"] == "blas"), default=1)
        self.pool = ThreadPoolExecutor(engine.threads) if engine.threads > 1 else None
        self.transcript = None if engine.transcript is None else Transcript(engine.transcript)
        self.tries: Counter[tuple[str, str, int, int]] = Counter()  # how often the same was asked, if there are faults
        self.tiny = False  # whether the clients' tasks are too short to be worth a thread

    def _make_guards(self, plan: Plan, key: RunKey | None) -> dict[str, Guard]:
        """Every client's guard; budgets that do not hold all of the plan are refused before anything is sent."""
        budgets = {name: plan.budget(name) for name in self.engine.data}
        key, guards = key or RunKey.open(None), {}
        try:
            for name, budget in budgets.items():
                if plan.request.simulate:
                    source = NoiseSource(key.run, derive_key(b"simulated", self.seed, name), repeats=True)
                else:
                    source = NoiseSource(key.run, budget.key if budget else key.key_of(name))
                with blame_client(name):
                    guards[name] = Guard(plan, source, budget)
        except PrivacyError:
            for guard in guards.values():
                guard.settle()
            raise
        return guards

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)
        self.opened.clear()
        for guard in self.guards.values():
            guard.settle()

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        collector = Collector(ask, cohort, self.blocks)
        event = self.collect(collector, round, exchange)
        return collector.replies(), event

    def collect(self, collector: Collector, round: int, exchange: int) -> Exchange:
        """Ask the cohort of a collector, which folds the replies."""
        ask, cohort, answers = collector.ask, collector.cohort, list[_Answer]()
        messages = self.hub.address(ask, cohort, round, exchange)
        workers = min(self.engine.threads, len(cohort))
        share = min(self.most, max(1, self.engine.threads // max(workers, 1)))  # never more than the user allows BLAS
        with self.blas.limit(limits=share, user_api="blas"):
            for answer in self._ask_all(messages, len(cohort)):
                collector.add(answer.client, answer.arrays, answer.failure)
                answers.append(answer._replace(arrays=None))
        self.tiny = sum(a.seconds for a in answers) < 3e-4 * len(answers)  # changes who computes, not what
        return Exchange(
            round,
            exchange,
            ask.task,
            cohort,
            bytes_down=tuple(a.bytes_down for a in answers),
            bytes_up=tuple(a.bytes_up for a in answers),
            seconds=tuple(a.seconds for a in answers),
            missing=tuple(collector.missing),
            failures=collector.failures,
        )

    def _ask_all(self, messages: Iterator[tuple[str, wire.Message]], count: int) -> Iterator[_Answer]:
        """The answers in the order of the messages; pieces run ahead in the pool, but not far ahead (memory)."""
        if self.pool is None or count == 1 or self.tiny:
            yield from (self._ask(*pair) for pair in messages)
            return
        size = max(1, min(64, count // (4 * self.engine.threads)))
        ahead: deque[Future[list[_Answer]]] = deque()
        piece: list[tuple[str, wire.Message]] = []
        for pair in messages:
            piece.append(pair)
            if len(piece) == size:
                ahead.append(self.pool.submit(self._ask_piece, piece))
                piece = []
            if len(ahead) > 2 * self.engine.threads:
                yield from ahead.popleft().result()
        if piece:
            ahead.append(self.pool.submit(self._ask_piece, piece))
        while ahead:
            yield from ahead.popleft().result()

    def _ask_piece(self, pairs: list[tuple[str, wire.Message]]) -> list[_Answer]:
        return [self._ask(*pair) for pair in pairs]

    def _ask(self, client: str, message: wire.Message) -> _Answer:
        """One client's part of an exchange: out, the task, and back."""
        started, down, up = time.perf_counter(), wire.size(message), 0
        heard, answered = self._draw_fate(client, message)
        if self.transcript is not None:
            self.transcript.record_down(client, message)
        if not heard:
            return _Answer(client, None, down, 0, time.perf_counter() - started, None)
        try:
            if self.engine.wire:
                message = wire.decode(wire.encode(message))
            reply = self._handle(client, message)
            up = wire.size(reply)  # it is sent, whether or not it arrives or decodes
            if self.transcript is not None:
                self.transcript.record_up(client, reply)
            if self.engine.wire:
                reply = wire.decode(wire.encode(reply))
            arrays = self.hub.receive(client, reply) if answered else None
        except InputError:
            raise
        except Exception as error:
            return _Answer(client, None, down, up, time.perf_counter() - started, explain(error))
        return _Answer(client, arrays, down, up, time.perf_counter() - started, None)

    def _handle(self, name: str, message: wire.Message) -> wire.Message:
        """Let a client answer. One that is not open is opened with its data, and the one used longest ago is closed."""
        with self.lock:
            if name not in self.sites:
                self.sites[name] = self._make_site(name)
            site, client = self.sites[name], self.opened.get(name)
            if client is not None:
                self.opened.move_to_end(name)
        if client is None:
            data = self.engine.data[name]
            with blame_client(name):
                client = self.kind(data() if callable(data) else data, **self.options)  # type: ignore[call-arg]
            with self.lock:
                self.opened[name] = client
                if len(self.opened) > self.engine.max_open:
                    self.opened.popitem(last=False)
        return site.handle(message, client)

    def _make_site(self, name: str) -> Site:
        vault = Party(name, self.threshold) if self.threshold else None
        witness = None
        if self.opening:
            witness = Witness(name, self.opening, self.identities[name], self.asked[name])
        return Site(name, self.kind, self.channel, self.seed, self.guards.get(name), vault, witness=witness)

    def _draw_fate(self, client: str, message: wire.Message) -> tuple[bool, bool]:
        """Whether the client hears the request, and whether its answer arrives."""
        faults = self.engine.faults
        if faults is None:
            return True, True
        asked = (client, message.task, message.round, message.exchange)
        own = f" {message.task}" if message.task.startswith("@") else ""
        again = f" {self.tries[asked]}" if self.tries[asked] else ""
        self.tries[asked] += 1
        rng = rng_for(self.seed, message.round, message.exchange, client, f"faults{own}{again}")
        request, reply = rng.random(2)
        wait = rng.exponential(faults.delay) if faults.delay else 0.0
        time.sleep(min(wait, faults.timeout))
        return request >= faults.lose_request, reply >= faults.lose_reply and wait <= faults.timeout

    def snapshot(self) -> SessionSnapshot:
        sites = {name: site.snapshot() for name, site in self.sites.items() if site.started}
        return SessionSnapshot(self.hub.snapshot(), sites)

    def restore(self, saved: SessionSnapshot, after: int) -> None:
        self.hub.restore(saved.hub)
        for name, memory in saved.sites.items():
            self.sites[name] = self._make_site(name)
            self.sites[name].restore(memory)
