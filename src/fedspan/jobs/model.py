"""The job file: TOML with one explicit schema, checked whole before anything runs, and written back as understood.

What this version cannot do yet is refused, never ignored: a privacy table that has no effect would be a lie.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fedspan.data.preparation import PLAIN, Preparation
from fedspan.errors import InputError, nearest
from fedspan.jobs import data_section as job_data
from fedspan.jobs.tasks import TASKS, check_choice
from fedspan.jobs.tasks import estimator as estimator
from fedspan.jobs.toml import bare_key, override, written

if TYPE_CHECKING:
    from fedspan import Participation, RowDP
    from fedspan.core.ledger import Ledger
    from fedspan.data.batches import Table
    from fedspan.data.table import Prepared

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
    "data.n_features": 1,
}
_SAYS = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string",
    list: "a list of strings", dict: "a table name = path",
}  # fmt: skip

_SAYS_OF = {"job.participation": "a table such as { fraction = 0.1 }", **job_data.SAYS}


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
        "data": dict(job_data.KEYS),
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
    """A checked job: the task, the estimator's parameters, where each client's table is, how it is prepared."""

    task: str
    parameters: Mapping[str, Any]
    clients: Mapping[str, Any]
    preparation: Preparation = PLAIN
    checkpoint_every: int = 1
    min_clients: int | None = None
    transcript: bool = False  # keep every message, for an audit
    privacy: Mapping[str, Any] = field(default_factory=dict)
    secure: Mapping[str, Any] = field(default_factory=dict)
    held_out: Mapping[str, Any] = field(default_factory=dict)  # further rows of each view
    timeout: float | None = None  # in a federation: seconds in which a site must answer
    table: str | None = None  # in a federation: which of the sites' tables
    ready: Mapping[str, Preparation] = field(default_factory=dict, compare=False)  # by client, once it is agreed on

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.preparation.columns

    @property
    def id(self) -> str | None:
        return self.preparation.id

    @property
    def label(self) -> str | None:
        return self.preparation.label

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

    def prepared(self, ledger: Ledger | None = None, engine: Any = None) -> Job:
        """With all that the clients must agree on before their tables can be opened: see `estimators/prepare.py`."""
        from fedspan.estimators.prepare import agree, alone

        if TASKS[self.task].over == "views":
            return replace(self, ready=alone(self.clients, self.preparation))
        options = self.options()
        done = agree(
            self.clients, self.preparation, private="privacy" in options, secure=options.get("secure"), engine=engine,
            ledger=ledger,
        )  # fmt: skip
        return replace(self, ready=dict.fromkeys(self.clients, done))

    def open(self, name: str, held_out: bool = False) -> Table:
        """The table of a client, with its ids and labels."""
        from fedspan.data.clients import opened

        sources = self.sources()
        return opened(name, replace(sources[name], source=self.held_out[name]) if held_out else sources[name])

    def sources(self) -> dict[str, Prepared]:
        """What opens each client's table, when it is needed."""
        from fedspan.data.table import Prepared

        ready = self.ready or self.prepared().ready
        return {name: Prepared(source, ready[name]) for name, source in self.clients.items()}

    def resolved(self) -> Job:
        """With every default written out and a seed drawn if there is none: what a resumed run must repeat."""
        from fedspan.estimators.launch import seed_from

        given = inspect.signature(estimator(self.task)).parameters
        full = {name: self.parameters.get(name, given[name].default) for name in parameters(self.task)}
        full["random_state"] = seed_from(full["random_state"])
        return replace(self, parameters=full)

    def to_toml(self) -> str:
        """The job as a file that `load` understands."""
        tables = {
            "job": {"task": self.task, **self.parameters},
            "run": {
                "checkpoint_every": self.checkpoint_every,
                "min_clients": self.min_clients,
                "timeout": self.timeout,
                "transcript": self.transcript or None,
            },
            "privacy": self.privacy,
            "secure": self.secure,
            "data": {"table": self.table, **job_data.written_back(self.preparation)},
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
    return parse(read(path, overrides), path.resolve().parent)


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The file with its overrides, not yet checked."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"need a job file, cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"need TOML in {path}: {error}") from None
    for text in overrides:
        override(tree, text)
    return tree


def parse(tree: dict[str, Any], beside: Path) -> Job:
    """The job that a TOML document describes, or the first thing that is wrong with it."""
    task = _task(tree)
    checked = {table: _table(task, table, value) for table, value in tree.items()}
    job, data, run = (checked.get(table, {}) for table in ("job", "data", "run"))
    job.pop("task")
    job_data.check(task, data)
    if "min_clients" in run and "min_clients" not in inspect.signature(estimator(task).fit).parameters:
        raise InputError(f"run.min_clients is not for task {task!r}, which needs every client; leave it out")
    check_choice(task, job)
    if "participation" in job:
        _participation(job["participation"])
    privacy, secure = dict(checked.get("privacy", {})), dict(checked.get("secure", {}))
    if "privacy" in checked:
        if "budgets" in privacy:
            privacy["budgets"] = str(beside / privacy["budgets"])
        _privacy(privacy)
    if "threshold" in secure and not secure.get("enabled"):
        raise InputError("secure.threshold needs secure.enabled = true, got none; write it, or leave the threshold out")
    return Job(
        task,
        job,
        job_data.places(data[TASKS[task].over], beside),
        job_data.preparation(task, data),
        run.get("checkpoint_every", 1),
        run.get("min_clients"),
        run.get("transcript", False),
        privacy,
        secure,
        job_data.held_out(task, job, data, beside),
        run.get("timeout"),
        data.get("table"),
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
    # The values of job.participation are numbers, and checked by Participation itself.
    if type(value) not in kinds or (table == "data" and not job_data.items_fit(key, value)):
        need = _SAYS_OF.get(where) or " or ".join(_SAYS[kind] for kind in kinds if kind in _SAYS)
        raise InputError(f"need {where} to be {need}, got {value!r}")
    if where in LEAST and value < LEAST[where]:
        raise InputError(f"need {where} to be at least {LEAST[where]}, got {value!r}")
    return value


def _participation(table: Mapping[str, Any]) -> Participation:
    """`participation = { fraction = 0.1, scheme = 2 }`, or with count."""
    from fedspan.core.participation import Participation

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
    from fedspan.privacy.request import RowDP

    for key in ("epsilon", "delta"):
        if key not in table:
            raise InputError(f"need privacy.{key}, got none; leave [privacy] out to run without it")
    try:
        return RowDP(**table)
    except InputError as error:
        raise InputError(f"[privacy]: {error}") from None
