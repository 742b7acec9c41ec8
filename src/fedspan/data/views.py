"""What users give as `views`: tables and files with different features of the same entities, and the entities' ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.data.clients import name_clients
from fedspan.data.preparation import PLAIN, Layout
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.tables import Prepared, Table, find_source, open_table
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix

Ids = Sequence[object] | Array | None  # of the rows of one view


class ViewSource(NamedTuple):
    """A view that is not opened yet; the ids of its rows, or the column that holds them; rows that are held out.

    `rows` are its rows in the order that all views share, -1 for an entity that it lacks; None: all, as they are.
    """

    source: object
    ids: str | Ids
    held_out: object
    rows: Array | None = None

    def open(self) -> OpenView:
        """The view with its rows in the common order."""
        view = open_view(self.source, self.ids)
        if self.rows is None:
            return view
        ids = None if view.ids is None else [view.ids[row] for row in self.rows]
        return OpenView(take_rows(view.X, self.rows), view.names, ids)


class OpenView(NamedTuple):
    """A view's matrix, the names of its features if known, and the ids of its rows if given."""

    X: HeldMatrix
    names: tuple[str, ...] | None
    ids: Ids


def take_rows(X: HeldMatrix, rows: Array) -> HeldMatrix:
    """Those rows in that order."""
    if (rows < 0).any():
        raise InputError("This model needs every entity in every view, but some are missing. Match the intersection.")
    return cast(HeldMatrix, sp.csr_array(X)[rows]) if sp.issparse(X) else np.asarray(X)[rows]


def name_columns(source: object, ids: str | Ids = None) -> tuple[str, ...] | None:
    """The names of a view's features, without reading its rows where that can be; None if they have none."""
    inner, preparation = (source.source, source.preparation) if isinstance(source, Prepared) else (source, PLAIN)
    if isinstance(inner, RemoteTable):
        return inner.names
    if callable(inner):
        return open_view(source, ids).names
    columns = None if isinstance(inner, Table) else find_source(inner)
    if columns is None:
        return inner.names if isinstance(inner, Table) else None
    return Layout(columns.names, replace(preparation, id=ids) if isinstance(ids, str) else preparation).names


def check_column_names(names: Sequence[str] | None, wanted: Sequence[str] | None, view: str) -> None:
    """Refuse a table that has other columns than the view had in the fit, whatever their order."""
    if names is None or wanted is None:
        return
    lacks, odd = [name for name in wanted if name not in names], [name for name in names if name not in wanted]
    if lacks or odd:
        found = {"lacks": lacks, "has also": odd}
        parts = [f"{what} {', '.join(map(repr, some[:5]))}" for what, some in found.items() if some]
        raise InputError(
            f"View {view!r} must have the columns of the fit, but the table {' and '.join(parts)}. Rename, add or "
            "leave out columns."
        )


def match_columns(X: HeldMatrix, names: Sequence[str] | None, wanted: Sequence[str] | None, view: str) -> HeldMatrix:
    """A view's features in the order of the fit, by their names if both have some."""
    if names is None or wanted is None or tuple(names) == tuple(wanted):
        return X
    check_column_names(names, wanted, view)
    places = [list(names).index(name) for name in wanted]
    return cast(HeldMatrix, sp.csr_array(sp.csc_array(X)[:, places])) if sp.issparse(X) else np.asarray(X)[:, places]


def open_view(source: object, ids: str | Ids = None, *, gaps: bool = False) -> OpenView:
    """The view in a source. `ids` are the ids of its rows, or the name of the column that holds them.

    With `gaps`, missing values stay missing: rows of them are entities that the view lacks.
    """
    inner, preparation = (source.source, source.preparation) if isinstance(source, Prepared) else (source, PLAIN)
    preparation = replace(preparation, missing="mask", fill={}) if gaps else preparation
    if not isinstance(ids, str):
        table = open_table(inner, preparation)
        return OpenView(cast(HeldMatrix, table.X), table.names, table.ids if ids is None else ids)
    table = open_table(inner, replace(preparation, id=ids))
    if table.ids is None:
        raise InputError(f"Column {ids!r} was left out when this table was opened. Give the ids as lists.")
    return OpenView(cast(HeldMatrix, table.X), table.names, table.ids)


def gather_views(
    views: Mapping[str, object] | Sequence[object],
    ids: object = None,
    held_out: Mapping[str, object] | Sequence[object] | None = None,
) -> dict[str, ViewSource]:
    """Every view by name, in the order given, with its ids and held-out rows; refuses what cannot be views."""
    if isinstance(views, np.ndarray | str) or not isinstance(views, Mapping | Sequence):
        raise InputError(
            f"Views must be a list or a mapping with one entry per view, but they are one {type(views).__name__}. "
            "Write fit([X1, X2])."
        )
    sources = name_clients(views)
    if len(sources) < 2:
        raise InputError("There must be at least two views of the same entities, but there is only one.")
    own_ids = gather_ids(ids, sources)
    held = {} if held_out is None else give_each("held_out", held_out, sources)
    return {name: ViewSource(source, own_ids[name], held.get(name)) for name, source in sources.items()}


def gather_ids(ids: object, sources: Mapping[str, object]) -> dict[str, Any]:
    """By view, the ids of its rows, or the name of the column that holds them."""
    if ids is None or isinstance(ids, str):
        return dict.fromkeys(sources, ids)
    if not isinstance(ids, Mapping | Iterable) or not isinstance(ids, Sized):
        raise InputError(f"ids must be the name of a column or a list for each view, but is one {type(ids).__name__}.")
    lists = cast(Mapping[str, Ids] | Sequence[object], ids)
    return dict.fromkeys(sources, lists) if _is_one_list(lists) else give_each("ids", lists, sources)


def _is_one_list(ids: Sequence[object] | Mapping[str, Ids]) -> bool:
    """Whether those are the ids of one list of entities, the same for all views."""
    if isinstance(ids, Mapping):
        return False
    return (isinstance(ids, np.ndarray) and ids.ndim == 1) or (len(ids) > 0 and np.isscalar(ids[0]))


def give_each(
    what: str, given: Mapping[str, Any] | Sequence[Any] | Array, sources: Mapping[str, object]
) -> dict[str, Any]:
    """One entry for each view: of a list in its order, of a mapping by name."""
    if isinstance(given, Mapping):
        named = {str(name): value for name, value in given.items()}
        if set(named) != set(sources):
            raise InputError(f"There must be {what} for the views {', '.join(sources)}, not for {', '.join(named)}.")
        return named
    if len(given) != len(sources):
        raise InputError(f"There must be {what} for each of the {len(sources)} views, but there are {len(given)}.")
    return dict(zip(sources, given, strict=True))
