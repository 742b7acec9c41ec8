"""A job from its file to its run folder; what it says on the way."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import NAMES, rows, spawn, tree, write_csv

from fedspan import FederatedPCA, Ledger, __version__
from fedspan.cli.progress import estimate_rounds_left
from fedspan.reports.format import format_bytes, format_count, format_duration

Fedspan = Callable[..., Any]


@pytest.mark.filterwarnings("error::UserWarning")  # a run of plain tables says nothing on stderr
def test_csv_clients_end_to_end(world: Path, fedspan: Fedspan) -> None:
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in (world / "out").iterdir()) == [
        "checkpoint", "job.toml", "ledger.jsonl", "model.safetensors", "report.html", "scores.safetensors",
    ]  # fmt: skip
    model = FederatedPCA.load(world / "out" / "model.safetensors")
    here = FederatedPCA(2, solver="krylov", random_state=7).fit({"north": rows(0, 40), "south": rows(1, 25)})
    np.testing.assert_array_equal(model.components_, here.components_)
    assert list(model.feature_names_in_) == NAMES
    assert (model.n_samples_, model.n_clients_) == (65, 2)
    ledger = Ledger(world / "out" / "ledger.jsonl")
    ledger.close()
    assert (ledger.bytes_up, ledger.bytes_down) == (here.ledger_.bytes_up, here.ledger_.bytes_down)
    lines = result.stdout.splitlines()
    shown = [line.split("  ")[0] for line in lines[:-3]]  # one in a second, and the last
    assert (shown[0], shown[-1]) == ("round 1/200", f"round {model.n_rounds_}/200")
    assert all(word in lines[0] for word in ("objective", "KKT", "up", "down", "time", "left", "answered 2/2"))
    assert lines[-3].startswith(f"done: {model.n_rounds_} round")
    assert "converged" in lines[-3]
    assert lines[-1] == "report: out/report.html"


def test_npy_clients_and_the_default_folder(world: Path, fedspan: Fedspan) -> None:
    np.save(world / "a.npy", rows(0, 40).astype(np.float32))
    np.save(world / "b.npy", np.arange(50, dtype=np.uint8).reshape(10, 5))
    result = fedspan("run", "job.toml", "--set", 'data.clients=["a.npy","b.npy"]', "--set", "job.solver=gram")
    assert result.exit_code == 0, result.output
    (out,) = (world / "runs").iterdir()
    assert out.name.startswith("job-20")
    assert FederatedPCA.load(out / "model.safetensors").n_samples_ == 50


def test_chosen_columns(world: Path, fedspan: Fedspan) -> None:
    X = rows(3, 30)
    write_csv(world / "north.csv", np.column_stack([np.arange(30), X]), ["patient", *NAMES])
    write_csv(world / "south.csv", np.column_stack([np.arange(30), X]), ["patient", *NAMES])
    words = ["run", "job.toml", "--set", "data.id=patient", "--set", "data.label=steps"]
    assert fedspan(*words, "--out", "all").exit_code == 0
    assert list(FederatedPCA.load("all/model.safetensors").feature_names_in_) == NAMES[:-1]
    assert fedspan(*words, "--set", 'data.columns=["pulse", "age", "steps"]', "--out", "some").exit_code == 0
    assert list(FederatedPCA.load("some/model.safetensors").feature_names_in_) == ["pulse", "age"]


def test_the_folders_job_repeats_the_run(world: Path, fedspan: Fedspan) -> None:
    """Absolute paths, every parameter, and the seed that was drawn: run from anywhere, it gives the same model."""
    job = (world / "job.toml").read_text().replace("random_state = 7\n", "")
    (world / "job.toml").write_text(job)
    assert fedspan("run", "job.toml", "--out", "one").exit_code == 0
    written = tomllib.loads((world / "one" / "job.toml").read_text())
    assert written["job"]["random_state"] >= 0
    assert written["job"]["max_rounds"] == 200
    assert written["data"]["clients"]["north"] == str(world / "north.csv")
    assert fedspan("run", "one/job.toml", "--out", "deep/down/two").exit_code == 0
    first, second = (world / name / "model.safetensors" for name in ("one", "deep/down/two"))
    assert first.read_bytes() == second.read_bytes()
    assert fedspan("run", "job.toml", "--out", "three").exit_code == 0
    assert (
        tomllib.loads((world / "three" / "job.toml").read_text())["job"]["random_state"]
        != written["job"]["random_state"]
    )


def test_an_empty_folder_may_be_used_a_full_one_not(world: Path, fedspan: Fedspan) -> None:
    (world / "empty").mkdir()
    (world / "empty" / ".job.toml.x1").write_text("what a crash of the writer left")
    assert fedspan("run", "job.toml", "--out", "empty").exit_code == 0
    assert not (world / "empty" / ".job.toml.x1").exists()
    before = tree(world)
    again = fedspan("run", "job.toml", "--out", "empty")
    assert again.exit_code == 2
    assert "empty is not empty; go on with `fedspan resume empty`, or choose another folder." in again.stderr
    assert fedspan("run", "job.toml", "--out", ".").exit_code == 2
    on_a_file = fedspan("run", "job.toml", "--out", "north.csv")
    assert on_a_file.exit_code == 2
    assert "Cannot create run folder north.csv: File exists" in on_a_file.stderr
    assert tree(world) == before


def test_a_run_that_does_not_converge_says_so(world: Path, fedspan: Fedspan) -> None:
    words = ["--set", "job.solver=ssi", "--set", "job.max_rounds=3", "--out"]
    result = fedspan("run", "job.toml", *words, "out", "--set", "job.tol=1e-12")
    assert result.exit_code == 0
    warning = re.search(
        r"^warning: Stopped after 3 rounds at kkt \S+, above tol=1e-12\. Raise max_rounds", result.stderr
    )
    assert warning, result.stderr
    assert "stopped before reaching tol" in result.stdout
    assert warning[0] in (world / "out" / "report.html").read_text()
    all_rounds = fedspan("run", "job.toml", *words, "out0", "--set", "job.tol=0")
    assert "warning" not in all_rounds.stderr
    assert "stopped at the round limit" in all_rounds.stdout


def test_a_client_that_fails_is_exit_code_1(world: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr("fedspan.numerics.operators.Rows.squares", breaks)
    result = fedspan("run", "job.toml", "--out", "out")
    assert result.exit_code == 1
    assert "needs answers from 2 clients, but none answered" in result.stderr
    assert "disk on fire" in result.stderr
    assert result.stderr.count("\n") == 1
    monkeypatch.undo()
    monkeypatch.chdir(world)
    assert fedspan("resume", "out").exit_code == 0


def test_the_unexpected_is_one_line_and_debug_shows_the_rest(
    world: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(FederatedPCA, "fit", breaks)
    before = tree(world)
    result = fedspan("run", "job.toml")
    assert result.exit_code == 1
    assert result.stderr == "error: ZeroDivisionError: by nought; for the traceback, add --debug after `fedspan`\n"
    assert "Traceback" in fedspan("--debug", "run", "job.toml").stderr
    assert tree(world) == before


def test_mistyped_words_name_the_nearest(fedspan: Fedspan) -> None:
    command = fedspan("reprot", "out")
    assert command.exit_code == 2
    assert "Did you mean" in command.stderr
    assert "'report'" in command.stderr
    option = fedspan("run", "job.toml", "--ot", "x")
    assert option.exit_code == 2
    assert "--out" in option.stderr


def test_help_and_version(fedspan: Fedspan) -> None:
    process = spawn("--version")
    assert process.communicate()[0] == f"fedspan {__version__}\n"
    page = fedspan("--help").stdout
    for name in ("demo", "run", "resume", "report", "doctor"):
        assert f"│ {name} " in page
        assert fedspan(name, "--help").exit_code == 0


def test_time_left_follows_the_fall_of_kkt() -> None:
    falling = [10.0**-r for r in range(1, 5)]  # 1e-4 after 4 rounds
    assert estimate_rounds_left(falling, 1e-9, 4, 200) == 5
    assert estimate_rounds_left(falling, 1e-9, 4, 6) == 2
    assert estimate_rounds_left(falling, 0.0, 4, 200) == 196
    assert estimate_rounds_left(falling[::-1], 1e-9, 4, 200) == 196
    assert estimate_rounds_left([float("inf")], 1e-9, 1, 200) == 199
    assert estimate_rounds_left([1e-3, 1e-10], 1e-9, 2, 200) == 0


def test_numbers_for_people() -> None:
    assert [format_bytes(n) for n in (0, 999, 1234, 5.6e7)] == ["0 B", "999 B", "1.23 kB", "56 MB"]
    assert [format_duration(s) for s in (0.012, 1.234, 75, 7300)] == ["12 ms", "1.23 s", "1 min 15 s", "2 h 1 min"]
    assert [format_count(1, "round"), format_count(1200, "round")] == ["1 round", "1,200 rounds"]


def test_every_solver_runs_from_a_job_file(world: Path, fedspan: Fedspan) -> None:
    from fedspan.estimators._options.spectral_parameters import SOLVERS

    for solver in SOLVERS:
        result = fedspan("run", "job.toml", "--set", f"job.solver={solver}", "--set", "job.tol=1e-4", "--out", solver)
        assert result.exit_code == 0, (solver, result.output)
        assert f"Solver: {solver} (" in (world / solver / "report.html").read_text()


def test_enough_clients_are_enough(world: Path, fedspan: Fedspan) -> None:
    result = fedspan("run", "job.toml", "--set", "run.min_clients=3", "--out", "three")
    assert result.exit_code == 2
    assert "min_clients must be a whole number from 1 to 2 (all clients), but is 3." in result.stderr
    assert fedspan("run", "job.toml", "--set", "run.min_clients=1", "--out", "one").exit_code == 0
    assert tomllib.loads((world / "one" / "job.toml").read_text())["run"]["min_clients"] == 1
