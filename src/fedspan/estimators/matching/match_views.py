"""The one place where the rows of views are matched before a model is fitted, whatever the model.

In a federation the server has the sites match their rows before it fits (deployment/server_job.py); here it is done for
views that are in this process.

Without ids rows are matched by their order. That is said in a warning where it is likely to be a mistake: for files and
database queries, which nobody has lined up in this program, and for pandas frames whose indexes differ. Arrays of one
program are lined up by whoever made them, and a warning in every fit would only teach people to look away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from fedspan.algorithms.gcca.entities import Entities
from fedspan.algorithms.matching.canonical_ids import canonical_ids
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.core.ledger import Ledger, Note
from fedspan.core.protection import RETRIES
from fedspan.core.run import Engine, run
from fedspan.data.clients import blame_client
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.sources import IndexedFrame
from fedspan.data.tables import Prepared, Table, is_lazy
from fedspan.data.views import OpenView, ViewSource, open_view
from fedspan.engines.inprocess import InProcess
from fedspan.errors import InputError
from fedspan.estimators.launch import warn_caller
from fedspan.estimators.matching.match_entities import METHODS, MatchedEntities, match_entities

Match = Literal["psi", "digest", "order"] | None
MATCHES = (*METHODS, "order")


@dataclass(frozen=True)
class Matching:
    """How rows are to be matched.

    Parameters:
        match: "psi" or "digest"; "order": rows are only compared; None: "digest" where the ids differ, which in one
            process finds what "psi" finds.
        secret: The clients' common secret, if they have one.
        how: "intersection", or "union" for models that can do with missing entities.
        compare: Whether an order that is only compared is compared here; some models do it themselves.
    """

    match: Match = None
    secret: str = ""
    how: Literal["intersection", "union"] = "intersection"
    compare: bool = False
    engine: Engine | Callable[..., Engine] | None = None
    ledger: Ledger | None = None
    retries: int = RETRIES


def match_views(
    sources: Mapping[str, ViewSource], matching: Matching
) -> tuple[dict[str, ViewSource], MatchedEntities | None]:
    """The views with the rows that belong together, in one order; and where they were, if they were moved."""
    views = dict(sources)
    if matching.match not in (*MATCHES, None):
        raise InputError(f"match must be one of 'psi', 'digest' and 'order', but is {matching.match!r}.")
    if any(isinstance(view.source, RemoteTable) for view in views.values()):
        return views, None
    opened = {name: _open_with_ids(name, view) for name, view in views.items() if _may_have_ids(view)}
    without = [name for name in views if name not in opened or opened[name].ids is None]
    if without:
        _refuse_or_warn_without_ids(views, without, matching)
        return views, None
    ids = {name: _check_ids(name, view) for name, view in opened.items()}
    if matching.match == "order":
        if matching.compare:
            _compare_order(opened, ids, matching)
        return views, None
    if matching.match is None and _are_same(ids):
        return views, None
    if matching.engine is not None and not callable(matching.engine):
        raise InputError(
            "Rows cannot be matched with an engine that has its own data; give a function from data to an engine, such "
            "as engine=InProcess."
        )
    found = match_entities(
        ids,
        method=matching.match or "digest",
        how=matching.how,
        secret=matching.secret,
        engine=matching.engine,
        retries=matching.retries,
        ledger=matching.ledger,
    )
    _tell_left_out(found, matching)
    return {name: view._replace(rows=found[name]) for name, view in views.items()}, found


def _may_have_ids(view: ViewSource) -> bool:
    """Whether its ids were given, or are in a column; only then it is opened to look at them."""
    if isinstance(view.source, Table):
        return view.ids is not None or view.source.ids is not None
    return view.ids is not None or (isinstance(view.source, Prepared) and view.source.preparation.id is not None)


def _open_with_ids(name: str, view: ViewSource) -> OpenView:
    with blame_client(name):
        return open_view(view.source, view.ids)


def _check_ids(name: str, view: OpenView) -> list[object]:
    """The ids, if there is a good one for each row."""
    ids = list(view.ids if view.ids is not None else [])
    with blame_client(name):
        if len(ids) != view.X.shape[0]:
            raise InputError(f"There must be one id for each of the {view.X.shape[0]} rows, but there are {len(ids)}.")
        canonical_ids(ids)
    return ids


def _are_same(ids: Mapping[str, list[object]]) -> bool:
    first, *others = (canonical_ids(own) for own in ids.values())
    return all(own == first for own in others)


def _compare_order(opened: Mapping[str, OpenView], ids: Mapping[str, list[object]], matching: Matching) -> None:
    data = {name: Entities(view.X, ids[name], matching.secret) for name, view in opened.items()}
    engine = matching.engine(data) if callable(matching.engine) else InProcess(data)
    why = "the clients' rows must be the same entities in the same order"
    run(CompareOrder(), engine, rounds=0, seed=0, retries=matching.retries, ledger=matching.ledger, why=why)


def _tell_left_out(found: MatchedEntities, matching: Matching) -> None:
    left = "" if found.how == "union" else found.describe_left_out()
    text = f"Rows were matched by their ids ({found.method}): {found.entities} entities."
    if left:
        text = f"{text} Left out, because not all views have them: {left}."
    if matching.ledger is not None:
        matching.ledger.add(Note(text))
    if left and matching.match is None:
        warn_caller(f"{text} Give match='order' to refuse views that differ.")


def _refuse_or_warn_without_ids(views: Mapping[str, ViewSource], without: list[str], matching: Matching) -> None:
    if len(without) < len(views):
        raise InputError(
            f"Either every client gives ids or none does, but client {without[0]!r} has none. Give its ids too."
        )
    if matching.match in METHODS:
        raise InputError(f"match={matching.match!r} needs ids; give ids=…, or name the column that holds them.")
    sources = [view.source for view in views.values()]
    if any(is_lazy(source) for source in sources):
        warn_caller(
            "The rows of the views were matched by their order only, because no ids are named. If a table is sorted "
            "in another way, the result is wrong; name the column of ids (ids=…, in a job data.id) if there is one."
        )
    else:
        _look_at_indexes(dict(zip(views, sources, strict=True)))


def _look_at_indexes(sources: Mapping[str, object]) -> None:
    """Pandas frames that have the same labels in another order are not lined up; others may be."""
    indexes = {name: list(source.index) for name, source in sources.items() if isinstance(source, IndexedFrame)}
    if len(indexes) < 2:
        return
    first, *others = indexes
    for other in others:
        if indexes[other] == indexes[first]:
            continue
        if sorted(map(repr, indexes[other])) == sorted(map(repr, indexes[first])):
            raise InputError(
                f"The indexes of the frames of {first!r} and {other!r} have the same labels in another order, but rows "
                "are matched by their order. Give ids=[…] to match them by their labels, or sort them alike."
            )
        warn_caller(
            f"The indexes of the frames of {first!r} and {other!r} differ, but rows are matched by their order. Give "
            "ids=[…] to match them by ids."
        )
        return
