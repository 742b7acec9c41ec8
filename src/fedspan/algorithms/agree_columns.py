"""What the clients of a federation agree on before they open their tables: columns, categories, means that fill gaps.

Everything is asked in the opening (round 0), as far as it is needed; there are no further rounds. What the server sees:
the names of the columns and their units (no values); the categories that each client has seen, if they are to be agreed
on; the sums over the clients of every column's present values and their number, if means are to be agreed on.
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


def agreed(each: Iterable[tuple[str, Columns]]) -> Columns:
    """The columns that all clients have, or the first client that differs and where."""
    first, d, open_end, names, named_by = "", -1, True, None, ""
    units: dict[str, tuple[str, str]] = {}
    for client, its in each:
        fits = its.features <= d if its.at_least else its.features >= d if open_end else its.features == d
        if d >= 0 and not fits and not (open_end and its.at_least):
            raise InputError(
                f"need {d} features as at client {first!r}, got {its.features} (client {client!r}); "
                "give all clients the same columns"
            )
        if d < 0 or its.features > d:
            first, d = client, its.features
        open_end = open_end and its.at_least
        if its.names is not None:
            if names is None:
                names, named_by = its.names, client
            elif its.names != names:
                raise InputError(_difference(names, its.names, named_by, client))
        for column, unit in its.units.items():
            other, theirs = units.setdefault(column, (client, unit))
            if unit != theirs:
                raise InputError(
                    f"need column {column!r} in {theirs!r} as at client {other!r}, got {unit!r} (client {client!r}); "
                    "convert it"
                )
    return Columns(d, names, {column: unit for column, (_, unit) in units.items()})


def feature_names(columns: Columns, vocabulary: Mapping[str, Sequence[str]]) -> list[str]:
    """The features that come out: `sex=f` for each word of a category, a number where there is no name."""
    names = columns.names or [str(j) for j in range(columns.features)]
    return [
        out for name in names for out in ([f"{name}={w}" for w in vocabulary[name]] if name in vocabulary else [name])
    ]


def _difference(names: tuple[str, ...], other: tuple[str, ...], first: str, client: str) -> str:
    at = next(i for i, (a, b) in enumerate(zip(names, other, strict=True)) if a != b)
    cause = "the same names in another order; reorder its columns" if sorted(names) == sorted(other) else "rename it"
    return (
        f"need feature {at} to be {names[at]!r} as at client {first!r}, got {other[at]!r} (client {client!r}); {cause}"
    )


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

    @task(releases={"columns": PUBLIC})
    def describe_columns(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The names of the features (or their number) and their units."""
        its = self.survey.columns()
        return state, {"columns": _encode([its.features, its.names, dict(its.units), its.at_least])}

    @task(releases={"words": None})
    def list_categories(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
        """The categories that were seen here, by column."""
        return state, {"words": _encode(self.survey.words(_decode(arrays["columns"])))}

    @task(releases={"total": None, "count": None})
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
    client = ColumnsClient

    def init(self, rng: Streams) -> Round[Agreement]:
        told = (yield from complete(Ask("describe_columns"))).each
        columns = agreed((client, _described(arrays["columns"])) for client, arrays in told.items())
        words = {column: list(given) for column, given in self.vocabulary}
        unsettled = [column for column, given in words.items() if not given]
        if unsettled:
            asked = {"columns": _encode(unsettled)}
            seen = [
                _decode(a["words"]) for a in (yield from complete(Ask("list_categories", asked, Each()))).each.values()
            ]
            for column in unsettled:
                words[column] = sorted({word for one in seen for word in one[column]})
                if not words[column]:
                    raise InputError(f"need values in column {column!r}, it is empty at every client; leave it out")
        means = np.zeros(0)
        if self.means:
            asked = {"vocabulary": _encode(words)}
            sums = (yield from complete(Ask("add_up_columns", asked, Sum("total", "count")))).total
            if (sums["count"] < 0.5).any():
                bare = feature_names(columns, words)[int(np.argmin(sums["count"]))]
                raise InputError(f"need a value to take a mean of, {bare!r} has none at any client; leave it out")
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


def _encode(plain: Any) -> Array:
    """Plain data as bytes: what is on the wire are arrays of numbers."""
    return np.frombuffer(json.dumps(plain, ensure_ascii=False, sort_keys=True).encode(), dtype=np.uint8)


def _decode(array: Array) -> Any:
    return json.loads(bytes(np.asarray(array, dtype=np.uint8)).decode())


def _described(array: Array) -> Columns:
    """What a client said, which may be any client: checked before it is believed."""
    try:
        features, names, units, at_least = _decode(array)
        names = None if names is None else tuple(map(str, names))
        return Columns(int(features), names, {str(k): str(v) for k, v in units.items()}, bool(at_least))
    except (ValueError, TypeError, AttributeError):
        raise InputError("need a description of the columns from every client, got something else") from None
