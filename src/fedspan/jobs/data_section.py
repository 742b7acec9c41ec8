"""The [data] table of a job file: who holds what, which columns count, and how they are prepared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fedspan.data.clients import named
from fedspan.data.database import has_password, is_address, query_of, shown, sqlite_path
from fedspan.data.preparation import Preparation
from fedspan.errors import InputError
from fedspan.jobs.tasks import TASKS

KEYS: dict[str, tuple[type, ...]] = {
    "clients": (list, dict), "views": (list, dict), "columns": (list,), "id": (str,), "label": (str,),
    "categories": (list, dict), "missing": (str,), "fill": (dict,), "n_features": (int,), "held_out": (list, dict),
    "table": (str,),
}  # fmt: skip
SAYS = {
    "data.categories": 'a list of columns, or a table such as { sex = ["f", "m"] }',
    "data.fill": "a table such as { age = 50.0 }",
}


def items_fit(key: str, value: Any) -> bool:
    """Whether what is inside a list or table of [data] is of the right kind."""
    if not isinstance(value, list | dict):
        return True
    items = value.values() if isinstance(value, dict) else value
    if key == "fill":
        return all(type(item) in (int, float) for item in items)
    if key == "categories" and isinstance(value, dict):
        return all(isinstance(item, list) and all(isinstance(word, str) for word in item) for item in items)
    places = key in ("clients", "views", "held_out")
    return all(isinstance(item, str) or (places and _is_query(item)) for item in items)


def _is_query(item: Any) -> bool:
    return isinstance(item, dict) and "url" in item and all(isinstance(value, str) for value in item.values())


def check(task: str, data: Mapping[str, Any]) -> None:
    """Who holds what, and what is to be learned, as this task needs it."""
    over = TASKS[task].over
    other = "views" if over == "clients" else "clients"
    if other in data:
        tasks = " and ".join(name for name, t in TASKS.items() if t.over == other)
        raise InputError(f"data.{other} are for {tasks}; task {task!r} needs data.{over}")
    if over not in data:
        raise InputError(f"need data.{over}, got none; list one file per client, or a table name = path")
    if TASKS[task].learns_label and "label" not in data:
        raise InputError("need data.label, got none; name the column that holds the classes to learn")
    if over == "views":
        if "columns" in data:
            raise InputError(
                "data.columns is for clients with the same columns, and views have their own; leave it out"
            )
        if data.get("missing") == "drop":
            raise InputError('data.missing = "drop" is not for views: a row would go at one client only; use "mean"')


def preparation(task: str, data: Mapping[str, Any]) -> Preparation:
    """How the tables are to be prepared, as far as the job file says it."""
    columns, words = data.get("columns"), data.get("categories", ())
    if not isinstance(words, dict):
        words = dict.fromkeys(words, ())
    try:
        return Preparation(
            None if columns is None else tuple(columns), data.get("id"), data.get("label"),
            {name: tuple(given) for name, given in words.items()}, data.get("missing", "refuse"),
            {name: float(value) for name, value in data.get("fill", {}).items()}, data.get("n_features"),
            TASKS[task].over == "clients",
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"[data]: {error}") from None


def written_back(given: Preparation) -> dict[str, Any]:
    """The keys of [data] that say the same."""
    return {
        "columns": given.columns,
        "id": given.id,
        "label": given.label,
        "categories": dict(given.categories) or None,
        "missing": given.missing if given.missing != "refuse" else None,
        "fill": dict(given.fill) or None,
        "n_features": given.n_features,
    }


def places(given: list[Any] | dict[str, Any], beside: Path) -> dict[str, Any]:
    """Absolute paths and addresses by client; those of a list are named by their files if that tells them apart."""
    if isinstance(given, list):
        stems = [_stem(place) for place in given]
        given = dict(zip(stems, given, strict=True)) if len(set(stems)) == len(stems) else named(given)
    return {name: _placed(name, place, beside) for name, place in named(given).items()}


def _stem(place: Any) -> str:
    """What a file or a database is called; nothing is checked here."""
    if isinstance(place, str) and "://" not in place:
        return Path(place).stem
    if isinstance(place, dict) and "table" in place:
        return str(place["table"])
    return Path(urlsplit(place if isinstance(place, str) else place["url"]).path).stem or "database"


def _placed(name: str, place: Any, beside: Path) -> Any:
    if isinstance(place, str) and place.startswith("flare://"):  # a site's name: only the site knows the address
        return place
    if not is_address(place):
        return str(beside / place)
    table = {"url": place} if isinstance(place, str) else dict(place)
    if has_password(table["url"]):
        raise InputError(
            f"need an address without a password, {shown(table['url'])} has one (client {name!r}): job files are "
            "copied; give it by PGPASSWORD or ~/.pgpass"
        )
    try:
        query_of(table)
    except InputError as error:
        raise InputError(f"client {name!r}: {error}") from None
    if table["url"].startswith("sqlite:"):
        options = urlsplit(table["url"]).query
        whole = quote(str(beside / sqlite_path(table["url"])))
        table["url"] = f"sqlite:///{whole}" + (f"?{options}" if options else "")
    return table["url"] if isinstance(place, str) else table


def held_out(task: str, job: Mapping[str, Any], data: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    """Rows that are looked at while GCCA learns, one file per view: in the order of the views, or by their names."""
    if "held_out" in data and task != "gcca":
        raise InputError(f"data.held_out is for gcca, not for task {task!r}; leave it out")
    if ("held_out" in data) != ("patience" in job):
        need, got = ("job.patience", "data.held_out") if "held_out" in data else ("data.held_out", "job.patience")
        raise InputError(f"need {need} beside {got}: rounds without a better alignment of the rows held out")
    if "held_out" not in data:
        return {}
    views, given = places(data["views"], beside), data["held_out"]
    if len(given) != len(views) or (isinstance(given, dict) and set(given) != set(views)):
        raise InputError(f"need data.held_out for each of the {len(views)} views, got {len(given)}")
    return places(given if isinstance(given, dict) else dict(zip(views, given, strict=True)), beside)
