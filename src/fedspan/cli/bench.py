"""`fedspan bench`: the papers' tables and figures beside ours. The benchmarks are in a checkout, not in the package."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import fedspan
from fedspan.cli.progress import say
from fedspan.errors import FedspanError, InputError

_STYLE = {"reproduced": "blue", "better": "green", "worse": "red", "not possible here": "dim"}


def harness(name: str = "harness", root: Path | None = None) -> Any:
    """A module of the checkout's `benchmarks`, of the checkout that this package runs from and of no other."""
    folder = (root or Path(fedspan.__file__).resolve().parents[2]) / "benchmarks"
    if not (folder / "harness.py").is_file():
        raise InputError(
            "need a checkout of fedspan's repository, got an installed package, which has no benchmarks; "
            "clone the repository, do: pip install -e '.[dev]', and call fedspan bench again"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module(name)


def show(console: Console) -> None:
    """List all benchmarks: what they are, how long the last quick run took, and how it ended."""
    bench = harness()
    table = Table("benchmark", "what", "quick, min", "last marks", box=SIMPLE, pad_edge=False)
    for name, one in bench.benchmarks().items():
        quick, last = one.result(bench.RESULTS, "quick"), bench.latest(one)
        minutes = f"{bench.read(quick)['seconds'] / 60:.1f}" if quick.is_file() else "–"
        marks = "not run yet"
        if last:
            n = bench.counts(last["rows"])
            words = harness("scoreboard").verdicts(one)
            marks = ", ".join(f"{n[mark]} {words[mark]}" for mark in bench.MARKS if n[mark]) + f" ({last['size']})"
        table.add_row(name, one.title, minutes, marks)
    console.print(table)
    say(console, "fedspan bench NAME [--quick | --full] runs one; instead of NAME: faps, say, for a paper's, or all")
    say(console, "fedspan bench --scoreboard writes docs/scoreboard.md from the results")


def run(name: str, size: str, data: Path | None, out: Path | None, console: Console) -> None:
    """Run one, and show its rows; what cannot run here is skipped, with the reason."""
    bench = harness()
    if names := bench.several(name):
        run_each(names, size, data, out, console)
        return
    one = bench.find(name)
    say(console, f"{one.name}, {size}: {one.title}")
    try:
        result = bench.execute(one, size, bench.data_folder(data), out or bench.RESULTS)
    except bench.SkippedError as error:
        say(console, f"skipped: {error}")
        return
    table = Table("", "printed, or compared with", "ours", "mark", box=SIMPLE, pad_edge=False)
    board = harness("scoreboard")
    number, words = board.number, board.verdicts(one)
    for row in result["rows"]:
        other = row["printed"] if row["printed"] is not None else row["against"]
        mark = words[row["mark"]] if not row["impossible"] else f"not possible here: {row['impossible']}"
        style = _STYLE[row["mark"]]
        table.add_row(row["what"], number(other), f"{number(row['ours'])} {row['unit']}", f"[{style}]{mark}[/{style}]")
    console.print(table)
    n = bench.counts(result["rows"])
    say(console, ", ".join(f"{count} {words[mark]}" for mark, count in n.items()) + f"; {result['seconds']:.0f} s")
    path = one.result(out or bench.RESULTS, size)
    say(console, f"written: {path} and {path.with_suffix('.svg').name}")


def run_each(names: list[str], size: str, data: Path | None, out: Path | None, console: Console) -> None:
    """One after another, each in a process of its own: helpers of two papers may have the same name."""
    options = [f"--{size}"]
    for option, value in (("--data", data), ("--out", out)):
        options += [option, str(value)] if value else []
    failed = []
    for i, name in enumerate(names, 1):
        say(console, f"{i} of {len(names)}")
        command = [sys.executable, "-m", "fedspan.cli.main", "bench", name, *options]
        if subprocess.run(command, check=False).returncode:  # noqa: S603 - this program, a name from its own list
            failed.append(name)
    if failed:
        raise FedspanError(f"{len(failed)} of {len(names)} benchmarks failed: {', '.join(failed)}")


def scoreboard(console: Console) -> None:
    """Write docs/scoreboard.md from the results that are there."""
    module = harness("scoreboard")
    module.write()
    say(console, f"written: {module.PAGE}")
