"""What every benchmark of a paper shares: rows beside the printed numbers, their marks, a JSON file and a picture.

A benchmark is a module `benchmarks/<paper>/<name>.py`. Its docstring says what it is in the first line, `NEEDS` names
the data sets (.npz) that it cannot do without, and `run(config, data)` gives a `Found`; config has what
`<paper>/config.toml` says for "quick" (minutes on two cores) or for "full" (the paper's sizes as far as the machine
allows), data is the folder of the data sets. Printed numbers are in `<paper>/printed.toml`, explanations of what is
worse in `<paper>/why.toml`. `fedspan bench` lists and runs them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import platform
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draw import chart, ratios
from fedspan._files import write_whole
from fedspan.channel import Channel
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Server
from fedspan.core.run import run
from fedspan.engines.inprocess import InProcess, count_cores
from fedspan.errors import FedspanError, InputError, suggest

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results"  # beside the page that shows them
SIZES = ("quick", "full")
MARKS = ("reproduced", "better", "worse", "not possible here")
TELLING = ("settle", "size", "identify", "open_view")  # tasks that tell sizes, means, traces and digests
VERSIONS = ("fedspan", "numpy", "scipy", "scikit-learn", "torch")


Config = SimpleNamespace


class SkippedError(FedspanError):
    """A benchmark that cannot run here, and why."""


@dataclass(frozen=True)
class Row:
    """One number of ours beside a printed one, or one claim of a text.

    A claim has no printed number: it says that `ours` is ahead of `against`, which is another measurement of the same
    run or a level that the text names. It holds if ours is ahead, or behind by at most `factor`.
    """

    what: str
    ours: float | None
    unit: str = ""
    better: str = "lower"  # or "higher"
    factor: float = 1.0  # within which it counts as reproduced
    printed: float | None = None
    against: float | None = None
    where: str = ""  # in the paper
    impossible: str = ""  # why there is no number of ours

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher") or not self.factor >= 1:
            raise InputError(f"better must be 'lower' or 'higher', and factor at least 1: {self!r}")
        if (self.ours is None) != bool(self.impossible) or (self.ours is not None and math.isnan(self.ours)):
            raise InputError(f"A row must have a number (inf: not reached), or say why it is impossible: {self!r}")
        if self.ours is not None and (self.printed is None) == (self.against is None):
            raise InputError(f"A row must have either a printed number or one that a claim compares with: {self!r}")


def mark(row: Mapping[str, Any]) -> str:
    """The only place where a mark is made, from the numbers of a row."""
    if row["ours"] is None:
        return "not possible here"
    claim = row["printed"] is None
    mine, other = float(row["ours"]), float(row["against"] if claim else row["printed"])
    behind = _ratio(mine, other) if row["better"] == "lower" else _ratio(other, mine)
    if not behind <= row["factor"]:  # nan too
        return "worse"
    return "reproduced" if claim or behind >= 1 / row["factor"] else "better"


def _ratio(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b) or min(a, b) < 0 or math.isinf(min(a, b)):  # two that never got there
        return math.nan
    return 1.0 if a == b else math.inf if b == 0 else a / b


@dataclass(frozen=True)
class Cost:
    """For the headline: what a solver needed for a job (infinite: it did not get there); `published`: a paper's own."""

    job: str
    solver: str
    rounds: float
    megabytes: float | None
    published: bool
    opening: int = 0  # exchanges before the first round that are like one: see `openings`


def openings(solver: Server[Any], clients: Any, channel: Channel | None = None) -> int:
    """Exchanges of the opening that are like a round: a sketch of the clients' data, or their own leading parts."""
    ledger = run(solver, InProcess(clients, max_open=1000), rounds=1, seed=0, channel=channel).ledger
    return sum(isinstance(e, Exchange) and e.round == 0 and e.task not in TELLING for e in ledger.events)


@dataclass(frozen=True)
class Found:
    """What a benchmark measured. `lines` are drawn, by name: (x, y); without them the picture shows the rows."""

    rows: Sequence[Row]
    seeds: Sequence[int]
    setting: Mapping[str, Any] = field(default_factory=dict)
    costs: Sequence[Cost] = ()
    lines: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    labels: tuple[str, str] = ("", "")
    log: tuple[bool, bool] = (False, True)
    points: Sequence[Mapping[str, Any]] = ()  # what else the JSON file keeps, for a page of the docs


class Printed:
    """A table of `printed.toml`: `where` it is, `columns`, one list for each row; `factor` and `higher` by column."""

    def __init__(self, paper: str, table: str) -> None:
        whole = tomllib.loads((HERE / paper / "printed.toml").read_text(encoding="utf-8"))
        self.table = whole[table]

    def value(self, row: str, column: str) -> float:
        return float(self.table["rows"][row][self.table["columns"].index(column)])

    def row(self, row: str, column: str, ours: float | None, unit: str = "", impossible: str = "") -> Row:
        factor = self.table["factor"]
        better = "higher" if column in self.table.get("higher", ()) else "lower"
        factor = factor.get(column, factor.get("all")) if isinstance(factor, dict) else factor
        printed, where = self.value(row, column), self.table["where"]
        return Row(f"{row}: {column}", ours, unit, better, factor, printed, None, where, impossible)


@dataclass(frozen=True)
class Benchmark:
    """A module with a `run`, known by its text alone: listing imports nothing."""

    name: str
    path: Path
    title: str
    needs: tuple[str, ...]

    def result(self, results: Path, size: str) -> Path:
        return results / f"{self.name}.{size}.json"


def benchmarks(root: Path = HERE) -> dict[str, Benchmark]:
    """All of them, by name: `<paper>/<name>`, or `<name>` for a file beside this one."""
    found = {}
    for path in sorted([*root.glob("*/*.py"), *root.glob("*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
            continue
        needs: tuple[str, ...] = ()
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NEEDS":
                needs = tuple(ast.literal_eval(node.value))
        name = path.relative_to(root).with_suffix("").as_posix()
        title = (ast.get_docstring(tree) or name).splitlines()[0]
        found[name] = Benchmark(name, path, title.rstrip("."), needs)
    return found


def find(name: str, root: Path = HERE) -> Benchmark:
    known = benchmarks(root)
    if name not in known:
        folders = {each.split("/")[0] for each in known if "/" in each}
        raise InputError(f"{name!r} is not a benchmark. {suggest(name, [*known, *folders, 'all'])}")
    return known[name]


def several(name: str, root: Path = HERE) -> list[str]:
    """The benchmarks of a folder, or all of them; none for the name of one."""
    known = benchmarks(root)
    return [] if name in known else [each for each in known if name == "all" or each.startswith(f"{name}/")]


def configuration(bench: Benchmark, size: str) -> dict[str, Any]:
    """Its section of config.toml for that size."""
    path = bench.path.parent / "config.toml"
    whole = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    try:
        return dict(whole[bench.path.stem][size])
    except KeyError:
        raise InputError(f"{path} has no section [{bench.path.stem}.{size}]; add it.") from None


def description(bench: Benchmark) -> str:
    """Its docstring but for the first line."""
    text = ast.get_docstring(ast.parse(bench.path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[2].strip()


def data_folder(given: Path | None = None) -> Path:
    """What was asked for, FEDSPAN_DATA, or `shared/data` beside the repository."""
    return given or Path(os.environ.get("FEDSPAN_DATA", HERE.parents[1] / "shared" / "data"))


def execute(bench: Benchmark, size: str, data: Path, out: Path = RESULTS) -> dict[str, Any]:
    """Run it, write its JSON file and its picture, and give what the JSON file holds."""
    if size not in SIZES:
        raise InputError(f"The size must be one of {', '.join(SIZES)}, but is {size!r}.")
    missing = [f"{name}.npz" for name in bench.needs if not (data / f"{name}.npz").is_file()]
    if missing:
        where = f"{data}; say where they are with --data or FEDSPAN_DATA"
        raise SkippedError(f"{bench.name} needs {', '.join(missing)}, which are not in {where}")
    config, started = configuration(bench, size), time.perf_counter()
    found: Found = _load(bench).run(Config(**config), data)
    rows = [{**asdict(row), "mark": mark(asdict(row))} for row in found.rows]
    record = {
        "benchmark": bench.name,
        "size": size,
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(time.perf_counter() - started, 1),
        "cores": count_cores(),
        "machine": platform.machine(),
        "versions": {"python": platform.python_version(), **_installed(VERSIONS)},
        "config": config,
        "seeds": list(found.seeds),
        "setting": dict(found.setting),
        "rows": rows,
        "costs": [asdict(cost) for cost in found.costs],
        **({"points": list(found.points)} if found.points else {}),
    }
    path = bench.result(out, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(_plain(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n", public=True)
    drawn = chart(found.lines, bench.title, *found.labels, log=found.log) if found.lines else ratios(rows, bench.title)
    write_whole(path.with_suffix(".svg"), drawn, public=True)
    return read(path)


def read(path: Path) -> dict[str, Any]:
    """A result, with marks made anew from its numbers."""
    record = json.loads(path.read_text(encoding="utf-8"))
    for each in [*record["rows"], *record["costs"]]:
        each.update({key: math.inf for key, value in each.items() if value == "never"})
    for row in record["rows"]:
        row["mark"] = mark(row)
    return dict(record)


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {name: sum(row["mark"] == name for row in rows) for name in MARKS}


def latest_path(bench: Benchmark, results: Path = RESULTS) -> Path | None:
    """The full result if there is one, else the quick one."""
    paths = (bench.result(results, size) for size in reversed(SIZES))
    return next((path for path in paths if path.is_file()), None)


def latest(bench: Benchmark, results: Path = RESULTS) -> dict[str, Any] | None:
    path = latest_path(bench, results)
    return read(path) if path else None


def _load(bench: Benchmark) -> Any:
    """The module, with its neighbours and this folder importable. One process runs one paper's benchmarks."""
    for folder in (HERE, bench.path.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(bench.name.replace("/", "_"), bench.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _installed(names: Sequence[str]) -> dict[str, str]:
    found = {each.name.lower(): each.version for each in distributions()}
    return {name: found[name] for name in names if name in found}


def _plain(value: Any) -> Any:
    """For JSON: numpy's numbers as Python's, five digits, and infinity (not reached) as a word."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return "never" if math.isinf(value) else float(f"{value:.5g}")
    return value
