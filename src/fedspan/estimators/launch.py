"""What every estimator needs to start a run: the seed, the engine, the checkpoint, secure sums, warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from fedspan.core.checkpoint import Checkpoint
from fedspan.core.run import Engine
from fedspan.engines.inprocess import InProcess
from fedspan.engines.start import count_noise_sharers
from fedspan.errors import InputError
from fedspan.estimators.parameters import is_whole
from fedspan.secure.masking import Secure

A = TypeVar("A")


def seed_from(random_state: object) -> int:
    """A seed from what scikit-learn users give as random_state; from the operating system if they give nothing."""
    if random_state is None:
        return int(np.random.SeedSequence().entropy) % 2**63  # type: ignore[arg-type]
    if isinstance(random_state, int | np.integer) and is_whole(random_state) and random_state >= 0:
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    raise InputError(f"random_state must be None, an integer of at least 0 or a generator, but is {random_state!r}.")


def secure_from(secure: bool | Secure) -> Secure | None:
    """What users give as `secure`: True, False, or a Secure with a threshold."""
    if isinstance(secure, Secure):
        return secure
    return Secure() if secure else None


def count_sharers(secure: Secure | None, clients: int, min_clients: int | None) -> int:
    """How many clients share the noise of a sum: see `count_noise_sharers`. Without secure sums none shares."""
    if secure is None:
        return 1
    if secure.groups is not None or secure.verified is True:  # all of a group must answer, but a group may be missing
        return count_noise_sharers(clients, clients if _is_one_group(secure.groups, clients) else None)
    return count_noise_sharers(clients, secure.threshold_for(clients, min_clients))


def _is_one_group(groups: Sequence[Sequence[str]] | int | None, clients: int) -> bool:
    return groups is None or (clients // groups if isinstance(groups, int) else len(groups)) == 1


def make_engine(engine: Engine | Callable[..., Engine] | None, data: Mapping[str, object]) -> Engine:
    """What users give as `engine`: nothing, an engine, or a function from the clients' data to one."""
    if engine is None:
        return InProcess(data)
    return engine(data) if callable(engine) else engine


def open_checkpoint(checkpoint: str | os.PathLike[str] | Checkpoint | None) -> Checkpoint | None:
    """What users give as `checkpoint`: nothing, a folder, or a Checkpoint."""
    return checkpoint if checkpoint is None or isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


def set_options(algorithm: A, options: Mapping[str, object]) -> A:
    """The algorithm with those of the options that it has."""
    known = {field.name for field in fields(algorithm)}  # type: ignore[arg-type]
    return replace(algorithm, **{key: v for key, v in options.items() if key in known})  # type: ignore[type-var]


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line outside of fedspan from which all this was called."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("fedspan."):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, category, stacklevel=level)
