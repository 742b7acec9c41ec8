"""Before a federation learns: what each site says of its table, and whether all of them have the same columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NotRequired, TypedDict

from fedspan.core.checkpoint import build
from fedspan.data.remote_tables import RemoteTable
from fedspan.engines.site import explain
from fedspan.engines.start import TableRequest
from fedspan.engines.transport import Transport, read_answer
from fedspan.errors import CheckpointError, ClientError, FedspanError, InputError

COLUMN_KINDS = ("integer", "number", "yes/no", "date")
"""What a site's file may say that a column holds; columns of words are those with categories."""


class DescriptionRequest(TypedDict):
    """What the server asks of each site. `labels`: say also which classes there are."""

    fedspan: str
    table: TableRequest
    labels: NotRequired[bool]


class Description(TypedDict):
    """What a site's own file says of a table: its schema by digest, and the versions of what computes there.

    `names`, `columns` and `rows` are None and 0 where the site does not tell them. `rows` is a figure from the file,
    `names` are those of the features that come out: `sex=f` for a category.
    """

    versions: dict[str, str]
    secure: bool
    others: int
    n_features: int
    digest: str
    units: dict[str, str]
    kinds: dict[str, str]
    names: list[str] | None
    columns: list[str] | None
    categories: dict[str, list[str]]
    rows: int
    ids: bool
    keyed: bool
    labels: NotRequired[list[str | int | float]]


def handshake(
    transport: Transport,
    sites: Sequence[str],
    asked: DescriptionRequest,
    *,
    timeout: float,
    same_columns: bool = True,
) -> dict[str, RemoteTable]:
    """What each site says of its table. With `same_columns`, which views do not have, sites that differ are refused."""
    with ThreadPoolExecutor(max_workers=len(sites)) as pool:
        text = json.dumps(asked)
        futures = {site: pool.submit(transport.describe, site, text, timeout) for site in sorted(sites)}
        descriptions = {site: _parse_description(site, future, timeout) for site, future in futures.items()}
    first = next(iter(descriptions))
    for site, description in descriptions.items():
        if same_columns and description["digest"] != descriptions[first]["digest"]:
            raise InputError(_explain_difference(first, descriptions[first], site, description))
        if same_columns:
            _check_dates(first, descriptions[first], site, description)
    return {site: _to_table(description) for site, description in descriptions.items()}


def _parse_description(site: str, future: Future[str], timeout: float) -> Description:
    try:
        answer = future.result()
    except TimeoutError:
        raise ClientError(f"Site {site!r} did not answer within {timeout:g} s. Is it running?") from None
    except FedspanError:
        raise
    except Exception as error:
        raise ClientError(f"Site {site!r} could not be asked: {explain(error)}") from None
    try:
        description = build(Description, read_answer(answer, site))
    except CheckpointError as error:
        raise ClientError(f"Site {site!r} must describe its table, but sent something else: {error}") from None
    if not set(description["kinds"].values()) <= set(COLUMN_KINDS):
        raise ClientError(f"Site {site!r} must describe its table, but says of a column what is no kind of column.")
    if min(description["rows"], description["n_features"]) < 0:
        raise ClientError(f"Site {site!r} must describe its table, but its counts are not those of a table.")
    return description


def _to_table(description: Description) -> RemoteTable:
    labels: Mapping[str | int | float, None] | None = None
    if classes := description.get("labels"):
        labels = dict.fromkeys(classes)  # how many rows each has is found by sums
    names, columns = (None if own is None else tuple(own) for own in (description["names"], description["columns"]))
    words = {column: tuple(own) for column, own in description["categories"].items()}
    units = tuple(description["units"].items())
    return RemoteTable(
        description["n_features"],
        names,
        description["rows"],
        labels,
        units=units,
        kinds=tuple(sorted(description["kinds"].items())),
        columns=columns,
        categories=words,
        ids=description["ids"],
        keyed=description["keyed"],
    )


def _check_dates(first: str, ours: Description, site: str, theirs: Description) -> None:
    """Refuse dates at one site that are numbers at another: both become numbers, of which a sum means nothing."""
    for column in ours["kinds"].keys() & theirs["kinds"].keys():
        own, other = ours["kinds"][column], theirs["kinds"][column]
        if own != other and "date" in (own, other):
            raise InputError(
                f"Column {column!r} holds {_KIND_WORDS[own]} at site {first!r}, but {_KIND_WORDS[other]} at site "
                f"{site!r} (kinds in the sites' files). Leave it out of data.columns, or ask a site to convert it."
            )


def describe_kinds(tables: Mapping[str, RemoteTable]) -> list[str]:
    """What the sites say differently of a column without it being wrong: whole numbers here and fractions there."""
    said: list[str] = []
    columns = dict.fromkeys(column for table in tables.values() for column, _ in table.kinds)
    for column in columns:
        kinds = {site: dict(table.kinds)[column] for site, table in tables.items() if column in dict(table.kinds)}
        if len(set(kinds.values())) > 1:
            each = ", ".join(f"{_KIND_WORDS.get(kind, kind)} at {site!r}" for site, kind in kinds.items())
            said.append(f"warning: Column {column!r} is not the same at all sites: {each}. Is it the same quantity?")
    return said


_KIND_WORDS = {"integer": "whole numbers", "number": "numbers", "yes/no": "yes and no", "date": "dates"}


def _explain_difference(first: str, ours: Description, site: str, theirs: Description) -> str:
    """The first difference between two schemas, as far as the sites say what their columns are called."""
    if ours["n_features"] != theirs["n_features"]:
        return (
            f"Site {first!r} has {ours['n_features']} features, but site {site!r} has {theirs['n_features']}. Give all "
            "sites the same columns."
        )
    for column, unit in ours["units"].items():
        other = theirs["units"].get(column, unit)
        if other != unit:
            return f"Column {column!r} is in {unit!r} at site {first!r}, but in {other!r} at site {site!r}. Convert it."
    for at, (name, other) in enumerate(zip(ours["names"] or (), theirs["names"] or (), strict=False)):
        if name != other:
            return (
                f"Feature {at} is {name!r} at site {first!r}, but {other!r} at site {site!r}. Rename or reorder the "
                "columns."
            )
    return (
        f"The columns of sites {first!r} and {site!r} differ (so do their digests). Compare their names, units and "
        "order."
    )
