"""What users give as `clients`: a list or a mapping of tables and files, made ready for an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedspan.data.batches import Batched, Table
from fedspan.data.common_schema import Schema, agreed_schema
from fedspan.data.remote_table import RemoteTable
from fedspan.data.table import Prepared, open_table
from fedspan.errors import InputError

_KEPT = 1 << 28  # bytes of opened files that are held from the first look on; further ones are opened again


def named(clients: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Clients by id: those of a list are numbered with leading zeros, so that the order of ids is their order."""
    if isinstance(clients, Mapping):
        out = {str(name): data for name, data in clients.items()}
        if any(not name or name.startswith("@") for name in out):
            raise InputError("need client names that are not empty and do not begin with '@'")
        if len(out) < len(clients):
            raise InputError("need client names that differ as text, got two alike")
    else:
        width = len(str(max(len(clients) - 1, 0)))
        out = {f"{i:0{width}d}": data for i, data in enumerate(clients)}
    if not out:
        raise InputError("need at least one client, got none; give a list or a mapping with one entry per client")
    return out


def opened(name: str, source: Any, in_batches: bool = False) -> Table:
    """The table of one client; what is wrong with it is said with the client's name."""
    if isinstance(source, RemoteTable):
        return source  # type: ignore[return-value]  # it stands for one
    try:
        return open_table(source, in_batches)
    except InputError as error:
        raise type(error)(f"client {name!r}: {error}") from error


def open_clients(clients: Mapping[str, Any] | Sequence[Any], in_batches: bool = False) -> tuple[dict[str, Any], Schema]:
    """The clients' data by id, and the schema that they agree on.

    Files are read once as long as they are small together; larger ones are closed again until they are needed. With
    `in_batches`, what is too large for memory is not held at all.
    """
    if isinstance(clients, np.ndarray | str) or not isinstance(clients, Mapping | Sequence):
        raise InputError(
            f"need a list or mapping with one entry per client, got one {type(clients).__name__}; "
            "for a single client write fit([X])"
        )
    kept: dict[str, Any] = {}
    given = sorted(named(clients).items())

    def tables() -> Iterator[tuple[str, Table]]:
        room = _KEPT
        for name, source in given:
            table = opened(name, source, in_batches)
            room -= _held(source, table.X)
            kept[name] = table.X if room >= 0 else partial(_matrix, source, in_batches)
            yield name, table

    ways = [source.preparation for _, source in given if isinstance(source, Prepared | RemoteTable)]
    how = [way for way in ways if way is not None and not way.trivial]
    return kept, agreed_schema(tables(), how[0] if how else None)


def _held(source: Any, X: Any) -> int:
    """How much memory is taken by holding rows that could be read again."""
    lazy = callable(source) or isinstance(source, str | Mapping) or hasattr(source, "__fspath__")
    if not lazy or isinstance(X, Batched | np.memmap):
        return 0
    return int(X.nbytes if isinstance(X, np.ndarray) else X.data.nbytes + X.indices.nbytes)


def _matrix(source: Any, in_batches: bool) -> Any:
    return open_table(source, in_batches).X
