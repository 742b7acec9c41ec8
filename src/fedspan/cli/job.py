"""The job file: TOML with one explicit schema, checked whole before anything runs, and written back as understood.

What this version cannot do yet is refused, never ignored: a privacy table that has no effect would be a lie.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fedspan.cli.tasks import TASKS, check_choice
from fedspan.cli.tasks import estimator as estimator
from fedspan.cli.toml import bare_key, override, written
from fedspan.errors import InputError, nearest

if TYPE_CHECKING:
    from fedspan import Participation, RowDP
    from fedspan.federation.data import Table
    from fedspan.protocol import Array

_PLAIN = {bool, int, float, str, dict, NoneType}  # what a job file can hold; other parameters are for Python only
# What the hints of the constructors leave open, or give as an object that a file writes as a table.
_WRITTEN: dict[str, tuple[type, ...]] = {
    "solver": (str,), "method": (str,), "step": (str,), "class_weight": (str,), "random_state": (int,),
    "participation": (dict,),
}  # fmt: skip
LEAST = {
    "job.n_components": 1,
    "job.max_rounds": 1,
    "job.rounds": 1,
    "job.hidden": 1,
    "job.batch_size": 1,
    "job.local_steps": 1,
    "job.random_state": 0,
    "run.checkpoint_every": 1,
    "run.min_clients": 1,
}

_NOT_YET = {
    "run.timeout": "all clients are in this process and none can be late; it comes with federations, leave it out",
}
_SAYS = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string",
    list: "a list of strings", dict: "a table name = path",
}  # fmt: skip

_SAYS_OF = {"job.participation": "a table such as { fraction = 0.1 }"}


@cache
def parameters(task: str = "pca") -> dict[str, tuple[type, ...]]:
    """The estimator's parameters that [job] can hold, and their types: read off its constructor, so no drift.

    `secure` has a table of its own.
    """
    kind = estimator(task)
    hints = get_type_hints(kind.__init__)
    names = [name for name in inspect.signature(kind).parameters if name != "secure"]
    kinds = {name: _WRITTEN.get(name) or get_args(hints[name]) or (hints[name],) for name in names}
    return {name: kind for name, kind in kinds.items() if _PLAIN.issuperset(kind)}


def schema(task: str) -> dict[str, dict[str, tuple[type, ...]]]:
    """Every table, every key, and the types of its values."""
    return {
        "job": {"task": (str,), **parameters(task)},
        "data": {
            "clients": (list, dict),
            "views": (list, dict),
            "columns": (list,),
            "id": (str,),
            "label": (str,),
            "held_out": (list, dict),
        },
        "privacy": {
            "epsilon": (float,),
            "delta": (float,),
            "row_norm": (float,),
            "neighbours": (str,),
            "expect": (float,),
            "simulate": (bool,),
            "budgets": (str,),
        },
        "secure": {"enabled": (bool,), "threshold": (int,)},
        "run": {"checkpoint_every": (int,), "timeout": (float,), "min_clients": (int,), "transcript": (bool,)},
    }


@dataclass(frozen=True)
class Job:
    """A checked job: the task, the estimator's parameters, where each client's table is, which columns count."""

    task: str
    parameters: Mapping[str, Any]
    clients: Mapping[str, str]
    columns: tuple[str, ...] | None = None
    id: str | None = None
    label: str | None = None
    checkpoint_every: int = 1
    min_clients: int | None = None
    transcript: bool = False  # keep every message, for an audit
    privacy: Mapping[str, Any] = field(default_factory=dict)
    secure: Mapping[str, Any] = field(default_factory=dict)
    held_out: Mapping[str, str] = field(default_factory=dict)  # further rows of each view

    def options(self) -> dict[str, Any]:
        """The parameters as the estimator's constructor takes them."""
        from fedspan import Secure

        options = dict(self.parameters)
        if options.get("participation"):
            options["participation"] = _participation(options["participation"])
        if self.privacy:
            options["privacy"] = _privacy(self.privacy)
        if self.secure.get("enabled"):
            options["secure"] = Secure(self.secure.get("threshold"))
        return options

    def open(self, name: str, held_out: bool = False) -> tuple[Table, dict[str, Array]]:
        """The features of a client, and its columns of ids and labels (which not every view has)."""
        from fedspan.federation.columns import open_apart

        if held_out:
            return open_apart(self.held_out[name], maybe=[c for c in (self.id, self.label) if c is not None])

        named = [column for column in (self.id, self.label) if column is not None]
        needed = [c for c in named if c == self.id or TASKS[self.task].over == "clients"]
        return open_apart(self.clients[name], self.columns, needed, [c for c in named if c not in needed])

    def sources(self) -> dict[str, Callable[[], Table]]:
        """What opens each client's table, when it is needed."""
        return {name: partial(self._table, name) for name in self.clients}

    def _table(self, name: str) -> Table:
        return self.open(name)[0]

    def resolved(self) -> Job:
        """With every default written out and a seed drawn if there is none: what a resumed run must repeat."""
        from fedspan.estimators.launch import seed_from

        given = inspect.signature(estimator(self.task)).parameters
        full = {name: self.parameters.get(name, given[name].default) for name in parameters(self.task)}
        full["random_state"] = seed_from(full["random_state"])
        return replace(self, parameters=full)

    def to_toml(self) -> str:
        """The job as a file that `load` understands."""
        data = {"columns": self.columns, "id": self.id, "label": self.label}
        tables = {
            "job": {"task": self.task, **self.parameters},
            "run": {
                "checkpoint_every": self.checkpoint_every,
                "min_clients": self.min_clients,
                "transcript": self.transcript or None,
            },
            "privacy": self.privacy,
            "secure": self.secure,
            "data": data,
            f"data.{TASKS[self.task].over}": self.clients,
            "data.held_out": self.held_out,
        }
        lines = []
        for name, table in tables.items():
            rows = [f"{bare_key(k)} = {written(v)}" for k, v in table.items() if v is not None]  # TOML has no null
            lines += ["", f"[{name}]", *rows] if rows else []
        return "\n".join(lines[1:]) + "\n"


def load(path: Path, overrides: Sequence[str] = ()) -> Job:
    """The job in a file, with `table.key=value` overrides; relative data paths are beside the file."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"need a job file, cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"need TOML in {path}: {error}") from None
    for text in overrides:
        override(tree, text)
    return parse(tree, path.resolve().parent)


def parse(tree: dict[str, Any], beside: Path) -> Job:
    """The job that a TOML document describes, or the first thing that is wrong with it."""
    task = _task(tree)
    checked = {table: _table(task, table, value) for table, value in tree.items()}
    job, data, run = (checked.get(table, {}) for table in ("job", "data", "run"))
    job.pop("task")
    _check_data(task, data)
    if "min_clients" in run and "min_clients" not in inspect.signature(estimator(task).fit).parameters:
        raise InputError(f"run.min_clients is not for task {task!r}, which needs every client; leave it out")
    check_choice(task, job)
    if "participation" in job:
        _participation(job["participation"])
    privacy, secure = dict(checked.get("privacy", {})), dict(checked.get("secure", {}))
    if secure.get("enabled") is False:
        secure = {}
    if "privacy" in checked:
        if "budgets" in privacy:
            privacy["budgets"] = str(beside / privacy["budgets"])
        _privacy(privacy)
    if "threshold" in secure and not secure.get("enabled"):
        raise InputError("secure.threshold needs secure.enabled = true, got none; write it, or leave the threshold out")
    columns = data.get("columns")
    return Job(
        task,
        job,
        _clients(data[TASKS[task].over], beside),
        None if columns is None else tuple(columns),
        data.get("id"),
        data.get("label"),
        run.get("checkpoint_every", 1),
        run.get("min_clients"),
        run.get("transcript", False),
        privacy,
        secure,
        _held_out(task, job, data, beside),
    )


def _task(tree: Mapping[str, Any]) -> str:
    """The task, which decides what else can be written."""
    job = tree.get("job", {})
    if not isinstance(job, dict):
        raise InputError(f"need [job] to be a table, got {job!r}")
    task = job.get("task")
    if not isinstance(task, str) or task not in TASKS:
        hint = nearest(str(task), TASKS) if task else 'write task = "pca" in [job]'
        raise InputError(f"need a task in job.task, got {task!r}; {hint}")
    return task


def _check_data(task: str, data: Mapping[str, Any]) -> None:
    """Who holds what, and what is to be learned, as this task needs it."""
    over = TASKS[task].over
    other = "views" if over == "clients" else "clients"
    if other in data:
        tasks = " and ".join(name for name, t in TASKS.items() if t.over == other)
        raise InputError(f"data.{other} are for {tasks}; task {task!r} needs data.{over}")
    if over not in data:
        raise InputError(f"need data.{over}, got none; list one file per client, or a table name = path")
    if TASKS[task].learns_label and "label" not in data:
        raise InputError("need data.label, got none; name the column that holds the classes to learn")
    if over == "views" and "columns" in data:
        raise InputError("data.columns is for clients with the same columns, and views have their own; leave it out")


def _table(task: str, table: str, value: Any) -> dict[str, Any]:
    known = schema(task)
    if table not in known:
        raise InputError(f"need a known table in the job file, got {table!r}; {nearest(table, known)}")
    if not isinstance(value, dict):
        raise InputError(f"need [{table}] to be a table, got {value!r}")
    for key in value if table == "job" else ():
        others = [name for name in TASKS if key not in known["job"] and key in parameters(name)]
        if others:
            raise InputError(f"job.{key} is not for task {task!r}; leave it out (it is for {', '.join(others)})")
    return {key: _value(table, key, v, known[table]) for key, v in value.items()}


def _value(table: str, key: str, value: Any, known: Mapping[str, tuple[type, ...]]) -> Any:
    where = f"{table}.{key}"
    if key not in known:
        raise InputError(f"need a known key in [{table}], got {key!r}; {nearest(key, known)}")
    kinds = known[key]
    if type(value) is int and float in kinds and int not in kinds:
        value = float(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if where == "job.participation":  # its values are numbers, and checked by Participation itself
        inside = ()
    if type(value) not in kinds or not all(isinstance(item, str) for item in inside):
        need = _SAYS_OF.get(where) or " or ".join(_SAYS[kind] for kind in kinds if kind in _SAYS)
        raise InputError(f"need {where} to be {need}, got {value!r}")
    if where in LEAST and value < LEAST[where]:
        raise InputError(f"need {where} to be at least {LEAST[where]}, got {value!r}")
    if where in _NOT_YET and value is not False:  # `enabled = false` says how it is
        raise InputError(f"{where}: {_NOT_YET[where]}")
    return value


def _participation(table: Mapping[str, Any]) -> Participation:
    """`participation = { fraction = 0.1, scheme = 2 }`, or with count."""
    from fedspan.federation.participation import Participation

    for key, value in table.items():
        if key not in ("fraction", "count", "scheme"):
            hint = nearest(key, ["fraction", "count", "scheme"])
            raise InputError(f"need a known key in job.participation, got {key!r}; {hint}")
        if type(value) not in ((int, float) if key == "fraction" else (int,)):
            raise InputError(
                f"need job.participation.{key} to be {'a number' if key == 'fraction' else 'an integer'}, got {value!r}"
            )
    return Participation(**table)


def _privacy(table: Mapping[str, Any]) -> RowDP:
    """[privacy], which is always of the sound kind; the paper's own noise is for Python only."""
    from fedspan.privacy.dp import RowDP

    for key in ("epsilon", "delta"):
        if key not in table:
            raise InputError(f"need privacy.{key}, got none; leave [privacy] out to run without it")
    try:
        return RowDP(**table)
    except InputError as error:
        raise InputError(f"[privacy]: {error}") from None


def _held_out(task: str, job: Mapping[str, Any], data: Mapping[str, Any], beside: Path) -> dict[str, str]:
    """Rows that are looked at while GCCA learns, one file per view: in the order of the views, or by their names."""
    if "held_out" in data and task != "gcca":
        raise InputError(f"data.held_out is for gcca, not for task {task!r}; leave it out")
    if ("held_out" in data) != ("patience" in job):
        need, got = ("job.patience", "data.held_out") if "held_out" in data else ("data.held_out", "job.patience")
        raise InputError(f"need {need} beside {got}: rounds without a better alignment of the rows held out")
    if "held_out" not in data:
        return {}
    views, given = _clients(data["views"], beside), data["held_out"]
    if len(given) != len(views) or (isinstance(given, dict) and set(given) != set(views)):
        raise InputError(f"need data.held_out for each of the {len(views)} views, got {len(given)}")
    return _clients(given if isinstance(given, dict) else dict(zip(views, given, strict=True)), beside)


def _clients(given: list[str] | dict[str, str], beside: Path) -> dict[str, str]:
    """Absolute paths by client name; those of a list are named by their files if that tells them apart."""
    from fedspan.federation.clients import named

    if isinstance(given, list):
        stems = [Path(path).stem for path in given]
        given = dict(zip(stems, given, strict=True)) if len(set(stems)) == len(stems) else named(given)
    return {name: path if "://" in path else str(beside / path) for name, path in named(given).items()}
