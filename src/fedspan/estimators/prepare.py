"""Columns, categories and gaps, agreed on in the federation before a model is fitted, and again for new rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedspan.algorithms.agree_columns import AgreeOnColumns, SurveyColumns
from fedspan.core.ledger import Ledger, Note
from fedspan.core.protection import RETRIES
from fedspan.core.run import Engine, run
from fedspan.data.clients import blame_client, name_clients
from fedspan.data.preparation import Preparation
from fedspan.data.survey import TableSurvey, fill_gaps, settle_words
from fedspan.data.tables import Prepared, find_source, is_libsvm
from fedspan.errors import InputError
from fedspan.estimators.launch import make_engine
from fedspan.secure.masking import Secure

if TYPE_CHECKING:
    from fedspan.estimators._bases.federated_estimator import ClientData


def prepare(
    clients: ClientData,
    *,
    columns: Sequence[str] | None = None,
    id: str | None = None,
    label: str | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] = (),
    missing: str = "refuse",
    fill: Mapping[str, float] | None = None,
    n_features: int | None = None,
    weight: str | None = None,
    engine: Engine | Callable[..., Engine] | None = None,
    ledger: Ledger | None = None,
) -> dict[str, Prepared]:
    """The clients, ready for `fit`: features chosen, categories as 0 and 1, gaps dropped or filled with common means.

    Parameters:
        clients: One entry per client.
        columns: The features; by default all columns.
        id: A column of ids, which is not a feature.
        label: A column of labels, which is not a feature.
        categories: Columns of words. If the words are given too, the clients need not agree on them.
        missing: What becomes of missing values: "refuse", "drop" (the row) or "mean" (over all clients).
        fill: What fills the gaps of each feature with missing="mean"; by default the means over all clients.
        n_features: The number of features of LIBSVM files, which do not say it.
        weight: A column that says how often each row counts (PCA and SVD), which is not a feature.
        engine: Where the clients run; by default in this process.
        ledger: Where to write what happens; by default a new one.

    Returns:
        By client, what is called to open its table, with `ids` and `labels`. What the clients must agree on is asked
        of them now.
    """
    words = categories if isinstance(categories, Mapping) else dict.fromkeys(categories, ())
    draft = Preparation(
        None if columns is None else tuple(columns),
        id,
        label,
        {name: tuple(map(str, given)) for name, given in words.items()},
        missing,
        dict(fill or {}),
        n_features,
        weight=weight,
    )
    sources = name_clients(clients)
    done = agree(sources, draft, engine=engine, ledger=ledger)
    return {name: Prepared(source, done) for name, source in sources.items()}


def agree(
    sources: Mapping[str, object],
    draft: Preparation,
    *,
    private: bool = False,
    secure: Secure | None = None,
    engine: Engine | Callable[..., Engine] | None = None,
    ledger: Ledger | None = None,
    retries: int = RETRIES,
) -> Preparation:
    """Ask the clients for all that the preparation leaves open, and fill it in."""
    unsettled, means = draft.unsettled, draft.needs_means
    widths = draft.n_features is None and any(map(is_libsvm, sources.values()))
    if not (unsettled or means or widths):
        return draft
    if private:
        if unsettled:
            what, give = f"the categories of {unsettled[0]!r}", f'categories = {{ {unsettled[0]} = ["…"] }}'
        elif means:
            what, give = "means", "fill"
        else:
            what, give = "the number of features", "n_features"
        raise InputError(
            f"The clients cannot agree on {what} in a run with privacy, because that would tell about single rows; "
            f"give data.{give}."
        )
    if secure and unsettled:
        raise InputError(
            f"The clients cannot agree on the categories of {unsettled[0]!r} in a run with secure sums, because that "
            f'would show each client\'s own; give them in data.categories = {{ {unsettled[0]} = ["…"] }}.'
        )
    ledger = ledger if ledger is not None else Ledger()
    surveys = {name: partial(TableSurvey, source, draft) for name, source in sources.items()}
    survey = SurveyColumns(unsettled)
    surveyed = make_engine(engine, surveys)
    found = run(survey, surveyed, rounds=0, seed=0, retries=retries, secure=secure, ledger=ledger).state
    done = settle_words(draft, found)
    for name in unsettled:
        ledger.add(Note(f"The clients agreed on the categories of {name}: {', '.join(done.categories[name])}."))
    if means:
        settled = {name: partial(TableSurvey, source, done) for name, source in sources.items()}
        algorithm = AgreeOnColumns(found.features, found.names, tuple(done.categories.items()))
        done = agree_on_means(algorithm, done, make_engine(engine, settled), ledger, secure=secure, retries=retries)
    if widths:
        ledger.add(Note(f"The clients agreed on {done.n_features} features."))
    return done


def agree_on_means(
    algorithm: AgreeOnColumns,
    draft: Preparation,
    engine: Engine,
    ledger: Ledger,
    *,
    secure: Secure | None = None,
    retries: int = RETRIES,
) -> Preparation:
    """Fill in the means over all clients, which are one sum: in a federation this is all that is asked for."""
    means = run(algorithm, engine, rounds=0, seed=0, retries=retries, secure=secure, ledger=ledger).state.means
    ledger.add(Note("Missing values were filled with the mean over all clients."))
    return fill_gaps(draft, algorithm, means)


def settle_each(sources: Mapping[str, object], draft: Preparation, *, strict: bool = True) -> dict[str, Preparation]:
    """The same where every client has its own columns: each client settles what concerns them by itself.

    `strict`: every category must be a column somewhere, which a site by itself cannot know.
    """
    done, found = {}, set[str]()
    for name, source in sources.items():
        with blame_client(name):
            named_columns = find_source(source) if draft.categories else None
            there = () if named_columns is None else named_columns.names
            own = replace(draft, categories={c: w for c, w in draft.categories.items() if c in there})
            found |= set(own.categories)
            done[name] = agree({name: source}, own)
    lost = [column for column in draft.categories if column not in found]
    if lost and strict:
        raise InputError(f"Column {lost[0]!r} of data.categories is in none of the views.")
    return done
