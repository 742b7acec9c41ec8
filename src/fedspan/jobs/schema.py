"""The JSON schema of a job file, for editors: made from what the parser itself checks by, so that neither drifts."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from fedspan._files import write_whole
from fedspan.data.preparation import MISSING
from fedspan.errors import InputError
from fedspan.jobs.model import LEAST, Job, schema
from fedspan.jobs.tasks import TASKS, choices, estimator
from fedspan.jobs.words import SAYS

TITLE = "A fedspan job"
BESIDE = "job.schema.json"  # a job file that `fedspan new` writes beside it says so to editors
_STRINGS = {"type": "string"}
_TYPES: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: _STRINGS,
    list: {"type": "array", "items": _STRINGS},
    dict: {"type": "object", "additionalProperties": _STRINGS},
}
_PLACE = {"anyOf": [_STRINGS, {"type": "object", "required": ["url"], "additionalProperties": _STRINGS}]}
_PLACES = {"anyOf": [{"type": "array", "items": _PLACE}, {"type": "object", "additionalProperties": _PLACE}]}
_WORDS = {"type": "array", "items": _STRINGS}
_OF_DATA: dict[str, dict[str, Any]] = {
    "clients": _PLACES,
    "views": _PLACES,
    "held_out": _PLACES,
    "categories": {"anyOf": [_WORDS, {"type": "object", "additionalProperties": _WORDS}]},
    "fill": {"type": "object", "additionalProperties": {"type": "number"}},
}


def json_schema() -> dict[str, Any]:
    """Every table with all that any task knows, for completion; then, by task, what that task allows."""
    tasks = {task: _tables(task) for task in TASKS}
    everything: dict[str, Any] = {}
    for tables in tasks.values():
        for name, table in tables.items():
            for key, value in table["properties"].items():
                everything.setdefault(name, {}).setdefault(key, []).append(value)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        "type": "object",
        "properties": {name: {"type": "object", "properties": _any_of(keys)} for name, keys in everything.items()},
        "required": ["job", "data"],
        "additionalProperties": False,
        "allOf": [
            {"if": {"properties": {"job": {"properties": {"task": {"const": task}}}}}, "then": {"properties": tables}}
            for task, tables in tasks.items()
        ],
    }


def write_schema(path: Path) -> None:
    """Write it; a file that is there and is no such schema stays as it is."""
    try:
        if path.exists() and json.loads(path.read_text(encoding="utf-8")).get("title") != TITLE:
            raise ValueError
    except (ValueError, AttributeError, OSError):
        raise InputError(f"{path} is there already and is no schema of ours, so it stays; give another --out") from None
    try:
        write_whole(path, text())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another --out") from None


def text() -> str:
    """The schema as a file holds it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _tables(task: str) -> dict[str, Any]:
    over, known = TASKS[task].over, schema(task)
    needed = {
        "job": ["task"],
        "data": [over, *(["label"] if TASKS[task].learns_label else [])],
        "privacy": ["epsilon", "delta", "row_norm"],
    }
    known["data"].pop("views" if over == "clients" else "clients")
    return {
        table: {
            "type": "object",
            "properties": {key: _value(task, table, key, kinds) for key, kinds in keys.items()},
            "required": needed.get(table, []),
            "additionalProperties": False,
        }
        for table, keys in known.items()
    }


def _value(task: str, table: str, key: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    """One key: what it says, of which types it is, its least value, its choices, its default."""
    where, default = f"{table}.{key}", _default(task, table, key)
    if key == "participation":
        from fedspan.core.participation import Participation

        inner = {name: _types(_plain(hint)) for name, hint in get_type_hints(Participation).items()}
        allowed: dict[str, Any] = {"type": "object", "properties": inner, "additionalProperties": False}
    else:
        allowed = dict(_OF_DATA.get(key, {}) if table == "data" else {}) or _types(kinds)
    choice, least = _choices(task, table, key), LEAST.get(where)
    if choice:
        allowed["enum"] = choice
    if least is not None:
        allowed["minimum"] = least
    says = SAYS[table].get(key) or f"one of {', '.join(choice)}"
    return {"description": says, **allowed, **({} if default is None else {"default": default})}


def _types(kinds: tuple[type, ...]) -> dict[str, Any]:
    found = [dict(_TYPES[kind]) for kind in kinds if kind is not NoneType]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _plain(hint: Any) -> tuple[type, ...]:
    return get_args(hint) or (hint,)


def _choices(task: str, table: str, key: str) -> list[str]:
    from fedspan.privacy.request import RowDP

    if (table, key) == ("job", "task"):
        return [task]
    if table == "job" and key == TASKS[task].choice[0]:
        return choices(task)
    if (table, key) == ("data", "missing"):
        return list(MISSING)
    if (table, key) == ("privacy", "neighbours"):
        return list(get_args(get_type_hints(RowDP)[key]))
    return []


def _default(task: str, table: str, key: str) -> Any:
    """What holds if the key is left out; None if that is nothing that a file could say."""
    from fedspan.privacy.request import RowDP
    from fedspan.secure.masking import Secure

    if (table, key) == ("secure", "enabled"):
        return False
    said_by = {"job": estimator(task), "privacy": RowDP, "secure": Secure}.get(table, Job)
    given = inspect.signature(said_by).parameters.get(key)
    return given.default if given and isinstance(given.default, bool | int | float | str) else None


def _any_of(keys: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """For each key all that some task allows; the task's own part says which."""
    merged: dict[str, Any] = {}
    for key, values in keys.items():
        distinct = [value for i, value in enumerate(values) if value not in values[:i]]
        merged[key] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        said = {value.get("description") for value in distinct}
        if len(distinct) > 1 and len(said) == 1:
            merged[key] = {"description": said.pop(), "anyOf": distinct}
    return merged
