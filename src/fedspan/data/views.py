"""What users give as `views`: tables and files with different features of the same entities, and the entities' ids."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedspan.data.clients import named
from fedspan.data.preparation import PLAIN
from fedspan.data.table import Prepared, open_source, open_table
from fedspan.errors import InputError


class OpenView(NamedTuple):
    """A view's matrix, the names of its features if known, and the ids of its rows if given."""

    X: Any
    names: tuple[str, ...] | None
    ids: Any


def open_view(source: Any, ids: Any = None) -> OpenView:
    """The view in a source. `ids` are the ids of its rows, or the name of the column that holds them."""
    if not isinstance(ids, str):
        table = open_table(source)
        return OpenView(table.X, table.names, table.ids if ids is None else ids)
    inner, preparation = (source.source, source.preparation) if isinstance(source, Prepared) else (source, PLAIN)
    table = open_source(inner() if callable(inner) else inner, replace(preparation, id=ids))
    if table.ids is None:  # it was opened before, without them
        raise InputError(f"need a table that still has its column {ids!r}; or give the ids as lists")
    return OpenView(table.X, table.names, table.ids)


def view_sources(
    views: Mapping[str, Any] | Sequence[Any], ids: Any = None, held_out: Any = None
) -> dict[str, tuple[Any, Any, Any]]:
    """(source, ids, rows held out) of every view by name, in the order given; refuses what cannot be views."""
    if isinstance(views, np.ndarray | str) or not isinstance(views, Mapping | Sequence):
        raise InputError(
            f"need a list or mapping with one entry per view, got one {type(views).__name__}; write fit([X1, X2])"
        )
    sources = named(views)
    if len(sources) < 2:
        raise InputError(f"need at least two views of the same entities, got {len(sources)}")
    own_ids = _alongside("ids", ids, sources, isinstance(ids, str) or _flat(ids))
    held = _alongside("held_out", held_out, sources, False)
    return {name: (source, own_ids[name], held[name]) for name, source in sources.items()}


def _flat(ids: Any) -> bool:
    """Whether those are the ids of one list of entities, the same for all views."""
    if ids is None or isinstance(ids, Mapping):
        return False
    return (isinstance(ids, np.ndarray) and ids.ndim == 1) or (len(ids) > 0 and np.isscalar(ids[0]))


def _alongside(what: str, given: Any, sources: Mapping[str, Any], common: bool) -> dict[str, Any]:
    """One entry for each view: of a list in its order, of a mapping by name, or the same for all."""
    if given is None or common:
        return dict.fromkeys(sources, given)
    if len(given) != len(sources) or (isinstance(given, Mapping) and {str(k) for k in given} != set(sources)):
        raise InputError(f"need {what} for each of the {len(sources)} views, got {len(given)}; give one per view")
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    return dict(zip(sources, given, strict=True))


def is_lazy(source: Any) -> bool:
    """Whether a source is opened when it is needed, and not held meanwhile."""
    return callable(source) or isinstance(source, str | os.PathLike | Mapping)
