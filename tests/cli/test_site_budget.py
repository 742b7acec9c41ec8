"""`fedspan site budget`: an administrator sees, grants and frees what jobs may spend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.deployment.kit import policy_file
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_budget import place_budget
from fedspan.privacy.budget import Budget, Cost

Fedspan = Callable[..., Any]
PLAN = {"census": Cost(30.0, 1.0, 1), "triangle": Cost(5.0, 1.0, 1)}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    folder = tmp_path / "north"
    (folder / "local").mkdir(parents=True)
    np.save(folder / "rows.npy", np.eye(4))
    tables = {"default": {"path": str(folder / "rows.npy"), "features": 4}}
    rules = {"epsilon": 2.0, "delta": 1e-6, "budget": str(tmp_path / "state" / "budget.json")}
    (folder / "local" / "fedspan.toml").write_text(policy_file(tables, **rules))  # type: ignore[arg-type]
    Budget.grant(tmp_path / "state" / "budget.json", 2.0, 1e-6)
    return folder


def test_it_shows_what_is_spent_and_by_which_run(kit: Path, fedspan: Fedspan) -> None:
    budget = Budget(Policy.read(kit).budget)
    budget.reserve("abc.0.d", PLAN, "replace-one")
    budget.send("abc.0.d", "census", "question")
    shown = fedspan("site", "budget", str(kit)).output
    assert "allowed   epsilon 2 at delta 1e-06" in shown
    assert "run abc.0.d  not over, neighbours replace-one" in shown
    assert "census 1 of 1, triangle 0 of 1" in shown
    before = budget.account.spent(reserved=True)
    assert fedspan("site", "budget", str(kit), "--settle", "abc").exit_code == 0
    assert budget.account.spent(reserved=True) < before
    assert fedspan("site", "budget", str(kit), "--settle", "nobody").exit_code == 2


def test_it_grants_in_both_files_and_what_was_spent_stays(kit: Path, fedspan: Fedspan) -> None:
    budget = Budget(Policy.read(kit).budget)
    budget.reserve("abc.0.d", PLAN, "add-remove")
    budget.send("abc.0.d", "triangle", "question")
    spent = budget.spent
    assert fedspan("site", "budget", str(kit), "--grant", "3.5").exit_code == 0
    policy = Policy.read(kit)
    assert (policy.epsilon, policy.delta) == (3.5, 1e-6) == Budget(policy.budget).allowance
    assert Budget(policy.budget).spent == spent > 0
    assert fedspan("site", "budget", str(kit), "--grant", "-1").exit_code == 2


def test_a_site_without_a_budget_says_so_and_can_be_given_one(tmp_path: Path, fedspan: Fedspan) -> None:
    folder = tmp_path / "south"
    (folder / "local").mkdir(parents=True)
    (folder / "local" / "fedspan.toml").write_text(policy_file({"default": {"path": "rows.npy", "features": 4}}))
    assert "no privacy budget" in fedspan("site", "budget", str(folder)).output
    assert fedspan("site", "budget", str(folder), "--grant", "1").exit_code == 2, "a delta is missing"
    assert "spent     epsilon 0" in fedspan("site", "budget", str(folder), "--grant", "1", "--delta", "1e-6").output


def test_a_budget_belongs_to_the_data_and_not_to_the_kit() -> None:
    assert place_budget(["/data/a.csv", "db://x"]) == place_budget(["db://x", "/data/a.csv"])
    assert place_budget(["/data/a.csv"]) != place_budget(["/data/b.csv"])
