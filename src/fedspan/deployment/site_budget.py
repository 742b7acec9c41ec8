"""A site's privacy budget, for its administrator: where it is, what it says, and how it is changed.

The budget belongs to the data, not to the kit: it is kept in a folder of the user who runs the site, named after the
tables. So a kit that is replaced (because certificates have expired, say) goes on with what was spent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from fedspan._files import write_whole
from fedspan.deployment.policy import FILE, Policy
from fedspan.errors import InputError
from fedspan.privacy.accountant import epsilon
from fedspan.privacy.budget import Budget, RunAccount


def place_budget(addresses: Iterable[str]) -> Path:
    """Where the budget of these tables is kept, whichever kit they are used with."""
    state = os.environ.get("FEDSPAN_STATE") or os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    digest = sha256("\n".join(sorted(addresses)).encode()).hexdigest()[:16]
    return Path(state) / "fedspan" / "budgets" / digest / "budget.json"


def describe_budget(policy: Policy) -> list[str]:
    """What the budget allows, what is spent and reserved, and by which runs; in lines for a terminal."""
    if policy.epsilon is None:
        return ["This site has no privacy budget: runs need no noise. Give it one with --grant EPSILON --delta DELTA."]
    account = Budget(policy.budget).account
    spent, bound = account.spent(reserved=False), account.spent(reserved=True)
    lines = [
        f"allowed   epsilon {account.epsilon:.6g} at delta {account.delta:g}, over all runs",
        f"spent     epsilon {spent:.4g}",
        f"reserved  epsilon {bound:.4g} in all, if every run that is not over sends all that it may",
        f"kept in   {policy.budget}",
        "",
    ]
    lines += [line for entry in account.runs for line in _describe_run(entry, account.delta)]
    lines += [
        "The parts do not add up: several releases together cost less than the sum of their epsilons. All of it counts "
        "for neighbours that differ by one row more or less; for those that replace a row it is an upper bound.",
    ]
    return lines


def _describe_run(entry: RunAccount, delta: float) -> list[str]:
    state = "over" if entry.settled else "not over"
    planned = {task: f"{len(entry.sent.get(task, {}))} of {cost.times}" for task, cost in entry.planned.items()}
    return [
        f"{entry.when or 'earlier'}  run {entry.run}  {state}, neighbours {entry.neighbours}",
        f"    epsilon {epsilon(entry.count(), delta):.4g} alone; sent: "
        + ", ".join(f"{task} {count}" for task, count in planned.items()),
    ]


def grant_budget(kit: Path, allowed: float, delta: float | None) -> None:
    """Change what the budget and the site's file allow; what was spent stays spent."""
    policy, path = Policy.read(kit), kit / "local" / FILE
    delta = policy.delta if delta is None else delta
    if delta is None:
        raise InputError("A privacy budget needs a delta as well; give --delta, far below 1 / number of rows.")
    text = path.read_text(encoding="utf-8")
    for key, value in (("epsilon", allowed), ("delta", delta)):
        line = f"{key} = {float(value)!r}  # over all runs"
        text, found = re.subn(rf"^(# *)?{key} *=.*$", line, text, count=1, flags=re.MULTILINE)
        if not found:
            raise InputError(f"{path} has no line for {key}. Write {key} = {float(value)!r} in its [require] section.")
    Budget.grant(policy.budget, allowed, delta)
    write_whole(path, text)


def settle_run(policy: Policy, run: str) -> None:
    """Free what a run that will not go on has reserved and not sent."""
    budget = Budget(policy.budget)
    known = [entry.run for entry in budget.account.runs]
    matching = [name for name in known if name.startswith(run)]
    if not matching:
        raise InputError(f"There is no run {run!r} in the budget. Known are: {', '.join(known) or 'none'}.")
    for name in matching:
        budget.settle(name)
