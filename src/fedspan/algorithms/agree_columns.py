"""What clients agree on before they open their tables: columns, categories, means that fill gaps.

Everything is asked in the opening (round 0), as far as it is needed; there are no further rounds. In one process the
clients' tables are surveyed (`SurveyColumns`): the server sees the names of the columns and their units, and the
categories that each client has seen, if they are to be agreed on. In a federation the sites' own files say all that.
In both, means are one sum (`AgreeOnColumns`): the server sees the sums over the clients of every column's present
values and their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fedspan._foreign import parse_json
from fedspan._types import Array, Arrays
from fedspan.core.protocol import PUBLIC, Ask, Client, Course, Each, Replay, Round, Server, Sum, Turn, complete, task
from fedspan.core.rng import Streams
from fedspan.errors import InputError

_MOST_NAMED = 5  # columns that an error names


@dataclass(frozen=True)
class Columns:
    """What a client says of its columns; `at_least`: its files do not say how many there are."""

    features: int
    names: tuple[str, ...] | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    at_least: bool = False


def agree_on_columns(each: Iterable[tuple[str, Columns]]) -> Columns:
    """The columns that all clients have, or an error that names the first client that differs, and in what.

    Columns are matched by their names: they come in the order of the first client, whatever that of the others is.
    """
    first, d, open_end, names, named_by = "", -1, True, None, ""
    units: dict[str, tuple[str, str]] = {}
    for client, its in each:
        if its.names is not None and names is not None and sorted(its.names) != sorted(names):
            raise InputError(_describe_names(names, its.names, named_by, client))
        if d >= 0 and not _fits(its, d, open_end):
            raise InputError(
                f"All clients must have the same columns, but client {first!r} has {d} features and client {client!r} "
                f"has {its.features}."
            )
        if d < 0 or its.features > d:
            first, d = client, its.features
        open_end = open_end and its.at_least
        if its.names is not None and names is None:
            names, named_by = its.names, client
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
    """Which columns a client lacks, and which it has that others have not."""
    lacks, extra = [name for name in names if name not in other], [name for name in other if name not in names]
    found = [f"lacks {_list_names(lacks)}"] if lacks else []
    found += [f"has {_list_names(extra)}"] if extra else []
    return (
        f"All clients must have the same columns, but client {client!r} {' and '.join(found)}, unlike client "
        f"{first!r}. Rename them, or list the columns that all clients have in columns."
    )


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(map(repr, names[:_MOST_NAMED])) + more


class Survey(Protocol):
    """A client's table, as far as it is looked at before it is opened."""

    def columns(self) -> Columns: ...
    def words(self, columns: list[str]) -> dict[str, list[str]]: ...
    def sums(self) -> tuple[Array, Array]: ...


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
        """Sums of the present values of every feature, and how many there are. The question brings no words."""
        total, count = self.survey.sums()
        return state, {"total": total, "count": count}


@dataclass(frozen=True)
class Found:
    """What clients in one process say of their tables: plain data."""

    features: int
    names: tuple[str, ...] | None
    units: dict[str, str]
    vocabulary: dict[str, list[str]]
    reordered: bool = False  # some client has the columns in another order


@dataclass(frozen=True)
class SurveyColumns(Server[Found]):
    """The columns of clients in one process, and the words of the categories in `unsettled`.

    No site of a federation answers this: there columns and words are what the sites' own files say.
    """

    unsettled: tuple[str, ...] = ()

    State: ClassVar[type] = Found
    client: ClassVar[type[Client[object]]] = ColumnsClient
    family: ClassVar[str] = "columns"

    def asks(self) -> frozenset[str]:
        return frozenset({"describe_columns", "list_categories"} if self.unsettled else {"describe_columns"})

    def course(self) -> Course:
        return Course((Turn("describe_columns"), *(Turn(task) for task in self.asks() - {"describe_columns"})))

    def replay(self) -> Replay | str:
        return "the clients' own columns and categories are asked for, not a sum"

    def init(self, rng: Streams) -> Round[Found]:
        told = (yield from complete(Ask("describe_columns"))).each
        described = {client: _read_description(arrays["columns"]) for client, arrays in told.items()}
        columns = agree_on_columns(described.items())
        words: dict[str, list[str]] = {}
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
        reordered = any(its.names not in (None, columns.names) for its in described.values())
        return Found(columns.features, columns.names, dict(columns.units), words, reordered)

    def round(self, state: Found, rng: Streams) -> Round[Found]:
        return state
        yield  # asks nothing more

    def done(self, state: Found) -> bool:
        return True

    def estimate(self, state: Found) -> Array:
        return np.array(state.features)

    def metrics(self, state: Found) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Means:
    """The answer: the mean of every feature that comes out, in their order."""

    means: Array


@dataclass(frozen=True)
class AgreeOnColumns(Server[Means]):
    """The means over all clients that fill gaps: one sum, and nothing else.

    `columns` and `vocabulary` (column and words) say of which features. They are in the opening, and a site of a
    federation compares them with its own file; no question brings a word. Without `columns`, features have no names.
    """

    features: int = 0  # before categories become several
    columns: tuple[str, ...] | None = None
    vocabulary: tuple[tuple[str, tuple[str, ...]], ...] = ()

    State: ClassVar[type] = Means
    client: ClassVar[type[Client[object]]] = ColumnsClient
    family: ClassVar[str] = "columns"

    def asks(self) -> frozenset[str]:
        return frozenset({"add_up_columns"})

    def course(self) -> Course:
        return Course((Turn("add_up_columns"),))

    def replay(self) -> Replay | str:
        return {"add_up_columns": {}}

    def init(self, rng: Streams) -> Round[Means]:
        sums = (yield from complete(Ask("add_up_columns", want=Sum("total", "count")))).total
        if (sums["count"] < 0.5).any():
            names = feature_names(Columns(self.features, self.columns), dict(self.vocabulary))
            bare = names[int(np.argmin(sums["count"]))]
            raise InputError(f"Column {bare!r} has no values at any client, so it has no mean. Leave it out.")
        return Means(sums["total"] / sums["count"])

    def round(self, state: Means, rng: Streams) -> Round[Means]:
        return state
        yield  # asks nothing more

    def done(self, state: Means) -> bool:
        return True

    def estimate(self, state: Means) -> Array:
        return state.means

    def metrics(self, state: Means) -> dict[str, float]:
        return {}


def _encode(plain: object) -> Array:
    """Plain data as bytes: what is on the wire are arrays of numbers."""
    return np.frombuffer(json.dumps(plain, ensure_ascii=False, sort_keys=True).encode(), dtype=np.uint8)


def _decode(array: Array) -> Any:
    return parse_json(bytes(np.asarray(array, dtype=np.uint8)), constants=True)


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
