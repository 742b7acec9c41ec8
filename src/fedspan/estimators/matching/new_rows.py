"""New rows for a model of views: columns by their names, and rows by their ids if they have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.gcca.entities import Entities
from fedspan.algorithms.gcca.kept_maxvar import find_present, select_rows
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


class NewRows(NamedTuple):
    """New rows of one view, in the order that all views share, and which of these entities the view has."""

    view: OpenView
    present: Array  # (n,) booleans; the rows of the others say nothing


def keep_column_names(sources: Mapping[str, ViewSource]) -> list[list[str] | None]:
    """What the columns of each view are called, None where they have no names."""
    found = (name_columns(view.source, view.ids) for view in sources.values())
    return [None if names is None else list(names) for names in found]


def open_new_rows(
    views: Mapping[str, object], ids: Mapping[str, Any] | None, columns: Mapping[str, Sequence[str] | None]
) -> dict[str, OpenView]:
    """The views of new entities, with the columns of the fit in their order.

    With ids (or the names of the columns that hold them), all views have the rows in the order of the first one's, and
    must have the same entities.
    """
    opened = _open_columns(views, ids, columns)
    if ids is None:
        return opened
    orders = _find_orders(_spell_ids(opened))
    return {name: view._replace(X=take_rows(view.X, orders[name])) for name, view in opened.items()}


def open_rows_with_gaps(
    views: Mapping[str, object], ids: Mapping[str, Any] | None, columns: Mapping[str, Sequence[str] | None]
) -> dict[str, NewRows]:
    """As `open_new_rows`, for views that may lack entities: rows of NaN, or ids that only others have.

    With ids, the entities are those of the first view in its order, then those of the next that no view before it has.
    """
    opened = _open_columns(views, ids, columns, gaps=True)
    found = {}
    for name, view in opened.items():
        with blame_client(name):
            found[name] = find_present(Entities(view.X))
    if ids is None:
        return {name: NewRows(view, found[name]) for name, view in opened.items()}
    spelled = _spell_ids(opened)
    entities = list(dict.fromkeys(one for own in spelled.values() for one in own))
    rows = {}
    for name, view in opened.items():
        place = {one: row for row, one in enumerate(spelled[name])}
        order = np.array([place.get(one, -1) for one in entities], dtype=np.int64)
        at = np.maximum(order, 0)
        rows[name] = NewRows(view._replace(X=select_rows(view.X, at)), (order >= 0) & found[name][at])
    return rows


def _open_columns(
    views: Mapping[str, object],
    ids: Mapping[str, Any] | None,
    columns: Mapping[str, Sequence[str] | None],
    *,
    gaps: bool = False,
) -> dict[str, OpenView]:
    """The views with the columns of the fit, their rows in the order that they have."""
    opened = {}
    for name, source in views.items():
        own_ids, wanted = None if ids is None else ids[name], columns.get(name)
        check_column_names(name_columns(source, own_ids), wanted, name)  # before a column of text is read as numbers
        with blame_client(name):
            view = open_view(source, own_ids, gaps=gaps)
        opened[name] = view._replace(X=match_columns(view.X, view.names, wanted, name))
    return opened


def _spell_ids(views: Mapping[str, OpenView]) -> dict[str, list[bytes]]:
    """By view, one id for each of its rows, in their one spelling."""
    spelled: dict[str, list[bytes]] = {}
    for name, view in views.items():
        with blame_client(name):
            spelled[name] = canonical_ids(() if view.ids is None else view.ids)
            if len(spelled[name]) != view.X.shape[0]:
                raise InputError(
                    f"There must be one id for each of the {view.X.shape[0]} rows, but there are {len(spelled[name])}."
                )
    return spelled


def _find_orders(spelled: Mapping[str, list[bytes]]) -> dict[str, Array]:
    """By view, its rows in the order of the first one's; all views must have the same entities."""
    first = next(iter(spelled))
    orders = {}
    for name, own in spelled.items():
        place = {one: row for row, one in enumerate(own)}
        apart = len(place.keys() ^ set(spelled[first]))
        if apart:
            raise InputError(
                f"New rows must be of the same entities in every view, but {apart} ids are in only one of {first!r} "
                f"and {name!r}. Give the rows that all of them have; match_entities finds them."
            )
        orders[name] = np.array([place[one] for one in spelled[first]], dtype=np.int64)
    return orders
