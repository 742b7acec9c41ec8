"""What users give as `clients`: a list or a mapping of tables and files, made ready for an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedspan.errors import InputError
from fedspan.federation.data import Table, open_table
from fedspan.federation.remote import RemoteTable
from fedspan.federation.schema import Schema, agreed_schema


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


def open_clients(clients: Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, Any], Schema]:
    """The clients' data by id (files stay closed until they are needed), and the schema that they agree on."""
    if isinstance(clients, np.ndarray | str) or not isinstance(clients, Mapping | Sequence):
        raise InputError(
            f"need a list or mapping with one entry per client, got one {type(clients).__name__}; "
            "for a single client write fit([X])"
        )
    kept: dict[str, Any] = {}

    def tables() -> Iterator[tuple[str, Table]]:
        for name, source in sorted(named(clients).items()):
            try:
                table = _open(source)
            except InputError as error:
                raise type(error)(f"client {name!r}: {error}") from error
            lazy = callable(source) or isinstance(source, str) or hasattr(source, "__fspath__")
            kept[name] = partial(_matrix, source) if lazy else table.X
            yield name, table

    schema = agreed_schema(tables())
    return kept, schema


def _open(source: Any) -> Any:
    return source if isinstance(source, RemoteTable) else open_table(source() if callable(source) else source)


def _matrix(source: Any) -> Any:
    return _open(source).X
