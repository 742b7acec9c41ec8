"""What belongs to rows beside their features: the groups in a column of their table, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedspan._types import Array
from fedspan.data.clients import blame_client, name_clients
from fedspan.data.ids_and_labels import check_weights, find_first_difference
from fedspan.data.preparation import PLAIN
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.tables import Prepared, Table, open_table
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import ClientData
from fedspan.estimators._bases.labels import match_to_rows


class Grouped(NamedTuple):
    """The clients' tables without the column of groups (unless it is a feature, too), and the groups of their rows."""

    clients: dict[str, Any]
    groups: dict[str, Array]


def split_groups(clients: ClientData, column: str, *, of_views: bool = False) -> Grouped:
    """Read the column of groups in every client's table; of views one is enough, and several must agree."""
    tables: dict[str, Any] = {}
    groups: dict[str, Array] = {}
    for name, source in name_clients(clients).items():
        if isinstance(source, RemoteTable):
            raise InputError(
                f"Limits on groups need the column {column!r}, but the tables of this federation are at their sites, "
                "which read no groups for jobs. Limit the cost or classes, or run where the tables are."
            )
        inner, how = (source.source, source.preparation) if isinstance(source, Prepared) else (source, PLAIN)
        how = how if how.group is not None else replace(how, group=column)
        if of_views:
            how = replace(how, label_everywhere=False)
        with blame_client(name):
            table = _open(inner, how)
        tables[name] = Prepared(table, how)
        if table.groups is not None:
            groups[name] = table.groups
    if of_views and not groups:
        raise InputError(f"None of the views has the column {column!r}, which a limit names.")
    if of_views and (where := find_first_difference(groups)):
        raise InputError(f"The views disagree about the group of a row: {where} (column {column!r}).")
    return Grouped(tables, groups)


def _open(source: object, how: Any) -> Table:
    """The table; one that is open already was opened with its groups, or it has none."""
    return source if isinstance(source, Table) else open_table(source, how)


def read_weights(given: ClientData, data: Mapping[str, Any]) -> dict[str, Array]:
    """The weight of each row by client, scaled so that the mean over all rows is 1: only relative sizes count."""
    weights = {
        name: check_weights(weight, f"client {name!r}")
        for name, weight in match_to_rows(given, data, "weights").items()
    }
    return scale_weights(weights)


def scale_weights(weights: Mapping[str, Array]) -> dict[str, Array]:
    """The same, with a mean of 1 over all rows."""
    mean = float(np.concatenate([*weights.values()]).mean())
    return {name: weight / mean for name, weight in weights.items()}


def join_weights(first: Mapping[str, Array], second: Mapping[str, Array]) -> dict[str, Array]:
    """The product of two weights of each row; one of them may be missing."""
    if not first or not second:
        return {**first, **second}
    return {name: first[name] * second[name] for name in first}
