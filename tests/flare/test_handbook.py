"""docs/administrator.md, command by command, on a federation of real processes; and the same in a real browser.

What the page calls `north` is a site's kit; its other names stand for what the test has: the researcher, the order that
waits, the run that was carried out.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

from browser import Browser, chromium
from world import PATIENCE, call, command, environment, until

from fedspan.deployment.approval.decisions import Decisions
from fedspan.deployment.kit import init_site
from fedspan.deployment.local import RESEARCHER, LocalFederation
from fedspan.deployment.site_rules.book import Book

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("handbook")]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "administrator.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
COLUMNS = ["age", "bmi", "glucose"]
ROWS = {"north": 60, "south": 45, "east": 50}
SECONDS_TO_READ_A_REFUSAL = 3.0
JOB = '[job]\ntask = "pca"\nn_components = {k}\nsolver = "ssi"\ntol = 0.0\nmax_rounds = 4\n'


def write_patients(path: Path, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, sexes = rng.normal(50, 9, (rows, 3)), rng.integers(2, size=rows)
    lines = [",".join([*(f"{v:.4f}" for v in row), "fm"[sex]]) for row, sex in zip(values, sexes, strict=True)]
    path.write_text("\n".join([",".join([*COLUMNS, "sex"]), *lines]) + "\n")


class Study:
    """Three sites: north is its administrator's, who has only the page to go by; the others let every job run."""

    def __init__(self, folder: Path) -> None:
        self.made = LocalFederation(folder, list(ROWS), **environment())
        self.place, self.kit = self.made.kits, self.made.kit("north")
        for number, (site, rows) in enumerate(ROWS.items()):
            name = "patients.csv" if site == "north" else f"{site}.csv"
            write_patients(self.place / name, rows, number)
            if site != "north":
                table = {
                    "path": str(self.place / name),
                    "columns": [*COLUMNS, "sex"],
                    "categories": {"sex": ["f", "m"]},
                    "min_rows": 10,
                }
                init_site(self.made.kit(site), {"default": table}, replace=False)
        (self.place / "job.toml").write_text(JOB.format(k=2))
        self.north: subprocess.Popen[str] | None = None
        self.page: subprocess.Popen[bytes] | None = None
        self.waiting: subprocess.Popen[str] | None = None  # the researcher's command
        self.runs = 0
        self.first_run = ""  # what the first run that was approved is called in the book
        self.took: dict[str, float] = {}

    def start(self) -> None:
        """The server and the others; north is started as the page says."""
        for name in ("localhost", "south", "east"):
            self.made.start(name)

    def stop(self) -> None:
        if self.page is not None and self.page.poll() is None:
            self.page.kill()
            self.page.wait()
        if self.north is not None:
            self.north.send_signal(signal.SIGTERM)
            self.north.wait(60)
        self.made.stop()

    def type(self, line: str, code: int = 0) -> str:
        """What a command prints that is typed beside the kits."""
        words = [word.replace("ada@uni.example.org", RESEARCHER) for word in shlex.split(line)]
        done = subprocess.run(
            command(*words[1:]), cwd=self.place, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == code, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, components: int) -> tuple[subprocess.Popen[str], Path]:
        """A researcher's run in the background, and the folder of it, once it waits at north."""
        self.runs += 1
        job, out = self.place / f"job-{self.runs}.toml", self.place / f"run-{self.runs}"
        job.write_text(JOB.format(k=components))
        process = subprocess.Popen(
            command("run", job, "--on", self.made.researcher, "--out", out),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        until(lambda: Decisions(self.kit).list_waiting() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process, out


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    made = Study(tmp_path_factory.mktemp("handbook"))
    made.start()
    try:
        yield made
    finally:
        made.stop()


def waiting_digest(study: Study) -> str:
    (record,) = Decisions(study.kit).list_waiting()
    return record.digest


def serve_page(study: Study, line: str) -> str:
    """Start the page as the line says; its link. It is ended by the end of the test that shows it."""
    study.page = subprocess.Popen(command(*shlex.split(line)[1:]), cwd=study.place)
    file = study.place / shlex.split(line)[-1]
    until(file.exists)
    return file.read_text().strip()


def end_page(study: Study) -> None:
    assert study.page is not None
    study.page.send_signal(signal.SIGINT)
    assert study.page.wait(60) in (0, 1)


def carry_out(study: Study, line: str) -> None:
    """One command of the page, with what the page says of it."""
    if line.startswith("fedspan site start"):
        study.north = subprocess.Popen(command(*shlex.split(line)[1:]), cwd=study.place, text=True)
        study.made.wait_for(study.made.sites)
    elif line.startswith("fedspan site pending"):
        study.waiting, _ = study.submit(2)
        said = study.type(line)
        assert "reads          table default (patients.csv): age, bmi, glucose, sex" in said
        assert f"asked by       {RESEARCHER}" in said
        assert "would leave" in said
    elif line.startswith("fedspan site approve"):
        study.type(re.sub(r"north \S+", f"north {waiting_digest(study)[:16]}", line))
        process = study.waiting
        assert process is not None
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        opened = [entry.facts for entry in Book(study.kit).read() if entry.event == "opened"]
        study.first_run = str(opened[-1]["run"])
    elif line.startswith("fedspan site refuse"):
        process, _ = study.submit(3)
        study.type(re.sub(r"north \S+", f"north {waiting_digest(study)[:16]}", line))
        begun = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE)
        study.took["refusal read"] = time.monotonic() - begun
        assert process.returncode == 2, said
        assert "not before the ethics vote of 4 May" in said
    elif line.startswith("fedspan site ui"):
        link = serve_page(study, line)
        assert link.startswith("http://127.0.0.1:")
        end_page(study)
        assert not (study.place / "link.txt").exists()
    else:
        line = re.sub(r"e75ec84fb22f", study.first_run[:12] or "x", line)
        line = line.replace("9f2c5e11", Book(study.kit).verify().head)
        said = study.type(line)
        if "--verify" in line:
            assert "the book is whole" in said
        if line.startswith("fedspan audit"):
            assert "looks like random bytes" in said


def test_every_command_of_the_page_does_what_it_says(study: Study) -> None:
    assert len(COMMANDS) >= 20
    for line in COMMANDS:
        if "--port 8900" in line or "--grant" in line:
            continue
        carry_out(study, line)
    evidence = {path.name for path in (study.place / "evidence").iterdir()}
    assert {"book.jsonl", "model-card.md", "rootCA.pem", "ro-crate-metadata.json"} <= evidence
    assert any(name.startswith("signed-") for name in evidence)
    ended = [entry for entry in Book(study.kit).read() if entry.event == "ended"]
    assert ended, "the end of a job is in the book"
    print("seconds:", json.dumps(study.took))


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; install Debian's chromium")
def test_approved_in_the_browser_it_runs_and_refused_the_researcher_reads_why(study: Study, tmp_path: Path) -> None:
    """After the test above: the sites are connected. The researcher reads a refusal within three seconds."""

    def see(browser: Browser, script: str) -> Any:
        return until(lambda: browser.evaluate(script))

    link = serve_page(study, "fedspan site ui north --link link-2.txt")
    with Browser(tmp_path / "profile") as browser:
        browser.visit(link, 1280)
        process, out = study.submit(2)
        see(browser, "document.querySelector('article.waiting button.yes') !== null")
        assert "age, bmi, glucose, sex" in browser.evaluate("document.querySelector('article.waiting').innerText")
        assert call("site", "pause", study.kit, "--end").returncode == 0
        browser.evaluate("document.querySelector('article.waiting button.yes').click()")
        see(browser, "document.querySelector('p.told[role=status]')?.innerText.includes('Approved')")
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert (out / "model.safetensors").is_file()
        see(browser, "document.querySelector('#runs').innerText.includes('over after round')")

        process, _ = study.submit(3)
        see(browser, "document.querySelector('article.waiting button.no') !== null")
        browser.evaluate("document.querySelector('article input[name=reason]').value = 'no vote yet'")
        browser.evaluate("document.querySelector('article.waiting button.no').click()")
        until(lambda: not Decisions(study.kit).list_waiting())
        begun = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE)
        took = time.monotonic() - begun
        assert process.returncode == 2, said
        assert "no vote yet" in said
        print(f"seconds until the researcher has read the refusal: {took:.1f}")
        assert browser.problems == []
    end_page(study)


def test_a_budget_that_is_granted_holds_from_then_on(study: Study) -> None:
    """The last commands of the page: they change what every later job must bring."""
    for line in COMMANDS:
        if "--grant" in line:
            assert "allowed   epsilon 2" in study.type(line)
