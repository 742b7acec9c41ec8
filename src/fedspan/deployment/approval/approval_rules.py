"""What a site's own file says about who may run what there: `approval` and `researchers` in [allow], and the same for
single algorithms in sections of their own.

    [allow]
    approval = "each"                           # every job waits until the administrator has approved it
    researchers = ["ada@uni.example.org"]       # jobs of anybody else are refused

    [algorithms."gram"]
    approval = "each"
    others = 4
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from fedspan.errors import InputError, PolicyRefusal, suggest

Approval = Literal["each", "researcher", "never"]
APPROVALS: tuple[str, ...] = get_args(Approval)


@dataclass(frozen=True)
class AlgorithmRule:
    """What holds for one algorithm on top of what holds for all. None: nothing more."""

    approval: str | None = None
    researchers: tuple[str, ...] | None = None
    others: int | None = None
    verified: bool = False
    tables: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ApprovalRules:
    """Whose jobs run at a site, and which of them wait for its administrator.

    `approval` "each": every job waits. "researcher": those of `researchers` run, those of others wait. "never": none
    waits. With "each" and "never", jobs of others than `researchers` are refused, if that list is given.
    """

    approval: str = "never"
    researchers: tuple[str, ...] | None = None
    by_algorithm: Mapping[str, AlgorithmRule] = field(default_factory=dict)

    @property
    def need_order(self) -> bool:
        """Whether nothing may run without a signed order."""
        rules = [self.approval, *(rule.approval for rule in self.by_algorithm.values())]
        lists = [self.researchers, *(rule.researchers for rule in self.by_algorithm.values())]
        return any(word in ("each", "researcher") for word in rules) or any(names is not None for names in lists)

    def must_wait(self, submitter: str, algorithms: frozenset[str] = frozenset()) -> bool:
        """Whether an order needs the administrator's approval; refuses one whose submitter is not among those named.

        `algorithms` are those that it may run, in small letters.
        """
        waits = _must_wait(self.approval, self.researchers, submitter, "at this site")
        for name in sorted(algorithms & set(self.by_algorithm)):
            rule = self.by_algorithm[name]
            approval = self.approval if rule.approval is None else rule.approval
            researchers = self.researchers if rule.researchers is None else rule.researchers
            waits = _must_wait(approval, researchers, submitter, f"with {name!r} at this site") or waits
        return waits

    def check_algorithm(self, name: str, *, others: int | None, verified: bool, table: str) -> None:
        """Refuse a run that breaks what holds for its algorithm alone. `others` are those in each secure sum."""
        rule = self.by_algorithm.get(name)
        if rule is None:
            return
        if rule.others is not None and (others is None or others < rule.others):
            raise PolicyRefusal(
                f"With {name!r} this site needs at least {rule.others} other sites in every secure sum. Write [secure] "
                f"threshold = {rule.others + 1} or more in the job."
            )
        if rule.verified and not verified:
            raise PolicyRefusal(f"This site runs {name!r} verified only. Write [secure] verified = true in the job.")
        if rule.tables is not None and table not in rule.tables:
            raise PolicyRefusal(f"This site does not run {name!r} on table {table!r}.")


def _must_wait(approval: str, researchers: tuple[str, ...] | None, submitter: str, where: str) -> bool:
    named = researchers is not None and submitter in researchers
    if approval == "researcher":
        return not named
    if researchers is not None and not named:
        raise PolicyRefusal(
            f"{submitter} may not run jobs {where}. Its administrator can add the name to researchers in the site's "
            "own file."
        )
    return approval == "each"


def parse_approval(
    where: Path, allow: Mapping[str, object], algorithms: object, known: tuple[str, ...]
) -> ApprovalRules:
    """The rules in a site's file: what [allow] says of approval, and the sections of single algorithms."""
    if not isinstance(algorithms, dict):
        raise InputError(f"[algorithms] of {where} must be a section with one section for each algorithm.")
    found: dict[str, AlgorithmRule] = {}
    for name, given in algorithms.items():
        if name.lower() not in known:
            raise InputError(f"[algorithms.{name}] in {where} is not an algorithm of fedspan. {suggest(name, known)}")
        found[name.lower()] = _read_rule(f"[algorithms.{name}] of {where}", given)
    general = _read_rule(f"[allow] of {where}", allow)
    return ApprovalRules(general.approval or "never", general.researchers, found)


def _read_rule(where: str, given: object) -> AlgorithmRule:
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a section with keys, but is {given!r}.")
    keys = {"approval", "researchers", "others", "verified", "tables"}
    for key in given:
        if key not in keys:
            raise InputError(f"{key!r} in {where} is not a known key. {suggest(key, keys)}")
    approval, others, verified = given.get("approval"), given.get("others"), given.get("verified", False)
    if approval is not None and approval not in APPROVALS:
        raise InputError(f"approval in {where} must be one of {', '.join(APPROVALS)}, but is {approval!r}.")
    if others is not None and (type(others) is not int or others < 1):
        raise InputError(f"others in {where} must be a whole number of at least 1, but is {others!r}.")
    if type(verified) is not bool:
        raise InputError(f"verified in {where} must be true or false, but is {verified!r}.")
    return AlgorithmRule(
        approval, _read_names(where, given, "researchers"), others, verified, _read_names(where, given, "tables")
    )


def _read_names(where: str, given: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    names = given.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() == name != "" for name in names):
        raise InputError(f"{key} in {where} must be a list of names, but is {names!r}.")
    return tuple(names)
