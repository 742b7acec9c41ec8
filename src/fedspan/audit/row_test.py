"""Was one row in a client's data? The membership test on everything that the client sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array, Arrays
from fedspan.audit.attacks import Membership, membership
from fedspan.core.protocol import Server, tasks_of
from fedspan.core.rng import Streams
from fedspan.engines.transcript import Talk


@dataclass(frozen=True)
class ArrayTest:
    """The membership test on one kind of array."""

    task: str
    array: str
    result: Membership


@dataclass(frozen=True)
class RowTest:
    """Whether a row's presence shows: one test for each array that depends on it."""

    client: str
    row: int
    arrays: tuple[ArrayTest, ...]


def probe_longest_row(
    algorithm: Server[object], client: str, rows: Array | sp.sparray, talks: Sequence[Talk], seed: int
) -> RowTest:
    """Test the row of largest norm, for an attacker who knows all others and so can repeat the client's computation.

    The client's tasks are done again on the questions that it was asked, with the row and without it: so this works
    for every algorithm whose clients are made of rows.
    """
    row = _find_longest(rows)
    others = np.flatnonzero(np.arange(rows.shape[0]) != row)
    known = tasks_of(algorithm.client)  # not what was asked before, to agree on columns
    last = {(t.round, t.exchange): t for t in talks if t.task in known}  # of a round that was repeated, the last
    asked = [last[place] for place in sorted(last)]
    with_row = _repeat_tasks(algorithm, rows, asked, seed)
    without_row = _repeat_tasks(algorithm, rows[others], asked, seed)
    kinds: dict[tuple[str, str], list[int]] = {}
    for i, talk in enumerate(asked):
        for name in talk.answer:
            kinds.setdefault((talk.task, name), []).append(i)
    tests = []
    for (task, name), places in kinds.items():
        seen = _join_arrays([asked[i].answer for i in places], name)
        with_, without = (_join_arrays([source[i] for i in places], name) for source in (with_row, without_row))
        tests.append(ArrayTest(task, name, membership(seen, with_, without)))
    return RowTest(client, row, tuple(test for test in tests if test.result.mu > 0))


def _find_longest(rows: Array | sp.sparray) -> int:
    squares = sp.csr_array(rows).power(2).sum(axis=1) if sp.issparse(rows) else np.square(rows).sum(axis=1)
    return int(np.argmax(squares))


def _join_arrays(answers: Sequence[Mapping[str, Array]], name: str) -> Array:
    return np.concatenate([np.ravel(answer[name]).astype(np.float64) for answer in answers])


def _repeat_tasks(
    algorithm: Server[object], rows: Array | sp.sparray, talks: Sequence[Talk], seed: int
) -> list[Arrays]:
    """What a client with these rows answers to the same questions."""
    client = algorithm.client(rows, **algorithm.client_options())  # type: ignore[call-arg]
    tasks, state, answers = tasks_of(algorithm.client), client.init(), []
    for talk in talks:
        rng = Streams(seed, talk.round, talk.exchange, talk.client)
        state, arrays = tasks[talk.task].call(client, state, talk.question, rng)
        answers.append(arrays)
    return answers
