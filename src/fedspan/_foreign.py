"""Text that others wrote: parsed within bounds, and shown without characters that act on a terminal or a page.

What is wrong with a text is a `ValueError` here, as with `json` and `tomllib`; callers say in whose file it is.
"""

from __future__ import annotations

import json
import logging
import math
import re
import tomllib
import unicodedata
from typing import Any

DEEPEST = 100  # levels of nesting: what we write has fewer than 20, and Python's own limit is a RecursionError
_LONGEST_INTEGER = 100  # digits: more than any seed has, and a float can still hold it
_TOML_INTEGER = 1 << 63  # as the format says
_QUOTED = re.compile(r"""\"[^"\n]*"|'[^'\n]*'""")
_KEY_RUNS = re.compile(rf"(?:{_QUOTED.pattern}|[\w-]+|\.|[^\S\n]+)+")  # whatever could be a key of several parts
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def parse_json(text: str | bytes, *, constants: bool = False) -> Any:
    """What a JSON document holds. Refuses keys that occur twice, deep nesting and integers beyond all use.

    NaN and infinite numbers, which JSON does not have but Python writes, are refused unless `constants` admits them.
    """
    if isinstance(text, bytes):
        text = text.decode()
    _check_nesting(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_collect_pairs,
            parse_int=_parse_integer,
            parse_float=None if constants else _parse_finite,
            parse_constant=None if constants else _refuse_constant,
        )
    except RecursionError:  # the caller stands deep in the stack already
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML document holds. Refuses deep nesting, and integers of more than 64 bits."""
    _check_dotted_keys(text)
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None
    level: list[object] = [tree]
    for _ in range(DEEPEST):
        level = [part for node in level for part in _list_parts(node)]
        if not level:
            return tree
        if any(type(node) is int and not -_TOML_INTEGER <= node < _TOML_INTEGER for node in level):
            raise ValueError("an integer has more than 64 bits")
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _check_dotted_keys(text: str) -> None:
    """Refuse a key of too many parts (a.b.c), for which `tomllib` takes time that grows with their square."""
    if text.count(".") > DEEPEST:
        for run in _KEY_RUNS.finditer(text):
            if _QUOTED.sub("", run[0]).count(".") > DEEPEST:
                raise ValueError(f"a key has more than {DEEPEST} parts")


def _list_parts(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def _check_nesting(text: str) -> None:
    """Refuse a text with too many open brackets at once; those inside strings do not count."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    depth = 0
    for found in _BRACKETS.finditer(text):
        first = found[0][0]
        if first in "[{":
            depth += 1
            if depth > DEEPEST:
                raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        elif first != '"':
            depth -= 1


def _collect_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"the key {twice[:60]!r} occurs twice")
    return tree


def _parse_integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)


def _parse_finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text as it may be shown: control, format and other invisible characters become escapes such as \x1b.

    So no text of others can move the cursor, change colours, reverse the order of letters or hide a part of itself.
    With `lines`, line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or _is_visible(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # spaces of other widths are harmless


class PrintableLog(logging.Filter):
    """Makes what is logged printable; for the loggers that log what others sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = printable(logging.Formatter().formatException(record.exc_info), lines=True)
        return True
