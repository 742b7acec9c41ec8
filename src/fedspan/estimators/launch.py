"""From an estimator to a run: the seed, the engine, the checkpoint, the first note in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedspan.channel import Channel
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Ledger, Note
from fedspan.core.participation import Participation
from fedspan.core.protocol import Server
from fedspan.core.run import Info, Result, run
from fedspan.engines.inprocess import InProcess
from fedspan.errors import InputError
from fedspan.privacy.plan import Plan
from fedspan.secure.masking import Secure


def whole(number: Any) -> bool:
    """Whether that is an integer, and not a truth value."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def seed_from(random_state: Any) -> int:
    """A seed from what scikit-learn users give as random_state; from the operating system if they give nothing."""
    if random_state is None:
        return int(np.random.SeedSequence().entropy) % 2**63  # type: ignore[arg-type]
    if whole(random_state) and random_state >= 0:
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    raise InputError(f"need random_state to be None, a non-negative integer or a generator, got {random_state!r}")


def secure_from(secure: Any) -> Secure | None:
    """What users give as `secure`: True, False, or a Secure with a threshold."""
    if isinstance(secure, bool):
        return Secure() if secure else None
    if not isinstance(secure, Secure):
        raise InputError(f"need secure to be True, False or a fedspan.Secure(threshold=…), got {secure!r}")
    return secure


def sharing(secure: Secure | None, clients: int, min_clients: int | None) -> int:
    """By how many clients the noise of a sum is shared: by those who are at least in it; alone without secure sums."""
    if secure is None:
        return 1
    return clients if min_clients is None else max(min_clients, secure.among(clients, min_clients))


def launch(
    solver: Server[Any],
    data: Mapping[str, Any],
    *,
    why: str,
    rounds: int,
    seed: int,
    channel: Channel | None = None,
    engine: Any = None,
    callback: Callable[[Info], None] | None = None,
    checkpoint: Any = None,
    ledger: Ledger | None = None,
    min_clients: int | None = None,
    about: Mapping[str, Any] | None = None,
    participation: Participation | None = None,
    privacy: Plan | None = None,
    secure: Secure | None = None,
) -> Result[Any]:
    """Run the solver on the clients' data (by id). `why` ends the note "solver …, because …"."""
    ledger = ledger if ledger is not None else Ledger()
    ledger.add(Note(f"solver {type(solver).__name__.lower()}, because {why}; seed {seed}"))
    return run(
        solver,
        InProcess(data) if engine is None else engine(data) if callable(engine) else engine,
        rounds=rounds,
        seed=seed,
        channel=channel,
        min_clients=min_clients,
        checkpoint=checkpoint if checkpoint is None or isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint),
        ledger=ledger,
        callback=callback,
        about=about,
        participation=participation,
        privacy=privacy,
        secure=secure,
    )
