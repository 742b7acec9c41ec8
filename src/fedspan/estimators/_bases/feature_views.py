"""Views that a model of labels or targets is learned from: one table per client, with some columns of the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedspan.data.clients import blame_client, name_clients
from fedspan.data.ids_and_labels import find_first_difference
from fedspan.data.remote_tables import RemoteTable, is_remote
from fedspan.data.views import ViewSource, gather_ids
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import ClientData
from fedspan.estimators.matching.match_entities import MatchedEntities
from fedspan.estimators.matching.match_views import Matching, match_views
from fedspan.estimators.matching.new_rows import keep_column_names, open_new_rows


class FeatureViews(NamedTuple):
    """Views whose rows belong together: by client, in the order of the clients' names.

    Attributes:
        data: Each client's matrix, or its table that stays at its site.
        widths: How many features each has.
        columns: What they are called; None where they have no names.
        given: The names in the order in which the views were given.
        matched: Where the rows are in the tables, if they were matched by their ids.
    """

    data: dict[str, Any]
    widths: dict[str, int]
    columns: list[list[str] | None]
    given: list[str]
    matched: MatchedEntities | None

    def arrange(self, what: str, values: object) -> object:
        """What belongs to rows (labels, weights), in the common order: of the first view's rows, or of several."""
        if values is None or (self.matched is None and not isinstance(values, Mapping)):
            return values
        named = values if isinstance(values, Mapping) else {self.given[0]: values}
        by_view = {str(name): own for name, own in named.items()}
        odd = [name for name in by_view if name not in self.given]
        if odd or not by_view:
            raise InputError(
                f"{what} must be of rows of some of the views {', '.join(self.given)}, but is of those of {odd[:1]}."
            )
        lists = {name: np.asarray(own).reshape(-1) for name, own in by_view.items()}
        if self.matched is not None:
            for name, own in lists.items():
                if len(own) != self.matched.counts[name]:
                    raise InputError(
                        f"{what} must have one value for each of the {self.matched.counts[name]} rows of view "
                        f"{name!r}, but has {len(own)}."
                    )
            lists = {name: own[self.matched[name]] for name, own in lists.items()}
        if where := find_first_difference(lists):
            raise InputError(f"The views disagree about {what} of a row: {where}.")
        return next(iter(lists.values()))


def open_feature_views(views: ClientData, ids: object, matching: Matching) -> FeatureViews:
    """Open the views that are to be learned from, once their rows belong together."""
    sources = _check_views(views)
    is_remote(sources)  # refuses a mixture
    own_ids = gather_ids(ids, sources)
    given = {name: ViewSource(source, own_ids[name], None) for name, source in sources.items()}
    opened, matched = match_views(given, matching)
    names = sorted(opened)
    data = {name: _open_source(name, opened[name]) for name in names}
    widths = {name: int(X.shape[1]) for name, X in data.items()}
    return FeatureViews(data, widths, keep_column_names({name: opened[name] for name in names}), list(given), matched)


def open_new_feature_views(
    views: ClientData, ids: object, widths: Mapping[str, int], columns: Sequence[Sequence[str] | None]
) -> list[Any]:
    """The matrices of new rows, whose columns are those of the fit, in the order of the clients' names.

    With ids, all views have the rows in the order of the first one's.
    """
    given = _check_views(views)
    known = dict(zip(widths, columns, strict=True))
    opened = open_new_rows(given, None if ids is None else gather_ids(ids, given), known)
    data = {name: view.X for name, view in sorted(opened.items())}
    found = {name: int(X.shape[1]) for name, X in data.items()}
    if found != widths:
        raise InputError(f"The model was fitted on the views {widths}, but {found} were given.")
    rows = [X.shape[0] for X in data.values()]
    if len(set(rows)) > 1:
        raise InputError(f"All views must have the same rows, but they have {rows} rows.")
    return list(data.values())


def _check_views(views: ClientData) -> dict[str, Any]:
    """The views by client id, in the order in which they were given."""
    if isinstance(views, np.ndarray | str) or not isinstance(views, Mapping | Sequence):
        raise InputError(f"views must be a list or mapping with one view per client, but is a {type(views).__name__}.")
    return name_clients(views)


def _open_source(name: str, view: ViewSource) -> Any:
    """The matrix of a view; a table that stays at its site, as it is."""
    if isinstance(view.source, RemoteTable):
        return view.source
    with blame_client(name):
        return view.open().X
