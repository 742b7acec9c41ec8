"""What the clients of a federation agree on before they open their tables: columns, categories, means that fill gaps.

Everything is asked in the opening (round 0), as far as it is needed; there are no further rounds.

What the server sees: the names of the columns and their units (no values); the categories that each client has seen, if
they are to be agreed on; the sums over the clients of every column's present values and their number, if means are to
be agreed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.core.protocol import PUBLIC, Ask, Client, Each, Round, Server, Sum, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError


@dataclass(frozen=True)
class Columns:
    """What a client says of its columns; `at_least`: its files do not say how many there are."""

    features: int
    names: tuple[str, ...] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    at_least: bool = False


def agree_on_columns(each: Iterable[tuple[str, Columns]]) -> Columns:
    """The columns that all clients have, or an error that names the first client that differs, and where."""
    first, d, open_end, names, named_by = "", -1, True, None, ""
    units: dict[str, tuple[str, str]] = {}
    for client, its in each:
        if d >= 0 and not _fits(its, d, open_end):
            raise InputError(
                f"All clients must have the same columns, but client {first!r} has {d} features and client {client!r} "
                f"has {its.features}."
            )
        if d < 0 or its.features > d:
            first, d = client, its.features
        open_end = open_end and its.at_least
        if its.names is not None:
            if names is None:
                names, named_by = its.names, client
            elif its.names != names:
                raise InputError(_describe_names(names, its.names, named_by, client))
        for column, unit in its.units.items():
            other, theirs = units.setdefault(column, (client, unit))
            if unit != theirs:
                raise InputError(
                    f"Column {column!r} must have the same unit everywhere, but it is {theirs!r} at client {other!r} "
                    f"and {unit!r} at client {client!r}. Convert it."
                )
    return Columns(d, names, {column: unit for column, (_, unit) in units.items()})


def _fits(its: Columns, d: int, open_end: bool) -> bool:
    """Whether a client's number of columns is possible where others have d (or at least d, with an open end)."""
    if its.at_least:
        return open_end or its.features <= d
    return its.features >= d if open_end else its.features == d


def feature_names(columns: Columns, vocabulary: Mapping[str, Sequence[str]]) -> list[str]:
    """The features that come out: `sex=f` for each word of a category, a number where there is no name."""
    features = []
    for name in columns.names or [str(j) for j in range(columns.features)]:
        features += [f"{name}={word}" for word in vocabulary[name]] if name in vocabulary else [name]
    return features


def _describe_names(names: tuple[str, ...], other: tuple[str, ...], first: str, client: str) -> str:
    at = next(i for i, (a, b) in enumerate(zip(names, other, strict=True)) if a != b)
    if sorted(names) == sorted(other):
        remedy = "They have the same names in another order: reorder the columns."
    else:
        remedy = "Rename it."
    return f"Feature {at} is {names[at]!r} at client {first!r}, but {other[at]!r} at client {client!r}. {remedy}"


class Survey(Protocol):
    """A client's table, as far as it is looked at before it is opened."""

    def columns(self) -> Columns: ...
    def words(self, columns: list[str]) -> dict[str, list[str]]: ...
    def sums(self, vocabulary: Mapping[str, list[str]]) -> tuple[Array, Array]: ...


class ColumnsClient(Client[None]):
    """A client that says of its table only what is asked here."""

    State: ClassVar[type] = type(None)
    needs = "survey"

    def __init__(self, data: Survey) -> None:
        self.survey = data

    def init(self) -> None:
        return None

    @task(releases={"columns": PUBLIC}, shows="the names and units of its columns")
    def describe_columns(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The names of the features (or their number) and their units."""
        its = self.survey.columns()
        return state, {"columns": _encode([its.features, its.names, dict(its.units), its.at_least])}

    @task(releases={"words": None}, shows="the categories that it has seen in the columns of categories")
    def list_categories(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The categories that were seen here, by column."""
        return state, {"words": _encode(self.survey.words(_decode(arrays["columns"])))}

    @task(
        releases={"total": None, "count": None},
        shows="its column sums, and its numbers of values that are not missing",
    )
    def add_up_columns(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """Sums of the present values of every feature, and how many there are."""
        total, count = self.survey.sums(_decode(arrays["vocabulary"]))
        return state, {"total": total, "count": count}


@dataclass(frozen=True)
class Agreement:
    """The answer: plain data."""

    features: int
    names: tuple[str, ...] | None
    units: dict[str, str]
    vocabulary: dict[str, list[str]]
    means: Array  # of the features that come out, in their order; empty if they were not asked for


@dataclass(frozen=True)
class AgreeOnColumns(Server[Agreement]):
    """`vocabulary`: (column, words) of every category; no words: to be agreed on. `means`: of all features too."""

    vocabulary: tuple[tuple[str, tuple[str, ...]], ...] = ()
    means: bool = False

    State: ClassVar[type] = Agreement
    client: ClassVar[type[Client[object]]] = ColumnsClient
    family: ClassVar[str] = "columns"

    @property
    def unsettled(self) -> list[str]:
        """The columns of categories whose words are to be agreed on."""
        return [column for column, words in self.vocabulary if not words]

    def asks(self) -> frozenset[str]:
        tasks = {"describe_columns"}
        if self.unsettled:
            tasks.add("list_categories")
        if self.means:
            tasks.add("add_up_columns")
        return frozenset(tasks)

    def init(self, rng: Streams) -> Round[Agreement]:
        told = (yield from complete(Ask("describe_columns"))).each
        columns = agree_on_columns((client, _read_description(arrays["columns"])) for client, arrays in told.items())
        words = {column: list(given) for column, given in self.vocabulary}
        if self.unsettled:
            asked = {"columns": _encode(self.unsettled)}
            replies = yield from complete(Ask("list_categories", asked, Each()))
            seen = [_decode(arrays["words"]) for arrays in replies.each.values()]
            for column in self.unsettled:
                words[column] = sorted({word for one in seen for word in one[column]})
                if not words[column]:
                    raise InputError(
                        f"Column {column!r} is empty at every client, so it has no categories. Leave it out."
                    )
        means = np.zeros(0)
        if self.means:
            asked = {"vocabulary": _encode(words)}
            sums = (yield from complete(Ask("add_up_columns", asked, Sum("total", "count")))).total
            if (sums["count"] < 0.5).any():
                bare = feature_names(columns, words)[int(np.argmin(sums["count"]))]
                raise InputError(f"Column {bare!r} has no values at any client, so it has no mean. Leave it out.")
            means = sums["total"] / sums["count"]
        return Agreement(columns.features, columns.names, dict(columns.units), words, means)

    def round(self, state: Agreement, rng: Streams) -> Round[Agreement]:
        return state
        yield  # asks nothing more

    def done(self, state: Agreement) -> bool:
        return True

    def estimate(self, state: Agreement) -> Array:
        return state.means

    def metrics(self, state: Agreement) -> dict[str, float]:
        return {}


def _encode(plain: object) -> Array:
    """Plain data as bytes: what is on the wire are arrays of numbers."""
    return np.frombuffer(json.dumps(plain, ensure_ascii=False, sort_keys=True).encode(), dtype=np.uint8)


def _decode(array: Array) -> Any:
    return json.loads(bytes(np.asarray(array, dtype=np.uint8)).decode())


def _read_description(array: Array) -> Columns:
    """What a client said of its columns, checked before it is believed."""
    try:
        features, names, units, at_least = _decode(array)
        names = None if names is None else tuple(map(str, names))
        return Columns(int(features), names, {str(k): str(v) for k, v in units.items()}, bool(at_least))
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            "A client's description of its columns cannot be read. Install the same version of fedspan at every client."
        ) from None
