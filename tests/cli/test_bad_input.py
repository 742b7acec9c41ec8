"""Wrong input: one sentence on stderr, exit code 2, and a world in which nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import NAMES, rows, tree, write_csv


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


def other_order(world: Path) -> None:
    write_csv(world / "south.csv", rows(1, 25), NAMES[::-1])


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
        (nan, ["client 'south'", "need a value in every cell, column 'weight' has 1 missing of 25", '"drop"']),
        (infinite, ["client 'south'", "need finite numbers", "infinity in 2 entries of 1 of 25 rows", "drop those"]),
        (empty, ["client 'south'", "need a line of column names", "is empty"]),
        (no_rows, ["client 'south'", "need at least one row", "got 0 rows"]),
        (fewer_features, ["need 5 features as at client 'north'", "got 4 (client 'south')", "the same columns"]),
        (other_names, ["need feature 1 to be 'height'", "got 'hight' (client 'south')", "rename it"]),
        (other_order, ["need feature 0 to be 'age'", "(client 'south')", "another order; reorder its columns"]),
        (
            words_in_a_cell,
            ["client 'south'", "need numbers in column 'steps', got text in row 1 of", "data.categories"],
        ),
        (missing, ["client 'south'", "need a readable file", "south.csv is not there"]),
        (unknown_kind, ["client 'south'", "need a file of a known kind", "got south.xls"]),
        (too_many_components, ["need n_components to be an integer from 1 to the 5 features, got 6"]),
        (no_such_column, ["client 'north'", "need the column 'diagnosis'", "the table has age"]),
        (database, ["client 'base'", "need one table or one query in postgresql://host/base, got none"]),
        (unknown_key, ["need a known key in [job], got 'slover'", "did you mean 'solver'?"]),
        (wrong_type, ["need job.n_components to be an integer, got '2'"]),
        (too_many_bits, ["need bits to be an integer from 2 to 16, got 99"]),
        (tol_out_of_range, ["need tol from 0 (run all rounds) to below 1, got 1.5"]),
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
    assert "need data that vary, all rows are equal" in result.stderr
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
    assert result.exit_code == 2, result.output
    assert "need a run folder, as `fedspan run` makes it; theirs is none" in result.stderr
    assert result.stderr.count("\n") == 1
    assert fedspan("run", "job.toml", "--out", "theirs").exit_code == 2
    assert fedspan("demo", "--out", "theirs").exit_code == 2
    assert tree(world) == before


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.safetensors", b"broken", "need a fedspan model, cannot read"),
        ("model.safetensors", None, "run has no model yet; do: fedspan resume run"),
        ("ledger.jsonl", None, "need the ledger of the run, run/ledger.jsonl is not there"),
        ("ledger.jsonl", b"broken\nbroken\n", "need a ledger, line 1 of run/ledger.jsonl is not one of its events"),
        ("scores.safetensors", b"broken", "need a fedspan table of scores, cannot read"),
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
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert tree(world) == before
