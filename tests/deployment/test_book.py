"""The site's book: what left is in it, nothing of it can be changed unnoticed, and without it nothing leaves."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from orders import new_run
from typer.testing import CliRunner

from fedspan.cli.main import app
from fedspan.core.ledger import Exchange, Ledger
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_rules.book import FIRST, Book, BookError
from fedspan.errors import InputError
from fedspan.privacy.accountant import epsilon
from fedspan.privacy.budget import Budget

Make = Callable[..., LoopbackFederation]


def order(estimator: str, secure: bool = True, **parameters: Any) -> RunRequest:
    return RunRequest(new_run(), estimator, parameters, secure={"enabled": secure}, retries=0)


def _write_some(place: tuple[Path, int]) -> None:
    for i in range(20):
        Book(place[0]).write("administrator", act=f"{place[1]}.{i}")


def run_cli(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_every_answer_is_in_the_book_with_what_left(make_three: Make) -> None:
    three = make_three(secure=False)
    request = order("FederatedPCA", False, n_components=2, solver="ssi", max_rounds=3, tol=0.0, random_state=0)
    assert three.carry_out(request)["done"]
    sent = [e for e in Ledger.read(three.place(request) / "ledger.jsonl").events if isinstance(e, Exchange)]
    for kit in three.sites.values():
        entries = list(Book(kit).read())
        answers = [entry for entry in entries if entry.event == "answered"]
        assert entries[0].event == "opened"
        assert entries[0].facts["algorithm"] == "Ssi"
        assert [entry.facts["task"] for entry in answers] == [exchange.task for exchange in sent]
        assert [entry.facts["round"] for entry in answers] == [exchange.round for exchange in sent]
        place = sent[0].clients.index(kit.name)
        assert [entry.facts["bytes"] for entry in answers] == [exchange.bytes_up[place] for exchange in sent]
        assert Book(kit).verify().broken == ()
        assert stat.S_IMODE(Book(kit).path.stat().st_mode) == 0o600


def test_the_end_of_a_run_says_what_left_and_what_it_cost(make_three: Make) -> None:
    """The cost is that of the accountant of the site's budget, which counts the same releases on its own."""
    three = make_three(secure=False, epsilon=4.0, delta=1e-6)
    for kit in three.sites.values():
        Budget.grant(kit / "fedspan" / "budget.json", 4.0, 1e-6)
    privacy = {"epsilon": 2.0, "delta": 1e-6, "row_norm": 6.0}
    request = RunRequest(new_run(), "FederatedPCA", {"n_components": 2, "solver": "gram"}, privacy=privacy)
    assert three.carry_out(request)["done"]
    for kit in three.sites.values():
        entries = list(Book(kit).read())
        ended = [entry.facts for entry in entries if entry.event == "ended"]
        answered = [entry.facts for entry in entries if entry.event == "answered"]
        assert sum(int(str(each["bytes"])) for each in ended) == sum(int(str(each["bytes"])) for each in answered)
        account = Budget(kit / "fedspan" / "budget.json").account
        alone = {entry.run: epsilon(entry.count(), 1e-6) for entry in account.runs}
        assert sorted(alone.values()) == pytest.approx(sorted(float(str(each["charged"])) for each in ended), rel=1e-9)
        assert all(value > 0 for value in alone.values())
        assert "epsilon" in run_cli("site", "log", kit)[1].split("ended")[1].splitlines()[0]


def test_no_value_of_the_data_is_in_the_book(make_three: Make) -> None:
    three = make_three()
    request = order("FederatedPCA", n_components=2)
    assert three.carry_out(request)["done"]
    for kit in three.sites.values():
        for entry in Book(kit).read():
            for key, value in entry.facts.items():
                if key == "arrays":
                    assert isinstance(value, list)
                    for array in value:
                        assert isinstance(array, list)
                        assert [type(part) for part in array] == [str, list, int]
                else:
                    assert key in {
                        *("run", "part", "table", "order", "algorithm", "sites", "rounds", "secure", "verified"),
                        *("epsilon", "delta", "task", "round", "bytes"),
                        *("answers", "refused"),
                    }


@pytest.mark.parametrize("change", ["value", "removed", "inserted", "swapped"])
def test_a_line_that_was_changed_is_found(tmp_path: Path, change: str) -> None:
    book = Book(tmp_path)
    for i in range(6):
        book.write("administrator", act=f"number {i}")
    assert book.verify().broken == ()
    lines = book.path.read_bytes().splitlines()
    if change == "value":
        lines[2] = lines[2].replace(b"number 2", b"number 9")
    elif change == "removed":
        del lines[2]
    elif change == "inserted":
        lines.insert(2, lines[1])
    else:
        lines[2], lines[3] = lines[3], lines[2]
    book.path.write_bytes(b"\n".join(lines) + b"\n")
    assert book.verify().broken
    book.write("administrator", act="later")  # what comes after it does not mend it
    assert book.verify().broken
    code, said = run_cli("site", "log", tmp_path, "--verify")
    assert code == 2
    assert "was changed" in said


def test_an_end_that_was_cut_off_is_found_by_who_noted_the_last_digest(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for i in range(6):
        book.write("administrator", act=f"number {i}")
    head = book.verify().head
    assert run_cli("site", "log", tmp_path, "--verify", "--head", head)[0] == 0
    book.write("administrator", act="more")
    assert run_cli("site", "log", tmp_path, "--verify", "--head", head)[0] == 0
    lines = book.path.read_bytes().splitlines(keepends=True)
    book.path.write_bytes(b"".join(lines[:4]))
    assert run_cli("site", "log", tmp_path, "--verify")[0] == 0  # the chain alone does not tell
    code, said = run_cli("site", "log", tmp_path, "--verify", "--head", head)
    assert code == 2
    assert "cut off" in said


def test_a_line_that_a_crash_cut_off_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.write("administrator", act="first")
    with book.path.open("ab") as file:
        file.write(b'{"when": "2026-11-18T')
    book.write("administrator", act="second")
    assert [entry.event for entry in book.read()] == ["administrator", "cut", "administrator"]
    assert book.verify().broken == ()
    assert "a line that a crash cut off" in run_cli("site", "log", tmp_path)[1]


def test_lines_longer_than_one_look_are_chained_too(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for i in range(3):
        book.write("administrator", act=str(i) * 200_000)
    assert book.verify().broken == ()
    first = json.loads(book.path.read_bytes().splitlines()[0])
    assert first["previous"] == FIRST


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(_write_some, [(tmp_path, number) for number in range(3)]))
    audit = Book(tmp_path).verify()
    assert (audit.lines, audit.broken) == (60, ())


def test_without_its_book_a_site_answers_nothing(make_three: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the run ends, nothing leaves that is not written down, and it goes on when there is room."""
    three = make_three(secure=False)
    request = order("FederatedPCA", False, n_components=2, solver="ssi", max_rounds=4, tol=0.0, random_state=0)
    write, full = Book.write, True

    def fail_sometimes(self: Book, event: Any, **facts: Any) -> None:
        if full and "north" in str(self.path) and event == "answered" and facts["round"] >= 2:
            raise BookError("Cannot write to the site's book: No space left on device.")
        write(self, event, **facts)

    monkeypatch.setattr(Book, "write", fail_sometimes)
    outcome = three.carry_out(request)
    assert not outcome["done"]
    assert not outcome.get("input")  # the job is good, and can go on
    assert "cannot keep its book" in outcome.get("error", "")
    full = False
    again = three.carry_out(request)
    assert again["done"], again
    sent = [e for e in Ledger.read(three.place(request) / "ledger.jsonl").events if isinstance(e, Exchange)]
    answered = [e for e in sent if "north" in e.clients and "north" not in e.missing]
    written = [entry for entry in Book(three.sites["north"]).read() if entry.event == "answered"]
    assert len(written) >= len(answered)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.path.parent.mkdir()
    os.symlink("/dev/full", book.path)
    with pytest.raises(BookError, match="No space left on device"):
        book.write("administrator", act="x")


def test_what_a_site_refused_is_in_its_book(make_three: Make) -> None:
    three = make_three(algorithms=["Gram"])
    outcome = three.carry_out(order("FederatedPCA", False, n_components=2, solver="ssi"))
    assert not outcome["done"]
    said = run_cli("site", "log", three.sites["north"])[1]
    assert "refused" in said
    assert "'ssi' is not allowed at this site" in said


def test_a_paused_site_stops_runs_and_lets_them_go_on_afterwards(make_three: Make) -> None:
    three = make_three(secure=False)
    request = order("FederatedPCA", False, n_components=2, solver="ssi", max_rounds=3, tol=0.0, random_state=0)
    kit = three.sites["south"]
    assert run_cli("site", "pause", kit)[0] == 0
    outcome = three.carry_out(request)
    assert not outcome["done"]
    assert not outcome.get("input")
    assert "paused by its administrator" in outcome.get("error", "")
    assert run_cli("site", "pause", kit, "--end") == (0, "the pause is over\n")
    assert three.carry_out(request)["done"]
    assert run_cli("site", "pause", kit, "--end") == (0, "the site was not paused\n")
    said = run_cli("site", "log", kit)[1]
    assert "paused the site" in said
    assert "ended the pause" in said


def test_evidence_of_a_run_holds_what_an_auditor_needs_and_no_data(make_three: Make, tmp_path: Path) -> None:
    three = make_three()
    request = order("FederatedPCA", n_components=2)
    assert three.carry_out(request)["done"]
    kit, out = three.sites["east"], tmp_path / "evidence"
    code, said = run_cli("site", "evidence", kit, request.run[:6], "--out", out)
    assert code == 0, said
    files = {path.name for path in out.iterdir()}
    assert {"book.jsonl", "log.txt", "order-0.json", "model-card.md", "ro-crate-metadata.json"} <= files
    card = (out / "model-card.md").read_text()
    assert f"Model of run {request.run}" in card
    assert "secure sums over at least 3 sites, each step verified by this site; no noise" in card
    assert "settle: " in card
    crate = json.loads((out / "ro-crate-metadata.json").read_text())
    listed = {part["@id"]: part for part in crate["@graph"]}
    for name in files - {"ro-crate-metadata.json"}:
        assert listed[name]["sha256"] == sha256((out / name).read_bytes()).hexdigest()
        assert stat.S_IMODE((out / name).stat().st_mode) == 0o600
    order_text = (out / "order-0.json").read_text()
    opened = next(entry for entry in Book(kit).read() if entry.event == "opened")
    assert json.loads(order_text)["run"] == request.run
    assert opened.facts["run"] == request.run
    assert "answered" in (out / "log.txt").read_text()
    for words, error in (((kit, "nosuchrun"), "has no run"), ((kit, request.run), "already exists")):
        code, said = run_cli("site", "evidence", *words, "--out", out)
        assert code == 2
        assert error in said
    Book(kit).path.write_bytes(Book(kit).path.read_bytes().replace(b"Gram", b"Mram", 1))
    code, said = run_cli("site", "evidence", kit, request.run, "--out", tmp_path / "other")
    assert code == 2
    assert not (tmp_path / "other").exists()


def test_a_hostile_book_is_read_without_harm(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.write("administrator", act="\x1b[31mred\u202e")
    with book.path.open("ab") as file:
        file.write(b'[1]\n{"event": "answered", "arrays": [["a", 1]]}\n\xff\xfe\n{"event": "opened"}\n')
    code, said = run_cli("site", "log", tmp_path)
    assert code == 0
    assert "\x1b" not in said
    assert "\u202e" not in said
    book.path.unlink()
    book.path.mkdir()
    with pytest.raises(InputError, match="Cannot read the site's book"):
        list(book.read())
