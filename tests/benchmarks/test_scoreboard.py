"""docs/scoreboard.md is made from the results and from nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.cli.bench_command import import_benchmarks


@pytest.fixture(scope="module")
def board() -> Any:
    return import_benchmarks("scoreboard")


def total(page: str) -> tuple[int, int]:
    """Reproduced or better, and possible, of all papers together."""
    line = next(line for line in page.splitlines() if line.startswith("| all |"))
    found = re.match(r" (\d+) of (\d+) \(", line.split("|")[4])
    assert found
    return int(found[1]), int(found[2])


def test_the_tracked_page_is_what_the_tracked_results_give(board) -> None:
    assert board.PAGE.read_text(encoding="utf-8") == board.page(), "do: fedspan bench --scoreboard"


def test_at_least_nine_tenths_of_what_is_possible_here_is_reproduced(board) -> None:
    good, possible = total(board.page())
    assert possible > 200
    assert good >= 0.9 * possible


def test_every_benchmark_was_run_and_every_miss_is_explained(board) -> None:
    harness = import_benchmarks()
    for name, bench in harness.benchmarks().items():
        result = harness.latest(bench)
        assert result, f"{name} has no result: fedspan bench {name}"
        reasons = board.explanations(bench)
        worse = [row["what"] for row in result["rows"] if row["mark"] == "worse"]
        assert not [what for what in worse if what not in reasons], name
        both = [bench.result(harness.RESULTS, size) for size in harness.SIZES]
        known = {row["what"] for path in both if path.is_file() for row in harness.read(path)["rows"]}
        assert set(reasons) <= known, f"{name}: reasons for rows that are not there"


def test_a_changed_measurement_changes_the_page(board, tmp_path) -> None:
    harness = import_benchmarks()
    copy = tmp_path / "results"
    shutil.copytree(harness.RESULTS, copy)
    before = board.page(copy)
    assert before == board.page()
    path = harness.latest_path(harness.find("faps/table4"), copy)
    record = json.loads(path.read_text(encoding="utf-8"))
    row = next(row for row in record["rows"] if row["what"] == "FAPS: rounds")
    assert row["mark"] == "reproduced"
    row["ours"] = 54321.0
    path.write_text(json.dumps(record), encoding="utf-8")
    after = board.page(copy)
    assert total(after) == (total(before)[0] - 1, total(before)[1])
    line = next(line for line in after.splitlines() if line.startswith("| FAPS: rounds"))
    assert "5.432e+04" in line
    assert line.endswith("| worse |")
    assert "*FAPS: rounds*: not explained yet" in after


def test_a_changed_cost_changes_the_headline(board, tmp_path) -> None:
    harness = import_benchmarks()
    copy = tmp_path / "results"
    shutil.copytree(harness.RESULTS, copy)
    path = harness.latest_path(harness.find("faps/table4"), copy)
    record = json.loads(path.read_text(encoding="utf-8"))
    for cost in record["costs"]:
        if not cost["published"]:
            cost["rounds"] = 123.0
    path.write_text(json.dumps(record), encoding="utf-8")
    line = next(line for line in board.page(copy).splitlines() if line.startswith("| PCA (FAPS Table 4)"))
    assert "| 1+123 (" in line  # all of ours have an opening


def test_an_opening_counts_in_the_headline_and_one_that_never_got_there_does_not_win(board) -> None:
    costs = [
        {"solver": "davidson", "rounds": 4.0, "megabytes": 2.0, "published": False, "opening": 1},
        {"solver": "theirs", "rounds": 55.0, "megabytes": math.inf, "published": True, "opening": 0},
    ]
    line = board._line("PCA", costs)
    assert line == "| PCA | 1+4 (davidson) | 55 (theirs) | 11.0 | 2 (davidson) | never (theirs) | ∞ |"
    costs.append({"solver": "slower", "rounds": 5.0, "megabytes": 9.0, "published": False})
    assert "| 1+4 (davidson) |" in board._line("PCA", [{**costs[2], "rounds": 5.5}, *costs[:2]])
    costs[0]["opening"] = 2
    assert "| 5 (slower) |" in board._line("PCA", costs)


def test_which_exchanges_of_an_opening_are_like_a_round() -> None:
    from fedspan.algorithms import Davidson, Krylov, MaxVarDavidson

    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(40, 60)) for _ in range(3)]
    openings = import_benchmarks().openings
    assert openings(Krylov(3, center=False), clients) == 0  # sizes and traces
    assert openings(Krylov(3, center=False, width="auto"), clients) == 1  # a sum of their leading subspaces
    assert openings(Davidson(3, center=False), clients) == 1  # the clients' own leading subspaces
    views = [rng.normal(size=(60, 8)) for _ in range(3)]
    assert openings(MaxVarDavidson(k=2), views) == 1


def test_the_headline_has_ours_and_a_published_solver_for_the_spectral_jobs(board) -> None:
    lines = [line for line in board.page().splitlines() if re.match(r"\| (PCA|SVD|linear GCCA|personalized)", line)]
    assert len(lines) >= 7
    for line in lines:
        assert "–" not in line, line


def test_a_page_of_nothing(board, tmp_path: Path) -> None:
    assert "| all | – | – | – | 0 | 0 | 0 |" in board.page(tmp_path)
