"""For a site's administrator only: what is in a table, what its file should say of it, and what is wrong with it.

Everything is said here, with rows and columns, because it is said at the site. Nothing of it is ever sent.
"""

from __future__ import annotations

import logging
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan.data.cells.cell_numbers import CellReader
from fedspan.data.cells.column_profile import ColumnProfile
from fedspan.data.cells.dialect import split_place
from fedspan.data.ids_and_labels import to_class, to_labels
from fedspan.data.preparation import Preparation, add_words
from fedspan.data.sources import Source
from fedspan.data.tables import find_source, open_table
from fedspan.deployment.kit import to_toml_value
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import FILE, LARGEST, Policy, SiteTable
from fedspan.deployment.run_request import RunRequest
from fedspan.deployment.server_job import Outcome
from fedspan.deployment.site_tables.site_data import is_not_allowed, open_site_table
from fedspan.engines.handshake import COLUMN_KINDS
from fedspan.errors import InputError
from fedspan.privacy.budget import Budget

_MOST_CLASSES = 100
_SHOWN = 3  # rows of each kind of problem


@dataclass(frozen=True)
class Proposal:
    """What a site's file could say of a table, and what its administrator should know of it."""

    keys: dict[str, object]
    notes: list[str] = field(default_factory=list)


class Rehearsal(NamedTuple):
    """How a job would end, and what the site's log would say."""

    outcome: Outcome
    log: list[str]


def rehearse(kit: Path, request: RunRequest) -> Rehearsal:
    """Carry out a job here, on copies of this site alone: nothing is sent, and no budget or count of it is touched."""
    policy = Policy.read(kit)
    tree = tomllib.loads((kit / "local" / FILE).read_text(encoding="utf-8"))
    tables = {name: {**tree["tables"][name], **_absolute_paths(table)} for name, table in policy.tables.items()}
    require = {key: value for key, value in tree.get("require", {}).items() if key in _OF_ONE_SITE}
    sections = {**{f'tables."{name}"': keys for name, keys in tables.items()}, "allow": tree.get("allow", {})}
    text = "".join(_write_section(name, keys) for name, keys in {**sections, "require": require}.items())
    log = _LogLines()
    logger = logging.getLogger("fedspan.site")
    with TemporaryDirectory() as place:
        copies = {f"copy-{number}": Path(place) / f"copy-{number}" for number in range(max(3, policy.others + 1))}
        for copy in copies.values():
            (copy / "local").mkdir(parents=True)
            write_whole(copy / "local" / FILE, text)
            if policy.epsilon is not None and policy.delta is not None:
                Budget.grant(copy / "fedspan" / "budget.json", policy.epsilon, policy.delta)
        logger.addHandler(log)
        try:
            outcome = LoopbackFederation(Path(place) / "server", copies).carry_out(request)
        finally:
            logger.removeHandler(log)
    return Rehearsal(outcome, log.lines)


_OF_ONE_SITE = ("secure", "others", "row_norm", "epsilon", "delta")  # what does not name other sites


def _absolute_paths(table: SiteTable) -> dict[str, str]:
    places = {"path": table.path, "held_out": table.held_out, "secret_file": table.secret_file}
    return {key: place for key, place in places.items() if place is not None}


def _write_section(name: str, keys: Mapping[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{to_toml_value(key)} = {to_toml_value(value)}\n" for key, value in keys.items())


class _LogLines(logging.Handler):
    """Keeps each line of a log once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.lines:
            self.lines.append(line)


def propose_table(
    address: str,
    *,
    columns: Sequence[str] | None,
    id: str | None = None,
    label: str | None = None,
    categories: Sequence[str] = (),
    tell_rows: bool = True,
    min_rows: int = 1,
) -> Proposal:
    """Keys for a table, filled from the data for review. `columns` None: all columns that can be used."""
    source = find_source(address)
    if source is None:
        return _propose_array(address, columns, id=id, label=label, tell_rows=tell_rows)
    for name in [*(columns or ()), *filter(None, [id, label]), *categories]:
        if name not in source.names:
            raise InputError(f"There is no column {name!r} in {address}. It has {', '.join(source.names)}.")
    notes = []
    chosen = [name for name in columns or source.names if name not in (id, label)]
    if columns is None:
        numeric = _find_numeric(source, [name for name in chosen if name not in categories])
        left = [name for name in chosen if name not in numeric and name not in categories]
        chosen = [name for name in chosen if name not in left]
        notes += [f"left out {name!r}: it is not numeric; --categories opens it as words" for name in left]
    if not chosen:
        raise InputError(f"{address} has no column that jobs could use. Name some with --columns.")
    words: dict[str, set[str]] = {name: set() for name in categories}
    labels, rows = [np.zeros(0, dtype=object)], 0
    text = [*categories, *filter(None, [label])] or chosen[:1]
    for batch in source.batches(text, text):
        words = {name: add_words(name, seen, batch[name]) for name, seen in words.items()}
        rows += len(batch[text[0]])
        labels += [] if label is None else [batch[label]]
    kinds = _find_kinds(source, [name for name in chosen if name not in words])
    keys: dict[str, object] = {"path": address, "columns": chosen}
    keys |= {"id": id} if id else {}
    keys |= _propose_label(label, np.concatenate(labels), notes)
    if words:
        keys["categories"] = {name: sorted(seen) for name, seen in words.items()}
        notes += [f"categories of {name!r}: {', '.join(sorted(seen)) or 'none'}" for name, seen in words.items()]
    units = {name: unit for name, unit in source.units.items() if name in chosen}
    keys |= {"units": units} if units else {}
    keys |= {"kinds": kinds} if kinds else {}
    return Proposal(_tell_rows(keys, rows, tell_rows, min_rows, notes), notes)


def _propose_array(
    address: str, columns: Sequence[str] | None, *, id: str | None, label: str | None, tell_rows: bool
) -> Proposal:
    if columns is not None:
        raise InputError(f"The columns of {address} have no names, so they can be opened only together: --all-columns.")
    opened, notes = open_table(address, Preparation(id=id, label=label)), list[str]()
    keys: dict[str, object] = {"path": address, "features": int(opened.X.shape[1])}
    keys |= {"id": id} if id else {}
    keys |= _propose_label(label, np.zeros(0) if opened.labels is None else opened.labels, notes)
    return Proposal(_tell_rows(keys, int(opened.X.shape[0]), tell_rows, 1, notes), notes)


def _tell_rows(keys: dict[str, object], rows: int, tell: bool, least: int, notes: list[str]) -> dict[str, object]:
    """Add a figure for the number of rows: rounded down to two digits, because it is public from now on."""
    if rows < least:
        notes.append(f"there are {rows} rows, fewer than min_rows = {least}: every job will be refused")
    if not tell or rows < 1:
        return keys
    unit = 10 ** max(0, len(str(rows)) - 2)
    notes.append(f"others are told of {rows // unit * unit} rows; change or delete rows = … as you like")
    return {**keys, "rows": rows // unit * unit}


def _propose_label(label: str | None, column: Array, notes: list[str]) -> dict[str, object]:
    if label is None:
        return {}
    present = column[[value is not None for value in column]]
    classes = np.unique(to_labels(present)).tolist() if len(present) else []
    if not 1 <= len(classes) <= _MOST_CLASSES:
        raise InputError(
            f"Column {label!r} has {len(classes)} different values, so it does not look like a column of classes (up "
            f"to {_MOST_CLASSES}). Choose another --label."
        )
    notes.append(f"classes of {label!r}: {', '.join(map(str, classes))}")
    return {"label": label, "classes": classes}


def _find_kinds(source: Source, names: list[str]) -> dict[str, str]:
    """What each of these columns holds, as far as it is one of the kinds that sites compare."""
    found = {name: ColumnProfile(name=name) for name in names}
    for batch in source.batches(names, names) if names else ():
        for name, cells in batch.items():
            found[name].add(cells)
    kinds = {name: _name_kind(profile) for name, profile in found.items()}
    return {name: kind for name, kind in kinds.items() if kind}


def _name_kind(profile: ColumnProfile) -> str:
    """The word for what a column holds; none if it is empty or not of one kind."""
    if profile.kind == "number":
        return "integer" if profile.whole == profile.numbers else "number"
    return profile.kind if profile.kind in COLUMN_KINDS else ""


def _find_numeric(source: Source, names: list[str]) -> set[str]:
    """The columns of numbers: all at once if they are, else one by one."""

    def are_numeric(some: list[str]) -> bool:
        try:
            for _ in source.batches(some, ()):
                pass
        except InputError:
            return False
        return True

    if not names or are_numeric(names):
        return set(names)
    return {name for name in names if are_numeric([name])}


@dataclass
class Inspection:
    """What was found in a table. `problems` are what its administrator may want to change."""

    rows: int = 0
    columns: int = 0
    problems: list[str] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)


def inspect_table(table: SiteTable) -> Inspection:
    """Look at every cell that a job could use."""
    found = Inspection()
    try:
        source = find_source(table.source)
        if source is None:
            _inspect_array(table, found)
        else:
            _inspect_columns(table, source, found)
        choice = table.choose({})
        opened = open_site_table(table, choice)
        found.columns = int(opened.X.shape[1])
        if opened.X.shape[0] < found.rows:
            found.problems.append(
                f"{found.rows - opened.X.shape[0]} of {found.rows} rows have missing values, and jobs leave them out "
                '(unless they say missing = "mean")'
            )
        if opened.X.shape[0] < table.min_rows:
            found.problems.append(f"jobs get {opened.X.shape[0]} rows, fewer than min_rows = {table.min_rows}: refused")
    except InputError as error:
        found.problems.append(str(error))
    for word, count in found.classes.items():
        if 0 < count < table.min_rows_per_class:
            least = table.min_rows_per_class
            found.problems.append(f"class {word!r} has {count} rows, fewer than min_rows_per_class = {least}: refused")
    return found


def _inspect_columns(table: SiteTable, source: Source, found: Inspection) -> None:
    apart = [name for name in (table.id, table.label, table.target) if name is not None]
    wanted = [*(name for name in table.columns or () if name not in apart), *apart]
    lost = [name for name in wanted if name not in source.names]
    found.problems += [f"there is no column {name!r} in the table" for name in lost]
    present = [name for name in wanted if name not in lost]
    cells: dict[str, Counter[str]] = {name: Counter() for name in present}
    where: dict[tuple[str, str], list[str]] = {}
    ids: dict[str, int] = {}
    known = {name: set(words) for name, words in table.categories.items()}
    classes = Counter({to_class(word): 0 for word in table.classes})
    dialect = split_place(table.source)[1]
    reader = CellReader(dialect)
    profiles = {name: ColumnProfile(dialect, name) for name in present if name in table.kinds}
    for batch in source.batches(present, present):
        for name, column in batch.items():
            if name in profiles:
                profiles[name].add(column)
            for at, word in enumerate(column, found.rows + 1):
                problem = _judge(table, name, word, known, classes, ids, at, reader)
                if problem:
                    cells[name][problem] += 1
                    if cells[name][problem] <= _SHOWN:
                        where.setdefault((name, problem), []).append(
                            f"row {at}" if word is None else f"row {at}: {word!r}"
                        )
        found.rows += len(next(iter(batch.values()))) if batch else 0
    for name, counts in cells.items():
        for problem, count in counts.items():
            shown = ", ".join(where[name, problem]) + (", …" if count > _SHOWN else "")
            found.problems.append(f"column {name!r}: {count} {problem} ({shown})")
    for name, profile in profiles.items():
        kind = "date" if name in dialect.dates else _name_kind(profile)
        if kind and not _may_be(table.kinds[name], kind):
            found.problems.append(
                f"column {name!r}: the site's file says that it holds {table.kinds[name]!r} (kinds), but it is {kind!r}"
            )
    found.classes = dict(classes)


def _may_be(said: str, found: str) -> bool:
    """Whether a column that holds this may be called that: whole numbers are numbers, and 0 and 1 may be yes and no."""
    return said == found or (found == "integer" and said in ("number", "yes/no"))


def _judge(
    table: SiteTable,
    name: str,
    word: str | None,
    known: Mapping[str, set[str]],
    classes: Counter[str],
    ids: dict[str, int],
    at: int,
    reader: CellReader,
) -> str | None:
    """What is wrong with a cell; None if nothing is. Classes and ids are counted on the way."""
    if word is None:
        return "missing values"
    if name == table.label:
        if to_class(word) not in classes:
            return "labels that are none of the classes"
        classes[to_class(word)] += 1
        return None
    if name == table.id:
        return "ids that another row has, too" if ids.setdefault(word, at) != at else None
    if name in known:
        return None if word in known[name] else "values that are none of its categories"
    number = reader.to_number_of(name, word)
    if number is None:
        return "cells that are not numbers: jobs are refused"
    if np.isnan(number):
        return "missing values"
    return None if abs(number) <= LARGEST else "numbers that are too large or not finite"


def _inspect_array(table: SiteTable, found: Inspection) -> None:
    opened = open_table(table.source, replace(Preparation(), id=table.id, label=table.label, n_features=table.features))
    X = opened.X
    found.rows = int(X.shape[0])
    if X.shape[1] != table.features:
        found.problems.append(f"the table has {X.shape[1]} columns, but its file says features = {table.features}")
    entries = sp.coo_array(X)
    bad = is_not_allowed(entries.data) if entries.data.dtype.kind == "f" else np.zeros(entries.nnz, dtype=bool)
    if bad.any():
        places = list(zip(entries.row[bad] + 1, entries.col[bad] + 1, strict=True))[:_SHOWN]
        shown = ", ".join(f"row {row}, column {column}" for row, column in places)
        found.problems.append(f"{int(bad.sum())} numbers are missing, too large or not finite ({shown})")
    if opened.labels is not None:
        seen = Counter(to_class(label) for label in opened.labels)
        found.classes = {to_class(word): seen.pop(to_class(word), 0) for word in table.classes}
        found.problems += [f"{count} labels {word!r} are none of the classes" for word, count in seen.items()]
