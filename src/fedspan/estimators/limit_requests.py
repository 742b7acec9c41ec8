"""Limits as users write them, in Python and in job files, and the parts of the rows whose losses they bound.

    { on = "cost", at_most = 0.13 }                          the mean loss of all rows
    { on = "group", column = "sex", gap = 0.02 }             between the mean losses of any two groups
    { on = "group", column = "sex", at_most = 0.4 }          the mean loss of every group; of one with group = "f"
    { on = "group", column = "sex", coefficients = { f = 1, m = -1 }, at_most = 0.02 }    any combination of them
    { on = "class", class = "ill", at_most = 0.3 }           the mean loss of the rows of a class
    { on = "class", class = "ill", recall = 0.9 }            the share of them that is found, by a bound on their loss

A row that is predicted wrongly has a probability of at most 1/2 for its class, so a loss of at least log 2. So the
share that is found is at least 1 - (mean loss)/log 2, and a recall of r follows from a mean loss of (1 - r) log 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.learning.constraints.limits import Limit, LimitOutcome, PartSums
from fedspan.data.ids_and_labels import to_class
from fedspan.errors import InputError, suggest
from fedspan.estimators.parameters import is_number

GroupLimit = tuple[Mapping[Any, float], float]  # the coefficient of each group's mean loss, and the bound of their sum
LimitWords = Mapping[str, Any]  # a limit as job files have it

_ALLOWED = {
    "cost": ("at_most",),
    "group": ("column", "gap", "at_most", "group", "coefficients"),
    "class": ("class", "at_most", "recall"),
}
_MOST_GROUPS = 8  # whose gaps are limited two by two


@dataclass(frozen=True)
class LimitRequest:
    """One limit that was asked for: exactly one of the bounds is given."""

    on: str
    at_most: float | None = None
    gap: float | None = None
    recall: float | None = None
    column: str | None = None  # of the groups; None: the groups are given to fit
    group: object = None
    label: object = None
    coefficients: Mapping[Any, float] | None = None


@dataclass(frozen=True)
class NamedLimit:
    """A limit, and what people call it; `recall` (of the rows in `parts`) is what its bound on a loss stands for."""

    limit: Limit
    name: str
    on_cost: bool = False
    recall: float | None = None
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class LimitPlan:
    """The limits of a run, and the parts: every pair of a group (all rows are one, if there are none) and a class.

    Classes that no limit speaks of are one together.
    """

    limits: tuple[NamedLimit, ...]
    groups: int = 1
    classes: tuple[int, ...] = ()  # the numbers of those that a limit speaks of

    @property
    def kinds(self) -> int:
        return len(self.classes) + 1 if self.classes else 1

    @property
    def parts(self) -> int:
        return self.groups * self.kinds

    def number(self, y: Array, group: Array | None) -> Array | None:
        """The part of each row, from its class and group; None: there is one only."""
        if self.parts == 1:
            return None
        kind = np.zeros(len(y), dtype=np.int64)
        for at, label in enumerate(self.classes):
            kind[y == label] = at + 1
        return kind if group is None else group * self.kinds + kind


def read_limits(given: Sequence[GroupLimit | LimitWords] | None) -> tuple[LimitRequest, ...]:
    """The limits that are asked for, each checked by itself."""
    if isinstance(given, Mapping) or not isinstance(given, Sequence | None) or isinstance(given, str):
        raise InputError(f'limits must be a list, such as [{{"on": "cost", "at_most": 0.13}}], but is {given!r}.')
    requests = tuple(_read_one(at, limit) for at, limit in enumerate(given or (), 1))
    columns = list(dict.fromkeys(request.column for request in requests if request.on == "group"))
    if len(columns) > 1:
        named = " and ".join("the groups given to fit" if column is None else repr(column) for column in columns)
        raise InputError(
            f"All limits on groups must be on the same column, but these are on {named}. Put both into one column, "
            "such as 'f, old', and limit its groups."
        )
    return requests


def find_group_column(requests: Sequence[LimitRequest]) -> str | None:
    """The column that holds the groups, if limits name one."""
    return next((request.column for request in requests if request.column is not None), None)


def plan_limits(requests: Sequence[LimitRequest], groups: Sequence[object], classes: Sequence[object]) -> LimitPlan:
    """The limits on parts of the rows, once the groups and classes are known."""
    on_groups = any(request.on == "group" for request in requests)
    if on_groups and not groups:
        raise InputError("Limits on groups need the groups of the rows; give groups to fit, or name their column.")
    limited = tuple(
        dict.fromkeys(_find(request.label, classes, "class") for request in requests if request.label is not None)
    )
    plan = LimitPlan((), len(groups) if on_groups else 1, limited)
    limits = itertools.chain.from_iterable(_name_limits(request, plan, groups, classes) for request in requests)
    return LimitPlan(tuple(limits), plan.groups, plan.classes)


def judge_limits(limits: Sequence[NamedLimit], verified: Array, held_out: PartSums | None) -> list[LimitOutcome]:
    """Whether each limit is met. `verified` are the left-hand sides less the bounds, over all training rows."""
    out = []
    for m, named in enumerate(limits):
        bound = named.limit.bound
        over = float(verified[m])
        rows = 0
        seen: float | None = None
        there: bool | None = None
        if held_out is not None and held_out.n.any():
            used = (
                np.flatnonzero(named.limit.row(held_out.n)) if named.limit.coefficients else np.arange(len(held_out.n))
            )
            rows = int(held_out.n[used].sum())
            if rows and named.recall is None:
                seen = held_out.value(named.limit)
                there = seen <= bound
            elif rows and named.recall is not None:
                seen = held_out.share_right(named.parts)
                there = seen >= named.recall
        out.append(LimitOutcome(named.name, bound, over + bound, over <= 0, seen, there, rows))
    return out


def _read_one(at: int, given: object) -> LimitRequest:
    where = f"Limit {at}"
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Mapping):
        bound = _to_bound(where, "bound", given[1])
        return LimitRequest("group", at_most=bound, coefficients=_to_coefficients(where, given[0]))
    if not isinstance(given, Mapping):
        raise InputError(
            f'{where} must be a table such as {{"on": "group", "column": "sex", "gap": 0.02}}, but is {given!r}.'
        )
    on = given.get("on")
    if not isinstance(on, str) or on not in _ALLOWED:
        raise InputError(f"{where} must be on 'cost', 'group' or 'class', but is on {on!r}.")
    for key in given:
        if key != "on" and key not in _ALLOWED[on]:
            raise InputError(f"{where}, on {on!r}, has an unknown key {key!r}. {suggest(str(key), _ALLOWED[on])}")
    bounds = [key for key in ("at_most", "gap", "recall") if key in given]
    allowed = [key for key in ("at_most", "gap", "recall") if key in _ALLOWED[on]]
    if len(bounds) != 1:
        found = "none" if not bounds else " and ".join(bounds)
        raise InputError(f"{where}, on {on!r}, needs exactly one of {' and '.join(allowed)}, but has {found}.")
    number = _to_bound(where, bounds[0], given[bounds[0]], below_zero="coefficients" in given)
    if bounds[0] == "recall" and not number < 1:
        raise InputError(f"{where}: recall must be above 0 and below 1, but is {number:g}.")
    if on == "class" and "class" not in given:
        raise InputError(f"{where}, on 'class', must name the class, such as class = \"ill\".")
    if "coefficients" in given and (bounds[0] != "at_most" or "group" in given):
        raise InputError(f"{where}: coefficients go with at_most alone; leave gap and group out.")
    if "group" in given and bounds[0] == "gap":
        raise InputError(f"{where}: a gap is between all groups; leave group out, or write at_most.")
    column = given.get("column")
    if column is not None and not isinstance(column, str):
        raise InputError(f"{where}: column must be the name of a column, but is {column!r}.")
    return LimitRequest(
        on,
        **{bounds[0]: number},
        column=column,
        group=given.get("group"),
        label=given.get("class"),
        coefficients=_to_coefficients(where, given["coefficients"]) if "coefficients" in given else None,
    )


def _to_bound(where: str, key: str, value: object, *, below_zero: bool = True) -> float:
    if not is_number(value) or not math.isfinite(value):
        raise InputError(f"{where}: {key} must be a number, but is {value!r}.")
    if (not below_zero and not value > 0) or (key in ("gap", "recall") and not value > 0):
        raise InputError(f"{where}: {key} must be above 0, because no loss and no gap is below it; it is {value:g}.")
    return float(value)


def _to_coefficients(where: str, given: object) -> dict[Any, float]:
    if not isinstance(given, Mapping) or not given or not all(is_number(value) for value in given.values()):
        raise InputError(f"{where}: coefficients must be a number for each group, such as {{f = 1, m = -1}}.")
    if not any(given.values()):
        raise InputError(f"{where}: all coefficients are 0, so it limits nothing.")
    return {name: float(value) for name, value in given.items()}


def _find(name: object, known: Sequence[object], what: str) -> int:
    """The number of a group or class that a limit names; 1, 1.0 and "1" are the same."""
    for at, one in enumerate(known):
        if one == name or to_class(one) == to_class(name):
            return at
    shown = ", ".join(map(repr, known[:10])) or "none"
    raise InputError(f"A limit is on the {what} {name!r}, of which there are no rows. Known: {shown}.")


def _name_limits(
    request: LimitRequest, plan: LimitPlan, groups: Sequence[object], classes: Sequence[object]
) -> list[NamedLimit]:
    """The limits that a request comes to, on parts of the rows."""
    kinds = range(plan.kinds)
    if request.on == "cost":
        bound = _given(request.at_most)
        return [NamedLimit(Limit(bound), f"cost ≤ {bound:g}", on_cost=True)]
    if request.on == "class":
        at = _find(request.label, classes, "class")
        kind = plan.classes.index(at) + 1
        parts = tuple(group * plan.kinds + kind for group in range(plan.groups))
        called = f"loss(class {classes[at]})"
        if request.recall is None:
            bound = _given(request.at_most)
            return [NamedLimit(Limit(bound, (1.0,), (parts,)), f"{called} ≤ {bound:g}")]
        bound = (1 - request.recall) * math.log(2)
        name = f"recall({classes[at]}) ≥ {request.recall:g}, by {called} ≤ {bound:.4g}"
        return [NamedLimit(Limit(bound, (1.0,), (parts,)), name, recall=request.recall, parts=parts)]
    sets = tuple(tuple(group * plan.kinds + kind for kind in kinds) for group in range(plan.groups))
    words = [str(group) for group in groups]
    if request.coefficients is not None:
        bound = _given(request.at_most)
        terms = [(_find(group, groups, "group"), value) for group, value in request.coefficients.items()]
        limit = Limit(bound, tuple(value for _, value in terms), tuple(sets[at] for at, _ in terms))
        named = " + ".join(f"{value:g}·loss({words[at]})" for at, value in terms)
        return [NamedLimit(limit, f"{named} ≤ {bound:g}")]
    if request.gap is not None:
        if len(groups) < 2:
            raise InputError(f"A gap needs at least two groups, but all rows are in {words[0]!r}.")
        if len(groups) > _MOST_GROUPS:
            raise InputError(
                f"A gap may be limited between at most {_MOST_GROUPS} groups, but there are {len(groups)}. Join some."
            )
        return [
            NamedLimit(
                Limit(request.gap, (1.0, -1.0), (sets[a], sets[b])),
                f"loss({words[a]}) - loss({words[b]}) ≤ {request.gap:g}",
            )
            for a, b in itertools.permutations(range(len(groups)), 2)
        ]
    bound = _given(request.at_most)
    chosen = range(len(groups)) if request.group is None else [_find(request.group, groups, "group")]
    return [NamedLimit(Limit(bound, (1.0,), (sets[at],)), f"loss({words[at]}) ≤ {bound:g}") for at in chosen]


def _given(bound: float | None) -> float:
    if bound is None:
        raise InputError("A limit needs a bound: at_most.")
    return bound
