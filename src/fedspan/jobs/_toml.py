"""TOML as text: a value or key as it is written, and a key set from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedspan._foreign import parse_toml
from fedspan.errors import InputError

TomlTable = dict[str, Any]
"""A table of a TOML document, as `tomllib` reads it."""


def override(tree: TomlTable, text: str) -> None:
    """Set `table.key=value` in a document."""
    path, equals, value = text.partition("=")
    *tables, last = (part.strip() for part in path.split("."))
    if not equals or not tables or not all([*tables, last]):
        raise InputError(f"--set needs table.key=value, such as job.tol=1e-3, but is {text!r}.")
    node = tree
    for table in tables:
        node = node.setdefault(table, {})
        if not isinstance(node, dict):
            raise InputError(f"Cannot --set {path}: {table!r} is not a table in the job file.")
    node[last] = _parse_bare(value.strip())


def _parse_bare(text: str) -> object:
    """Read a TOML value; what is none is a plain string, so that a shell needs no second pair of quotes."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def bare_key(name: str) -> str:
    """Write a key as TOML does, in quotes if it needs them."""
    return name if name.isascii() and name.replace("_", "a").isalnum() else to_toml(name)


def to_toml(value: object) -> str:
    """Write a value as TOML does."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")  # JSON's escapes, and one more
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{bare_key(k)} = {to_toml(v)}' for k, v in value.items())} }}"
    return repr(value)
