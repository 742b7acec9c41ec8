"""The site builds without a warning, needs no network, and its reference explains every parameter."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedspan
from fedspan.jobs.tasks import TASKS

pytestmark = pytest.mark.xdist_group("site")  # it is built once, in one process

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
JOBS = ("pca", "svd", "gcca", "deep-gcca", "personalized", "classifier")
NOT_GIVEN = {"Channel", "FedspanError", "InputError", "Ledger"}  # their constructors are not what users call
EXPLAINED = ["run", *(n for n in fedspan.__all__ if inspect.isclass(getattr(fedspan, n)) and n not in NOT_GIVEN)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, in a folder of its own."""
    pytest.importorskip("mkdocs", reason="needs fedspan[docs]")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser fetches to show a page: not what a reader may click on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [given[key] or "" for key in ("src", "srcset", "poster", "data") if key in given]
        if tag == "link" and given.get("rel") != "canonical":
            self.found.append(given.get("href") or "")


def fetched(site: Path) -> Iterator[tuple[str, str]]:
    for page in site.rglob("*.html"):
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        yield from ((page.name, url) for url in parser.found)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        yield from ((sheet.name, url) for url in re.findall(r"(?:url\(|@import )['\"]?([^'\")]+)", text))


def test_no_page_fetches_anything_from_a_network(site: Path) -> None:
    urls = list(fetched(site))
    assert len(urls) > 100
    assert [(page, url) for page, url in urls if re.match(r"(https?:)?//", url)] == []


def test_the_search_works_from_the_file_system(site: Path, tmp_path: Path) -> None:
    """A browser starts no worker from a page that is a file; assets/iframe-worker.js must do."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += [f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    page = f"file://{site}/papers/faps.html?q=krylov"
    shown = subprocess.run([browser, *options, page], capture_output=True, text=True)
    assert re.search(r"[1-9]\d* matching documents", shown.stdout)
    assert "CONSOLE" not in shown.stderr


def test_every_page_is_built(site: Path) -> None:
    assert {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES} <= {
        str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")
    }


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_parameter_is_explained_in_the_docstring(name: str) -> None:
    kind = getattr(fedspan, name)
    section = inspect.getdoc(kind).partition("Parameters:\n")[2].partition("\n\n")[0]
    explained = set(re.findall(r"^    (\w+): \S", section, re.M))
    assert explained == set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_reference_shows_it(name: str, site: Path) -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").iterdir())
    assert re.search(rf'<h2 id="fedspan\.[\w.]+\.{name}"', shown)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_a_small_picture_and_says_what_is_seen_and_when_not_to_use_it(job: str) -> None:
    text = (DOCS / f"{job}.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"\(pictures/([\w-]+\.svg)\)", text)
    path = DOCS / "pictures" / picture
    assert path.stat().st_size <= 150_000
    assert ET.parse(path).getroot().tag.endswith("svg")  # noqa: S314 - our own file
    assert re.search(r"^## .*hat the server sees", text, re.M)
    assert "\n## When not to use it\n" in text


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "scoreboard.md"], ids=lambda page: page.stem)
def test_a_page_begins_with_what_the_reader_can_do_after_it(page: Path) -> None:
    before_the_first_part = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(r"^(After this page|Look up)|After these pages", before_the_first_part, re.M)


def test_every_task_has_a_job_file_in_the_docs_that_is_run() -> None:
    tasks = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```toml\n(# [\w-]+\.toml\n.*?)```", text, re.S):
            assert f"fedspan run {block.split()[1]}" in text
            tasks.add(tomllib.loads(block)["job"]["task"])
    assert tasks == set(TASKS)


def test_the_solvers_of_the_readme_are_lines_of_the_measured_table() -> None:
    measured = (DOCS / "solvers.md").read_text(encoding="utf-8").partition("<!-- table begins -->")[2].splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("| solver |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(shown) >= 5
    assert set(shown) <= set(measured)


def test_the_pictures_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "pictures"))
    import make

    monkeypatch.setattr(make, "FOLDER", tmp_path)
    make.svd()
    made = ET.parse(tmp_path / "svd.svg")  # noqa: S314 - our own file
    assert len(list(made.iter("{http://www.w3.org/2000/svg}path"))) >= 10  # one for each grey
