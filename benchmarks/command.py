"""What `fedspan bench` does: list the benchmarks, run one or several, and write the scoreboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import harness
import scoreboard
from fedspan.cli.progress import say
from fedspan.errors import FedspanError

_STYLE = {"reproduced": "blue", "better": "green", "worse": "red", "not possible here": "dim"}


def list_benchmarks(console: Console) -> None:
    """Show what each benchmark is, how long its last quick run took, and how it ended."""
    table = Table("benchmark", "what", "quick, min", "last marks", box=SIMPLE, pad_edge=False)
    for name, one in harness.benchmarks().items():
        quick, last = one.result(harness.RESULTS, "quick"), harness.latest(one)
        minutes = f"{harness.read(quick)['seconds'] / 60:.1f}" if quick.is_file() else "–"
        marks = "not run yet"
        if last:
            n = harness.counts(last["rows"])
            words = scoreboard.verdicts(one)
            marks = ", ".join(f"{n[mark]} {words[mark]}" for mark in harness.MARKS if n[mark]) + f" ({last['size']})"
        table.add_row(name, one.title, minutes, marks)
    console.print(table)
    say(console, "fedspan bench NAME [--quick | --full] runs one; instead of NAME: faps, say, for a paper's, or all")
    say(console, "fedspan bench --scoreboard writes docs/scoreboard.md from the results")


def run_benchmarks(name: str, size: str, data: Path | None, out: Path | None, console: Console) -> None:
    """Run one and show its rows, or all of a paper; what cannot run here is skipped, with the reason."""
    if names := harness.several(name):
        _run_each(names, size, data, out, console)
        return
    one = harness.find(name)
    say(console, f"{one.name}, {size}: {one.title}")
    try:
        result = harness.execute(one, size, harness.data_folder(data), out or harness.RESULTS)
    except harness.SkippedError as error:
        say(console, f"skipped: {error}")
        return
    table = Table("", "printed, or compared with", "ours", "mark", box=SIMPLE, pad_edge=False)
    number, words = scoreboard.number, scoreboard.verdicts(one)
    for row in result["rows"]:
        other = row["printed"] if row["printed"] is not None else row["against"]
        mark = words[row["mark"]] if not row["impossible"] else f"not possible here: {row['impossible']}"
        style = _STYLE[row["mark"]]
        table.add_row(row["what"], number(other), f"{number(row['ours'])} {row['unit']}", f"[{style}]{mark}[/{style}]")
    console.print(table)
    n = harness.counts(result["rows"])
    say(console, ", ".join(f"{count} {words[mark]}" for mark, count in n.items()) + f"; {result['seconds']:.0f} s")
    path = one.result(out or harness.RESULTS, size)
    say(console, f"written: {path} and {path.with_suffix('.svg').name}")


def _run_each(names: list[str], size: str, data: Path | None, out: Path | None, console: Console) -> None:
    """One after another, each in a process of its own: helpers of two papers may have the same name."""
    options = [f"--{size}"]
    for option, value in (("--data", data), ("--out", out)):
        options += [option, str(value)] if value else []
    failed = []
    for i, name in enumerate(names, 1):
        say(console, f"{i} of {len(names)}")
        command = [sys.executable, "-m", "fedspan.cli.main", "bench", name, *options]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        raise FedspanError(f"{len(failed)} of {len(names)} benchmarks failed: {', '.join(failed)}")


def write_scoreboard(console: Console) -> None:
    """Write docs/scoreboard.md from the results that are there."""
    scoreboard.write()
    say(console, f"written: {scoreboard.PAGE}")
