"""New rows for a model of views: columns by their names, and rows by their ids if they have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.matching.canonical_ids import canonical_ids
from fedspan.data.clients import blame_client
from fedspan.data.views import (
    OpenView,
    ViewSource,
    check_column_names,
    match_columns,
    name_columns,
    open_view,
    take_rows,
)
from fedspan.errors import InputError


def keep_column_names(sources: Mapping[str, ViewSource]) -> list[list[str] | None]:
    """What the columns of each view are called, None where they have no names."""
    found = (name_columns(view.source, view.ids) for view in sources.values())
    return [None if names is None else list(names) for names in found]


def open_new_rows(
    views: Mapping[str, object], ids: Mapping[str, Any] | None, columns: Mapping[str, Sequence[str] | None]
) -> dict[str, OpenView]:
    """The views of new entities, with the columns of the fit in their order.

    With ids (or the names of the columns that hold them), all views have the rows in the order of the first one's.
    """
    opened = {}
    for name, source in views.items():
        own_ids, wanted = None if ids is None else ids[name], columns.get(name)
        check_column_names(name_columns(source, own_ids), wanted, name)  # before a column of text is read as numbers
        view = open_view(source, own_ids)
        opened[name] = view._replace(X=match_columns(view.X, view.names, wanted, name))
    if ids is None:
        return opened
    orders = _find_orders(opened)
    return {name: view._replace(X=take_rows(view.X, orders[name])) for name, view in opened.items()}


def _find_orders(views: Mapping[str, OpenView]) -> dict[str, Array]:
    """By view, its rows in the order of the first one's; all views must have the same entities."""
    spelled: dict[str, list[bytes]] = {}
    for name, view in views.items():
        with blame_client(name):
            spelled[name] = canonical_ids(() if view.ids is None else view.ids)
            if len(spelled[name]) != view.X.shape[0]:
                raise InputError(
                    f"There must be one id for each of the {view.X.shape[0]} rows, but there are {len(spelled[name])}."
                )
    first = next(iter(spelled))
    orders = {}
    for name, own in spelled.items():
        place = {one: row for row, one in enumerate(own)}
        apart = len(place.keys() ^ set(spelled[first]))
        if apart:
            raise InputError(
                f"New rows must be of the same entities in every view, but {apart} ids are in only one of {first!r} "
                f"and {name!r}. Give the rows that all of them have."
            )
        orders[name] = np.array([place[one] for one in spelled[first]], dtype=np.int64)
    return orders
