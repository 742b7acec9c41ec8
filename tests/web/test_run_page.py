"""The researcher's page: runs as they are on disk, those at work with their progress, nothing outside the folder."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flask", reason="needs fedspan[flare]")

from browser import Browser, chromium
from gated_site import Visitor, serve
from test_site_page import words_of

from fedspan.core.ledger import Ledger, Note, RoundEnd
from fedspan.errors import InputError
from fedspan.jobs.folder import RunFolder
from fedspan.web.run_pages import RunPages

JOB = """[job]
task = "svd"
n_components = 2
solver = "ssi"
tol = 0.0
max_rounds = {rounds}
random_state = 1
[data.clients]
a = "a.csv"
b = "b.csv"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    place = tmp_path_factory.mktemp("study")
    for name, seed in (("a", 1), ("b", 2)):
        X = np.random.default_rng(seed).normal(size=(300, 30))
        np.savetxt(place / f"{name}.csv", X, delimiter=",", header=",".join(f"x{i}" for i in range(30)), comments="")
    for name, rounds in (("short", 4), ("long", 100_000)):
        (place / f"{name}.toml").write_text(JOB.format(rounds=rounds))
    command = [sys.executable, "-m", "fedspan.cli.main", "run", str(place / "short.toml")]
    subprocess.run([*command, "--out", str(place / "runs" / "first <run>"), "--quiet"], check=True)
    return place


@pytest.fixture
def at_work(folder: Path) -> Iterator[Path]:
    """A run that goes on until the test is over."""
    out = folder / "runs" / f"endless-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "fedspan.cli.main", "run", str(folder / "long.toml"), "--out", str(out), "--quiet"]
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + 120
        while not (out / "ledger.jsonl").exists():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)
        yield out
    finally:
        process.kill()
        process.wait()


def test_runs_are_listed_and_their_reports_open(folder: Path) -> None:
    pages = RunPages(folder / "runs")
    with serve(pages) as server:
        visitor = Visitor(server)
        page = visitor.enter()
        assert "first &lt;run&gt;" in page
        assert "<run>" not in page
        link = re.search(r'href="(/run/[^"]+)"', page)
        assert link
        status, shown, _ = visitor.ask("/run/first%20%3Crun%3E")
        assert status == 200
        assert "4 rounds in all" in words_of(shown)
        status, report, headers = visitor.ask("/run/first%20%3Crun%3E/report")
        assert status == 200
        assert report == (folder / "runs" / "first <run>" / "report.html").read_text()
        assert headers["Content-Security-Policy"].startswith("sandbox")
        assert visitor.ask("/run/first%20%3Crun%3E/audit")[0] == 404  # none was made
        for path in ("/run/..", "/run/../report", "/run/%2e%2e/report", "/run/first%20%3Crun%3E/job.toml", "/run/x"):
            assert visitor.ask(path)[0] == 404, path
    with pytest.raises(InputError, match="only shows"):
        pages.act("stop", {})
    with pytest.raises(InputError, match="There is no folder"):
        RunPages(folder / "nowhere")


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux")
def test_a_run_at_work_is_told_from_one_that_was_killed(folder: Path, at_work: Path) -> None:
    pages = RunPages(folder / "runs")
    page = pages.show("", "")
    assert page is not None
    assert "at work now 1" in words_of(page)
    end = time.monotonic() + 60
    while "of at most 100000" not in words_of(pages.show(f"run/{at_work.name}", "") or ""):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_run_on_a_federation_is_seen_before_its_ledger_comes(folder: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "far", (folder / "short.toml").read_text())
    diary = Ledger(run.watched)
    diary.add(Note("site 'east': waiting for the approval of this site's administrator (order 12ab)"))
    pages = RunPages(tmp_path / "runs")
    run.federation.write_text("{}")
    with run.lock():
        assert "waiting for the approval" in words_of(pages.show("", "") or "")
        diary.add(RoundEnd(3, 0.1, {}))
        assert "round 3 of at most 4" in words_of(pages.show("", "") or "")
    diary.add(Note("ended: Site 'east' refused: not before May"))
    assert "not before May" in words_of(pages.show("run/far", "") or "")
    assert "fedspan resume" in words_of(pages.show("run/far", "") or "")


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; install Debian's chromium")
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [400, 1280])
def test_progress_is_seen_live_in_a_browser(folder: Path, at_work: Path, tmp_path: Path, width: int) -> None:
    with serve(RunPages(folder / "runs")) as server, Browser(tmp_path / "profile") as browser:
        browser.visit(server.link, width)
        name = at_work.name
        browser.evaluate(f"[...document.querySelectorAll('a')].find(a => a.textContent === '{name}').click()")
        end, seen = time.monotonic() + 90, set[str]()
        while len(seen) < 3:  # the same page, three different rounds
            assert time.monotonic() < end
            found = browser.evaluate("document.querySelector('#rounds td')?.textContent ?? ''")
            seen |= {found} if found else set()
            time.sleep(0.2)
        too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not browser.evaluate(too_wide)
        assert browser.problems == []
        report = f"http://127.0.0.1:{server.port}/run/first%20%3Crun%3E/report"
        browser.visit(report, width)  # in a sandbox: it needs nothing that it does not bring along
        assert "rounds" in browser.evaluate("document.body.innerText")
        assert browser.problems == []
        assert all(url.startswith((report, "data:")) for url in browser.fetched), browser.fetched
