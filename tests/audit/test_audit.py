"""`fedspan audit`: what it says of runs that leak, that mask, that kept nothing, and of folders that are damaged."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import rows, tree, write_csv

from fedspan.algorithms import Gram
from fedspan.algorithms.spectral.oneshot import GramClient
from fedspan.audit.auditor import examine_run
from fedspan.audit.evidence import Evidence, choose_milestones
from fedspan.audit.row_test import probe_longest_row
from fedspan.engines.transcript import Talk
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job

Fedspan = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def kept(fedspan: Fedspan, *words: str, out: str = "out") -> None:
    sets = [part for word in words for part in ("--set", word)]
    result = fedspan("run", "job.toml", "--transcript", *sets, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"transcript: {out}/transcript" in result.stdout


def find(path: str, most: int = 8) -> Any:
    folder = RunFolder.find(Path(path))
    return examine_run(folder, Job.load(folder.job), most)


def truth(seed: int, n: int) -> np.ndarray:
    A, both = rows(seed, n), np.vstack([rows(0, 40), rows(1, 25)])
    B = A - both.mean(axis=0)
    return B.T @ B


def test_ssi_gives_the_matrices_away(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=ssi", "job.tol=0", "job.max_rounds=8")
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ssi, 2 clients, 8 rounds, ")
    assert any(re.fullmatch(r"  multiply +8 +\S+ kB +C\^2 +Y \(5 × 2\)", line) for line in lines)
    # Two rounds ask for 4 of 5 directions; the one number that is left follows from the trace.
    known = [line for line in lines if "its second-moment matrix is known to the server from round 2 on" in line]
    assert [line.split()[:2] for line in known] == [["north", "100%"], ["south", "100%"]]
    assert any(re.fullmatch(r"  multiply +Y +\+0\.500 +certain", line) for line in lines)
    assert lines[-1] == "audit: out/audit.html"

    found = find("out")
    for e, M in zip(found.evidence, (truth(0, 40), truth(1, 25)), strict=True):
        np.testing.assert_allclose(e.truth, M, atol=1e-9)
        assert [p.round for p in e.course] == list(range(1, 9))
        assert e.course[0].error > 0.05
        assert e.course[-1].error < 1e-9
        np.testing.assert_allclose([p.share for p in e.course[:3]], [1 - 12 / 30, 1 - 2 / 30, 1])


def test_gram_is_the_matrix_itself(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=gram")
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("the server received its second-moment matrix itself") == 2
    found = find("out")
    assert [e.course[-1].error < 1e-15 for e in found.evidence] == [True, True]


def test_faps_is_not_solved_but_what_it_shows_is_said(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=faps", "job.check=false", "job.tol=1e-10", "job.max_rounds=80")
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    assert "What the mask of FAPS does not hide, after the last round:" in result.stdout
    found = find("out")
    for e, M in zip(found.evidence, (truth(0, 40), truth(1, 25)), strict=True):
        assert min(p.error for p in e.course) > 0.3
        assert e.least == min(e.fitted, e.course[-1].error, e.faps[-1].error)
        assert e.faps[0].off_diagonal > 0.1
        assert e.faps[-1].off_diagonal < 0.01
        known = M - truth_block(M, e.splits[-1][0])  # all but P⊥MP⊥
        assert e.faps[-1].error <= np.linalg.norm(M - known) / np.linalg.norm(M) + 0.01


def test_the_check_of_faps_shows_true_products(world: Path, fedspan: Fedspan) -> None:
    """Of five columns, two blocks of two leave one entry of M open, which is its trace."""
    kept(fedspan, "job.solver=faps", "job.tol=1e-2")
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    assert re.search(r"^  confirm +2 ", result.stdout, re.M)
    for e in find("out").evidence:
        assert e.exact is not None
        shares = [p.share for p in e.course]
        assert np.isnan(shares[0])
        assert shares[-1] == pytest.approx(1 - 2 / 30)
        assert e.course[-1].misfit < 1e-12
        assert e.course[-1].error < 1e-9
        assert e.faps[-1].off_diagonal < 1e-12
        assert e.faps[-1].beta == pytest.approx(e.faps[-2].beta, rel=0.05)
        assert e.least <= e.course[-1].error
        assert "is known to the server from round" in e.verdict()


def truth_block(M: np.ndarray, Z: np.ndarray) -> np.ndarray:
    P = np.eye(len(M)) - Z @ Z.T
    return P @ M @ P


@pytest.mark.parametrize("solver", ["krylov", "davidson", "localpower", "fedpower", "uda", "wda", "drsvd"])
def test_every_solver_can_be_audited(world: Path, fedspan: Fedspan, solver: str) -> None:
    kept(fedspan, f"job.solver={solver}")
    assert fedspan("audit", "out").exit_code == 0
    found = find("out")
    assert all(e.least < e.guess for e in found.evidence), "what was sent helps against a blind guess"
    assert all(t.result.score == pytest.approx(0.5, abs=1e-6) for t in found.row_test.arrays)
    assert {t.task for t in found.row_test.arrays} >= {"count", "settle"}
    assert found.bytes_up == sum(r.bytes_up for r in found.released.values())
    assert not any("none known" in r.bounds.values() and r.task == "multiply" for r in found.released.values())


def test_rounded_answers_are_read_as_the_server_reads_them(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=krylov", "job.bits=auto", out="grid")
    kept(fedspan, "job.solver=ssi", "job.bits=8", "job.max_rounds=30", "job.tol=0", out="delta")
    assert max(e.least for e in find("grid").evidence) < 1e-4
    assert max(e.least for e in find("delta").evidence) < 0.05


def test_the_page_needs_nothing_else_and_shows_the_course(world: Path, fedspan: Fedspan) -> None:
    write_csv(world / "south.csv", rows(1, 25), ["age", "height", "weight", "pulse", "steps"])
    job = (world / "job.toml").read_text()
    (world / "job.toml").write_text(job.replace('["north.csv", "south.csv"]', '{"<b>" = "north.csv", s = "south.csv"}'))
    kept(fedspan, "job.solver=ssi", "job.tol=0", "job.max_rounds=8")
    assert fedspan("audit", "out").exit_code == 0
    text = (world / "out" / "audit.html").read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("<svg") == 2
    assert "2 of the 2 attacked clients" in text
    opened: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("meta", "br"):
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Check().feed(text)
    assert opened == []


def test_without_a_transcript_it_says_what_left_and_how_to_keep_more(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--out", "out").exit_code == 0
    assert not (world / "out" / "transcript").exists()
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    assert "multiply" in result.stdout
    assert "The messages were not kept, so no attack was run; to keep them, run the job again with --transcript." in (
        result.stdout
    )
    assert "could work out" not in result.stdout
    assert "No attack was run" in (world / "out" / "audit.html").read_text()


def test_without_the_rows_it_says_what_the_answers_determine(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=ssi", "job.tol=0", "job.max_rounds=8")
    (world / "north.csv").unlink()
    write_csv(world / "south.csv", 2 * rows(1, 25), ["age", "height", "weight", "pulse", "steps"])
    result = fedspan("audit", "out")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("the answers determine 100% of its second-moment matrix") == 2
    assert "Client 'north': its rows cannot be read here" in result.stdout
    assert "Client 'south': the rows in its file are no longer those of the run" in result.stdout
    assert "Was row" not in result.stdout


def test_noise_and_masks_on_the_wire_are_seen(world: Path) -> None:
    """Simulated: the answers of a client with noise added, and random integers in their place."""
    rng, M, d = np.random.default_rng(0), truth(0, 40), 5
    zero = {"n": np.array(40), "energy": np.array(np.trace(M)), "features": np.array(d)}
    mean = np.vstack([rows(0, 40), rows(1, 25)]).mean(axis=0)
    for kind in ("noise", "mask"):
        e = Evidence("north", rows(0, 40))
        e.hear(Talk(0, 0, 1, "north", "settle", {"mean": mean}, zero, 0, 0))
        for t in range(1, 9):
            Z = np.linalg.qr(rng.normal(size=(d, 2)))[0]
            Y = M @ Z + 100 * np.linalg.norm(M) * rng.normal(size=(d, 2))
            Y = Y if kind == "noise" else rng.integers(0, 2**64, size=(d, 2), dtype=np.uint64)
            e.hear(Talk(0, t, 0, "north", "multiply", {"Z": Z}, {"Y": Y}, 0, 0))
            e.attack(t)
        assert e.verdict().startswith("not reconstructed (error ")
        assert e.course[-1].misfit > 0.1


def test_the_membership_test_measures_the_noise_that_was_there() -> None:
    rng, X = np.random.default_rng(1), rows(0, 40)
    settled = Talk(
        0, 0, 0, "a", "settle", {}, {"n": np.array(40), "energy": np.array(1.0), "features": np.array(5)}, 0, 0
    )
    exact = Talk(0, 1, 0, "a", "gram", {}, GramClient(X).gram(GramClient(X).init(), {}, None)[1], 0, 0)
    test = probe_longest_row(Gram(), "a", X, [settled, exact], 0)
    row = test.row
    assert row == int(np.argmax(np.linalg.norm(X, axis=1)))
    assert {t.array: t.result.mu for t in test.arrays}["G"] > 1e6
    D = np.outer(X[row], X[row])[np.triu_indices(5)]
    mus = []
    for _ in range(200):
        G = exact.answer["G"] + np.linalg.norm(D) * rng.normal(size=15)
        noisy = Talk(0, 1, 0, "a", "gram", {}, {"G": G}, 0, 0)
        test = probe_longest_row(Gram(), "a", X, [settled, noisy], 0)
        mus.append(next(t.result.mu for t in test.arrays if t.array == "G"))
    assert np.median(mus) == pytest.approx(1, abs=0.15)


def test_only_as_many_clients_as_asked_for(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=gram")
    result = fedspan("audit", "out", "--clients", "1")
    assert "The first 1 of 2 clients were attacked; for more, give --clients." in result.stdout
    assert result.stdout.count("the server received") == 1
    assert fedspan("audit", "out", "--clients", "0").exit_code == 2


def test_a_resumed_run_is_audited_whole(world: Path, fedspan: Fedspan) -> None:
    """Cut off and resumed: both sittings are in the transcript; what was sent twice counts twice."""
    words = ["job.solver=ssi", "job.tol=0", "job.bits=6"]
    kept(fedspan, *words, "job.max_rounds=6")
    folder = world / "out"
    (folder / "job.toml").write_text((folder / "job.toml").read_text().replace("max_rounds = 6", "max_rounds = 9"))
    (folder / "model.safetensors").unlink()
    result = fedspan("resume", "out")
    assert result.exit_code == 0, result.output
    names = [p.name for p in (folder / "transcript").iterdir()]
    assert any("-000-north-up" in name for name in names)
    assert {name.split("-")[1] for name in names if "-001-north-up" in name} == {"000007", "000008", "000009"}
    found = find("out")
    assert found.evidence[0].course[-1].round == 9
    assert not any("missing" in note for note in found.notes)


def cut_short(folder: Path) -> None:
    file = next((folder / "transcript").glob("message-000002-*-south-up*"))
    file.write_bytes(file.read_bytes()[:20])


def foreign(folder: Path) -> None:
    (folder / "transcript" / "notes.txt").write_text("mine")


def no_ledger(folder: Path) -> None:
    (folder / "ledger.jsonl").unlink()


def no_mark(folder: Path) -> None:
    (folder / "job.toml").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, "The transcript is damaged in message-000002-0000-000-south-up.safetensors"),
        (foreign, "'notes.txt' in the transcript out/transcript is not a message. Move it away."),
        (no_ledger, "Nothing was sent yet in the run"),
        (no_mark, "'out' is not a run folder."),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_damaged_folders(world: Path, fedspan: Fedspan, damage: Any, reason: str) -> None:
    kept(fedspan, "job.solver=ssi", "job.tol=0", "job.max_rounds=4")
    damage(world / "out")
    before = tree(world)
    result = fedspan("audit", "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {reason}")
    assert result.stderr.count("\n") == 1
    assert tree(world) == before


def test_missing_messages_are_noted(world: Path, fedspan: Fedspan) -> None:
    kept(fedspan, "job.solver=ssi", "job.tol=0", "job.max_rounds=4")
    next((world / "out" / "transcript").glob("message-000002-*-south-up*")).unlink()
    result = fedspan("audit", "out")
    assert result.exit_code == 0
    assert "or messages are missing" in result.stdout


def test_the_job_file_can_ask_for_it_and_refuses_nonsense(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--set", "run.transcript=true", "--out", "yes").exit_code == 0
    assert (world / "yes" / "transcript").is_dir()
    assert "transcript = true" in (world / "yes" / "job.toml").read_text()
    result = fedspan("run", "job.toml", "--set", "run.transcript=3", "--out", "no")
    assert (result.exit_code, result.stderr) == (2, "error: run.transcript must be true or false, but is 3.\n")
    assert "protect them like the data" in " ".join(fedspan("run", "--help").stdout.replace("│", " ").split())


def test_a_run_refused_takes_its_transcript_back(world: Path, fedspan: Fedspan) -> None:
    (world / "south.csv").write_text((world / "south.csv").read_text().replace("\n", ",x\n", 1))
    before = tree(world)
    assert fedspan("run", "job.toml", "--transcript", "--out", "out").exit_code == 2
    assert tree(world) == before


def test_milestones() -> None:
    assert choose_milestones(5) == {1, 2, 3, 4, 5}
    many = choose_milestones(300)
    assert {1, 2, 3, 300} <= many
    assert len(many) <= 24


def test_a_demo_replaces_its_audit_too(world: Path, fedspan: Fedspan) -> None:
    folder = RunFolder(world / "x")
    folder.path.mkdir()
    folder.transcript.mkdir()
    folder.audit.write_text("old")
    folder._clear()
    assert not folder.audit.exists()
    assert not folder.transcript.exists()
    shutil.rmtree(folder.path)
