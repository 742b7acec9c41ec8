"""The only loop over rounds: everything that happens in a run happens here, or in what this calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from fedspan._types import Array, Arrays
from fedspan.channel.stage import Channel
from fedspan.core.checkpoint import Checkpoint, field_values, to_c_order
from fedspan.core.ledger import Asked, Exchange, Ledger, Note, RoundEnd, Started, shorten_failures
from fedspan.core.participation import Participation
from fedspan.core.protection import RETRIES, Protection, SecureSums
from fedspan.core.protocol import AnyServer, Ask, Replies, Round, Server, tasks_of
from fedspan.core.rng import SERVER, Streams
from fedspan.core.snapshot import SessionSnapshot
from fedspan.errors import ClientError, InputError
from fedspan.privacy.guard import name_release
from fedspan.privacy.keyring import RunKey
from fedspan.privacy.plan import Plan

S = TypeVar("S")


class Session(Protocol):
    """One run on an engine: moves messages, and can hand over what the clients remember."""

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]: ...
    def snapshot(self) -> SessionSnapshot: ...
    def restore(self, saved: SessionSnapshot, after: int) -> None: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """Who is there, and how to reach them. `clients` are ids, sorted."""

    @property
    def clients(self) -> Sequence[str]: ...
    def start(
        self, server: AnyServer, channel: Channel, seed: int, protection: Protection | None = None
    ) -> Session: ...


class RefusedExchange(InputError):
    """A client says that its input is wrong, so the run ends. `event` says what the others sent before that."""

    def __init__(self, why: str, event: Exchange) -> None:
        super().__init__(why)
        self.event = event


@dataclass(frozen=True)
class Info:
    """What a callback is told after every round."""

    round: int
    estimate: Array
    metrics: dict[str, float]
    ledger: Ledger  # of the run so far


@dataclass(frozen=True)
class Result(Generic[S]):
    """How a run ended. `converged` says whether the algorithm's own stopping rule was met."""

    state: S
    rounds: int
    converged: bool
    ledger: Ledger
    metrics: dict[str, float]  # what the server knows of its progress at the end


def run(
    algorithm: Server[S],
    engine: Engine,
    *,
    rounds: int,
    seed: int,
    channel: Channel | None = None,
    participation: Participation | None = None,
    retries: int = RETRIES,
    min_clients: int | None = None,
    secure: SecureSums | None = None,
    checkpoint: Checkpoint | None = None,
    ledger: Ledger | None = None,
    callback: Callable[[Info], None] | None = None,
    about: Mapping[str, object] | None = None,
    privacy: Plan | None = None,
    why: str = "as requested",
) -> Result[S]:
    """Run an algorithm for at most `rounds` rounds, from its checkpoint if there is one.

    Parameters:
        algorithm: The server's half, which names its client's class.
        engine: The clients, and how to reach them: `InProcess(clients)`.
        rounds: The most rounds to run; the algorithm's own stopping rule may end the run earlier.
        seed: The seed of all random streams. The same seed repeats the run to the bit.
        channel: What happens to arrays on both links; None: nothing.
        participation: How many clients are asked in a round; None: all.
        retries: How often clients that did not answer are asked again, if the round cannot go on without them. With
            `privacy` the answer to a repeated question is the same bytes, and costs nothing.
        min_clients: Go on if at least this many clients answer; None: all must. The algorithm is told who is missing;
            where it needs every client's answer, all must answer nevertheless. With `privacy` those who answer the
            first question must answer all others, so that all sums are over the same clients.
        secure: Secure aggregation: the server sees only sums over the clients.
        checkpoint: Where rounds are saved. A crash repeats the rounds since the last save, by default at most one.
        ledger: Where to record what happens; None: a new ledger.
        callback: Called after every round with an `Info`.
        about: What else identifies the run: a checkpoint that differs in it is refused.
        privacy: What may leave the clients, and with how much noise: a question that is not in it is not sent.
        why: Why this algorithm was chosen, as a phrase for the report.
    """
    channel, ledger = channel or Channel(), ledger if ledger is not None else Ledger()
    clients = tuple(engine.clients)
    if min_clients is not None and not (_is_whole(min_clients) and 1 <= min_clients <= len(clients)):
        raise InputError(
            f"min_clients must be a whole number from 1 to {len(clients)} (all clients), but is {min_clients!r}."
        )
    if not _is_whole(retries) or retries < 0:
        raise InputError(f"retries must be a whole number of at least 0, but is {retries!r}.")
    name = _name_run(algorithm, clients, channel, seed, secure, privacy, about or {})
    secure = secure.allow_participation() if secure and participation else secure
    key = _open_run_key(checkpoint, ledger, name) if privacy else None
    protection = Protection(privacy, secure, min_clients, retries, rounds, key)
    session = engine.start(algorithm, channel, seed, protection)
    ledger.add(Started(type(algorithm).__name__, algorithm.family, _plain_options(algorithm), seed, why))
    conductor = _Conductor(
        algorithm,
        session,
        ledger,
        privacy,
        retries,
        min_clients,
        saves=checkpoint is not None,
        run=key.run if key else "",
    )
    try:
        saved: tuple[int, S, SessionSnapshot] | None = checkpoint.load(name, algorithm.State) if checkpoint else None
        if saved:
            done, state, memories = saved
            session.restore(memories, done)
            ledger.add(Note(f"resumed after round {done}"))
        else:
            done, state = 0, conductor.drive(algorithm.init(Streams(seed, 0, 0, SERVER)), clients, 0)
        while done < rounds and not algorithm.done(state):
            rng = Streams(seed, done + 1, 0, SERVER)
            cohort = participation.cohort(clients, rng) if participation else clients
            state = conductor.drive(algorithm.round(state, rng), cohort, done + 1)
            done += 1
            if checkpoint and (done % checkpoint.every == 0 or done == rounds or algorithm.done(state)):
                checkpoint.save(name, done, state, session.snapshot())
            if callback:
                callback(Info(done, algorithm.estimate(state), algorithm.metrics(state), ledger))
    finally:
        session.close()
    return Result(state, done, algorithm.done(state), ledger, _known_metrics(algorithm, state))


def _open_run_key(checkpoint: Checkpoint | None, ledger: Ledger, name: Mapping[str, object]) -> RunKey:
    """What names a private run and repeats its noise; a run that goes on also goes on with its ledger."""
    folder = checkpoint.path.parent if checkpoint else None
    key = RunKey.open(folder)
    if folder is not None:
        ledger.mirror(folder / "released.jsonl")
    digest = blake2b(repr(sorted(name.items())).encode(), digest_size=4).hexdigest()
    return replace(key, run=f"{key.run}{digest}")  # another run in the same folder has other noise


def _is_whole(value: int) -> bool:
    """Whether the value is an integer, which a caller without a type checker may have got wrong."""
    return isinstance(value, int) and not isinstance(value, bool)


def _name_run(
    algorithm: Server[S],
    clients: tuple[str, ...],
    channel: Channel,
    seed: int,
    secure: SecureSums | None,
    privacy: Plan | None,
    about: Mapping[str, object],
) -> dict[str, object]:
    """What must be the same in a checkpoint for it to belong to this run."""
    who = blake2b(repr(clients).encode(), digest_size=8).hexdigest()
    name: dict[str, object] = {
        "algorithm": repr(algorithm),
        "clients": f"{len(clients)}, {who}",
        "channel": channel.name,
        "seed": seed,
    }
    name |= {"secure": repr(secure)} if secure else {}
    name |= about
    return name | ({"privacy": repr(privacy)} if privacy else {})


def _plain_options(algorithm: Server[S]) -> dict[str, object]:
    """The options of an algorithm as a ledger can hold them."""
    plain = (bool, int, float, str, type(None))
    values = field_values(algorithm)
    return {name: value if isinstance(value, plain) else repr(value) for name, value in values.items()}


def _known_metrics(algorithm: Server[S], state: S) -> dict[str, float]:
    return {name: value for name, value in algorithm.metrics(state).items() if math.isfinite(value)}


@dataclass(frozen=True)
class _Conductor(Generic[S]):
    """Carries the questions of an algorithm to its clients, and makes sure that enough of them answer."""

    algorithm: Server[S]
    session: Session
    ledger: Ledger
    privacy: Plan | None
    retries: int
    min_clients: int | None
    saves: bool  # whether the run has a checkpoint to resume from
    run: str  # names a private run in its ledger

    def drive(self, generator: Round[S], cohort: tuple[str, ...], number: int) -> S:
        """Carry the generator's questions to the cohort until it returns the new state."""
        started, exchange = time.perf_counter(), 0
        try:
            ask = next(generator)
            while True:
                replies, exchange = self._answer(ask, cohort, number, exchange)
                ask = generator.send(replies)
        except StopIteration as stop:
            state: S = to_c_order(stop.value)  # as a checkpoint would give it back
        self.ledger.add(RoundEnd(number, time.perf_counter() - started, _known_metrics(self.algorithm, state)))
        return state

    def _answer(self, ask: Ask, cohort: tuple[str, ...], number: int, exchange: int) -> tuple[Replies, int]:
        """Ask, and ask those who are missing again until enough have answered; also the number of the next exchange."""
        if self.privacy:
            ask = self._keep_to_planned_set(ask)
        to = cohort if ask.to is None else ask.to
        least = self._least(ask, to)
        replies, event = self._exchange(ask, to, number, exchange)
        exchange += 1
        for _ in range(self.retries):
            left = tuple(client for client in replies.missing if client not in replies.exhausted)
            answered = len(to) - len(replies.missing)
            if answered >= least or answered + len(left) < least:
                break
            again = replace(ask, to=left, privately={c: a for c, a in ask.privately.items() if c in left})
            more, event = self._exchange(again, left, number, exchange, like=replies.total)
            replies = _join_replies(replies, more)
            exchange += 1
        if len(to) - len(replies.missing) < least:
            raise ClientError(f"{self._tell_missing(replies, event, least)} {self._tell_remedy(ask, to, least)}")
        return replies, exchange

    def _keep_to_planned_set(self, ask: Ask) -> Ask:
        """The question to those who are in the first sum of this run, all of whom must answer.

        Sums over different clients do not fit together: a mean of some divided by a number of others.
        """
        first = self.ledger.first_answered(self.run)
        if len(first) < (self.min_clients or 1):
            return ask
        return replace(ask, to=first if ask.to is None else ask.to, everyone=True)

    def _least(self, ask: Ask, to: tuple[str, ...]) -> int:
        """How many of the clients that are asked must answer."""
        if ask.everyone or self.min_clients is None:
            return len(to)
        if ask.optional:
            return 0
        return min(self.min_clients, len(to)) if ask.to is None else min(1, len(to))

    def _exchange(
        self, ask: Ask, to: tuple[str, ...], number: int, exchange: int, like: Arrays | None = None
    ) -> tuple[Replies, Exchange]:
        """One question to some clients, within the plan, and in the ledger.

        `like` is the sum over other clients to which theirs will be added: one that does not fit counts as missing.
        """
        plan = self.privacy
        release = ""
        if plan:
            release = f"{self.run}:{name_release(ask.task, ask.arrays)}"
            others = self.ledger.releases_of(self.run, ask.task) - {release}
            plan.check(ask.task, len(others))
            spent = plan.multiplier(ask.task), plan.sampled[ask.task]
            self.ledger.add(Asked(number, ask.task, to, release, *spent))
        try:
            replies, event = self.session.exchange(ask, to, number, exchange)
        except RefusedExchange as refused:
            if plan is None and len(refused.event.missing) < len(to):
                self.ledger.add(refused.event)  # with a plan, what was asked counts as released
            raise InputError(str(refused)) from None
        if plan:
            event = replace(event, noise=plan.multiplier(ask.task), sampled=plan.sampled[ask.task], release=release)
            releases = tasks_of(self.algorithm.client)[ask.task].releases
            each = {client: plan.to_numbers(ask.task, releases, arrays) for client, arrays in replies.each.items()}
            replies = replace(replies, each=each, total=plan.to_numbers(ask.task, releases, replies.total))
        why = _find_misfit(replies.total, like or {})
        if why:
            failures = {**dict.fromkeys(to, why), **replies.failures}
            replies = Replies(to, to, failures=failures)
            event = replace(event, missing=to, failures=failures)
        self.ledger.add(replace(event, failures=shorten_failures(event.failures)))
        return replies, event

    def _tell_missing(self, replies: Replies, event: Exchange, least: int) -> str:
        if event.failures:  # the whole text; the ledger has a part of it
            client, reason = next(iter(event.failures.items()))
            why = f"client {client!r} failed: {reason}"
        else:
            why = f"no answer from {', '.join(map(repr, event.missing[:5]))}"
        answered = len(replies.asked) - len(replies.missing)
        needed = "1 client" if least == 1 else f"{least} clients"
        tries = f" in {self.retries + 1} tries" if self.retries else ""
        return (
            f"{event.task!r} needs answers from {needed}, but {f'only {answered}' if answered else 'none'} answered in "
            f"round {event.round}{tries} ({why})."
        )

    def _tell_remedy(self, ask: Ask, to: tuple[str, ...], least: int) -> str:
        again = "resume from the checkpoint" if self.saves else "run again"
        if self.privacy:
            again += " (what has left is not charged twice)" if self.saves else " with a privacy budget of its own"
        other = ""
        if ask.everyone:
            other = ", or choose a method that can go on without some clients"
        elif replace(self, min_clients=1)._least(ask, to) < least:
            other = f", or {'set' if self.min_clients is None else 'lower'} min_clients to go on without them"
        return f"Bring the missing clients back and {again}{other}."


def _find_misfit(total: Arrays, like: Arrays) -> str | None:
    """Why a sum cannot be added to another one; None if it can."""
    for name, array in total.items():
        if name in like and (array.shape != like[name].shape or array.dtype.kind != like[name].dtype.kind):
            return (
                f"{name!r} has shape {array.shape} and type {array.dtype}, but that of the other clients has shape "
                f"{like[name].shape} and type {like[name].dtype}"
            )
    return None


def _join_replies(first: Replies, more: Replies) -> Replies:
    """The replies of a question and of its repetition to those who were missing."""
    each = {**first.each, **more.each}
    total = {k: first.total[k] + v if k in first.total else v for k, v in more.total.items()} or first.total
    each = {name: each[name] for name in first.asked if name in each}
    missing = tuple(name for name in first.missing if name in first.exhausted or name in more.missing)
    failures = {name: why for name, why in first.failures.items() if name in first.exhausted}
    exhausted = (*first.exhausted, *more.exhausted)
    wrapped = {k: first.wrapped[k] | v if k in first.wrapped else v for k, v in more.wrapped.items()} or first.wrapped
    return Replies(first.asked, missing, each, total, {**failures, **more.failures}, exhausted, wrapped)
