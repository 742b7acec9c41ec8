"""The plan of a private run: what will be released how often, and how much noise each release gets.

Made before anything is sent, from the request (ε, δ, C, neighbours) and the algorithm's own list of releases. Server
and sites make it by themselves: no noise travels from one to the other. A site answers nothing that is not in its
plan, and not more often than it says. Notation: z the noise multiplier of one release (standard deviation over
sensitivity), share the part of the whole budget μ² = 1/z² that all releases of one array may use, C the row norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedspan._types import Array, Arrays
from fedspan.errors import InputError, PrivacyError
from fedspan.privacy import noise
from fedspan.privacy.accountant import gaussian_mu, noise_multiplier
from fedspan.privacy.budget import Budget, Cost
from fedspan.privacy.release import Declarations, Declared, Release, Sensitivity
from fedspan.privacy.request import Neighbours, RowDP


@dataclass(frozen=True)
class Plan:
    """What a site will release. `spread` clients share the noise of a sum; 1: every client adds all of it."""

    request: RowDP
    row_norm: float
    neighbours: Neighbours
    noise: Mapping[str, Mapping[str, float]]  # task → array → z
    limits: Mapping[str, int]  # task → how often
    sampled: Mapping[str, float]
    spread: int = 1
    ahead: float = 0.0  # the μ² that later parts of the run will need

    def budget(self, client: str) -> Budget | None:
        """That client's file, if clients keep any here; a missing one is refused, before anything is sent."""
        folder = self.request.budgets
        return None if folder is None else Budget(Path(folder) / f"{client}.json")

    def costs(self) -> dict[str, Cost]:
        """What a budget must hold for this plan."""
        return {task: Cost(self.multiplier(task), self.sampled[task], times) for task, times in self.limits.items()}

    def multiplier(self, task: str) -> float:
        """z of a task's arrays together."""
        return 1 / math.sqrt(sum(1 / z**2 for z in self.noise[task].values()))

    def sensitivity(self, task: str, array: str, declared: Declared) -> float:
        """By how much one row can change that array, as the task declares it."""
        if not isinstance(declared, Sensitivity):
            raise PrivacyError(f"Task {task!r} releases {array!r} without a known sensitivity, so nothing was sent.")
        return declared.bound(self.row_norm, self.neighbours == "replace-one")

    def deviation(self, task: str, array: str, declared: Declared, size: int, clients: int) -> float:
        """The standard deviation of the noise in each of `size` numbers of that array, summed over the clients."""
        bound = noise.widen(self.sensitivity(task, array, declared), size)
        return self.noise[task][array] * bound * math.sqrt(clients / self.spread)

    def check(self, task: str, asked: int) -> None:
        """Refuse, before it is sent, a question that is not in the plan, or for which `asked` others used it up."""
        if task not in self.noise:
            raise PrivacyError(
                f"Task {task!r} is not in the privacy plan ({', '.join(self.noise)}), so nothing was sent."
            )
        if asked >= self.limits[task]:
            raise PrivacyError(
                f"Another {task!r} would exceed the privacy budget: {self.limits[task]} are planned and {asked} were "
                "sent (one that a crash cut off counts, unless it is repeated as it was). Start a new run."
            )

    def to_numbers(self, task: str, releases: Mapping[str, Declared], arrays: Arrays) -> dict[str, Array]:
        """The integers on the grid that a client released, as numbers again."""
        steps = {name: noise.step(self.sensitivity(task, name, releases[name]), a.size) for name, a in arrays.items()}
        return {name: array * steps[name] for name, array in arrays.items()}


def plan_for(
    dp: RowDP, declared: Declarations, releases: Iterable[Release], *, spread: int = 1, opens: bool = False
) -> Plan:
    """The noise of every release, so that all of them together are (ε, δ)-private.

    Shares that add up to less than 1 leave the rest to other parts of the run; if this one `opens` it, those that come
    later, for which budgets must have room before anything is sent.
    """
    releases = list(releases)
    row_norm = dp.row_norm
    if not isinstance(row_norm, int | float):
        raise InputError(f"A plan of noise needs row_norm as a number, but it is {row_norm!r}.")
    if not releases:
        raise InputError("This algorithm plans no releases, so it cannot be combined with differential privacy.")
    sampled = {r.sampled for r in releases if r.sampled != 1}
    if sampled and len(releases) > 1:
        raise InputError("A plan can have one release of sampled rows and nothing else, or only releases of all rows.")
    if sampled:
        if dp.neighbours != "add-remove":
            raise InputError("Releases of sampled rows need neighbours='add-remove', but it is 'replace-one'.")
        rest = max(0.0, 1 - releases[0].share) * gaussian_mu(dp.epsilon, dp.delta) ** 2
        z = {releases[0]: noise_multiplier(dp.epsilon, dp.delta, releases[0].times, releases[0].sampled, rest)}
    else:
        one = noise_multiplier(dp.epsilon, dp.delta)
        total = max(sum(r.share for r in releases), 1.0)
        z = {r: one * math.sqrt(r.times * total / r.share) for r in releases}
    table: dict[str, dict[str, float]] = {}
    for r in releases:
        if not isinstance(declared[r.task][r.array], Sensitivity):
            raise InputError(
                f"Task {r.task!r} releases {r.array!r} without a known sensitivity, so no amount of noise is enough."
            )
        table.setdefault(r.task, {})[r.array] = z[r]
    for name in table:
        lost = set(declared[name]) - set(table[name])
        if lost:
            raise InputError(f"Task {name!r} also releases {sorted(lost)[0]!r}, which has no noise in the plan.")
    return Plan(
        request=dp,
        row_norm=float(row_norm),
        neighbours=dp.neighbours,
        noise=table,
        limits={r.task: r.times for r in releases},
        sampled={r.task: r.sampled for r in releases},
        spread=spread,
        ahead=max(0.0, 1 - sum(r.share for r in releases)) * gaussian_mu(dp.epsilon, dp.delta) ** 2 if opens else 0.0,
    )


def expected_error(deviation: float, d: int, k: int, theta: float, symmetric: bool) -> float:
    """The projection distance to expect from noise of that deviation in M, where θ is M's k-th eigenvalue."""
    return deviation * (math.sqrt(d) + math.sqrt(k)) / theta / (math.sqrt(2) if symmetric else 1.0)
