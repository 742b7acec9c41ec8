"""What ran, rebuilt from the ledger of a run: the algorithm, and the channel that its messages went through."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from fedspan.algorithms.registry import ALGORITHMS
from fedspan.channel import Channel
from fedspan.core.ledger import Started
from fedspan.core.protocol import Server
from fedspan.estimators.channels import channel_of
from fedspan.jobs.model import Job

_PLAIN_VALUES = (bool, int, float, str, type(None))


def find_kind(started: Started | None) -> type[Server[Any]] | None:
    """The algorithm's class; None if the ledger does not name it, or if it is not one of fedspan's."""
    return None if started is None else ALGORITHMS.get(started.algorithm)


def rebuild_algorithm(kind: type[Server[Any]], started: Started) -> Server[Any]:
    """The algorithm with its options, as far as the ledger holds them as plain values; the others are the defaults."""
    if not is_dataclass(kind):
        return kind()
    plain = {option.name for option in fields(kind) if isinstance(option.default, _PLAIN_VALUES)}
    return kind(**{name: value for name, value in started.options.items() if name in plain})


def rebuild_channel(kind: type[Server[Any]] | None, job: Job) -> Channel:
    """The channel that the job's estimator took for an algorithm of that class."""
    if kind is None or job.privacy:  # private releases are integers on a grid, sent as they are
        return Channel()
    return channel_of(kind(), job.parameters.get("bits"), job.parameters.get("first_bits"))
