"""The table of what can be verified says what the algorithms say, and names all of them."""

from __future__ import annotations

from pathlib import Path

from fedspan.algorithms.registry import ALGORITHMS
from fedspan.cli.bench_command import import_benchmarks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "secure-aggregation.md"
# Of a listed class, with the same replay or one like it.
LIKE_ANOTHER = {"Wda", "PaperNoise", "MaxVarDavidson", "SscaMomentum", "PersonalPaper", "PerPca", "Scaffold", "FedAdam"}
AT_HOME = {"ParallelAnalysis", "SumViews"}  # in one process only: no site of a federation knows them


def test_the_table_is_that_of_the_algorithms() -> None:
    benchmark = import_benchmarks("verified")
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("<!-- verified kinds begins -->\n")[1].split("\n<!-- verified kinds ends -->")[0]
    assert table.splitlines() == benchmark.list_kinds()
    assert {type(server).__name__ for server in benchmark.KINDS.values()} | LIKE_ANOTHER == set(ALGORITHMS) | AT_HOME
