"""The JSON schema of a job file, for editors: made from what the parser itself checks by, so that neither drifts."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from fedspan._files import write_whole
from fedspan.algorithms.field.agree_variants import DIFFERING, PRUNINGS
from fedspan.core.participation import Participation
from fedspan.data.cells.dialect import KEYS_OF_DIALECT
from fedspan.data.genotypes.genotype_rows import SCALES
from fedspan.data.preparation import MISSING
from fedspan.errors import InputError
from fedspan.estimators.field.prepare_genotypes import STREAMINGS, GenotypeOptions
from fedspan.estimators.matching.match_views import MATCHES
from fedspan.estimators.parameters import Parameter
from fedspan.jobs._words import SAYS
from fedspan.jobs.field.genotype_keys import DATA_KINDS
from fedspan.jobs.model import LEAST, Job, rows_of, schema
from fedspan.jobs.tasks import TASKS
from fedspan.privacy.request import RowDP
from fedspan.secure.masking import Secure

JsonSchema = dict[str, Any]
"""A part of a JSON schema."""

TITLE = "A fedspan job"
BESIDE = "job.schema.json"  # a job file that `fedspan new` writes beside it says so to editors
_STRINGS = {"type": "string"}
_TYPES: dict[type, JsonSchema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: _STRINGS,
    list: {"type": "array", "items": _STRINGS},
    dict: {"type": "object", "additionalProperties": _STRINGS},
}
_WORDS = {"type": "array", "items": _STRINGS}
_READING: dict[str, JsonSchema] = {
    **{key: _WORDS if list in kinds else _STRINGS for key, kinds in KEYS_OF_DIALECT.items()},
    "separator": {"type": "string", "minLength": 1, "maxLength": 1},
    "decimal": {"enum": [".", ","]},
    "dates": {"anyOf": [_WORDS, {"type": "object", "additionalProperties": _STRINGS}]},
    "multiply": {"type": "object", "additionalProperties": {"type": "number"}},
}
_DESCRIBED = {"type": "object", "properties": {**_READING, "path": _STRINGS, "url": _STRINGS, "query": _STRINGS}}
_PLACE = {
    "anyOf": [
        _STRINGS,
        {**_DESCRIBED, "required": ["url"], "additionalProperties": _STRINGS},
        {**_DESCRIBED, "required": ["path"], "additionalProperties": False},
    ]
}
_PLACES = {"anyOf": [{"type": "array", "items": _PLACE}, {"type": "object", "additionalProperties": _PLACE}]}
_OF_DATA: dict[str, JsonSchema] = {
    "clients": _PLACES,
    "views": _PLACES,
    "held_out": _PLACES,
    "network": {"anyOf": [_STRINGS, {"type": "object", "additionalProperties": _STRINGS}]},
    "categories": {"anyOf": [_WORDS, {"type": "object", "additionalProperties": _WORDS}]},
    "fill": {"type": "object", "additionalProperties": {"type": "number"}},
    **_READING,
}


def json_schema() -> JsonSchema:
    """Every table with all that any task knows, for completion; then, by task, what that task allows."""
    tasks = {task: _tables(task) for task in TASKS}
    everything: JsonSchema = {}
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
        raise InputError(f"{path} already exists and is not a schema of fedspan; choose another --out.") from None
    try:
        write_whole(path, text(), public=True)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; choose another --out.") from None


def text() -> str:
    """The schema as a file holds it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _tables(task: str) -> JsonSchema:
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
            "properties": {key: _describe_value(task, table, key, kinds) for key, kinds in keys.items()},
            "required": needed.get(table, []),
            "additionalProperties": False,
        }
        for table, keys in known.items()
    }


def _describe_value(task: str, table: str, key: str, kinds: tuple[type, ...]) -> JsonSchema:
    """One key: what it says, of which types it is, its least value, its choices, its default."""
    row = rows_of(task).get(key) if table == "job" else None
    if row is not None:
        return _parameter(row)
    if (table, key) == ("secure", "groups"):
        return {"description": SAYS[table][key], "anyOf": [_TYPES[int], {"type": "array", "items": _WORDS}]}
    allowed = dict(_OF_DATA.get(key, {}) if table == "data" else {}) or _types(kinds)
    choice, least, default = _choices(task, table, key), LEAST.get(f"{table}.{key}"), _default(table, key)
    if choice:
        allowed["enum"] = choice
    if least is not None:
        allowed["minimum"] = least
    return {"description": SAYS[table][key], **allowed, **({} if default is None else {"default": default})}


def _parameter(row: Parameter) -> JsonSchema:
    """One parameter of an estimator."""
    if row.name == "limits":
        allowed: JsonSchema = {"type": "array", "items": {"type": "object", "required": ["on"]}}
    elif dict in row.kinds:
        inner = {name: _types(_plain(hint)) for name, hint in get_type_hints(Participation).items()}
        allowed = {"type": "object", "properties": inner, "additionalProperties": False}
    else:
        allowed = _types(row.kinds, row.choices)
    if row.share:
        return {"description": row.says, "anyOf": _list_counts_and_shares(row)} | _find_default(row)
    bounds = {
        "minimum": row.least,
        "exclusiveMinimum": row.above,
        "maximum": row.most,
        "exclusiveMaximum": row.below,
    }
    allowed |= {name: bound for name, bound in bounds.items() if bound is not None and math.isfinite(bound)}
    return {"description": row.says, **allowed} | _find_default(row)


def _find_default(row: Parameter) -> dict[str, object]:
    if isinstance(row.default, float) and not math.isfinite(row.default):  # JSON has no infinity
        return {}
    return {"default": row.default} if isinstance(row.default, bool | int | float | str) else {}


def _list_counts_and_shares(row: Parameter) -> list[dict[str, object]]:
    """An integer in the row's range, a share, or one of its words."""
    count: dict[str, object] = {"type": "integer", "minimum": row.least}
    share: dict[str, object] = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    return [count, share, {"type": "string", "enum": list(row.choices)}]


def _types(kinds: tuple[type, ...], choices: tuple[str, ...] = ()) -> JsonSchema:
    """Any of those types; a string must be one of the choices, if there are any."""
    found = [dict(_TYPES[kind]) for kind in kinds if kind is not NoneType]
    for one in found:
        if one == _STRINGS and choices:
            one["enum"] = list(choices)
    return found[0] if len(found) == 1 else {"anyOf": found}


def _plain(hint: Any) -> tuple[type, ...]:
    return get_args(hint) or (hint,)


def _choices(task: str, table: str, key: str) -> list[str]:
    if (table, key) == ("job", "task"):
        return [task]
    if (table, key) == ("data", "kind"):
        return list(DATA_KINDS)
    if table == "genotypes":
        words = {"prune": PRUNINGS, "scale": SCALES, "differing": DIFFERING, "streaming": STREAMINGS}
        return list(words.get(key, ()))
    if (table, key) == ("data", "missing"):
        return list(MISSING)
    if (table, key) == ("data", "match"):
        return list(MATCHES)
    if (table, key) == ("privacy", "neighbours"):
        return list(get_args(get_type_hints(RowDP)[key]))
    if table == "privacy" and key in ("row_norm", "center"):
        return ["auto", "unit"] if key == "row_norm" else ["robust"]
    return []


def _default(table: str, key: str) -> bool | int | float | str | None:
    """What holds if the key is left out; None if that is nothing that a file could say."""
    if (table, key) == ("secure", "enabled"):
        return False
    said_by = {"privacy": RowDP, "secure": Secure, "genotypes": GenotypeOptions}.get(table, Job)
    given = inspect.signature(said_by).parameters.get(key)
    return given.default if given and isinstance(given.default, bool | int | float | str) else None


def _any_of(keys: dict[str, list[JsonSchema]]) -> JsonSchema:
    """For each key all that some task allows; the task's own part says which."""
    merged: JsonSchema = {}
    for key, values in keys.items():
        distinct = [value for i, value in enumerate(values) if value not in values[:i]]
        merged[key] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        said = {value.get("description") for value in distinct}
        if len(distinct) > 1 and len(said) == 1:
            merged[key] = {"description": said.pop(), "anyOf": distinct}
    return merged
