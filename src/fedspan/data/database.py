"""Tables and queries in databases: PostgreSQL (through ADBC) and SQLite (through Python itself), read-only.

An address is `postgresql://user@host:port/database` or `sqlite:///path`, with `?table=…` at its end, or with a query
beside it. Passwords are best left to PGPASSWORD or ~/.pgpass; one in the address is used, and never shown.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import numpy as np

from fedspan._types import Array
from fedspan.data._arrow_source import ArrowSource
from fedspan.data.sources import Batch, Source, explain_file_errors, rows_per_batch, to_numbers, to_words
from fedspan.errors import InputError, MissingExtraError, suggest

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Cursor

_SCHEMES = ("postgresql", "postgres", "sqlite")
_SECRETS = ("password", "sslpassword")
_KEYS = ("url", "query", "table")


@dataclass(frozen=True)
class Query:
    """A database's address (without the table), and what to read in it."""

    url: str
    sql: str = ""
    table: str = ""  # instead of a query

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme

    def select(self, names: Sequence[str] | None = None) -> str:
        """The query; of a table, only the columns that are asked for."""
        if not self.table:
            return self.sql
        columns = "*" if names is None else ", ".join(map(_quote_name, names))
        return f"SELECT {columns} FROM {'.'.join(map(_quote_name, self.table.split('.')))}"  # noqa: S608 - all quoted


def is_address(source: object) -> TypeGuard[str | Mapping[str, str]]:
    """Whether that is a database, and not a file."""
    return (isinstance(source, str) and "://" in source) or (isinstance(source, Mapping) and "url" in source)


def parse_query(source: str | Mapping[str, str]) -> Query:
    """What is asked for by an address with `?table=…`, or by `{ url = …, query = … }`, `{ url = …, table = … }`."""
    given = {"url": source} if isinstance(source, str) else {key: str(value) for key, value in source.items()}
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise InputError(
            f"A database is described by url with query or table, but {unknown[0]!r} was given. "
            f"{suggest(unknown[0], _KEYS)}"
        )
    url = urlsplit(given["url"])
    if url.scheme not in _SCHEMES:
        raise InputError(f"{url.scheme}:// is not a known kind of database. Use one of: {', '.join(_SCHEMES)}.")
    options = parse_qsl(url.query, keep_blank_values=True)
    tables = [value for key, value in options if key == "table"]
    if "table" in given:
        tables.append(given["table"])
    if len(tables) + ("query" in given) != 1:
        found = "more than one is given" if tables else "none is given"
        raise InputError(f"{hide_password(given['url'])} needs exactly one table or one query, but {found}.")
    rest = urlencode([pair for pair in options if pair[0] != "table"], quote_via=quote)
    bare = f"{url.scheme}://{url.netloc}{url.path}" + (f"?{rest}" if rest else "")
    if tables:
        return Query(bare, table=tables[0])
    return Query(bare, given["query"].strip().rstrip(";"))


def hide_password(address: str) -> str:
    """An address as it may be shown: without a password."""
    url = urlsplit(address)
    user, at, host = url.netloc.rpartition("@")
    options = [(key, value) for key, value in parse_qsl(url.query) if key not in _SECRETS]
    netloc = user.partition(":")[0] + at + host
    shown = urlunsplit((url.scheme, netloc, url.path, "", ""))
    return f"{shown}?{urlencode(options, quote_via=quote)}" if options else shown


def has_password(address: str) -> bool:
    url = urlsplit(address)
    before_host = url.netloc.rpartition("@")[0]
    return ":" in before_host or any(key in _SECRETS for key, _ in parse_qsl(url.query))


def sqlite_path(url: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    return Path(unquote(urlsplit(url).path).removeprefix("/") or ".")


def open_query(source: str | Mapping[str, str]) -> Source:
    """The rows of a table or a query, as a source of named columns."""
    query = parse_query(source)
    return SqliteSource(query) if query.scheme == "sqlite" else PostgresqlSource(query)


class SqliteSource(Source):
    """A query on an SQLite file."""

    def __init__(self, query: Query) -> None:
        self.query, self.path = query, sqlite_path(query.url)
        self.rows, self.units = None, {}
        if not self.path.is_file():
            found = "is a folder" if self.path.is_dir() else "does not exist"
            raise InputError(f"{self.path} must be an SQLite file, but it {found}.")
        with explain_file_errors(self.path), self.path.open("rb") as file:
            head = file.read(100)
        page_size, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
        if self.path.stat().st_size < page_size * pages:  # SQLite itself would read zeros
            raise InputError(f"The SQLite file {self.path} was cut off. Copy it again.")
        with self._execute() as cursor:
            self.names = tuple(column[0] for column in cursor.description or ())
        if not self.names:
            raise InputError(f"The query must return rows, but {self.query.select()[:60]!r} does not.")

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        columns = names if self.query.table else self.names
        with self._execute(names) as cursor:
            while rows := cursor.fetchmany(rows_per_batch(len(self.names))):
                batch = {}
                for name in names:
                    i = columns.index(name)
                    values = [row[i] for row in rows]
                    batch[name] = to_words(values) if name in text else to_numbers(_to_objects(values), name)
                yield batch

    @contextmanager
    def _execute(self, names: Sequence[str] | None = None) -> Iterator[sqlite3.Cursor]:
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")  # views in the file may call no risky functions
                connection.execute("PRAGMA cell_size_check = ON")
                yield connection.execute(self.query.select(names))
        except sqlite3.Error as error:
            raise InputError(f"Cannot read from {self.path}: {error}. Check the table or the query.") from None


def _to_objects(values: list[object]) -> Array:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


class PostgresqlSource(ArrowSource):
    """A query on a PostgreSQL server, in a transaction that cannot write; sent again for every pass."""

    def __init__(self, query: Query) -> None:
        self.query = query
        with self._connect() as cursor:
            super().__init__(cursor.adbc_execute_schema(query.select()), None)

    def record_batches(self, names: Sequence[str], step: int) -> Iterator[pa.RecordBatch]:
        with self._connect() as cursor:
            cursor.execute(self.query.select(names))
            with cursor.fetch_record_batch() as reader:
                for batch in reader:
                    part = batch.select(list(names))
                    yield from (part.slice(start, step) for start in range(0, part.num_rows, step))

    @contextmanager
    def _connect(self) -> Iterator[Cursor]:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError:
            raise MissingExtraError("reading from PostgreSQL", "data") from None
        try:
            with dbapi.connect(_make_read_only(self.query.url)) as connection, connection.cursor() as cursor:
                yield cursor
        except dbapi.Error as error:
            reason = _shorten_reason(error, self.query.url)
            hint = "Is the server running?" if "connect" in reason else "Check the table or the query."
            raise InputError(f"Cannot read from {hide_password(self.query.url)}: {reason}. {hint}") from None


def _make_read_only(url: str) -> str:
    """The address with options that keep a query from writing, and an absent server from being waited for."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    options["options"] = f"{options.get('options', '')} -c default_transaction_read_only=on".strip()
    options.setdefault("connect_timeout", "10")
    return urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options, quote_via=quote), ""))


def _shorten_reason(error: Exception, url: str) -> str:
    """What the driver says, in one line, without its own prefixes, the query or a password."""
    text = re.sub(r"\s+", " ", re.sub(r"^[A-Z_]+: (\[libpq\] )?", "", str(error)))
    text = re.split(r" LINE \d+:| Query was:|\. SQLSTATE| Is the server running", text)[0].strip(" .")
    secret = urlsplit(url).password
    return text.replace(unquote(secret), "…").replace(secret, "…") if secret else text


def _quote_name(name: str) -> str:
    """An identifier as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'
