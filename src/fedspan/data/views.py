"""What users give as `views`: tables and files with different features of the same entities, and the entities' ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from fedspan._types import Array
from fedspan.data.clients import name_clients
from fedspan.data.preparation import PLAIN
from fedspan.data.tables import Prepared, open_table
from fedspan.errors import InputError
from fedspan.numerics.operators import HeldMatrix

Ids = Sequence[object] | Array | None  # of the rows of one view


class ViewSource(NamedTuple):
    """A view that is not opened yet; the ids of its rows, or the column that holds them; rows that are held out."""

    source: object
    ids: str | Ids
    held_out: object


class OpenView(NamedTuple):
    """A view's matrix, the names of its features if known, and the ids of its rows if given."""

    X: HeldMatrix
    names: tuple[str, ...] | None
    ids: Ids


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
    ids: str | Ids | Mapping[str, Ids] = None,
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
    own_ids: dict[str, Any]
    if ids is None or isinstance(ids, str) or _is_one_list(ids):
        own_ids = dict.fromkeys(sources, ids)
    else:
        own_ids = give_each("ids", ids, sources)
    held = {} if held_out is None else give_each("held_out", held_out, sources)
    return {name: ViewSource(source, own_ids[name], held.get(name)) for name, source in sources.items()}


def _is_one_list(ids: Sequence[object] | Array | Mapping[str, Ids]) -> bool:
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
