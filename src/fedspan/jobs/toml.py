"""TOML as text: a value or key as it is written, and a key set from the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from fedspan.errors import InputError


def override(tree: dict[str, Any], text: str) -> None:
    """Set `table.key=value` in a document."""
    path, equals, value = text.partition("=")
    *tables, last = (part.strip() for part in path.split("."))
    if not equals or not tables or not all([*tables, last]):
        raise InputError(f"need --set table.key=value, such as job.tol=1e-3, got {text!r}")
    node: Any = tree
    for table in tables:
        node = node.setdefault(table, {})
        if not isinstance(node, dict):
            raise InputError(f"cannot --set {path}: {table!r} is not a table in the job file")
    node[last] = _bare(value.strip())


def _bare(text: str) -> Any:
    """A TOML value; what is none is a plain string, so that a shell needs no second pair of quotes."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def bare_key(name: str) -> str:
    """A key as TOML writes it."""
    return name if name.isascii() and name.replace("_", "a").isalnum() else written(name)


def written(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")  # JSON's escapes, and one more
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{bare_key(k)} = {written(v)}' for k, v in value.items())} }}"
    return repr(value)
