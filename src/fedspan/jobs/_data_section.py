"""The [data] table of a job file: who holds what, which columns count, and how they are prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote, urlsplit

from fedspan.algorithms.gcca.network_files import locate_network
from fedspan.data.cells.dialect import (
    EXPECTED_OF_DIALECT,
    KEYS_OF_DIALECT,
    dialect_value_fits,
    read_dialect,
    split_place,
)
from fedspan.data.clients import blame_client, name_clients
from fedspan.data.database import has_password, hide_password, is_address, parse_query, sqlite_path
from fedspan.data.preparation import Preparation
from fedspan.errors import InputError
from fedspan.estimators.matching.match_views import MATCHES
from fedspan.jobs.tasks import TASKS

TablePlace = str | dict[str, Any]
"""Where a client's table is: a path or an address, or a table with path or url and how it is read."""


class DataTable(TypedDict, total=False):
    """[data] of a job file, once its types are checked."""

    clients: list[TablePlace] | dict[str, TablePlace]
    views: list[TablePlace] | dict[str, TablePlace]
    columns: list[str]
    id: str
    match: str
    label: str
    weight: str
    categories: list[str] | dict[str, list[str]]
    missing: str
    fill: dict[str, float]
    n_features: int
    held_out: list[TablePlace] | dict[str, TablePlace]
    network: str | dict[str, str]
    table: str
    separator: str
    encoding: str
    decimal: str
    na_values: list[str]
    true_values: list[str]
    false_values: list[str]
    dates: list[str] | dict[str, str]
    ignore_case: list[str]
    multiply: dict[str, float]
    names: list[str]
    sheet: str
    client_weight: str | dict[str, float]
    kind: str


KEYS: dict[str, tuple[type, ...]] = {
    "clients": (list, dict),
    "views": (list, dict),
    "columns": (list,),
    "id": (str,),
    "match": (str,),
    "label": (str,),
    "weight": (str,),
    "categories": (list, dict),
    "missing": (str,),
    "fill": (dict,),
    "n_features": (int,),
    "held_out": (list, dict),
    "network": (str, dict),
    "table": (str,),
    "client_weight": (str, dict),
    "kind": (str,),
    **KEYS_OF_DIALECT,
}
EXPECTED = {
    "data.categories": 'a list of columns, or a table such as { sex = ["f", "m"] }',
    "data.network": 'the maker of a network such as "networks.py:small", or a table view = maker',
    "data.fill": "a table such as { age = 50.0 }",
    "data.client_weight": '"rows", "equal" or a table such as { north = 2.0, south = 1.0 }',
    **{f"data.{key}": says for key, says in EXPECTED_OF_DIALECT.items()},
}


def items_fit(key: str, value: object) -> bool:
    """Whether what is inside a list or table of [data] is of the right kind."""
    if key in KEYS_OF_DIALECT:
        return dialect_value_fits(key, value)
    if not isinstance(value, list | dict):
        return True
    items = value.values() if isinstance(value, dict) else value
    if key in ("fill", "client_weight"):
        return all(type(item) in (int, float) for item in items)
    if key == "categories" and isinstance(value, dict):
        return all(isinstance(item, list) and all(isinstance(word, str) for word in item) for item in items)
    places = key in ("clients", "views", "held_out")
    return all(isinstance(item, str) or (places and _is_described(item)) for item in items)


def _is_described(item: object) -> bool:
    """Whether that is a table with a path or a url, and how it is read."""
    if not isinstance(item, dict) or ("url" in item) == ("path" in item):
        return False
    return all(isinstance(value, str) for key, value in item.items() if key not in KEYS_OF_DIALECT)


def read_reading(data: DataTable) -> dict[str, object]:
    """Give the keys of [data] that say how all tables are read, checked together."""
    keys = {key: value for key, value in data.items() if key in KEYS_OF_DIALECT}
    read_dialect(keys, "[data]")
    return keys


def check_data(task: str, data: DataTable) -> None:
    """Refuse what this task cannot do with: who holds what, and what is to be learned."""
    over = TASKS[task].over
    other = "views" if over == "clients" else "clients"
    if other in data:
        tasks = " and ".join(name for name, t in TASKS.items() if t.over == other)
        raise InputError(f"data.{other} is for {tasks}; task {task!r} needs data.{over}.")
    if over not in data:
        raise InputError(f"data.{over} is missing; list one file per client, or give a table name = path.")
    if TASKS[task].learns_label and "label" not in data and not _is_at_sites(data[over]):
        raise InputError(f"data.label is missing; name the column that holds {TASKS[task].label_words}.")
    if "weight" in data and not (TASKS[task].learns_label or task in ("pca", "svd")):
        raise InputError(
            f"data.weight is for pca, svd and tasks that learn labels, not for task {task!r}; leave it out."
        )
    if "client_weight" in data and task not in ("pca", "svd"):
        raise InputError(f"data.client_weight is for pca and svd, not for task {task!r}; leave it out.")
    for key in ("weight", "client_weight"):
        if key in data and _is_at_sites(data[over]):
            raise InputError(
                f"data.{key} is for runs in one process: a site of a federation does not weigh its rows yet. Leave it "
                "out."
            )
    _check_match(task, data)
    _check_networks(task, data)
    if over == "views":
        if "columns" in data:
            raise InputError(
                "data.columns is for clients with the same columns, but every view has its own; leave it out."
            )
        if data.get("missing") == "drop" and task != "gcca":
            raise InputError(
                'data.missing = "drop" is not for views, because a row would go at one client only; use "mean".'
            )
    if data.get("missing") == "mask" and task != "gcca":
        raise InputError('data.missing = "mask" is for gcca, whose views may lack entities; use another word.')


def _check_match(task: str, data: DataTable) -> None:
    """Refuse a way to match rows that is none, or has nothing to go by."""
    if "match" not in data:
        return
    over = TASKS[task].over
    if over != "views":
        raise InputError(f"data.match is for views of the same rows, not for task {task!r}; leave it out.")
    if data["match"] not in MATCHES:
        raise InputError(f"data.match must be one of {', '.join(MATCHES)}, but is {data['match']!r}.")
    if data["match"] != "order" and "id" not in data and not _is_at_sites(data[over]):
        raise InputError("data.match needs data.id: the column of ids by which rows are matched.")


def _check_networks(task: str, data: DataTable) -> None:
    """Refuse networks where there are none, and a job that names those of sites."""
    if task != "deep-gcca":
        if "network" in data:
            raise InputError(f"data.network is for deep-gcca, not for task {task!r}; leave it out.")
    elif _is_at_sites(data["views"]):
        if "network" in data:
            raise InputError("The sites' own files name their networks; leave data.network out.")
    elif "network" not in data:
        raise InputError(
            'data.network is missing; name the function that makes a network, such as network = "networks.py:small".'
        )


def locate_networks(data: DataTable, views: Sequence[str], beside: Path) -> dict[str, str]:
    """Give each view's maker of networks, by name, with the path of its file made absolute; empty: none are named."""
    given = data.get("network", {})
    named = given if isinstance(given, dict) else dict.fromkeys(views, given)
    if named and set(named) != set(views):
        raise InputError(f"data.network must be for the views {', '.join(views)}, but is for {', '.join(named)}.")
    try:
        return {name: locate_network(maker, beside) for name, maker in named.items()}
    except InputError as error:
        raise InputError(f"data.network: {error}") from None


def _is_at_sites(places: list[TablePlace] | dict[str, TablePlace]) -> bool:
    """Whether the tables are those of a federation, whose own files name the column of labels."""
    named = places.values() if isinstance(places, dict) else places
    return all(isinstance(place, str) and place.startswith("flare://") for place in named)


def read_preparation(task: str, data: DataTable, group: str | None = None) -> Preparation:
    """Read how the tables are to be prepared, as far as the job file says it; `group`: the column that limits name."""
    columns, given = data.get("columns"), data.get("categories", [])
    categories: Mapping[str, Sequence[str]] = given if isinstance(given, dict) else dict.fromkeys(given, ())
    try:
        return Preparation(
            columns=None if columns is None else tuple(columns),
            id=data.get("id"),
            label=data.get("label"),
            categories={name: tuple(words) for name, words in categories.items()},
            missing=data.get("missing", "refuse"),
            fill={name: float(value) for name, value in data.get("fill", {}).items()},
            n_features=data.get("n_features"),
            label_everywhere=TASKS[task].over == "clients",
            group=group,
            weight=data.get("weight"),
        )
    except InputError as error:
        raise InputError(f"[data]: {error}") from None


def write_preparation(given: Preparation) -> dict[str, object]:
    """Give the keys of [data] that say the same."""
    return {
        "columns": given.columns,
        "id": given.id,
        "label": given.label,
        "weight": given.weight,
        "categories": dict(given.categories) or None,
        "missing": given.missing if given.missing != "refuse" else None,
        "fill": dict(given.fill) or None,
        "n_features": given.n_features,
    }


def locate(given: list[TablePlace] | dict[str, TablePlace], beside: Path) -> dict[str, TablePlace]:
    """Make paths and addresses absolute, by client; those of a list are named by their files if these all differ."""
    if isinstance(given, list):
        stems = [_stem(place) for place in given]
        given = dict(zip(stems, given, strict=True)) if len(set(stems)) == len(stems) else name_clients(given)
    return {name: _locate_one(name, place, beside) for name, place in name_clients(given).items()}


def _stem(place: TablePlace) -> str:
    """What a file or a database is called; nothing is checked here."""
    if isinstance(place, dict):
        if "path" in place:
            return _stem(place["path"])
        return str(place["table"]) if "table" in place else Path(urlsplit(place["url"]).path).stem or "database"
    if "://" not in place:
        return Path(place.removesuffix(".gz")).stem
    return Path(urlsplit(place).path).stem or "database"


def _locate_one(name: str, place: TablePlace, beside: Path) -> TablePlace:
    if isinstance(place, str) and place.startswith("flare://"):  # a site's name: only the site knows the address
        return place
    if isinstance(place, str) and not is_address(place):
        return str(beside / place)
    if isinstance(place, dict):
        with blame_client(name):
            split_place(place)  # which refuses keys that do not fit
        if "path" in place:
            return {**place, "path": str(beside / place["path"])}
    table = {"url": place} if isinstance(place, str) else dict(place)
    if has_password(table["url"]):
        raise InputError(
            f"The address {hide_password(table['url'])} (client {name!r}) contains a password, but job files are "
            "copied. Take it out, and give it by PGPASSWORD or ~/.pgpass."
        )
    try:
        parse_query({key: value for key, value in table.items() if key not in KEYS_OF_DIALECT})
    except InputError as error:
        raise InputError(f"client {name!r}: {error}") from None
    if table["url"].startswith("sqlite:"):
        options = urlsplit(table["url"]).query
        whole = quote(str(beside / sqlite_path(table["url"])))
        table["url"] = f"sqlite:///{whole}" + (f"?{options}" if options else "")
    return table["url"] if isinstance(place, str) else table


def locate_held_out(task: str, job: Mapping[str, object], data: DataTable, beside: Path) -> dict[str, TablePlace]:
    """Find the rows on which GCCA is watched while it learns: a file per view, in the views' order or by name."""
    if "held_out" in data and task != "gcca":
        raise InputError(f"data.held_out is for gcca, not for task {task!r}; leave it out.")
    if "held_out" in data and "patience" not in job:
        raise InputError("data.held_out needs job.patience: how many rounds without a better alignment end the run.")
    if "patience" in job and "held_out" not in data:
        raise InputError("job.patience needs data.held_out: the rows whose alignment it watches.")
    if "held_out" not in data:
        return {}
    views, given = locate(data["views"], beside), data["held_out"]
    if len(given) != len(views) or (isinstance(given, dict) and set(given) != set(views)):
        raise InputError(f"data.held_out must have one entry for each of the {len(views)} views, but has {len(given)}.")
    return locate(given if isinstance(given, dict) else dict(zip(views, given, strict=True)), beside)
