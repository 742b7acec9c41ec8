"""At the client's door: nothing leaves but what the plan names, no more often than it says, and with its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedspan._types import Array, Arrays, Draw
from fedspan.errors import PrivacyError
from fedspan.privacy import noise
from fedspan.privacy.budget import Budget
from fedspan.privacy.plan import Plan
from fedspan.privacy.release import Declared


class Guard:
    """One client's end of a plan. It counts what it has released; a budget also counts over runs, on disk."""

    def __init__(self, plan: Plan, budget: Budget | None = None) -> None:
        self.plan, self.budget = plan, budget
        self.released: dict[str, int] = {}

    def protect(self, task: str, releases: Mapping[str, Declared], arrays: Arrays, rng: Draw) -> Arrays:
        """The arrays with their noise, as integers on their grids. They are charged before they leave."""
        plan = self.plan
        if task not in plan.noise or set(arrays) != set(plan.noise[task]):
            raise PrivacyError(f"Task {task!r} with {sorted(arrays)} is not in the privacy plan, so nothing was sent.")
        before = self.released.get(task, 0)
        if before >= plan.limits[task]:
            raise PrivacyError(
                f"Another {task!r} would exceed the plan, which allows {plan.limits[task]}, so nothing was sent."
            )
        if self.budget:
            self.budget.charge(task, plan.multiplier(task), plan.sampled[task])
        self.released[task] = before + 1
        bounds = {name: plan.sensitivity(task, name, releases[name]) for name in arrays}
        return {name: self._add_noise(task, name, array, bounds[name], rng) for name, array in arrays.items()}

    def _add_noise(self, task: str, name: str, x: Array, bound: float, rng: Draw) -> Array:
        deviation = self.plan.noise[task][name] * noise.widen(bound, x.size) / math.sqrt(self.plan.spread)
        normal = noise.system_normal(x.size) if self.plan.system else rng(f"noise {name}").normal(size=x.size)
        return noise.add_on_grid(np.asarray(x, dtype=np.float64), noise.step(bound, x.size), deviation, normal)

    def snapshot(self) -> dict[str, int]:
        return dict(self.released)

    def restore(self, saved: Mapping[str, int]) -> None:
        self.released = dict(saved)
