"""Columns, categories and gaps, agreed on in the federation before a model is fitted, and again for new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.core.ledger import Ledger, Note
from fedspan.core.run import run
from fedspan.data.clients import named
from fedspan.data.preparation import Preparation
from fedspan.data.survey import TableSurvey, settled
from fedspan.data.table import Prepared, is_libsvm, named_source, open_source
from fedspan.engines.inprocess import InProcess
from fedspan.errors import InputError
from fedspan.secure.masking import Secure


def prepare(
    clients: Mapping[str, Any] | Sequence[Any],
    *,
    columns: Sequence[str] | None = None,
    id: str | None = None,
    label: str | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] = (),
    missing: str = "refuse",
    fill: Mapping[str, float] | None = None,
    n_features: int | None = None,
    engine: Any = None,
    ledger: Ledger | None = None,
) -> dict[str, Prepared]:
    """The clients, ready for `fit`: features chosen, categories as 0 and 1, gaps dropped or filled with common means.

    `categories` names columns of words; with their words given, nothing has to be agreed on. What has to be is asked
    of the clients now. Each entry of the result is called to open that client's table, with `ids` and `labels`.
    """
    words = categories if isinstance(categories, Mapping) else dict.fromkeys(categories, ())
    draft = Preparation(
        None if columns is None else tuple(columns), id, label, {name: tuple(map(str, w)) for name, w in words.items()},
        missing, dict(fill or {}), n_features,
    )  # fmt: skip
    sources = named(clients)
    done = agree(sources, draft, engine=engine, ledger=ledger)
    return {name: Prepared(source, done) for name, source in sources.items()}


def agree(
    sources: Mapping[str, Any],
    draft: Preparation,
    *,
    private: bool = False,
    secure: Secure | None = None,
    engine: Any = None,
    ledger: Ledger | None = None,
) -> Preparation:
    """The preparation with all that was still open in it, asked of the clients."""
    unsettled, means = draft.unsettled, draft.needs_means
    widths = draft.n_features is None and any(map(is_libsvm, sources.values()))
    if not (unsettled or means or widths):
        return draft
    if private:
        what = f"the categories of {unsettled[0]!r}" if unsettled else "means" if means else "the number of features"
        give = f'categories = {{ {unsettled[0]} = ["…"] }}' if unsettled else "fill" if means else "n_features"
        raise InputError(f"agreeing on {what} would tell of single rows, and privacy is asked for; give data.{give}")
    if secure and unsettled:
        raise InputError(
            f"agreeing on the categories of {unsettled[0]!r} shows each client's own, and secure sums are asked for; "
            f'give them in data.categories = {{ {unsettled[0]} = ["…"] }}'
        )
    surveys = {name: partial(TableSurvey, source, draft) for name, source in sources.items()}
    made = InProcess(surveys) if engine is None else engine(surveys) if callable(engine) else engine
    algorithm = AgreeOnColumns(tuple(draft.categories.items()), means)
    ledger = ledger if ledger is not None else Ledger()
    done = settled(draft, run(algorithm, made, rounds=0, seed=0, secure=secure, ledger=ledger).state)
    words = [f"the categories of {name} ({', '.join(done.categories[name])})" for name in unsettled]
    words += ["means to fill gaps with"] * means + [f"{done.n_features} features"] * widths
    ledger.add(Note(f"the clients agreed on {' and '.join(words)}"))
    return done


def alone(sources: Mapping[str, Any], draft: Preparation, *, strict: bool = True) -> dict[str, Preparation]:
    """The same where every client has columns of its own: each settles for itself what concerns them.

    `strict`: every category must be a column somewhere, which a site by itself cannot know.
    """
    done, found = {}, set[str]()
    for name, source in sources.items():
        try:
            named_columns = named_source(source) if draft.categories else None
            there = () if named_columns is None else named_columns.names
            own = replace(draft, categories={c: w for c, w in draft.categories.items() if c in there})
            found |= set(own.categories)
            done[name] = agree({name: source}, own)
        except InputError as error:
            raise type(error)(
                str(error) if f"client {name!r}" in str(error) else f"client {name!r}: {error}"
            ) from error
    lost = [column for column in draft.categories if column not in found]
    if lost and strict:
        raise InputError(f"need the column {lost[0]!r} (data.categories) in one of the views, none has it")
    return done


def as_fitted(model: Any, X: Any, **options: Any) -> Any:
    """New rows as the model's clients had theirs: a table with the original columns is prepared in the same way."""
    how: Preparation | None = getattr(model, "preparation_", None)
    if how is not None and not isinstance(X, np.ndarray | list | str) and (source := named_source(X)) is not None:
        chosen = list(how.columns or ()) or None
        if set(how.categories) <= set(source.names) and set(chosen or ()) <= set(source.names):
            kept = [name for name in source.names if name not in (how.id, how.label)]
            gaps = "mean" if how.missing == "mean" else "refuse"  # no row may go: the answer has one for each
            table = open_source(source, replace(how, id=None, label=None, columns=tuple(chosen or kept), missing=gaps))
            fitted = tuple(getattr(model, "feature_names_in_", table.names or ()))
            if table.names != fitted:
                raise InputError(f"need the columns of the fit, got {', '.join(table.names or ())[:200]}")
            return table.X
    return validate_data(model, X, reset=False, **options)
