"""At the client's door: nothing leaves but what the plan names, no more often than it says, and with its noise.

A release is named by its question: the task and the arrays that came with it. It is charged before it is computed.
Its noise is a pseudorandom function of the client's key, the run, the question and the exact contents: if the same
question comes again (a reply was lost, a run is resumed), the answer is the same bytes and free. If the contents have
changed since then, it is another release, with fresh noise, and is charged as one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.errors import PrivacyError
from fedspan.privacy import noise
from fedspan.privacy.accountant import epsilon
from fedspan.privacy.budget import Budget
from fedspan.privacy.keyring import derive_key
from fedspan.privacy.plan import Plan
from fedspan.privacy.release import Declared

Sent = dict[str, dict[str, str]]  # task → release → digest of its contents


class AdmittedAnswer(NamedTuple):
    """A question that may be answered. `secret` is the seed of whatever the answer draws at random."""

    task: str
    release: str
    digest: str  # of what was sent in answer to it before; "" if nothing was
    secret: bytes


@dataclass(frozen=True)
class NoiseSource:
    """Where a client's noise comes from. `repeats`: from a public seed, for simulations only."""

    run: str
    key: bytes
    repeats: bool = False

    def seed(self, *purpose: object) -> bytes:
        """The seed for one purpose; a simulation's does not depend on which run it is."""
        return derive_key(self.key, "" if self.repeats else self.run, *purpose)


class Guard:
    """One client's end of a plan. It counts what it has released; a budget also counts over runs, on disk."""

    def __init__(self, plan: Plan, source: NoiseSource, budget: Budget | None = None) -> None:
        self.plan, self.source, self.budget = plan, source, budget
        self.sent: Sent = {}
        self._last: tuple[AdmittedAnswer, Arrays] | None = None
        if budget:
            budget.reserve(source.run, plan.costs(), plan.neighbours, plan.ahead)

    def admit(self, task: str, question: Arrays) -> AdmittedAnswer:
        """Charge the answer to a question before it is computed, or refuse it. The same question again is free."""
        plan = self.plan
        if task not in plan.noise:
            raise PrivacyError(f"Task {task!r} is not in the privacy plan, so nothing was sent.")
        require_finite_numbers(task, question)
        release = name_release(task, question)
        digest = self._charge(task, release)
        return AdmittedAnswer(task, release, digest, self.source.seed(task, release, "draws"))

    def _charge(self, task: str, release: str) -> str:
        """Write the release down. What is known of its contents, if it was sent before."""
        sent = self.sent.setdefault(task, {})
        if self.budget:
            sent[release] = self.budget.send(self.source.run, task, release) or ""
        elif release not in sent and len(sent) >= self.plan.limits[task]:
            raise PrivacyError(
                f"Another {task!r} would exceed the plan, which allows {self.plan.limits[task]}, so nothing was sent."
            )
        return sent.setdefault(release, "")

    def _confirm(self, task: str, release: str, digest: str) -> None:
        if self.budget:
            self.budget.confirm(self.source.run, task, release, digest)
        self.sent[task][release] = digest

    def find_sent(self, admission: AdmittedAnswer) -> Arrays | None:
        """What was sent in answer to this question, if it was the last one."""
        if self._last and self._last[0][:2] == admission[:2]:
            return self._last[1]
        return None

    def protect(self, admission: AdmittedAnswer, releases: Mapping[str, Declared], arrays: Arrays) -> Arrays:
        """The arrays with their noise, as integers on their grids."""
        plan, (task, release, before, _) = self.plan, admission
        if set(arrays) != set(plan.noise[task]):
            raise PrivacyError(f"Task {task!r} with {sorted(arrays)} is not in the privacy plan, so nothing was sent.")
        bounds = {name: plan.sensitivity(task, name, releases[name]) for name in arrays}
        exact = {
            name: noise.to_grid_steps(np.asarray(x, dtype=np.float64), noise.step(bounds[name], x.size))
            for name, x in arrays.items()
        }
        digest = derive_key(self.source.key, "contents", digest_arrays(exact)).hex()[:32]
        if not before:
            self._confirm(task, release, digest)
        elif before != digest:  # the rows have changed since then
            release = f"{release[:16]}{digest[:16]}"
            if not self._charge(task, release):
                self._confirm(task, release, digest)
        number = list(self.sent[task]).index(release)  # in a simulation the noise does not depend on the rows
        seed = self.source.seed(task, number if self.source.repeats else (release, digest))
        noised = {name: x + self._draw(task, name, x, bounds[name], seed) for name, x in exact.items()}
        self._last = admission, noised
        return noised

    def _draw(self, task: str, name: str, x: Array, bound: float, seed: bytes) -> Array:
        deviation = self.plan.noise[task][name] * noise.widen(bound, x.size) / math.sqrt(self.plan.spread)
        normal = noise.keyed_normal(derive_key(seed, name), x.size).reshape(x.shape)
        return noise.draw_on_grid(normal, noise.step(bound, x.size), deviation)

    def settle(self) -> None:
        """The run is over here, or interrupted: what it did not send is free again until it goes on."""
        if self.budget:
            with suppress(PrivacyError):  # what cannot be freed stays reserved
                self.budget.settle(self.source.run)

    def charged(self, delta: float) -> float:
        """The ε of all that was released under the plan so far, for the neighbours that differ by one row."""
        costs, found = self.plan.costs(), Counter[tuple[float, float]]()
        for task, sent in self.sent.items():
            found[costs[task].noise, costs[task].sampled] += len(sent)
        return epsilon(found, delta)

    def snapshot(self) -> Sent:
        return {task: dict(sent) for task, sent in self.sent.items()}

    def restore(self, saved: Mapping[str, Mapping[str, str]]) -> None:
        self.sent = {task: dict(sent) for task, sent in saved.items()}


def require_finite_numbers(task: str, question: Arrays) -> None:
    """Refuse a question that is not of finite float64 numbers: sensitivities hold for real numbers, and no others."""
    for name, array in question.items():
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise PrivacyError(
                f"{name!r} in the question {task!r} must be finite numbers of type float64, because the noise is "
                "calibrated for these. Nothing was sent."
            )


def name_release(task: str, question: Arrays) -> str:
    """The name of the release that answers a question."""
    return sha256(repr(task).encode() + digest_arrays(question)).hexdigest()[:32]


def digest_arrays(arrays: Arrays) -> bytes:
    """One digest of named arrays."""
    digest = sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.tobytes())
    return digest.digest()
