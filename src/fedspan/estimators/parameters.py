"""The one table of parameters: for each its name, type, range, default and a sentence.

An estimator is a dataclass, and each of its fields is a row of the table: `about(...)` beside the field gives the range
and the sentence, the class itself the name, the type and the default. `fit` checks by it (the constructor only stores),
and the job file's keys, its JSON schema and the template of `fedspan new` are made from it; a test compares it with the
docstrings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import TypeGuard, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedspan.errors import InputError, suggest

_KEY = "parameter"
_ABSTRACT: tuple[type, ...] = (Mapping, Sequence, Callable, os.PathLike)  # type: ignore[assignment]
_NAMES: dict[object, str] = {
    NoneType: "None",
    Mapping: "a mapping",
    Sequence: "a list",
    Callable: "a function",
    os.PathLike: "a path",
    np.random.Generator: "a numpy Generator",
    np.random.RandomState: "a numpy RandomState",
}


@dataclass(frozen=True)
class Parameter:
    """A row of the table.

    Parameters:
        says: What the parameter does, in one sentence: for docstrings, job files and their schema.
        least, above: The smallest number that is allowed, or the bound that a number must be above.
        most, below: The same at the upper end.
        choices: The words that are allowed; empty: any.
        reason: Why nothing else is allowed, if that is not obvious; added to the error message.
        example: What `fedspan new` shows if the default is None.
        in_job: Whether a job file can hold it, provided that its type can be written there.
        checked: Whether `fit` checks the type. An engine may be any object with the right methods.
        share: Whether a number that is not an integer is a share, above 0 and below 1; the range is that of integers.
        name, kinds, default: Read off the estimator's class.
    """

    says: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    reason: str = ""
    example: object = None
    in_job: bool = True
    checked: bool = True
    share: bool = False
    name: str = ""
    kinds: tuple[type, ...] = ()
    default: object = None

    @property
    def required(self) -> bool:
        return self.default is MISSING

    def find_problem(self, value: object) -> str | None:
        """What is wrong with a value, as a sentence; None if nothing is."""
        if not self.checked:
            return None
        if isinstance(value, str) and self._is_for_words() and value not in self.choices:
            return f"{self.name} must be a known name, but is {value!r}. {suggest(value, self.choices)}"
        if any(self._accepts(value, kind) for kind in self.kinds):
            return None
        return f"{self.name} must be {self.describe_allowed()}, but is {_shorten(value)}. {self.reason}".rstrip()

    def _is_for_words(self) -> bool:
        """Whether a known name is expected, and no number."""
        return str in self.kinds and not {int, float} & set(self.kinds) and len(self.choices) > 1

    def in_range(self, number: float) -> bool:
        """Whether a number is inside the bounds; NaN never is, where there are any."""
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def describe_allowed(self) -> str:
        """All that is allowed, in words: "an integer from 2 to 16, 'auto' or None"."""
        parts: list[str] = []
        for kind in self.kinds:
            if kind is bool:
                parts += ["True", "False"]
            elif kind is float and self.share:
                parts.append("a share above 0 and below 1")
            elif kind in (int, float):
                parts.append(("an integer" if kind is int else "a number") + self.describe_range())
            elif kind is str:
                parts += [repr(word) for word in self.choices] or ["a string"]
            elif kind in _NAMES:
                parts.append(_NAMES[kind])
            else:
                parts.append(f"a {kind.__name__} object")
        return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"

    def describe_range(self) -> str:
        """The bounds as words to follow "a number"; empty if there are none."""
        if self.most is not None:
            high, alone = f"{self.most:g}", f"at most {self.most:g}"
        elif self.below is not None:
            high = alone = f"below {self.below:g}"
        else:
            high = alone = ""
        if self.least is not None:
            return f" from {self.least:g} to {high}" if high else f" of at least {self.least:g}"
        if self.above is not None:
            return f" above {self.above:g}" + (f" and {alone}" if alone else "")
        if self.most is not None:
            return f" of {alone}"
        return f" {alone}" if alone else ""

    def _accepts(self, value: object, kind: type) -> bool:
        if kind is bool:
            return isinstance(value, bool | np.bool_)
        if kind is int:
            return is_whole(value) and self.in_range(value)
        if kind is float and self.share:
            return is_number(value) and not is_whole(value) and 0 < value < 1
        if kind is float:
            return is_number(value) and self.in_range(value)
        if kind is str:
            return isinstance(value, str) and (not self.choices or value in self.choices)
        if kind in _ABSTRACT:
            return isinstance(value, kind) and not isinstance(value, str)
        return kind in type(value).__mro__


def about(
    says: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
    reason: str = "",
    example: object = None,
    in_job: bool = True,
    checked: bool = True,
    share: bool = False,
) -> dict[str, Parameter]:
    """The metadata of a field that is a parameter: see `Parameter`."""
    row = Parameter(says, least, above, most, below, tuple(choices), reason, example, in_job, checked, share)
    return {_KEY: row}


def parameters_of(estimator: type) -> dict[str, Parameter]:
    """The rows of an estimator's parameters by name, in the order of its constructor."""
    if not is_dataclass(estimator):
        raise TypeError(f"{estimator.__name__} is not a dataclass, so it has no table of parameters")
    hints = get_type_hints(estimator)
    rows = {}
    for field in sorted(fields(estimator), key=lambda field: field.kw_only is True):
        row: Parameter = field.metadata[_KEY]
        rows[field.name] = replace(row, name=field.name, kinds=_split(hints[field.name]), default=field.default)
    return rows


def check_parameters(estimator: object) -> None:
    """Refuse parameters that are not allowed, all of them in one message."""
    values = vars(estimator)
    found = [row.find_problem(values[name]) for name, row in parameters_of(type(estimator)).items()]
    problems = [problem for problem in found if problem is not None]
    if problems:
        raise InputError(" ".join(problems))


def is_whole(number: object) -> TypeGuard[int]:
    """Whether a value is an integer, and not a bool."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, and not a bool."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _split(hint: object) -> tuple[type, ...]:
    """The classes of a type hint: those of a union, without what is in their brackets."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(get_origin(part) or part for part in parts)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
