"""The only loop over rounds. Everything that happens in a run happens here, or in what this calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

from fedspan._types import Array
from fedspan.channel.stage import Channel
from fedspan.core.checkpoint import Checkpoint, in_c_order
from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd
from fedspan.core.participation import Participation
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Replies, Round, Server
from fedspan.core.rng import SERVER, Streams
from fedspan.errors import ClientError, InputError
from fedspan.privacy.plan import Plan
from fedspan.secure.masking import Secure

S = TypeVar("S")


class Session(Protocol):
    """One run on an engine: moves messages, and can hand over what the clients remember."""

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]: ...
    def snapshot(self) -> Any: ...
    def restore(self, saved: Any, after: int) -> None: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """Who is there, and how to reach them. `clients` are ids, sorted."""

    @property
    def clients(self) -> Sequence[str]: ...
    def start(
        self, server: Server[Any], channel: Channel, seed: int, protection: Protection | None = None
    ) -> Session: ...


@dataclass(frozen=True)
class Info:
    """What a callback is told after every round."""

    round: int
    estimate: Array
    metrics: dict[str, float]
    ledger: Ledger  # of the run so far


@dataclass(frozen=True)
class Result(Generic[S]):
    """How a run ended. `converged` is the algorithm's own word: its stopping rule was met."""

    state: S
    rounds: int
    converged: bool
    ledger: Ledger


def run(
    algorithm: Server[S],
    engine: Engine,
    *,
    rounds: int,
    seed: int,
    channel: Channel | None = None,
    participation: Participation | None = None,
    min_clients: int | None = None,
    secure: Secure | None = None,
    checkpoint: Checkpoint | None = None,
    ledger: Ledger | None = None,
    callback: Callable[[Info], None] | None = None,
    about: Mapping[str, Any] | None = None,
    privacy: Plan | None = None,
) -> Result[S]:
    """Run an algorithm for at most `rounds` rounds, from its checkpoint if there is one.

    Parameters:
        algorithm: The server's half, which names its client's class.
        engine: Who is there, and how to reach them: `InProcess(clients)`.
        rounds: At most so many; the algorithm's own stopping rule may end the run earlier.
        seed: Of all random streams. The same seed repeats the run to the bit.
        channel: What happens to arrays on both links; None: nothing.
        participation: How many clients are asked in a round; None: all.
        min_clients: Go on if at least so many answer: then the algorithm is told who is missing. None: all must.
        secure: Secure aggregation: the server sees sums over the clients only.
        checkpoint: Where each round is saved. A crash repeats at most one round (more if it is not saved every round).
        ledger: Where to write what happens; None: a new one.
        callback: Called after every round with an `Info`.
        about: What else names the run: a checkpoint that differs in it is refused.
        privacy: What may leave the clients, and with how much noise: a question that is not in it is not sent.
    """
    channel, ledger = channel or Channel(), ledger if ledger is not None else Ledger()
    clients = tuple(engine.clients)
    need = len(clients) if min_clients is None else min_clients
    if not 1 <= need <= len(clients):
        raise InputError(f"need min_clients from 1 to the {len(clients)} clients, got {min_clients!r}")
    who = blake2b(repr(clients).encode(), digest_size=8).hexdigest()
    name: dict[str, Any] = {
        "algorithm": repr(algorithm),
        "clients": f"{len(clients)}, {who}",
        "channel": channel.name,
        "seed": seed,
    }
    name |= {"secure": repr(secure)} if secure else {}
    name |= about or {}
    if privacy:
        name["privacy"] = repr(privacy)
    protection = Protection(privacy, secure, min_clients) if privacy or secure else None
    session = engine.start(algorithm, channel, seed, *([protection] if protection else []))

    def drive(generator: Round[S], cohort: tuple[str, ...], number: int) -> S:
        """Carry the generator's questions to the cohort until it returns the new state."""
        started, exchange = time.perf_counter(), 0
        try:
            ask = next(generator)
            while True:
                to = cohort if ask.to is None else ask.to
                if privacy:
                    privacy.check(ask, ledger.count(ask.task))
                replies, event = session.exchange(ask, to, number, exchange)
                if privacy:
                    event = replace(event, noise=privacy.multiplier(ask.task), sampled=privacy.sampled[ask.task])
                    replies = privacy.restored(ask, replies, algorithm.client)
                ledger.add(event)
                if len(to) - len(replies.missing) < min(need, len(to)) and (min_clients is None or ask.to is None):
                    raise _too_few(event, min(need, len(to)))
                exchange += 1
                ask = generator.send(replies)
        except StopIteration as stop:
            state: S = in_c_order(stop.value)  # a round begins with what a checkpoint would hold
        known = {name: value for name, value in algorithm.metrics(state).items() if math.isfinite(value)}
        ledger.add(RoundEnd(number, time.perf_counter() - started, known))
        return state

    try:
        saved: tuple[int, S, Any] | None = checkpoint.load(name, algorithm.State) if checkpoint else None
        if saved:
            done, state, memories = saved
            session.restore(memories, done)
            ledger.add(Note(f"resumed after round {done}"))
        else:
            done, state = 0, drive(algorithm.init(Streams(seed, 0, 0, SERVER)), clients, 0)
        while done < rounds and not algorithm.done(state):
            rng = Streams(seed, done + 1, 0, SERVER)
            cohort = participation.cohort(clients, rng) if participation else clients
            state = drive(algorithm.round(state, rng), cohort, done + 1)
            done += 1
            if checkpoint and (done % checkpoint.every == 0 or done == rounds or algorithm.done(state)):
                checkpoint.save(name, done, state, session.snapshot())
            if callback:
                callback(Info(done, algorithm.estimate(state), algorithm.metrics(state), ledger))
    finally:
        session.close()
    return Result(state, done, algorithm.done(state), ledger)


def _too_few(event: Exchange, need: int) -> ClientError:
    got = len(event.clients) - len(event.missing)
    if event.failures:
        client, reason = next(iter(event.failures.items()))
        why = f"client {client!r} failed: {reason}"
    else:
        why = f"no answer from {', '.join(map(repr, event.missing[:5]))}"
    return ClientError(
        f"need answers to {event.task!r} from {need} clients, got {got} in round {event.round} ({why}); "
        "mend the client and resume from the checkpoint, or lower min_clients"
    )
