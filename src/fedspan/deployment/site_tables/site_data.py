"""A site's table as a job sees it: what the site's file does not allow counts as missing, and nothing is refused by it.

A number that is not finite (or beyond `LARGEST`), and a word that is not among a column's categories, count as missing
values. A row without a class of the job, or without a number to predict, is left out. What becomes of missing values is
the job's choice, except that none is refused, because a refusal would tell of them:

    missing = "refuse" or "drop"   the row is left out
    missing = "mean"               the value is the mean over all sites, which the job brings along
    views (GCCA, vertical)         no row may go, so the value is the mean of the view's own column; with missing =
                                   "mask" or "drop" (GCCA) the whole entity counts as one that the site does not have

How often that happened is in the site's log, and `fedspan site check` shows where.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from fedspan._types import Array
from fedspan.algorithms.gcca.deep import DeepView
from fedspan.algorithms.gcca.entities import Entities
from fedspan.algorithms.gcca.kept_maxvar import select_rows
from fedspan.algorithms.gcca.network_files import find_maker
from fedspan.algorithms.matching.canonical_ids import canonical_ids, digest_table
from fedspan.algorithms.matching.match_by_tags import IdList, MatchedRows
from fedspan.data.ids_and_labels import to_class
from fedspan.data.preparation import Preparation
from fedspan.data.sources import Batch, Source
from fedspan.data.survey import TableSurvey
from fedspan.data.tables import Table, find_source, open_table
from fedspan.data.views import take_rows
from fedspan.deployment.policy import LARGEST, SiteTable, read_limited_classes
from fedspan.engines.start import StartMessage
from fedspan.errors import InputError
from fedspan.estimators.limit_requests import LimitPlan
from fedspan.estimators.prepare import settle_each
from fedspan.numerics.operators import HeldMatrix

if TYPE_CHECKING:
    from fedspan.algorithms.gcca.networks import Module

_SITE_LOG = logging.getLogger("fedspan.site")
_BLOCK_ROWS = 4096


class CheckedSource(Source):
    """A site's rows. `classes` are the words that a label may have; None: labels are not looked at.

    With `drop`, rows with missing features are left out; rows without a `target` always are. `always` are columns with
    their categories without a gap in which a row is used, whatever the job says. `problems` counts what the last pass
    found, by its words.
    """

    def __init__(
        self,
        source: Source,
        choice: Preparation,
        classes: Collection[str] | None = None,
        *,
        drop: bool = True,
        target: str | None = None,
        always: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.source, self.choice, self.drop, self.target = source, choice, drop, target
        self.always = always or {}
        self.categories = {name: words for name, words in self.always.items() if words} | dict(choice.categories)
        self.names, self.units, self.rows = source.names, {}, None
        self.classes = None if classes is None else set(classes)
        self.left = 0
        self.problems: Counter[str] = Counter()

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        label = self.choice.label if self.classes is not None else None
        deciding = [*(self.choice.columns or ())] if self.drop else []  # a pass over some columns drops the same rows
        deciding += [name for name in self.always if name not in deciding]
        deciding += [self.target] if self.target is not None and self.target not in deciding else []
        labels = [] if label is None else [label]
        also = [name for name in (*deciding, *labels) if name not in names]
        words = {*text, *self.categories, *labels}
        problems, left = Counter[str](), 0
        for batch in self.source.batches([*names, *also], words):
            clean = {name: self._clean(name, column, problems) for name, column in batch.items()}
            keep = np.ones(len(next(iter(clean.values()))), dtype=bool)
            for name in deciding:
                keep &= ~_find_missing(clean[name])
            if label is not None and self.classes is not None:
                known = np.array([to_class(word) in self.classes for word in clean[label]], dtype=bool)
                problems["without a class of the job"] += int(np.sum(~known))
                keep &= known
            left += int(keep.sum())
            yield {name: clean[name] if keep.all() else clean[name][keep] for name in names}
        self.problems, self.left = problems, left

    def _clean(self, name: str, column: Array, problems: Counter[str]) -> Array:
        if name in self.categories:
            known = {None, *self.categories[name]}
            odd = np.array([word not in known for word in column], dtype=bool)
            what = "that are none of its categories"
            column = _blank(column, odd)
        elif column.dtype.kind == "f":
            odd = is_not_allowed(column) & ~np.isnan(column)
            what = "that are too large or not finite"
            column = np.where(odd, np.nan, column) if odd.any() else column
        else:
            return column
        if odd.any():
            problems[f"with values of {name!r} {what}"] += int(odd.sum())
        missing = _find_missing(column) & ~odd
        if missing.any():
            problems[f"with missing values of {name!r}"] += int(missing.sum())
        return column


def _blank(words: Array, odd: Array) -> Array:
    """The words, with nothing in some places."""
    if not odd.any():
        return words
    words = words.copy()
    words[odd] = None
    return words


def _find_missing(column: Array) -> Array:
    if column.dtype.kind == "f":
        return np.isnan(column)
    return np.array([value is None for value in column], dtype=bool)


def open_site_table(
    table: SiteTable,
    choice: Preparation,
    classes: Collection[str] | None = None,
    *,
    alone: bool = False,
    in_batches: bool = False,
    held_out: bool = False,
    target: str | None = None,
) -> Table:
    """The rows that a job gets. `alone`: they are a view, of which no row may go. `held_out`: the further rows.

    `target` is one of the columns of `choice`; rows that lack it are left out.
    """
    place = table.held_out_source if held_out else table.source
    source = find_source(place)
    if source is None:
        return _open_arrays(table, place, choice, classes, alone=alone)
    drop, always = not alone and choice.missing != "mean", {} if alone else list_complete(table)
    checked = CheckedSource(source, choice, classes, drop=drop, target=target, always=always)
    how = choice
    if alone and choice.missing == "mask":
        how = replace(choice, fill={})
    elif alone:
        own = settle_each({"here": checked}, replace(choice, missing="mean", fill={}))["here"]
        how = own if table.complete_rows else replace(own, fill={**own.fill, **choice.fill})
    elif checked.drop:
        how = replace(choice, missing="drop", fill={})
    opened = open_table(checked, how, in_batches)
    _log_problems(checked.problems, checked.left)
    return opened


def list_complete(table: SiteTable) -> dict[str, tuple[str, ...]]:
    """The columns without a gap in which rows are used, with their words, if the site's file says so.

    Rows that one job uses and another does not show themselves in the difference. So then it is no job's choice.
    """
    return {name: table.categories.get(name, ()) for name in table.find_features()} if table.complete_rows else {}


def _log_problems(problems: Mapping[str, int], left: int) -> None:
    for what, count in problems.items():
        if count:
            _SITE_LOG.warning("rows %s: %d; rows used: %d", what, count, left)


def _open_arrays(
    table: SiteTable, place: object, choice: Preparation, classes: Collection[str] | None, *, alone: bool
) -> Table:
    """The same for a table whose columns have no names."""
    opened = open_table(place, replace(choice, missing="refuse", fill={}))
    X = opened.X
    if not isinstance(X, np.ndarray | sp.sparray | sp.spmatrix) or X.shape[1] != table.features:
        raise InputError(
            f"The site's file says that the table has {table.features} columns (features), but it has {X.shape[1]}."
        )
    keep = np.ones(X.shape[0], dtype=bool)
    problems = Counter[str]()
    if classes is not None and opened.labels is not None:
        keep = np.array([to_class(label) in classes for label in opened.labels], dtype=bool)
        problems["without a class of the job"] = int(np.sum(~keep))
    bad = _find_bad_rows(X)
    problems["with values that are missing, too large or not finite"] = int(bad.sum())
    if bad.any() and alone and choice.missing == "mask":
        X = _to_dense(X)
        X[bad] = np.nan
    elif bad.any() and (alone or (choice.missing == "mean" and not table.complete_rows)):
        X = _fill(X, {} if table.complete_rows else choice.fill, own=alone)
    elif bad.any():
        keep &= ~bad
    if not keep.all():
        ids, labels = (None if part is None else part[keep] for part in (opened.ids, opened.labels))
        opened = replace(opened, ids=ids, labels=labels)
        X = sp.csr_array(X)[keep] if sp.issparse(X) else X[keep]
    _log_problems(problems, int(keep.sum()))
    return replace(opened, X=X)


def is_not_allowed(numbers: Array) -> Array:
    """Where numbers are NaN, infinite or too large, whatever their precision."""
    return ~(np.abs(numbers) <= np.float64(LARGEST))


def _to_dense(X: HeldMatrix) -> Array:
    return np.array(sp.csr_array(X).toarray() if sp.issparse(X) else X, dtype=np.float64)


def _find_bad_rows(X: HeldMatrix) -> Array:
    """The rows with an entry that is NaN, infinite or too large, in blocks, so that a mapped file is not held."""
    if X.dtype.kind != "f":
        return np.zeros(X.shape[0], dtype=bool)
    if sp.issparse(X):
        entries = sp.coo_array(X)
        bad = np.zeros(X.shape[0], dtype=bool)
        bad[entries.row[is_not_allowed(entries.data)]] = True
        return bad
    blocks = (X[start : start + _BLOCK_ROWS] for start in range(0, X.shape[0], _BLOCK_ROWS))
    return np.concatenate([np.zeros(0, dtype=bool), *(is_not_allowed(block).any(axis=1) for block in blocks)])


def _fill(X: HeldMatrix, given: Mapping[str, float], *, own: bool) -> HeldMatrix:
    """The rows with means in place of what is not finite: those that are given, or the columns' own."""
    dense = _to_dense(X)
    bad = is_not_allowed(dense)
    dense[bad] = 0.0
    means = dense.sum(axis=0) / np.maximum(np.sum(~bad, axis=0), 1) if own else np.zeros(X.shape[1])
    fill = np.array([given.get(str(j), mean) for j, mean in enumerate(means)])
    dense = np.where(bad, fill, dense)
    return sp.csr_array(dense) if sp.issparse(X) else dense


class SiteSurvey(TableSurvey):
    """A site's table for the agreement on means: sums of what its file allows, over no fewer rows than it says."""

    def __init__(self, table: SiteTable, choice: Preparation) -> None:
        source = find_source(table.source)
        self.table, self.checked = table, None
        if source is not None:
            self.checked = CheckedSource(source, choice, drop=False, always=list_complete(table))
        super().__init__(table.source if self.checked is None else self.checked, choice)
        bad = np.zeros(0, dtype=bool) if self.checked else _find_bad_rows(self.X)
        if bad.any():
            self.X = _to_dense(self.X)
            self.X[is_not_allowed(self.X)] = np.nan
            self.X = self.X[~bad] if table.complete_rows else self.X

    def sums(self) -> tuple[Array, Array]:
        found = super().sums()
        check_enough_rows(self.table, self.X.shape[0] if self.checked is None else self.checked.left)
        return found


def check_enough_rows(table: SiteTable, rows: int) -> None:
    """Refuse a job over so few rows that its sums would show them."""
    if rows < table.min_rows:
        raise InputError(
            f"The job would use {rows} rows, but min_rows of this table is {table.min_rows}. Lower min_rows in the "
            "site's file to allow it."
        )


def _check_enough_held_out(table: SiteTable, rows: int, held: int) -> None:
    """Refuse a job that sums over few rows that it holds out, or over few that it leaves to train on."""
    if held and min(held, rows - held) < table.min_rows:
        raise InputError(
            f"The job would hold out {held} of {rows} rows and sum over these, but min_rows of this table is "
            f"{table.min_rows}. A job with validation = 0 holds out none; or lower min_rows in the site's file."
        )


def open_client_data(table: SiteTable, start: StartMessage, matched: MatchedRows | None = None) -> object:
    """What the algorithm's client is made of. Of a run that has matched rows, only these, in the common order."""
    needs, choice, alone = start.algorithm.client.needs, table.choose(start.table), bool(start.table.get("alone"))
    if needs == "survey":
        return SiteSurvey(table, choice)
    if needs == "ids":
        return _open_ids(table, choice)
    if needs == "labelled":
        return _open_with_labels(table, start, choice, alone=alone, matched=matched)
    if needs == "target":
        return _open_with_target(table, choice)
    views = needs in ("entities", "network")
    choice = replace(choice, id=table.id if views else None)
    gaps = views and choice.missing in (
        "mask",
        "drop",
    )  # of a view: which entities it lacks is the algorithm's business
    if gaps:
        choice = replace(choice, missing="mask")
    opened = open_site_table(table, choice, alone=alone or views, in_batches=needs == "rows")
    present = _find_complete(opened.X) if gaps else None
    if views and matched is not None:
        opened, present = _take_matched(opened, matched, table, gaps=gaps), _take_present(present, matched)
    if start.privacy is None:  # with noise, a refusal would tell more about the number of rows than the sums do
        check_enough_rows(table, opened.X.shape[0] if present is None else int(present.sum()))
    if not views:
        return opened.X
    secret = "" if opened.ids is None else table.read_secret()
    if needs == "network":
        return DeepView(opened.X, _find_network(table, start), ids=opened.ids, secret=secret)
    held = None
    if table.held_out is not None:
        held = open_site_table(table, replace(choice, id=None), alone=True, held_out=True).X
    return Entities(opened.X, opened.ids, secret, held, present)


def _find_complete(X: HeldMatrix) -> Array:
    """The rows without a gap: an entity of which a feature is missing counts as one that the site does not have."""
    return np.ones(X.shape[0], dtype=bool) if sp.issparse(X) else ~np.isnan(np.asarray(X)).any(axis=1)


def _open_ids(table: SiteTable, choice: Preparation) -> IdList:
    """The ids of all rows, and what the site's file demands of a run that matches them."""
    opened = open_site_table(table, replace(choice, id=table.id), alone=True)
    if opened.ids is None:
        raise InputError(f"The table has no column {table.id!r}, which the site's file names as its id.")
    secret = "" if table.secret_file is None else table.read_secret()
    return IdList(opened.ids, secret, least=table.min_common, most=table.max_ids, pad=table.pad_ids)


def _take_matched(opened: Table, matched: MatchedRows, table: SiteTable, *, gaps: bool = False) -> Table:
    """The rows of a view in the common order; its ids only if they can be compared once more.

    With `gaps` the view may lack entities: any row stands in for one that it lacks, and a mask says which.
    """
    if opened.ids is None or matched.rows is None or matched.table is None:
        raise InputError("The rows of this run were matched by ids, but the table has none now.")
    if digest_table(canonical_ids(opened.ids)) != matched.table.tobytes():
        raise InputError("The ids of the table have changed since the rows of this run were matched. Start a new run.")
    rows = matched.rows
    if gaps:
        return replace(opened, X=select_rows(opened.X, np.maximum(rows, 0)), ids=None, labels=None)
    labels = None if opened.labels is None else opened.labels[rows]
    ids = None if table.secret_file is None else opened.ids[rows]
    return replace(opened, X=take_rows(opened.X, rows), ids=ids, labels=labels)


def _take_present(present: Array | None, matched: MatchedRows) -> Array | None:
    """Which entities of the common order the site has, from which of its rows are complete."""
    if present is None or matched.rows is None:
        return present
    return (matched.rows >= 0) & present[np.maximum(matched.rows, 0)]


def _open_with_labels(
    table: SiteTable, start: StartMessage, choice: Preparation, *, alone: bool, matched: MatchedRows | None
) -> tuple[object, ...]:
    """Rows with the numbers of their classes, and their weights if the job gives some."""
    numbers = table.choose_classes(start.told)
    choice = replace(choice, label=table.label, id=None if matched is None else table.id)
    opened = open_site_table(table, choice, None if alone else numbers, alone=alone)
    if matched is not None:
        opened = _take_matched(opened, matched, table)
    if opened.labels is None:
        raise InputError(f"The table has no column {table.label!r}, which the site's file names as its label.")
    words = [to_class(label) for label in opened.labels]
    odd = sum(word not in numbers for word in words)
    if odd:
        raise InputError(
            f"{odd} of {len(words)} rows have none of the classes that the job learns. Views must have the same rows "
            "at all sites, so these cannot be left out here. Fix the table, or classes in the site's file."
        )
    codes = np.array([numbers[word] for word in words], dtype=np.int64)
    if start.privacy is None:  # with noise, one row more of a rare class must not be seen by a refusal
        check_enough_rows(table, len(words))
        _check_enough_held_out(table, len(words), start.algorithm.held_out_rows(len(words)))
        few = [word for word, number in numbers.items() if 0 < np.sum(codes == number) < table.min_rows_per_class]
        if few:
            raise InputError(
                f"Class {few[0]!r} has fewer than {table.min_rows_per_class} rows. Lower min_rows_per_class in the "
                "site's file to allow it."
            )
    weights = start.told.get("weights")
    weight = None if weights is None else np.array(weights, dtype=np.float64)[codes]
    limited = read_limited_classes(start.told.get("limited"), numbers)
    if limited:
        plan = LimitPlan((), classes=limited)
        return opened.X, codes, weight, plan.number(codes, None), plan.parts
    return (opened.X, codes) if weight is None else (opened.X, codes, weight)


def _open_with_target(table: SiteTable, choice: Preparation) -> tuple[object, ...]:
    """Rows with the numbers to predict, which are read as one more column."""
    if table.target is None or choice.columns is None:
        raise InputError("The site's file names no column of targets.")
    fill = {**choice.fill, table.target: 0.0} if choice.missing == "mean" else choice.fill  # there are no gaps in it
    wide = replace(choice, columns=(*choice.columns, table.target), fill=fill)
    opened = open_site_table(table, wide, target=table.target)
    check_enough_rows(table, opened.X.shape[0])
    X = _to_dense(opened.X)
    return X[:, :-1], X[:, -1]


def _find_network(table: SiteTable, start: StartMessage) -> Callable[[], Module]:
    """The site's own maker of networks, named in its own file: no job can name one."""
    k = start.algorithm.client_options().get("k")
    return find_maker(str(table.network), int(k) if k is not None else 0)
