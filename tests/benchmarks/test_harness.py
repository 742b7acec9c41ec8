"""The harness of the benchmarks: marks, files, listing, and what is said when something is missing."""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedspan.cli.bench_command import import_benchmarks
from fedspan.cli.main import app
from fedspan.errors import InputError

TOY = '''"""A toy: two numbers and a claim. More is not said."""

from harness import Cost, Found, Row

NEEDS = {needs}


def run(config, data):
    ours = config.rounds
    rows = [
        Row("rounds", ours, "rounds", factor=1.5, printed=100.0, where="Table 9"),
        Row("accuracy", 0.9, "", "higher", 1.05, printed=0.92),
        Row("a is ahead of b", 3.0, against=float("inf")),
        Row("records", None, printed=0.5, impossible="not public"),
    ]
    return Found(rows, [7], {{"n": 4}}, [Cost("toy", "ours", ours, 1.5, False)], {{}})
'''


@pytest.fixture(scope="module")
def harness() -> Any:
    return import_benchmarks()


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "toy.py").write_text(TOY.format(needs="()"))
    (tmp_path / "paper" / "hungry.py").write_text(TOY.format(needs='("mnist", "food")'))
    sizes = "[{0}.quick]\nrounds = 50.0\n[{0}.full]\nrounds = 200.0\n"
    (tmp_path / "paper" / "config.toml").write_text(sizes.format("toy") + sizes.format("hungry"))
    (tmp_path / "paper" / "helper.py").write_text('"""No benchmark: it has no run."""\nraise SystemExit\n')
    return tmp_path


@pytest.mark.parametrize(
    ("ours", "printed", "better", "factor", "mark"),
    [
        (100.0, 100.0, "lower", 1.0, "reproduced"),
        (149.0, 100.0, "lower", 1.5, "reproduced"),
        (151.0, 100.0, "lower", 1.5, "worse"),
        (67.0, 100.0, "lower", 1.5, "reproduced"),
        (66.0, 100.0, "lower", 1.5, "better"),
        (0.0, 100.0, "lower", 1.5, "better"),
        (1e-9, 0.0, "lower", 2.0, "worse"),
        (0.0, 0.0, "lower", 2.0, "reproduced"),
        (math.inf, 100.0, "lower", 1.5, "worse"),
        (0.90, 0.91, "higher", 1.02, "reproduced"),
        (0.80, 0.91, "higher", 1.02, "worse"),
        (0.99, 0.91, "higher", 1.02, "better"),
        (0.0, 0.91, "higher", 1.02, "worse"),
        (-0.1, 0.91, "lower", 1.02, "worse"),
    ],
)
def test_a_mark_follows_from_the_numbers(harness, ours, printed, better, factor, mark) -> None:
    row = harness.Row("x", ours, "", better, factor, printed=printed)
    assert harness.mark(asdict(row)) == mark


@pytest.mark.parametrize(
    ("ours", "against", "better", "factor", "mark"),
    [
        (3.0, 4.0, "lower", 1.0, "reproduced"),
        (4.0, 3.0, "lower", 1.0, "worse"),
        (4.0, 3.9, "lower", 1.05, "reproduced"),
        (3.0, math.inf, "lower", 1.0, "reproduced"),
        (math.inf, 3.0, "lower", 1.0, "worse"),
        (math.inf, math.inf, "lower", 1.0, "worse"),  # where neither got there nothing was shown
        (4.0, 3.0, "higher", 1.0, "reproduced"),
        (0.01, 3.0, "higher", 1.0, "worse"),
        (1e-9, 1.0, "lower", 1.0, "reproduced"),  # far ahead of a claim is what was claimed, not "better"
    ],
)
def test_a_claim_holds_or_does_not(harness, ours, against, better, factor, mark) -> None:
    row = harness.Row("x", ours, "", better, factor, against=against)
    assert harness.mark(asdict(row)) == mark


@pytest.mark.parametrize(
    "wrong",
    [
        {"ours": None},
        {"ours": math.nan, "printed": 1.0},
        {"ours": 1.0},
        {"ours": 1.0, "printed": 1.0, "against": 1.0},
        {"ours": 1.0, "printed": 1.0, "impossible": "yes"},
        {"ours": 1.0, "printed": 1.0, "better": "more"},
        {"ours": 1.0, "printed": 1.0, "factor": 0.5},
    ],
)
def test_a_row_that_says_nothing_is_refused(harness, wrong) -> None:
    with pytest.raises(InputError, match="must"):
        harness.Row("x", **wrong)


def test_a_run_leaves_a_file_and_a_picture(harness, toys, tmp_path) -> None:
    bench = harness.find("paper/toy", toys)
    out = tmp_path / "out"
    result = harness.execute(bench, "quick", tmp_path, out)
    path = out / "paper" / "toy.quick.json"
    assert harness.read(path) == result
    assert [row["mark"] for row in result["rows"]] == ["better", "reproduced", "reproduced", "not possible here"]
    stored = json.loads(path.read_text())
    assert [row["mark"] for row in stored["rows"]] == [row["mark"] for row in result["rows"]]
    assert stored["rows"][2]["against"] == "never"
    assert result["rows"][2]["against"] == math.inf
    assert stored["seeds"] == [7]
    assert stored["setting"] == {"n": 4}
    assert stored["config"] == {"rounds": 50.0}
    assert stored["versions"]["numpy"]
    assert stored["cores"] >= 1
    picture = path.with_suffix(".svg").read_text()
    assert picture.startswith("<svg ")
    assert "accuracy" in picture
    full = harness.execute(bench, "full", tmp_path, out)
    assert full["rows"][0]["mark"] == "worse"
    assert harness.latest(bench, out) == full
    assert harness.counts(full["rows"]) == {"reproduced": 2, "better": 0, "worse": 1, "not possible here": 1}


def test_what_is_listed_has_a_run_and_is_not_imported(harness, toys) -> None:
    found = harness.benchmarks(toys)
    assert list(found) == ["paper/hungry", "paper/toy"]  # helper.py would have ended this process
    assert found["paper/toy"].title == "A toy: two numbers and a claim. More is not said"
    assert found["paper/hungry"].needs == ("mnist", "food")


def test_missing_data_is_a_reason_to_skip(harness, toys, tmp_path) -> None:
    with pytest.raises(harness.SkippedError, match=r"needs mnist.npz, food.npz, .* --data or FEDSPAN_DATA"):
        harness.execute(harness.find("paper/hungry", toys), "quick", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_size_or_name_is_refused_kindly(harness, toys, tmp_path) -> None:
    with pytest.raises(InputError, match="The size must be one of quick, full, but is 'huge'"):
        harness.execute(harness.find("paper/toy", toys), "huge", tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="Did you mean 'paper/toy'"):
        harness.find("papr/toy", toys)


def test_a_benchmark_without_a_configuration_is_refused(harness, toys, tmp_path) -> None:
    (toys / "paper" / "config.toml").write_text("[toy.quick]\nrounds = 1.0\n")
    with pytest.raises(InputError, match=r"config.toml has no section \[toy.full\]"):
        harness.execute(harness.find("paper/toy", toys), "full", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_benchmark_is_configured_for_both_sizes_and_nothing_else_is(harness) -> None:
    for bench in harness.benchmarks().values():
        quick, full = (harness.configuration(bench, size) for size in harness.SIZES)
        assert quick.keys() == full.keys()
        used = set(re.findall(r"\bconfig\.(\w+)", bench.path.read_text(encoding="utf-8")))
        assert used == quick.keys(), bench.name


def fedspan(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words], env={"COLUMNS": "200"})


def test_the_command_lists_all(harness) -> None:
    done = fedspan()
    assert done.exit_code == 0, done.output
    assert len(harness.benchmarks()) >= 20
    for name in harness.benchmarks():
        assert name in done.output


def test_the_command_names_the_nearest(tmp_path) -> None:
    done = fedspan("faps/tabel4", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "Did you mean 'faps/table4'?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_command_skips_with_a_reason(tmp_path) -> None:
    done = fedspan("faps/table3", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0
    assert "skipped: faps/table3 needs mnist.npz, cifar10-batch1.npz" in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_the_command_runs_one(harness, toys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harness, "find", lambda name, find=harness.find: find(name, toys))
    done = fedspan("paper/toy", "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "2 reproduced, 1 better, 0 worse, 1 not possible here" in done.output
    assert (tmp_path / "out" / "paper" / "toy.quick.json").is_file()


def test_a_folder_or_all_is_several(harness, toys) -> None:
    assert harness.several("paper", toys) == harness.several("all", toys) == ["paper/hungry", "paper/toy"]
    assert harness.several("paper/toy", toys) == harness.several("pape", toys) == []
    assert harness.several("faps") == [name for name in harness.benchmarks() if name.startswith("faps/")]


def test_the_command_runs_a_folder_each_in_its_own_process(harness, monkeypatch, tmp_path, capfd) -> None:
    """Of ssca every one needs MNIST, so all are skipped, each with its reason. Two of them show it."""
    names = harness.several("ssca")[:2]
    assert len(names) == 2
    monkeypatch.setattr(harness, "several", lambda name: names)
    done = fedspan("ssca", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    said = " ".join(capfd.readouterr().out.split())
    for name in names:
        assert f"skipped: {name} needs mnist.npz" in said
    assert "2 of 2" in done.output


def test_one_that_fails_does_not_keep_the_others_from_running(monkeypatch, tmp_path) -> None:
    import sys

    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$4" != ssca/figure1 ]\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    done = fedspan("ssca", "--full")
    assert done.exit_code == 1
    names = import_benchmarks().several("ssca")
    assert f"1 of {len(names)} benchmarks failed: ssca/figure1" in done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"-m fedspan.cli.main bench {name} --full" for name in names]


def test_without_a_checkout_it_says_so(tmp_path) -> None:
    with pytest.raises(InputError, match="only in a checkout of fedspan's repository"):
        import_benchmarks(root=tmp_path)


def test_every_printed_number_is_found_by_its_table(harness) -> None:
    """A table that a benchmark asks for is there, with as many columns as every row has numbers."""
    import tomllib

    for path in harness.HERE.glob("*/printed.toml"):
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            assert table["where"], (path, name)
            assert all(len(values) == len(table["columns"]) for values in table["rows"].values()), (path, name)


def test_results_are_small_and_tracked(harness) -> None:
    files = subprocess.run(["git", "ls-files", "-s"], cwd=harness.RESULTS, capture_output=True, text=True, check=True)
    assert files.stdout, "results belong in the repository"
    assert all(path.stat().st_size < 100_000 for path in harness.RESULTS.rglob("*.json"))
