"""The job file: TOML with one explicit schema, checked whole before anything runs, and written back as understood.

What this version cannot do yet is refused, never ignored: a privacy table that has no effect would be a lie.
"""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypedDict, cast

from fedspan._foreign import parse_toml
from fedspan.algorithms.gcca.network_files import find_maker
from fedspan.core.ledger import Ledger
from fedspan.core.participation import Participation
from fedspan.core.protection import RETRIES
from fedspan.core.run import Engine
from fedspan.data.cells.dialect import KEYS_OF_DIALECT, add_reading
from fedspan.data.clients import open_client
from fedspan.data.preparation import PLAIN, Preparation
from fedspan.data.tables import Prepared, Table
from fedspan.deployment.run_request import RunRequest
from fedspan.errors import InputError, suggest
from fedspan.estimators.field.prepare_genotypes import GenotypeOptions, PreparedGenotypes, agree_on_genotypes
from fedspan.estimators.launch import seed_from
from fedspan.estimators.limit_requests import find_group_column, read_limits
from fedspan.estimators.parameters import Parameter, parameters_of
from fedspan.estimators.prepare import agree, settle_each
from fedspan.jobs import _data_section
from fedspan.jobs._data_section import DataTable, TablePlace
from fedspan.jobs._federated import build_request, find_sites, start_on_federation
from fedspan.jobs._toml import TomlTable, bare_key, override, to_toml
from fedspan.jobs.field.genotype_keys import GENOTYPE_KEYS, TASKS_OF_GENOTYPES, read_kind, write_options
from fedspan.jobs.finished import Run
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.runner import run_in_process
from fedspan.jobs.tasks import TASKS
from fedspan.jobs.tasks import estimator as estimator
from fedspan.jobs.watching import Progress
from fedspan.privacy.request import Neighbours, RowDP
from fedspan.reports.facts import RunFacts
from fedspan.secure.masking import Secure

# How a job file writes the types of parameters; those of other types are for Python only.
_WRITTEN: dict[type, type] = {bool: bool, int: int, float: float, str: str, NoneType: NoneType, Participation: dict}
# The least values of the keys that are no parameters of an estimator; those of [job] are in its table.
LEAST = {"run.checkpoint_every": 1, "run.min_clients": 1, "run.retries": 0, "data.n_features": 1}
_SAYS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list of strings",
    dict: "a table name = path",
}
_SAYS_OF = {
    "job.limits": 'a list of tables such as { on = "cost", at_most = 0.13 }',
    "job.participation": "a table such as { fraction = 0.1 }",
    **_data_section.EXPECTED,
}


@cache
def rows_of(task: str) -> dict[str, Parameter]:
    """The rows of the estimator's table of parameters that [job] can hold; privacy and secure have tables of their own.

    Their kinds are those that a file can write.
    """
    rows = {}
    for name, row in parameters_of(estimator(task)).items():
        kinds = tuple(_WRITTEN[kind] for kind in row.kinds if kind in _WRITTEN)
        if name == "limits":
            kinds = (list, NoneType)  # of tables
        if row.in_job and kinds:
            rows[name] = replace(row, kinds=kinds)
    return rows


def parameters(task: str = "pca") -> dict[str, tuple[type, ...]]:
    """The estimator's parameters that [job] can hold, and their types."""
    return {name: row.kinds for name, row in rows_of(task).items()}


def schema(task: str) -> dict[str, dict[str, tuple[type, ...]]]:
    """Every table, every key, and the types of its values."""
    tables: dict[str, dict[str, tuple[type, ...]]] = {
        "job": {"task": (str,), **parameters(task)},
        "data": dict(_data_section.KEYS),
        "genotypes": dict(GENOTYPE_KEYS),
        "privacy": {
            "epsilon": (float,),
            "delta": (float,),
            "row_norm": (float, str),
            "center": (float, str),
            "neighbours": (str,),
            "expect": (float,),
            "simulate": (bool,),
            "budgets": (str,),
        },
        "secure": {"enabled": (bool,), "threshold": (int,), "verified": (bool,), "groups": (int, list)},
        "run": {
            "checkpoint_every": (int,),
            "timeout": (float,),
            "min_clients": (int,),
            "retries": (int,),
            "transcript": (bool,),
        },
    }
    return tables if task in TASKS_OF_GENOTYPES else {name: t for name, t in tables.items() if name != "genotypes"}


class PrivacyTable(TypedDict, total=False):
    """[privacy] of a job file: the parameters of `fedspan.RowDP`."""

    epsilon: float
    delta: float
    row_norm: float | Literal["auto", "unit"]
    center: float | Literal["robust"]
    neighbours: Neighbours
    expect: float
    simulate: bool
    budgets: str


class SecureTable(TypedDict, total=False):
    """[secure] of a job file."""

    enabled: bool
    threshold: int
    verified: bool
    groups: int | list[list[str]]


@dataclass(frozen=True)
class Job:
    """A checked job: what to learn, from whose data, how, and how the run is to go.

    `Job.load(path).run()` does what `fedspan run` does. Most jobs come from a file; one can be built in Python, too.

    Parameters:
        task: "pca", "svd", "gcca", "deep-gcca", "personalized", "classifier", "vertical-classifier", "regressor",
            "vertical-regressor", "vertical-pca" or "vertical-svd".
        parameters: The estimator's parameters, by name.
        clients: Where each client's table is, by client: an absolute path, an address, or the table of a database.
        preparation: Which columns are used, and how they are prepared.
        checkpoint_every: Rounds between two checkpoints.
        min_clients: Go on if at least this many clients answer; None: all must.
        transcript: Keep every message, for an audit.
        privacy: The parameters of `RowDP`; empty: no differential privacy.
        secure: `enabled`, `threshold`, `verified` and `groups`; empty: the default, which is off in one process.
        held_out: Further rows of each view, on which GCCA is watched while it learns.
        timeout: In a federation: seconds in which a site must answer; None: 60.
        table: In a federation: which of the sites' tables; None: the one named default.
        retries: How often a client that did not answer is asked again; None: as often as `run` does by default.
        reading: How all tables are read (`fedspan.data.cells.dialect`); what is written beside a path comes first.
        client_weight: What a client counts (pca, svd).
        match: How the rows of views are matched by their ids: "psi", "digest", or "order" (they are only compared).
        networks: What makes each view's network (deep-gcca), as `file.py:function`.
        genotypes: How genotypes are prepared, if the clients have files of genotypes; None: they have tables.
        ready: How each client's table is prepared, once the clients have agreed on it.
        prepared: The genotypes, once the clients have agreed on their variants.
        name: The job file's name, after which run folders are called.
        kit: The researcher's kit, if the job is for a federation.
    """

    task: str
    parameters: Mapping[str, Any]
    clients: Mapping[str, TablePlace]
    preparation: Preparation = PLAIN
    checkpoint_every: int = 1
    min_clients: int | None = None
    transcript: bool = False
    privacy: PrivacyTable = field(default_factory=PrivacyTable)
    secure: SecureTable = field(default_factory=SecureTable)
    held_out: Mapping[str, TablePlace] = field(default_factory=dict)
    timeout: float | None = None
    table: str | None = None
    retries: int | None = None
    reading: Mapping[str, object] = field(default_factory=dict)
    client_weight: str | Mapping[str, float] = "rows"
    match: str = "order"
    networks: Mapping[str, str] = field(default_factory=dict)
    genotypes: GenotypeOptions | None = None
    ready: Mapping[str, Preparation] = field(default_factory=dict, compare=False)
    prepared: PreparedGenotypes | None = field(default=None, compare=False)
    name: str = field(default="", compare=False)
    kit: Path | None = field(default=None, compare=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        overrides: Sequence[str] = (),
        *,
        on: str | os.PathLike[str] | None = None,
    ) -> Job:
        """Read a job file, and check it.

        Parameters:
            path: The file; relative paths in it are beside it.
            overrides: Keys to set, as `table.key=value`.
            on: The researcher's kit of a federation. Its sites that are connected now take the place of files.
        """
        path = Path(path)
        if on is not None:
            kit = Path(on)
            return replace(cls.load_for(path, lambda: find_sites(kit), overrides), kit=kit)
        return replace(parse(read_job_file(path, overrides), path.resolve().parent), name=path.stem)

    @classmethod
    def load_for(cls, path: Path, find: Callable[[], Sequence[str]], overrides: Sequence[str] = ()) -> Job:
        """Read a job file for the sites of a federation, which are looked for once the file has been read."""
        tree = read_job_file(path, overrides)
        data = tree.setdefault("data", {})
        if isinstance(data, dict) and ("clients" in data or "views" in data):
            raise InputError("The sites know themselves where their data is; leave data.clients and data.views out.")
        reading = [key for key in data if key in KEYS_OF_DIALECT] if isinstance(data, dict) else []
        if reading:
            raise InputError(
                f"The sites' own files say how their tables are read, and a job cannot change it; leave "
                f"data.{reading[0]} out."
            )
        task = tree.get("job", {}).get("task")
        if isinstance(data, dict) and data.get("kind", "table") != "table":
            raise InputError("Genotypes are for runs in one process: sites of a federation do not serve them yet.")
        if isinstance(data, dict) and task in TASKS:
            data[TASKS[task].over] = {site: f"flare://{site}" for site in find()}
        return replace(parse(tree, path.resolve().parent), name=path.stem)

    def to_request(self) -> RunRequest:
        """Say what the sites of a federation would be asked for, as a run of its own."""
        return build_request(self.resolve(), secrets.token_hex(16))

    def run(
        self,
        out: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        *,
        keep_going: float = 0.0,
    ) -> Run:
        """Run the job in a new run folder, to its model and its report.

        A run that was cut off after something was sent is resumed with `fedspan.jobs.resume(out)`.

        Parameters:
            out: A new or empty folder; None: runs/<name of the job file>-<date and time>.
            progress: Who is told what happens; None: nobody.
            keep_going: On a federation, for how many seconds to wait for sites, server and network to come back after
                a failure, and to go on.
        """
        job = self.resolve()
        if out is None:
            out = Path("runs") / f"{self.name or self.task}-{datetime.now():%Y%m%d-%H%M%S-%f}"
        folder = RunFolder.create(Path(out), job.to_toml())
        if job.kit is not None:
            return start_on_federation(folder, job, job.kit, progress, keep_going)
        return run_in_process(folder, job, progress, new=True)

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
        """Give the parameters as the estimator's constructor takes them."""
        options = dict(self.parameters)
        if options.get("participation"):
            options["participation"] = _build_participation(options["participation"])
        if self.privacy:
            options["privacy"] = _build_privacy(self.privacy)
        if self.secure.get("enabled"):
            options["secure"] = _build_secure(self.secure)
        if self.networks:
            k = int(options.get("n_components", parameters_of(estimator(self.task))["n_components"].default))
            options["networks"] = {name: find_maker(maker, k) for name, maker in self.networks.items()}
        return options

    def answer_options(self) -> dict[str, int]:
        """Give what `fit` is told about clients that do not answer, as far as the job says it."""
        said = {"min_clients": self.min_clients, "retries": self.retries}
        return {name: value for name, value in said.items() if value is not None}

    def facts(self, folder: RunFolder | None = None) -> RunFacts:
        """Say what a report or an audit needs to know; the text is that of the folder's own file, if there is one."""
        return RunFacts(
            task=self.task,
            job_text=self.to_toml() if folder is None else folder.job.read_text(encoding="utf-8"),
            privacy=_build_privacy(self.privacy) if self.privacy else None,
            secure=bool(self.secure.get("enabled")),
            seed=self.parameters.get("random_state"),
            folder=None if folder is None else folder.path,
        )

    def prepare(
        self, ledger: Ledger | None = None, engine: Callable[[Mapping[str, object]], Engine] | None = None
    ) -> Job:
        """Let the clients agree on all that must be known before their tables are opened (`estimators/prepare.py`)."""
        if TASKS[self.task].over == "views":
            return replace(self, ready=settle_each(self.places(), self.preparation))
        options = self.options()
        if self.genotypes is not None:
            prepared = agree_on_genotypes(
                self.places(),
                self.genotypes,
                engine=engine,
                secure=options.get("secure"),
                ledger=ledger,
                retries=RETRIES if self.retries is None else self.retries,
            )
            return replace(self, prepared=prepared)
        done = agree(
            self.places(),
            self.preparation,
            private="privacy" in options,
            secure=options.get("secure"),
            engine=engine,
            ledger=ledger,
            retries=RETRIES if self.retries is None else self.retries,
        )
        return replace(self, ready=dict.fromkeys(self.clients, done))

    def open(self, name: str, *, held_out: bool = False) -> Table:
        """Open the table of a client, with its ids and labels."""
        source = self.sources()[name]
        if held_out:
            source = replace(source, source=add_reading(self.held_out[name], self.reading))
        return open_client(name, source)

    def places(self) -> dict[str, object]:
        """Give what each client's table is, and how it is read."""
        return {name: add_reading(place, self.reading) for name, place in self.clients.items()}

    def sources(self) -> dict[str, Prepared]:
        """Give what opens each client's table, when it is needed."""
        if self.genotypes is not None:
            prepared = self.prepared or self.prepare().prepared
            assert prepared is not None  # noqa: S101 - for the type checker
            return {name: Prepared(source) for name, source in prepared.items()}
        ready = self.ready or self.prepare().ready
        return {name: Prepared(source, ready[name]) for name, source in self.places().items()}

    def resolve(self) -> Job:
        """Write out every default, and draw a seed if there is none: what a resumed run must repeat."""
        given = inspect.signature(estimator(self.task)).parameters
        full = {name: self.parameters.get(name, given[name].default) for name in parameters(self.task)}
        full["random_state"] = seed_from(full["random_state"])
        return replace(self, parameters=full)

    def to_toml(self) -> str:
        """Write the job as a file that `Job.load` understands."""
        tables: dict[str, Mapping[str, object]] = {
            "job": {"task": self.task, **self.parameters},
            "run": {
                "checkpoint_every": self.checkpoint_every,
                "min_clients": self.min_clients,
                "retries": self.retries,
                "timeout": self.timeout,
                "transcript": self.transcript or None,
            },
            "privacy": self.privacy,
            "secure": self.secure,
            "data": {
                "table": self.table,
                "match": self.match if self.match != "order" else None,
                "client_weight": self.client_weight if self.client_weight != "rows" else None,
                **_data_section.write_preparation(self.preparation),
                **self.reading,
                "kind": None if self.genotypes is None else "genotypes",
            },
            "genotypes": write_options(self.genotypes),
            f"data.{TASKS[self.task].over}": self.clients,
            "data.network": self.networks,
            "data.held_out": self.held_out,
        }
        lines = []
        for name, table in tables.items():
            rows = [f"{bare_key(k)} = {to_toml(v)}" for k, v in table.items() if v is not None]  # TOML has no null
            lines += ["", f"[{name}]", *rows] if rows else []
        return "\n".join(lines[1:]) + "\n"


def read_job_file(path: Path, overrides: Sequence[str] = ()) -> TomlTable:
    """Read the file with its overrides; nothing is checked yet."""
    try:
        tree = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read the job file {path}: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"The job file {path} is not valid TOML: {error}.") from None
    for text in overrides:
        override(tree, text)
    return tree


def parse(tree: TomlTable, beside: Path) -> Job:
    """Check a TOML document, and make its job; the first thing that is wrong with it is raised."""
    task = _find_task(tree)
    checked = {table: _check_table(task, table, value) for table, value in tree.items()}
    job, run = checked.get("job", {}), checked.get("run", {})
    data = cast(DataTable, checked.get("data", {}))
    job.pop("task")
    _data_section.check_data(task, data)
    accepted = inspect.signature(estimator(task).fit).parameters
    for key in ("min_clients", "retries"):
        if key in run and key not in accepted:
            raise InputError(f"run.{key} is not for task {task!r}, which needs every client; leave it out.")
    if "participation" in job:
        _build_participation(job["participation"])
    privacy, secure = cast(PrivacyTable, checked.get("privacy", {})), cast(SecureTable, checked.get("secure", {}))
    if "privacy" in checked:
        if "budgets" in privacy:
            privacy["budgets"] = str(beside / privacy["budgets"])
        _build_privacy(privacy)
    idle = [key for key in ("threshold", "verified", "groups") if secure.get(key) and not secure.get("enabled")]
    if idle:
        raise InputError(f"secure.{idle[0]} needs secure.enabled = true; add it, or leave {idle[0]} out.")
    if secure.get("enabled"):
        _build_secure(secure)
    clients = _data_section.locate(data[TASKS[task].over], beside)
    genotypes = read_kind(task, data, job, checked)
    return Job(
        task,
        job,
        clients,
        _data_section.read_preparation(task, data, _find_group_column(job)),
        run.get("checkpoint_every", 1),
        run.get("min_clients"),
        run.get("transcript", False),
        privacy,
        secure,
        _data_section.locate_held_out(task, job, data, beside),
        run.get("timeout"),
        data.get("table"),
        run.get("retries"),
        _data_section.read_reading(data),
        data.get("client_weight", "rows"),
        data.get("match", "order"),
        _data_section.locate_networks(data, list(clients), beside),
        genotypes,
    )


def _find_group_column(job: TomlTable) -> str | None:
    """Check the limits of the job, if it has some, and find the column whose groups they are on."""
    if "limits" not in job:
        return None
    try:
        return find_group_column(read_limits(job["limits"]))
    except InputError as error:
        raise InputError(f"job.limits: {error}") from None


def _find_task(tree: TomlTable) -> str:
    """Find the task, which decides what else can be written."""
    job = tree.get("job", {})
    if not isinstance(job, dict):
        raise InputError(f"[job] must be a table, but is {job!r}.")
    task = job.get("task")
    if not isinstance(task, str) or task not in TASKS:
        hint = suggest(str(task), TASKS) if task else 'For example, write task = "pca" in [job].'
        raise InputError(f"job.task must name a task, but is {task!r}. {hint}")
    return task


def _check_table(task: str, table: str, value: object) -> TomlTable:
    known = schema(task)
    if table not in known:
        raise InputError(f"The job file has an unknown table {table!r}. {suggest(table, known)}")
    if not isinstance(value, dict):
        raise InputError(f"[{table}] must be a table, but is {value!r}.")
    for key in value if table == "job" else ():
        others = [name for name in TASKS if key not in known["job"] and key in parameters(name)]
        if others:
            raise InputError(f"job.{key} is not for task {task!r}; leave it out (it is for {', '.join(others)}).")
    return {key: _check_value(task, table, key, v, known[table]) for key, v in value.items()}


def _check_value(task: str, table: str, key: str, value: object, known: Mapping[str, tuple[type, ...]]) -> Any:
    """A value as the rest of the program takes it, or a refusal."""
    where = f"{table}.{key}"
    if key not in known:
        raise InputError(f"[{table}] has no key {key!r}. {suggest(key, known)}")
    kinds = known[key]
    if type(value) is int and float in kinds and int not in kinds:
        value = float(value)
    # The values of job.participation are numbers, and checked by Participation itself.
    if type(value) not in kinds or (table == "data" and not _data_section.items_fit(key, value)):
        allowed = _SAYS_OF.get(where) or " or ".join(_SAYS[kind] for kind in kinds if kind in _SAYS)
        raise InputError(f"{where} must be {allowed}, but is {value!r}.")
    if table == "job" and key != "task" and not isinstance(value, dict):
        row = rows_of(task)[key]
        writable = tuple(kind for kind in row.kinds if kind is not NoneType)  # TOML has no null
        problem = replace(row, name=where, kinds=writable).find_problem(value)
        if problem is not None:
            raise InputError(problem)
    if where in LEAST and isinstance(value, int) and value < LEAST[where]:
        raise InputError(f"{where} must be at least {LEAST[where]}, but is {value!r}.")
    return value


def _build_participation(table: TomlTable) -> Participation:
    """Build it from `participation = { fraction = 0.1, scheme = 2 }`, or with count."""
    for key, value in table.items():
        if key not in ("fraction", "count", "scheme"):
            hint = suggest(key, ["fraction", "count", "scheme"])
            raise InputError(f"job.participation has an unknown key {key!r}. {hint}")
        if type(value) not in ((int, float) if key == "fraction" else (int,)):
            kind = "a number" if key == "fraction" else "an integer"
            raise InputError(f"job.participation.{key} must be {kind}, but is {value!r}.")
    return Participation(**table)


def _build_privacy(table: PrivacyTable) -> RowDP:
    """Build what [privacy] asks for, which is always of the sound kind; the paper's own noise is for Python only."""
    for key in ("epsilon", "delta"):
        if key not in table:
            raise InputError(f"privacy.{key} is missing; add it, or leave [privacy] out to run without privacy.")
    try:
        return RowDP(**table)
    except InputError as error:
        raise type(error)(f"[privacy]: {error}") from None


def _build_secure(table: SecureTable) -> Secure:
    """Build what [secure] asks for."""
    groups = table.get("groups")
    if isinstance(groups, list) and not all(isinstance(g, list) and all(isinstance(n, str) for n in g) for g in groups):
        raise InputError(f"secure.groups must be lists of client names, or a group size, but is {groups!r}.")
    try:
        return Secure(table.get("threshold"), table.get("verified", False), groups)
    except InputError as error:
        raise InputError(f"[secure]: {error}") from None
