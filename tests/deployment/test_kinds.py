"""What a site's file says that a column holds: compared with the other sites before a run, and here with the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from orders import new_run, write_site

from fedspan.core.ledger import Ledger, Note
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_rules.book import Book
from fedspan.deployment.site_tables.site_check import inspect_table, propose_table
from fedspan.errors import InputError

ROWS = [(1990 + i, 20 + i, (i * 7) % 5 + 0.5) for i in range(12)]


def make(folder: Path, kinds: dict[str, dict[str, str]], dates: str = "") -> LoopbackFederation:
    kits = {}
    for site, own in kinds.items():
        path = folder / f"{site}.csv"
        lines = [f"{f'{year}-05-01' if site == dates else year},{age},{dose}" for year, age, dose in ROWS]
        path.write_text("\n".join(["born,age,dose", *lines]) + "\n")
        reading = {"dates": {"born": "%Y-%m-%d"}} if site == dates else {}
        table = {"path": str(path), "columns": ["born", "age", "dose"], "kinds": own, **reading}
        kits[site] = write_site(folder / site, {"default": table}, secure=False)
    return LoopbackFederation(folder / "server", kits)


def ask() -> RunRequest:
    return RunRequest(new_run(), "FederatedPCA", {"n_components": 2, "solver": "gram"}, secure={"enabled": False})


def test_dates_here_and_numbers_there_are_refused_before_anything_leaves(tmp_path: Path) -> None:
    """Both become numbers (days, and years), so nothing else would notice: without kinds the run goes through."""
    whole = {"born": "integer", "age": "integer"}
    three = make(tmp_path, {"a": whole, "b": {**whole, "born": "date"}, "c": whole}, dates="b")
    outcome = three.carry_out(ask())
    assert outcome.get("input") is True
    assert "Column 'born' holds whole numbers at site 'a', but dates at site 'b'" in outcome["error"]
    assert not any(entry.event == "answered" for kit in three.sites.values() for entry in Book(kit).read())


def test_without_kinds_nothing_would_notice(tmp_path: Path) -> None:
    assert make(tmp_path, {"a": {}, "b": {}, "c": {}}, dates="b").carry_out(ask())["done"]


def test_whole_numbers_and_fractions_are_told_and_do_not_end_a_run(tmp_path: Path) -> None:
    three, request = make(tmp_path, {"a": {"age": "integer"}, "b": {"age": "number"}, "c": {}}), ask()
    assert three.carry_out(request)["done"]
    ledger = Ledger.read(three.place(request) / "ledger.jsonl")
    notes = [event.text for event in ledger.events if isinstance(event, Note)]
    assert any("Column 'age' is not the same at all sites: whole numbers at 'a', numbers at 'b'" in n for n in notes)


def test_site_init_finds_the_kinds_and_site_check_compares_them(tmp_path: Path) -> None:
    make(tmp_path, {"a": {"age": "date", "dose": "integer"}, "b": {}, "c": {}})
    assert propose_table(str(tmp_path / "a.csv"), columns=None).keys["kinds"] == {
        "born": "integer",
        "age": "integer",
        "dose": "number",
    }
    problems = inspect_table(Policy.read(tmp_path / "a").tables["default"]).problems
    assert any("'age'" in p and "'date' (kinds), but it is 'integer'" in p for p in problems)
    assert any("'dose'" in p and "'integer' (kinds), but it is 'number'" in p for p in problems)


def test_a_column_that_is_read_as_dates_must_be_called_that(tmp_path: Path) -> None:
    made = make(tmp_path, {"a": {"born": "integer"}, "b": {"born": "date"}, "c": {}}, dates="a")
    found = inspect_table(Policy.read(made.sites["a"]).tables["default"]).problems
    assert any("'born'" in problem and "it is 'date'" in problem for problem in found)


@pytest.mark.parametrize("kind", ["text", "", 'a"b'])
def test_an_unknown_kind_is_an_error(tmp_path: Path, kind: str) -> None:
    made = make(tmp_path, {"a": {"age": kind}, "b": {}, "c": {}})
    with pytest.raises(InputError, match="must be one of integer, number, yes/no, date"):
        Policy.read(made.sites["a"])
