"""Wrong input: one sentence on stderr, exit code 2, and a world in which nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import NAMES, check_refused, rows, tree, write_csv


def nan(world: Path) -> None:
    X = rows(1, 25)
    X[3, 2] = np.nan
    write_csv(world / "south.csv", X, NAMES)


def infinite(world: Path) -> None:
    X = rows(1, 25)
    X[3, 2], X[3, 4] = np.inf, -np.inf
    write_csv(world / "south.csv", X, NAMES)


def empty(world: Path) -> None:
    (world / "south.csv").write_text("")


def no_rows(world: Path) -> None:
    (world / "south.csv").write_text(",".join(NAMES) + "\n")


def fewer_features(world: Path) -> None:
    write_csv(world / "south.csv", rows(1, 25, 4), NAMES[:4])


def other_names(world: Path) -> None:
    write_csv(world / "south.csv", rows(1, 25), ["age", "hight", *NAMES[2:]])


def words_in_a_cell(world: Path) -> None:
    (world / "south.csv").write_text("\n".join([",".join(NAMES), "1,2,3,4,five"]) + "\n")


def missing(world: Path) -> None:
    (world / "south.csv").unlink()


def unknown_kind(world: Path) -> None:
    (world / "south.csv").rename(world / "south.xls")
    _edit(world, "south.csv", "south.xls")


def too_many_components(world: Path) -> None:
    _edit(world, "n_components = 2", "n_components = 6")


def no_such_column(world: Path) -> None:
    _edit(world, "[data]", '[data]\nlabel = "diagnosis"')


def database(world: Path) -> None:
    _edit(world, '"south.csv"', '"postgresql://host/base"')


def unknown_key(world: Path) -> None:
    _edit(world, "solver", "slover")


def wrong_type(world: Path) -> None:
    _edit(world, "n_components = 2", 'n_components = "2"')


def tol_out_of_range(world: Path) -> None:
    _edit(world, "random_state", "tol = 1.5\nrandom_state")


def too_many_bits(world: Path) -> None:
    _edit(world, 'solver = "krylov"', 'solver = "ssi"\nbits = 99')


def _edit(world: Path, old: str, new: str) -> None:
    job = (world / "job.toml").read_text()
    assert old in job
    (world / "job.toml").write_text(job.replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (nan, ["client 'south'", "Column 'weight' must have a value in every row, but 1 of 25", '"drop"']),
        (
            infinite,
            [
                "client 'south'",
                "Rows must be finite numbers",
                "infinity was found in 1 of 25 rows (values affected: 2; first in column 2)",
                "Drop those",
            ],
        ),
        (empty, ["client 'south'", "must begin with a line of column names", "is empty"]),
        (no_rows, ["client 'south'", "must have at least one row", "(0, 5)"]),
        (fewer_features, ["client 'south' lacks 'steps', unlike client 'north'", "the same columns"]),
        (other_names, ["client 'south' lacks 'height' and has 'hight'", "Rename them"]),
        (
            words_in_a_cell,
            ["client 'south'", "Column 'steps' must be numeric, but row 1 (line 2) of", "categories"],
        ),
        (missing, ["client 'south'", "south.csv does not exist"]),
        (unknown_kind, ["client 'south'", "south.xls is not of a known kind"]),
        (too_many_components, ["n_components must be at most the 5 features, but is 6."]),
        (no_such_column, ["client 'north'", "There is no column 'diagnosis'", "The table has age"]),
        (database, ["client 'base'", "postgresql://host/base needs exactly one table or one query, but none"]),
        (unknown_key, ["[job] has no key 'slover'. Did you mean 'solver'?\n"]),
        (wrong_type, ["job.n_components must be an integer of at least 1, a share", "but is '2'."]),
        (too_many_bits, ["job.bits must be an integer from 2 to 16 or 'auto', but is 99."]),
        (tol_out_of_range, ["job.tol must be a number from 0 to below 1, but is 1.5."]),
    ],
)
@pytest.mark.parametrize("out", [None, "runs/deep/er"])
def test_wrong_input_changes_nothing(
    world: Path, fedspan: Callable[..., Any], spoil: Callable[[Path], None], words: list[str], out: str | None
) -> None:
    spoil(world)
    before = tree(world)
    result = fedspan("run", "job.toml", *(["--out", out] if out else []))
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert tree(world) == before


def test_rows_that_do_not_vary_give_no_model(world: Path, fedspan: Callable[..., Any]) -> None:
    for name in ("north", "south"):
        write_csv(world / f"{name}.csv", np.ones((5, 5)), NAMES)
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 2
    assert "All rows are equal (after centering), so there is no component to find." in result.stderr
    assert not (world / "out" / "model.safetensors").exists()
    assert not (world / "out" / "report.html").exists()


def test_a_strangers_file_survives_a_failed_run(world: Path, fedspan: Callable[..., Any]) -> None:
    """What is taken back is what this command made: an empty folder that was there stays there."""
    nan(world)
    (world / "mine").mkdir()
    assert fedspan("run", "job.toml", "--out", "mine").exit_code == 2
    assert (world / "mine").is_dir()
    assert list((world / "mine").iterdir()) == []


@pytest.mark.parametrize("command", ["report", "audit", "resume", "export"])
@pytest.mark.parametrize("mine", ["report.html", "job.toml", "model.safetensors"])
def test_a_folder_that_is_not_ours(world: Path, fedspan: Callable[..., Any], command: str, mine: str) -> None:
    """Whatever it holds: a page, a job that no run wrote, a model of somebody else."""
    (world / "theirs").mkdir()
    (world / "theirs" / mine).write_text("[job]\n# not made by a run\n")
    before = tree(world)
    result = fedspan(command, "theirs", *(["--to", "onnx"] if command == "export" else []))
    check_refused(result, "'theirs' is not a run folder.")
    assert fedspan("run", "job.toml", "--out", "theirs").exit_code == 2
    assert fedspan("demo", "--out", "theirs").exit_code == 2
    assert tree(world) == before


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.safetensors", b"broken", "Cannot read the model in"),
        ("model.safetensors", None, "run has no model yet; complete it with: fedspan resume run"),
        ("ledger.jsonl", None, "The ledger of the run, run/ledger.jsonl, is missing"),
        ("ledger.jsonl", b"broken\nbroken\n", "Line 1 of run/ledger.jsonl is not an event of a ledger"),
        ("scores.safetensors", b"broken", "Cannot read the table of scores in run/scores.safetensors"),
    ],
)
def test_a_damaged_run_folder_keeps_its_report(
    world: Path, fedspan: Callable[..., Any], name: str, content: bytes | None, says: str
) -> None:
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    if content is None:
        (world / "run" / name).unlink()
    else:
        (world / "run" / name).write_bytes(content)
    before = tree(world)
    result = fedspan("report", "run")
    check_refused(result, says)
    assert tree(world) == before
