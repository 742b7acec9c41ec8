"""The plan of a private run: what will be released how often, and how much noise each release gets.

Made before anything is sent, from the algorithm's own list of releases; a site answers nothing that is not in it, and
not more often than it says. Notation: z the noise multiplier of one release (standard deviation over sensitivity),
share the part of the whole budget μ² = 1/z² that all releases of one array may use, C the row norm.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedspan.core.protocol import Ask, Replies, Sensitivity, Task, tasks_of
from fedspan.errors import InputError, PrivacyError
from fedspan.privacy import noise
from fedspan.privacy.accountant import multiplier
from fedspan.privacy.budget import Budget
from fedspan.privacy.request import Neighbours, RowDP


@dataclass(frozen=True)
class Release:
    """One array of one task, how often the run will ask for it, and its share of the budget.

    `sampled` is the probability with which a row is in a release, by a draw that only the client sees.
    """

    task: str
    array: str
    times: int
    share: float
    sampled: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What a site will release. `spread` clients share the noise of a sum; 1: every client adds all of it."""

    row_norm: float
    neighbours: Neighbours
    noise: Mapping[str, Mapping[str, float]]  # task → array → z
    limits: Mapping[str, int]  # task → how often
    sampled: Mapping[str, float]
    system: bool = True
    spread: int = 1
    budgets: str | None = None  # the folder of the clients' own files

    def budget(self, client: str) -> Budget | None:
        """That client's file; a missing one is refused, before anything is sent."""
        return Budget(Path(self.budgets) / f"{client}.json") if self.budgets is not None else None

    def multiplier(self, task: str) -> float:
        """z of a task's arrays together."""
        return 1 / math.sqrt(sum(1 / z**2 for z in self.noise[task].values()))

    def sensitivity(self, task: Task, array: str) -> float:
        declared = task.releases[array]
        if not isinstance(declared, Sensitivity):
            raise PrivacyError(f"task {task.name!r} releases {array!r} without a known sensitivity; nothing was sent")
        return declared.bound(self.row_norm, self.neighbours == "replace-one")

    def check(self, ask: Ask, asked: int) -> None:
        """Before a question is sent: is it in the plan, and not yet asked as often as planned?"""
        if ask.task not in self.noise:
            raise PrivacyError(
                f"task {ask.task!r} is not in the privacy plan ({', '.join(self.noise)}); nothing was sent"
            )
        if asked >= self.limits[ask.task]:
            raise PrivacyError(
                f"another {ask.task!r} would exceed the privacy budget: {self.limits[ask.task]} are planned and "
                f"{asked} were sent (one that a crash cut off counts); start a new run with a budget of its own"
            )

    def restored(self, ask: Ask, replies: Replies, kind: type) -> Replies:
        """Integers on the grid, as numbers again."""
        task = tasks_of(kind)[ask.task]

        def numbers(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {n: a * noise.step(self.sensitivity(task, n), a.size) for n, a in arrays.items()}

        each = {client: numbers(arrays) for client, arrays in replies.each.items()}
        return replace(replies, each=each, total=numbers(replies.total))


def plan_for(dp: RowDP, kind: type, releases: Iterable[Release], *, spread: int = 1) -> Plan:
    """The noise of every release, so that all of them together are (ε, δ)-private."""
    releases = list(releases)
    sampled = {r.sampled for r in releases if r.sampled != 1}
    if sampled and (len(releases) > 1 or len(sampled) > 1):
        raise InputError("need one sub-sampled release, or none that is sub-sampled")
    q = releases[0].sampled
    if sampled:
        if dp.neighbours != "add-remove":
            raise InputError("need neighbours='add-remove' for sub-sampled releases, got 'replace-one'")
        z = {releases[0]: multiplier(dp.epsilon, dp.delta, releases[0].times, q)}
    else:
        one = multiplier(dp.epsilon, dp.delta)
        total = sum(r.share for r in releases)
        z = {r: one * math.sqrt(r.times * total / r.share) for r in releases}
    tasks = tasks_of(kind)
    table: dict[str, dict[str, float]] = {}
    for r in releases:
        if not isinstance(tasks[r.task].releases[r.array], Sensitivity):
            raise InputError(f"task {r.task!r} releases {r.array!r} without a known sensitivity: no noise is enough")
        table.setdefault(r.task, {})[r.array] = z[r]
    for name in table:
        lost = set(tasks[name].releases) - set(table[name])
        if lost:
            raise InputError(f"task {name!r} also releases {sorted(lost)[0]!r}, which has no noise in the plan")
    assert dp.row_norm is not None  # noqa: S101 - RowDP has checked it
    folder = None if dp.budgets is None else os.fspath(dp.budgets)
    return Plan(
        float(dp.row_norm), dp.neighbours, table, {r.task: r.times for r in releases},
        {r.task: r.sampled for r in releases}, not dp.simulate, spread, folder,
    )  # fmt: skip


def expected_error(deviation: float, d: int, k: int, theta: float, symmetric: bool) -> float:
    """The projection distance to expect of noise of that deviation in M, where θ is M's k-th eigenvalue."""
    return deviation * (math.sqrt(d) + math.sqrt(k)) / theta / (math.sqrt(2) if symmetric else 1.0)
