"""Do all clients mean the same columns, in the same order? Asked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedspan.algorithms.agree_columns import Columns, agreed
from fedspan.data.batches import Table
from fedspan.data.preparation import Preparation


@dataclass(frozen=True)
class Schema:
    """What the clients agree on."""

    n_features: int
    names: tuple[str, ...] | None
    rows: int
    preparation: Preparation | None = None  # how the columns were made, if they were


def agreed_schema(tables: Iterable[tuple[str, Table]], preparation: Preparation | None = None) -> Schema:
    """The common schema, or the first client that differs and where."""
    rows = 0

    def described() -> Iterator[tuple[str, Columns]]:
        nonlocal rows
        for client, table in tables:
            rows += table.X.shape[0]
            yield client, Columns(int(table.X.shape[1]), table.names, dict(table.units))

    columns = agreed(described())
    return Schema(columns.features, columns.names, rows, preparation)
