"""Tables and queries in databases: PostgreSQL (through ADBC) and SQLite (through Python itself), read-only.

An address is `postgresql://user@host:port/database` or `sqlite:///path`, with `?table=…` at its end, or beside it a
query. A password is best left to PGPASSWORD or ~/.pgpass; one in the address is used, and never shown.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from fedspan.data.preparation import as_text
from fedspan.data.sources import Arrow, Batch, Source, as_numbers, batch_rows, reading
from fedspan.errors import InputError, MissingExtraError, nearest

_SCHEMES = ("postgresql", "postgres", "sqlite")
_SECRETS = ("password", "sslpassword")


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
        columns = "*" if names is None else ", ".join(map(_quoted, names))
        return f"SELECT {columns} FROM {'.'.join(map(_quoted, self.table.split('.')))}"  # noqa: S608 - all quoted


def is_address(source: Any) -> bool:
    """Whether that is a database, and not a file."""
    return (isinstance(source, str) and "://" in source) or (isinstance(source, Mapping) and "url" in source)


def query_of(source: str | Mapping[str, Any]) -> Query:
    """What is asked for by an address with `?table=…`, or by `{ url = …, query = … }`, `{ url = …, table = … }`."""
    given = {"url": source} if isinstance(source, str) else dict(source)
    odd = [key for key in given if key not in ("url", "query", "table")]
    if odd:
        raise InputError(f"need url with query or table, got {odd[0]!r}; {nearest(odd[0], ['url', 'query', 'table'])}")
    url = urlsplit(str(given["url"]))
    if url.scheme not in _SCHEMES:
        raise InputError(f"need a database of a known kind ({', '.join(_SCHEMES)}), got {url.scheme}://…")
    options = parse_qsl(url.query, keep_blank_values=True)
    tables = [value for key, value in options if key == "table"] + [given[k] for k in ("table",) if k in given]
    if len(tables) + ("query" in given) != 1:
        raise InputError(f"need one table or one query in {shown(given['url'])}, got {'more' if tables else 'none'}")
    rest = urlencode([pair for pair in options if pair[0] != "table"], quote_via=quote)
    bare = f"{url.scheme}://{url.netloc}{url.path}" + (f"?{rest}" if rest else "")
    if tables:
        return Query(bare, table=str(tables[0]))
    return Query(bare, str(given["query"]).strip().rstrip(";"))


def shown(address: str) -> str:
    """An address as it may be shown: without a password."""
    url = urlsplit(address)
    user, at, host = url.netloc.rpartition("@")
    options = [(key, value) for key, value in parse_qsl(url.query) if key not in _SECRETS]
    netloc = user.partition(":")[0] + at + host
    return urlunsplit((url.scheme, netloc, url.path, "", "")) + (
        f"?{urlencode(options, quote_via=quote)}" if options else ""
    )


def has_password(address: str) -> bool:
    url = urlsplit(address)
    inside = ":" in url.netloc.rpartition("@")[0]
    return inside or any(key in _SECRETS for key, _ in parse_qsl(url.query))


def open_query(source: str | Mapping[str, Any]) -> Source:
    """The rows of a table or a query, as a source of named columns."""
    query = query_of(source)
    return Sqlite(query) if query.scheme == "sqlite" else postgresql(query)


class Sqlite:
    """A query on an SQLite file."""

    def __init__(self, query: Query) -> None:
        self.query, self.path = query, sqlite_path(query.url)
        self.units: Mapping[str, str] = {}
        self.rows: int | None = None
        if not self.path.is_file():
            raise InputError(f"need an SQLite file, {self.path} is {'a folder' if self.path.is_dir() else 'not there'}")
        with reading(self.path), self.path.open("rb") as file:
            head = file.read(100)
        size, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
        if self.path.stat().st_size < size * pages:  # SQLite itself would read zeros
            raise InputError(f"need a whole SQLite file, {self.path} was cut off; copy it again")
        with self._cursor() as cursor:
            self.names = tuple(column[0] for column in cursor.description or ())
        if not self.names:
            raise InputError(f"need a query that gives rows, got {self.query.select()[:60]!r}")

    def batches(self, names: Sequence[str], text: Collection[str]) -> Iterator[Batch]:
        at = {name: (names if self.query.table else self.names).index(name) for name in names}
        with self._cursor(names) as cursor:
            while rows := cursor.fetchmany(batch_rows(len(self.names))):
                columns = {name: [row[i] for row in rows] for name, i in at.items()}
                yield {n: as_text(c) if n in text else as_numbers(_objects(c), n) for n, c in columns.items()}

    @contextmanager
    def _cursor(self, names: Sequence[str] | None = None) -> Iterator[sqlite3.Cursor]:
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as connection:
                yield connection.execute(self.query.select(names))
        except sqlite3.Error as error:
            raise InputError(f"cannot read from {self.path}: {error}; look at the table or the query") from None


def _objects(column: list[Any]) -> Any:
    import numpy as np

    out = np.empty(len(column), dtype=object)
    out[:] = column
    return out


def sqlite_path(url: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    return Path(unquote(urlsplit(url).path).removeprefix("/") or ".")


def postgresql(query: Query) -> Arrow:
    """A query on a PostgreSQL server, in a transaction that may not write; asked again for every pass."""
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise MissingExtraError("reading from PostgreSQL", "data") from None

    @contextmanager
    def cursor() -> Iterator[Any]:
        try:
            with dbapi.connect(_read_only(query.url)) as connection, connection.cursor() as opened:
                yield opened
        except dbapi.Error as error:
            said = _sentence(error, query.url)
            hint = "is the server up?" if "connect" in said else "look at the table or the query"
            raise InputError(f"cannot read from {shown(query.url)}: {said}; {hint}") from None

    with cursor() as opened:
        schema = opened.adbc_execute_schema(query.select())

    def batches(names: Sequence[str], step: int) -> Iterator[Any]:
        with cursor() as opened:
            opened.execute(query.select(names))
            with opened.fetch_record_batch() as reader:
                for batch in reader:
                    part = batch.select(list(names))
                    yield from (part.slice(at, step) for at in range(0, part.num_rows, step))

    return Arrow(schema, batches, None)


def _read_only(url: str) -> str:
    """The address with what keeps a query from writing, and a server that is not there from being waited for."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    options["options"] = f"{options.get('options', '')} -c default_transaction_read_only=on".strip()
    options.setdefault("connect_timeout", "10")
    return urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options, quote_via=quote), ""))


def _sentence(error: Exception, url: str) -> str:
    """What the driver says, in one line, without its own prefixes, the query or a password."""
    text = re.sub(r"\s+", " ", re.sub(r"^[A-Z_]+: (\[libpq\] )?", "", str(error)))
    text = re.split(r" LINE \d+:| Query was:|\. SQLSTATE| Is the server running", text)[0].strip(" .")
    secret = urlsplit(url).password
    return text.replace(unquote(secret), "…").replace(secret, "…") if secret else text


def _quoted(name: str) -> str:
    """An identifier as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'
