"""At the client's door: nothing leaves but what the plan names, as often as it says, with its noise on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import Task
from fedspan.core.rng import Streams
from fedspan.errors import PrivacyError
from fedspan.privacy import noise
from fedspan.privacy.budget import Budget
from fedspan.privacy.plan import Plan


class Guard:
    """One client's end of a plan. It counts what it has released; a budget also counts over runs, on disk."""

    def __init__(self, plan: Plan, budget: Budget | None = None) -> None:
        self.plan, self.budget = plan, budget
        self.released: dict[str, int] = {}

    def protect(self, task: Task, arrays: Arrays, rng: Streams) -> Arrays:
        """The arrays with their noise, as integers on their grids. Charged before they leave."""
        plan = self.plan
        if task.name not in plan.noise or set(arrays) != set(plan.noise[task.name]):
            raise PrivacyError(f"task {task.name!r} is not in the privacy plan as it is; nothing was sent")
        before = self.released.get(task.name, 0)
        if before >= plan.limits[task.name]:
            raise PrivacyError(
                f"another {task.name!r} would exceed the plan of {plan.limits[task.name]}; nothing was sent"
            )
        if self.budget:
            self.budget.charge(task.name, plan.multiplier(task.name), plan.sampled[task.name])
        self.released[task.name] = before + 1
        return {name: self._noised(task, name, array, rng) for name, array in arrays.items()}

    def _noised(self, task: Task, name: str, x: Array, rng: Streams) -> Array:
        bound = self.plan.sensitivity(task, name)
        deviation = self.plan.noise[task.name][name] * noise.widened(bound, x.size) / math.sqrt(self.plan.spread)
        normal = noise.system_normal(x.size) if self.plan.system else rng(f"noise {name}").normal(size=x.size)
        return noise.on_grid(np.asarray(x, dtype=np.float64), noise.step(bound, x.size), deviation, normal)

    def snapshot(self) -> Any:
        return dict(self.released)

    def restore(self, saved: Any) -> None:
        self.released = dict(saved)
