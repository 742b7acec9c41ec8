"""What it costs to match ids privately: processor seconds and bytes for each party, and what each party learns.

    python benchmarks/alignment.py measure      measures, and writes the table of docs/alignment.md
    python benchmarks/alignment.py leaks        writes only the table of what is learned

Every party blinds in this process with one worker, one party after the other, so the processor time divided by the
parties is what one party needs on one core. Each row is one run; ids are texts such as "Patient-17", half of them
common to all parties.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from fedspan import match_entities
from fedspan.algorithms.matching.match_by_tags import How
from fedspan.core.protocol import tasks_of
from fedspan.engines import InProcess
from fedspan.estimators.matching.match_entities import METHODS, Method
from page import put

PAGE = Path(__file__).resolve().parents[1] / "docs" / "alignment.md"
CASES: list[tuple[Method, int, int, How]] = [  # method, parties, ids of each, what is kept
    ("psi", 2, 1_000, "intersection"),
    ("psi", 2, 10_000, "intersection"),
    ("psi", 10, 10_000, "intersection"),
    ("psi", 10, 10_000, "union"),
    ("psi", 2, 100_000, "intersection"),
    ("digest", 2, 100_000, "intersection"),
]


def make_lists(parties: int, each: int) -> dict[str, list[str]]:
    """Lists of which half is common, shuffled, and written in two ways."""
    rng = np.random.default_rng(0)
    lists = {}
    for i in range(parties):
        ids = [f"Patient-{j}" for j in range(each // 2)] + [f"only-{i}-{j}" for j in range(each - each // 2)]
        rng.shuffle(ids)
        lists[f"party{i}"] = [f" {one.upper()} " for one in ids] if i % 2 else ids
    return lists


def measure(method: Method, parties: int, each: int, how: How) -> str:
    """One row of the table."""
    lists = make_lists(parties, each)
    started = time.process_time()
    found = match_entities(
        lists, method=method, how=how, workers=1, engine=lambda data: InProcess(data, threads=1, wire=True)
    )
    seconds = (time.process_time() - started) / parties
    expected = each // 2 + (parties * (each - each // 2) if how == "union" else 0)
    assert found.entities == expected, (found.entities, expected)
    up, down = found.ledger.bytes_up / parties / 1e6, found.ledger.bytes_down / parties / 1e6
    return f"| {method} | {parties} | {each} | {how} | {found.entities} | {seconds:.3g} | {up:.3g} | {down:.3g} |"


def list_leaks() -> list[str]:
    """What each method's tasks say that they show, from the algorithms themselves."""
    rows = ["| method | task | what the server sees of each client |", "|---|---|---|"]
    for method, kind in METHODS.items():
        tasks = {name: task for name, task in tasks_of(kind.client).items() if name in kind().asks()}
        names = [name for turn in kind().course().opening for name in turn.tasks]
        rows += [f"| {method} | `{name}` | {tasks[name].shows or 'nothing: it is told something'} |" for name in names]
    return rows


def main() -> None:
    """Measure what is asked for, and write the tables."""
    if sys.argv[1:] == ["measure"]:
        head = "| method | parties | ids of each | kept | entities | CPU seconds of a party | MB up | MB down |"
        rows = [head, "|---|--:|--:|---|--:|--:|--:|--:|"]
        for case in CASES:
            rows.append(measure(*case))
            print(rows[-1], flush=True)
        put(rows, PAGE, "matching costs")
    put(list_leaks(), PAGE, "matching leaks")


if __name__ == "__main__":
    main()
