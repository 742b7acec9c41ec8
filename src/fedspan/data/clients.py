"""What users give as `clients`: a list or a mapping of tables and files, made ready for an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.agree_columns import Columns, agree_on_columns
from fedspan.data.preparation import Preparation
from fedspan.data.remote_tables import RemoteTable
from fedspan.data.tables import Prepared, Table, arrange_columns, open_table
from fedspan.errors import InputError
from fedspan.numerics.operators import Matrix, RowBatches, WeightedRows

_KEPT = 1 << 28  # bytes that are held of what was opened; further files and frames are opened again when needed

Entry = TypeVar("Entry")
ClientData: TypeAlias = (
    Matrix | WeightedRows | RemoteTable | Callable[[], Matrix | WeightedRows]
)  # what an engine makes a client of


@dataclass(frozen=True)
class Schema:
    """What the clients agree on."""

    n_features: int
    names: tuple[str, ...] | None
    rows: int
    preparation: Preparation | None = None  # how the columns were made, if they were
    dtype: str | None = None  # float32 if all rows are, else float64; None if the rows are at other sites
    counts: Mapping[str, int] = field(default_factory=dict)  # rows of each client, unless they are at other sites
    weights: Mapping[str, Array] = field(default_factory=dict)  # of the rows, where a column of the table holds them


def name_clients(clients: Mapping[str, Entry] | Sequence[Entry]) -> dict[str, Entry]:
    """Clients by id: those of a list are numbered with leading zeros, so that the order of ids is their order."""
    if isinstance(clients, Mapping):
        named = {str(name): entry for name, entry in clients.items()}
        if any(not name or name.startswith("@") for name in named):
            raise InputError("A client's name must not be empty and must not begin with '@'.")
        if len(named) < len(clients):
            raise InputError("Clients' names must differ as text, but two are the same.")
    else:
        width = len(str(max(len(clients) - 1, 0)))
        named = {f"{i:0{width}d}": entry for i, entry in enumerate(clients)}
    if not named:
        raise InputError("There are no clients. Give a list or a mapping with one entry per client.")
    return named


@contextmanager
def blame_client(name: str) -> Iterator[None]:
    """Put the client's name before whatever is wrong with its data, once."""
    try:
        yield
    except InputError as error:
        if error.client == name:
            raise
        blamed = type(error)(f"client {name!r}: {error}")
        blamed.client = name
        raise blamed from error


def open_client(name: str, source: object, in_batches: bool = False) -> Table:
    """The table of one client."""
    with blame_client(name):
        return open_table(source, in_batches=in_batches)


def open_clients(
    clients: Mapping[str, object] | Sequence[object], in_batches: bool = False
) -> tuple[dict[str, ClientData], Schema]:
    """The clients' data by id, and the schema that they agree on.

    Files are read once as long as they are small together; larger ones are closed again until they are needed. With
    `in_batches`, what is too large for memory is not held at all.
    """
    if isinstance(clients, np.ndarray | str) or not isinstance(clients, Mapping | Sequence):
        raise InputError(
            "Clients must be a list or a mapping with one entry per client, but they are one "
            f"{type(clients).__name__}. For a single client write fit([X])."
        )
    sources = sorted(name_clients(clients).items())
    data: dict[str, ClientData] = {}
    rows, dtypes, counts, weights = 0, set[str | None](), dict[str, int](), dict[str, Array]()

    def open_each() -> Iterator[tuple[str, Columns]]:
        """One after the other, so that a client that differs is refused before the next one is opened."""
        nonlocal rows
        order: tuple[str, ...] | None = None
        room = _KEPT
        for name, source in sources:
            if isinstance(source, RemoteTable):
                data[name] = source
                dtypes.add(None)
                n, d, names, units = source.rows, source.n_features, source.names, source.units
            else:
                with blame_client(name):
                    table = open_table(source, in_batches=in_batches)
                order = table.names if order is None else order
                arranged = arrange_columns(table, order) if order and set(table.names or ()) == set(order) else table
                was_held = table.X is source
                room -= 0 if was_held else _count_bytes(table.X)
                kept = was_held or room >= 0
                data[name] = arranged.X if kept else partial(_reopen, source, in_batches, arranged.names)
                dtypes.add(str(table.X.dtype))
                (n, d), names, units = table.X.shape, table.names, table.units
                counts[name] = n
                if table.weights is not None:
                    weights[name] = table.weights
            rows += n
            yield name, Columns(int(d), names, dict(units))

    columns = agree_on_columns(open_each())
    preparations = [source.preparation for _, source in sources if isinstance(source, Prepared | RemoteTable)]
    made = next((each for each in preparations if each is not None and not each.trivial), None)
    common = "float32" if dtypes == {"float32"} else "float64"
    return data, Schema(
        columns.features, columns.names, rows, made, None if None in dtypes else common, counts, weights
    )


def _count_bytes(X: Matrix) -> int:
    """How much memory it takes to hold a matrix."""
    if isinstance(X, RowBatches | np.memmap):
        return 0
    return int(X.nbytes if isinstance(X, np.ndarray) else X.nnz * (X.dtype.itemsize + 4))


def _reopen(source: object, in_batches: bool, names: tuple[str, ...] | None) -> Matrix:
    table = open_table(source, in_batches=in_batches)
    return table.X if names is None else arrange_columns(table, names).X
