"""`fedspan.check`: every table of a job is read once, and all that is wrong with them is said at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedspan.data.cells.dialect import KEYS_OF_DIALECT, add_reading
from fedspan.data.clients import name_clients
from fedspan.data.preparation import PLAIN, Preparation
from fedspan.errors import FedspanError
from fedspan.jobs._data_section import write_preparation
from fedspan.jobs.checking.check_genotypes import check_genotype_files
from fedspan.jobs.checking.check_result import CheckFinding, CheckResult
from fedspan.jobs.checking.compare_tables import TableComparison
from fedspan.jobs.checking.table_profile import TableProfile, profile_table
from fedspan.jobs.checking.would_leave import TableSize, describe_leaving, find_algorithm
from fedspan.jobs.model import Job
from fedspan.jobs.tasks import TASKS

_ORDER = {"problem": 0, "warning": 1, "note": 2}


def check(job_or_clients: Job | str | os.PathLike[str] | Mapping[str, object] | Sequence[object]) -> CheckResult:
    """Read every table once, and report everything that is wrong with them together.

    Parameters:
        job_or_clients: A `Job`, the path of a job file, or clients as `fit` takes them.

    Returns:
        Findings, a proposal for [data], what would leave each client, and a verdict; print it to read it. Nothing is
        sent, and nothing is written.
    """
    if isinstance(job_or_clients, str | os.PathLike):
        job_or_clients = Job.load(job_or_clients)
    if isinstance(job_or_clients, Job):
        return check_job(job_or_clients)
    clients = name_clients(job_or_clients)
    tables = {name: profile_table(name, source) for name, source in clients.items()}
    compared = TableComparison(tables, PLAIN)
    compared.compare()
    keys = _merge_keys({}, compared.shared)
    places = {name: _add_keys(source, compared.own[name]) for name, source in clients.items()}
    changed = bool(keys) or any(compared.own.values())
    return CheckResult(_sort(compared.findings), tables, {**keys, "clients": places} if changed else None)


def check_job(job: Job, beside: Path | None = None) -> CheckResult:
    """The check of a job. `beside`: paths below this folder are written relative to it."""
    if job.genotypes is not None:
        return check_genotype_files(job, job.genotypes)
    views, secure = TASKS[job.task].over == "views", bool(job.secure.get("enabled"))
    tables = {name: profile_table(name, source) for name, source in job.places().items()}
    compared = TableComparison(tables, job.preparation, views, bool(job.privacy), secure)
    compared.compare()
    findings = list(compared.findings)
    keys = _merge_keys(_given_keys(job), compared.shared)
    leaves: Sequence[str] = []
    if not any(finding.weight == "problem" and finding.fix is None for finding in findings):
        try:
            leaves = _find_leaves(job, tables, compared, keys)
        except FedspanError as error:
            findings.append(CheckFinding("problem", f"The job itself: {error}"))
    changed = bool(compared.shared) or any(compared.own.values())
    data = None
    if changed:
        places = {name: _add_keys(place, compared.own[name]) for name, place in job.clients.items()}
        data = {**keys, TASKS[job.task].over: _shorten_paths(places, beside)}
        if job.held_out:
            data["held_out"] = _shorten_paths(dict(job.held_out), beside)
    return CheckResult(_sort(findings), tables, data, leaves)


def _given_keys(job: Job) -> dict[str, object]:
    keys = {key: value for key, value in write_preparation(job.preparation).items() if value is not None}
    if isinstance(categories := keys.get("categories"), Mapping) and not any(categories.values()):
        keys["categories"] = list(categories)
    return {**keys, **job.reading}


def _merge_keys(given: Mapping[str, object], proposed: Mapping[str, object]) -> dict[str, object]:
    """The keys of [data]: proposed ones take the place of those that are there, and lists of words are joined."""
    merged = dict(given)
    for key, value in proposed.items():
        old = merged.get(key)
        if key in KEYS_OF_DIALECT and isinstance(old, list | tuple) and isinstance(value, list):
            value = [*old, *(word for word in value if word not in old)]
        elif key == "dates" and isinstance(old, Mapping) and isinstance(value, Mapping):
            value = {**old, **value}
        merged[key] = value
    order = ["columns", "id", "label", "categories", "missing", "fill"]
    return {key: merged[key] for key in [*(k for k in order if k in merged), *(k for k in merged if k not in order)]}


def _add_keys(place: object, own: Mapping[str, object]) -> object:
    """A client's place with what should be written beside it."""
    if not own:
        return place
    given = dict(place) if isinstance(place, Mapping) else place
    keys = dict(own)
    if isinstance(given, dict):
        for key in ("dates", "multiply"):
            if isinstance(given.get(key), Mapping) and key in keys:
                keys[key] = {**given.pop(key), **keys[key]}  # type: ignore[dict-item]
    made = add_reading(given, keys)
    if not isinstance(made, Mapping):
        return made
    return {**{key: made[key] for key in ("path", "url", "table", "query") if key in made}, **made}


def _shorten_paths(places: Mapping[str, object], beside: Path | None) -> dict[str, object]:
    """The places with relative paths."""

    def shorten(path: object) -> object:
        if beside is None or not isinstance(path, str) or "://" in path or not Path(path).is_relative_to(beside):
            return path
        return str(Path(path).relative_to(beside))

    made = {}
    for name, place in places.items():
        described = isinstance(place, Mapping) and "path" in place
        made[name] = {**place, "path": shorten(place["path"])} if described else shorten(place)  # type: ignore[dict-item, index]
    return made


def _find_leaves(
    job: Job, tables: Mapping[str, TableProfile], compared: TableComparison, keys: Mapping[str, object]
) -> Sequence[str]:
    """What would leave if the job ran with the proposed keys."""
    views = TASKS[job.task].over == "views"
    categories = keys.get("categories", ())
    words = categories if isinstance(categories, Mapping) else dict.fromkeys(_as_list(categories), ())
    how = Preparation(
        categories={str(column): tuple(map(str, known)) for column, known in words.items()},
        missing=str(keys.get("missing", "refuse")),
        fill=job.preparation.fill,
    )
    columns = keys.get("columns")
    apart = {keys.get("id"), keys.get("label")}
    features, rows = {}, {}
    for name, table in tables.items():
        chosen = _as_list(columns) if columns is not None and not views else [*table.columns]
        features[name] = table.features or sum(
            max(1, len({word.casefold() for t in tables.values() if c in t.columns for word in t.columns[c].texts}))
            if c in words
            else 1
            for c in chosen
            if c not in apart
        )
        rows[name] = table.rows
    label = job.preparation.label
    classes = {word for t in tables.values() if label in t.columns for word in t.columns[label or ""].texts}
    server = find_algorithm(job.task, job.options(), TableSize(features, rows, len(classes)))
    secure = bool(job.secure.get("enabled"))
    return describe_leaving(server, how, privacy=dict(job.privacy), secure=secure, views=views)


def _as_list(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _sort(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    return sorted(findings, key=lambda finding: _ORDER[finding.weight])
