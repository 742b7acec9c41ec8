"""The audit at a site: the same attacks as on a run in one process, from what this site alone has kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).resolve().parents[1] / "deployment"))

from orders import new_run, write_site

from fedspan.audit.site_auditor import audit_site
from fedspan.channel import wire
from fedspan.cli.main import app
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_rules.book import Book
from fedspan.deployment.site_rules.kept_messages import MESSAGES, KeptMessages
from fedspan.errors import InputError


def make(folder: Path, keep: int, **rules: Any) -> LoopbackFederation:
    rng, kits = np.random.default_rng(3), {}
    mix = rng.normal(size=(6, 6))
    names = [f"lab{i}" for i in range(6)]
    for site, rows in (("east", 40), ("north", 90), ("south", 25)):
        path = folder / f"{site}.csv"
        X = rng.normal(size=(rows, 6)) @ mix + 1.0
        np.savetxt(path, X, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
        table = {"path": str(path), "columns": names}
        kits[site] = write_site(folder / site, {"default": table}, secure=False, transcript_mb=keep, **rules)
    return LoopbackFederation(folder / "server", kits)


def ask(secure: bool = False, **parameters: Any) -> RunRequest:
    given = {"n_components": 2, "solver": "krylov", "random_state": 0, **parameters}
    return RunRequest(new_run(), "FederatedPCA", given, secure={"enabled": secure}, retries=0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoopbackFederation, RunRequest]:
    three, request = make(tmp_path_factory.mktemp("plain"), 5), ask()
    assert three.carry_out(request)["done"]
    return three, request


def test_a_site_finds_what_its_plain_answers_gave_away(plain: tuple[LoopbackFederation, RunRequest]) -> None:
    """Without secure sums the server knows the second moments of this site: the attack at the site finds it, too."""
    three, request = plain
    kit = three.sites["north"]
    (part,) = audit_site(kit, request.run[:8])
    result = part.result
    assert result.evidence[0].least < 1e-6
    assert "is known to the server" in result.evidence[0].verdict()
    assert result.row_test is not None
    assert any(test.result.mu > 12 for test in result.row_test.arrays)
    answered = [entry.facts for entry in Book(kit).read() if entry.event == "answered"]
    assert result.bytes_up == sum(int(str(each["bytes"])) for each in answered)
    assert not any("messages are missing" in note for note in result.notes)
    assert result.page is not None
    assert "north" in result.page.read_text()
    code = CliRunner().invoke(app, ["audit", str(kit), "--run", request.run[:8]])
    assert code.exit_code == 0
    assert "is known to the server" in code.output


def test_what_is_kept_are_the_bytes_that_left(plain: tuple[LoopbackFederation, RunRequest]) -> None:
    three, request = plain
    kit = three.sites["south"]
    kept = KeptMessages(kit / "fedspan" / "runs" / request.run / "0", 0)
    pairs = list(kept.read())
    answered = [entry.facts for entry in Book(kit).read() if entry.event == "answered"]
    assert [len(pair.answer) for pair in pairs] == [each["bytes"] for each in answered]
    assert [wire.decode(pair.question).task for pair in pairs] == [each["task"] for each in answered]
    assert kept.whole
    path = kit / "fedspan" / "runs" / request.run / "0" / MESSAGES
    assert path.stat().st_mode & 0o077 == 0


def test_a_message_that_is_missing_is_told(plain: tuple[LoopbackFederation, RunRequest], tmp_path: Path) -> None:
    three, request = plain
    kit = three.sites["east"]
    path = kit / "fedspan" / "runs" / request.run / "0" / MESSAGES
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # a crash in the middle of the last one
    try:
        (part,) = audit_site(kit, request.run)
        assert any("messages are missing" in note for note in part.result.notes)
    finally:
        path.write_bytes(whole)


def test_secure_sums_leave_nothing_to_attack(tmp_path: Path) -> None:
    three, request = make(tmp_path, 5), ask(secure=True, solver="ssi", max_rounds=3, tol=0.0)
    assert three.carry_out(request)["done"]
    part = audit_site(three.sites["north"], request.run)[-1]
    assert not part.result.evidence
    assert any("looks like random bytes" in note for note in part.result.notes)
    assert part.result.privacy.startswith("Secure sums over at least")


def test_nothing_is_kept_unless_asked_for_and_never_too_much(tmp_path: Path) -> None:
    three, request = make(tmp_path, 0), ask()
    assert three.carry_out(request)["done"]
    kit = three.sites["north"]
    assert not list(kit.rglob(MESSAGES))
    (part,) = audit_site(kit, request.run)
    assert "transcript_mb = 50" in part.result.notes[0]
    assert part.result.released  # the book still says what left
    with pytest.raises(InputError, match="has no run"):
        audit_site(kit, "nosuchrun")
    kept = KeptMessages(tmp_path / "kept", 100)
    for _ in range(5):
        kept.add(b"q" * 20, b"a" * 20)
    assert not kept.whole
    assert len(list(kept.read())) == 1
    assert (tmp_path / "kept" / MESSAGES).stat().st_size <= 110
    order = next(kit.rglob("order.json"))
    order.write_text(json.dumps({"no": "order"}))
    with pytest.raises(InputError, match="cannot be read"):
        audit_site(kit, request.run)


def test_a_site_that_cannot_keep_the_messages_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its administrator has asked for them: a run whose messages are not kept could not be audited later."""
    three, request = make(tmp_path, 5), ask()
    add, full = KeptMessages.add, True

    def fail(self: KeptMessages, question: bytes, answer: bytes) -> None:
        if full and "south" in str(self.path):
            raise OSError(28, "No space left on device")
        add(self, question, answer)

    monkeypatch.setattr(KeptMessages, "add", fail)
    outcome = three.carry_out(request)
    assert not outcome["done"]
    assert not outcome.get("input")
    assert "cannot keep the messages" in outcome["error"]
    full = False
    assert three.carry_out(request)["done"]


def test_an_audit_follows_memories_over_a_resumption(tmp_path: Path) -> None:
    """Each opening of a run is a sitting: links that remember begin again from what was kept."""
    three, request = make(tmp_path, 5), ask(solver="ssi", bits=4, max_rounds=6, tol=0.0)
    asked = 0

    def tamper(call: Any, deliver: Any) -> Any:
        nonlocal asked
        asked += call.method == "exchange" and call.site == "south"
        if asked == 4:
            raise TimeoutError("lost")
        return deliver(call)

    three.tamper = tamper
    assert not three.carry_out(request)["done"]
    three.tamper, asked = None, 0
    assert three.carry_out(request)["done"]
    (part,) = audit_site(three.sites["north"], request.run)
    assert part.result.evidence[0].course
