"""What a client may still spend, over all runs: one JSON file at the client, written before anything leaves.

    {"epsilon": 2.0, "delta": 1e-6, "spent": [{"task": "gram", "noise": 4.2, "sampled": 1.0, "when": "2026-…"}]}

The client's owner makes it (`Budget.grant`). A release that would exceed it is refused; so is a file that is missing or
cannot be read: without a count there is no protection.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from fedspan._files import write_whole
from fedspan.errors import InputError, PrivacyError
from fedspan.privacy.accountant import epsilon


class _Spent(TypedDict):
    """One release."""

    task: str
    noise: float
    sampled: float
    when: str


class _Account(TypedDict):
    """The file's contents."""

    epsilon: float
    delta: float
    spent: list[_Spent]


class Budget:
    """One client's file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read()  # fail before the run, not in its middle

    @classmethod
    def grant(cls, path: str | os.PathLike[str], epsilon: float, delta: float) -> Budget:
        """Make the file, or change what an existing one allows; what was spent stays spent."""
        if not epsilon > 0 or not 0 < delta < 1:
            raise InputError(
                f"epsilon must be above 0 and delta between 0 and 1, but they are {epsilon!r} and {delta!r}."
            )
        spent = cls(path)._read()["spent"] if Path(path).exists() else []
        _write_account(Path(path), {"epsilon": float(epsilon), "delta": float(delta), "spent": spent})
        return cls(path)

    def _read(self) -> _Account:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            _count_releases(tree["spent"])  # fails if an entry is not a release
            return {"epsilon": float(tree["epsilon"]), "delta": float(tree["delta"]), "spent": list(tree["spent"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PrivacyError(
                f"Cannot read a privacy budget in {self.path} ({type(error).__name__}). Its owner writes it with "
                "fedspan.privacy.budget.Budget.grant(path, epsilon, delta)."
            ) from None

    @property
    def allowance(self) -> tuple[float, float]:
        """The ε that may be spent in all, and its δ."""
        tree = self._read()
        return tree["epsilon"], tree["delta"]

    @property
    def spent(self) -> float:
        """The ε spent so far, at the file's δ."""
        tree = self._read()
        return epsilon(_count_releases(tree["spent"]), tree["delta"])

    def check_affordable(self, planned: Iterable[tuple[str, float, float, int]]) -> None:
        """Refuse a run before it begins if its releases (task, noise, sampled, how often) would exceed the budget."""
        tree = self._read()
        after = _count_releases(tree["spent"])
        for _, noise, sampled, times in planned:
            after[noise, sampled] += times
        needed = epsilon(after, tree["delta"])
        if needed > tree["epsilon"] * (1 + 1e-6):
            raise PrivacyError(
                f"The run would exceed this site's privacy budget: epsilon {needed:.4g} of {tree['epsilon']:.4g} at "
                f"delta {tree['delta']:g}, of which {self.spent:.4g} is spent. Ask for a smaller epsilon."
            )

    def charge(self, task: str, noise: float, sampled: float = 1.0) -> None:
        """Write the release down; if it would exceed the budget, refuse it and write nothing."""
        tree = self._read()
        entry: _Spent = {
            "task": task,
            "noise": noise,
            "sampled": sampled,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        after = epsilon(_count_releases([*tree["spent"], entry]), tree["delta"])
        if after > tree["epsilon"] * (1 + 1e-6):
            raise PrivacyError(
                f"{task!r} would exceed the privacy budget in {self.path.name}: epsilon {after:.4g} of "
                f"{tree['epsilon']:.4g} at delta {tree['delta']:g}. Nothing was sent."
            )
        _write_account(self.path, {**tree, "spent": [*tree["spent"], entry]})


def _count_releases(spent: list[_Spent]) -> Counter[tuple[float, float]]:
    return Counter((float(s["noise"]), float(s["sampled"])) for s in spent)


def _write_account(path: Path, tree: _Account) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(tree, indent=1))
