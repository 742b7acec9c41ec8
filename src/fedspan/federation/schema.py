"""Do all clients mean the same columns, in the same order? Asked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedspan.errors import InputError
from fedspan.federation.data import Table


@dataclass(frozen=True)
class Schema:
    """What the clients agree on."""

    n_features: int
    names: tuple[str, ...] | None
    rows: int


def agreed_schema(tables: Iterable[tuple[str, Table]]) -> Schema:
    """The common schema, or the first client that differs and where."""
    first, d, rows, names, named_by = "", -1, 0, None, ""
    for client, table in tables:
        rows += table.X.shape[0]
        if d < 0:
            first, d = client, table.X.shape[1]
        elif table.X.shape[1] != d:
            raise InputError(
                f"need {d} features as at client {first!r}, got {table.X.shape[1]} (client {client!r}); "
                "give all clients the same columns"
            )
        if table.names is not None:
            if names is None:
                names, named_by = table.names, client
            elif table.names != names:
                raise InputError(_difference(names, table.names, named_by, client))
    return Schema(d, names, rows)


def _difference(names: tuple[str, ...], other: tuple[str, ...], first: str, client: str) -> str:
    at = next(i for i, (a, b) in enumerate(zip(names, other, strict=True)) if a != b)
    cause = "the same names in another order; reorder its columns" if sorted(names) == sorted(other) else "rename it"
    return (
        f"need feature {at} to be {names[at]!r} as at client {first!r}, got {other[at]!r} (client {client!r}); {cause}"
    )
