"""A hostile name, label, job or model tries to run a script in the browser of whoever opens a report or an audit.

Two walls: every foreign value is escaped, and each page forbids the browser to run or fetch anything. Each must hold by
itself. The same names try to act on a terminal by control characters.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reports"))

from browser import Browser, chromium

import fedspan
from fedspan._foreign import PrintableLog, printable
from fedspan.audit import audit_page
from fedspan.audit.evidence import Evidence, Point
from fedspan.audit.findings import AuditResult, Released
from fedspan.cli import progress
from fedspan.cli.main import app
from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd, Started
from fedspan.engines.transport import read_answer
from fedspan.errors import CheckpointError, ClientError, FedspanError
from fedspan.reports import (
    _components,
    format,
    learning_section,
    page,
    personalized_section,
    report,
    spectral_section,
    traffic,
    verdict,
)
from fedspan.reports.drawing import charts, heat_map, scatter
from fedspan.reports.facts import RunFacts, Scores
from fedspan.reports.report import render_report
from fedspan.reports.saved_files import list_saved_files

EVIL = "<script>document.title = 'owned'</script><img src=nowhere onerror=\"document.title = 'owned'\">"
OWN_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "strong",
        "em",
        "code",
        "pre",
        "a",
        "ul",
        "li",
    ),
    *("li", "dl", "dt", "dd", "div", "span", "i", "table", "tr", "th", "td", "figure", "figcaption"),
    *("details", "summary", "svg", "g", "text", "rect", "line", "polyline", "circle", "path"),
}
ESCAPING = [
    *(page, report, traffic, verdict, _components, learning_section, personalized_section, spectral_section),
    *(audit_page,),
    *(charts, scatter, heat_map),
]


class Tags(HTMLParser):
    """What is on a page: its tags, and the attributes that would run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.handlers: list[str] = []
        self.policy: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("http-equiv", "Content-Security-Policy") in attrs:
            assert not self.tags.keys() - {"html", "head", "meta"}  # before anything that it is to stop
            self.policy = dict(attrs)["content"]
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("src", "srcdoc")]


def clients() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"{name}{EVIL}": rng.normal(size=(20, 4)) @ np.diag([4, 3, 2, 1]) for name in ("a", "b", "c")}


def make_ledger(names: list[str]) -> Ledger:
    """The ledger of a run in which everything that others name is hostile."""
    ledger = Ledger()
    ledger.add(Started(EVIL, EVIL, {EVIL: EVIL}, 0, EVIL))
    for r in (0, 1, 2, 3):
        sizes = (10,) * len(names)
        missing = (names[0],) if r == 2 else ()
        failures = dict.fromkeys(missing, EVIL)
        ledger.add(Exchange(r, 0, f"task{EVIL}", tuple(names), sizes, sizes, (0.1,) * len(names), missing, failures))
        ledger.add(RoundEnd(r, 0.2, {"kkt": 10.0**-r, "change": 10.0**-r, "cost": 3.0 - r}))
    ledger.add(Note(EVIL))
    return ledger


def make_report(task: str, folder: Path, *, with_job: bool = True) -> str:
    """The report of a model whose every name is hostile."""
    Xs = clients()
    labels = {name: np.where(X[:, 0] > 0, f"ill{EVIL}", "well") for name, X in Xs.items()}
    small = {"rounds": 4, "hidden": 2, "batch_size": 5, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models: dict[str, Callable[[], object]] = {
            "pca": lambda: fedspan.FederatedPCA(2, random_state=0).fit(Xs),
            "personalized": lambda: fedspan.PersonalizedPCA(2, random_state=0).fit(Xs),
            "gcca": lambda: fedspan.FederatedGCCA(2, random_state=0).fit(Xs),
            "classifier": lambda: fedspan.FederatedClassifier(cost_limit=9.0, **small).fit(Xs, labels),
            "vertical-classifier": lambda: fedspan.VerticalFederatedClassifier(**small).fit(
                Xs, next(iter(labels.values()))
            ),
        }
        model = models[task]()
    if task in ("pca", "personalized"):
        model.feature_names_in_ = np.array([f"{i}{EVIL}" for i in range(4)], dtype=object)
    model.seed_ = EVIL
    if task == "classifier":
        model.verified_ = {EVIL: 1.0}
    (folder / "audit.txt").write_text(EVIL)
    scores = Scores(EVIL, {name: X[:, :2] for name, X in Xs.items()})
    facts = RunFacts(task, job_text=f'[job]\ntask = "{EVIL}"\n', folder=folder)
    return render_report(model, make_ledger(list(Xs)), facts if with_job else RunFacts(task), scores)


def make_audit(folder: Path) -> str:
    evidence = Evidence(f"a{EVIL}", truth=np.eye(2), given=np.eye(2))
    evidence.course = [Point(1, 0.5, 0.1, 0.5), Point(2, 1.0, 0.1, 0.2)]
    released = Released(EVIL, Counter({EVIL: 2}), 10, {EVIL: {EVIL}}, {EVIL: EVIL})
    result = AuditResult(EVIL, EVIL, 3, 2, 100, {EVIL: released}, [evidence], notes=[EVIL])
    return audit_page.render_audit(result)


PAGES: dict[str, Callable[[Path], str]] = {
    "audit": make_audit,
    "pca in Python": lambda folder: make_report("pca", folder, with_job=False),
    **{
        task: lambda folder, task=task: make_report(task, folder)
        for task in ("pca", "personalized", "gcca", "classifier", "vertical-classifier")
    },
}


def drop_escaping(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ESCAPING:
        monkeypatch.setattr(module, "escape", str)


def drop_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "CONTENT_POLICY", "")


@pytest.mark.parametrize("name", PAGES)
def test_no_name_becomes_a_tag(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGES[name](tmp_path)
    found = Tags(text)
    assert set(found.tags) <= OWN_TAGS
    assert found.handlers == []
    assert text.count("&lt;script&gt;") > 5  # the names are there, as text
    drop_escaping(monkeypatch)
    found = Tags(PAGES[name](tmp_path))
    assert found.tags["script"] > 5
    assert found.handlers


@pytest.mark.parametrize("name", ["pca", "personalized"])
def test_no_name_becomes_a_tag_in_what_is_saved(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing that is opened by itself has no policy around it, and a table no escaping."""
    files = list_saved_files(PAGES[name](tmp_path), with_png=False)
    drawings = {file: data.decode() for file, data in files.items() if file.endswith(".svg")}
    assert len(drawings) > 2
    assert any("&lt;script&gt;" in drawing for drawing in drawings.values())
    for drawing in drawings.values():
        assert set(Tags(drawing).tags) <= {*OWN_TAGS}
        assert Tags(drawing).handlers == []
    assert all(re.fullmatch(r"[a-z0-9-]+\.(svg|csv)", file) for file in files)
    drop_escaping(monkeypatch)
    files = list_saved_files(PAGES[name](tmp_path), with_png=False)
    assert any(Tags(data.decode()).tags["script"] for file, data in files.items() if file.endswith(".svg"))


@pytest.mark.parametrize("place", ["seed", "note", "task", "client", "why", "job", "finding", "score", "label"])
def test_each_place_is_escaped(tmp_path: Path, place: str) -> None:
    """One at a time, so that no other place covers for it."""
    X = next(iter(clients().values()))
    model = fedspan.FederatedPCA(2, random_state=0).fit({"a": X, "b": X})
    put = {place: EVIL}
    name, sizes = put.get("client", "a"), (1,)
    if "seed" in put:
        model.seed_ = put["seed"]
    ledger = Ledger()
    ledger.add(Started("Gram", "spectral", {}, 0, put.get("why", "")))
    ledger.add(Exchange(1, 0, put.get("task", "gram"), (name,), sizes, sizes, (0.0,)))
    ledger.add(RoundEnd(1, 0.1, {"kkt": 0.1}))
    ledger.add(Note(put.get("note", "")))
    if "finding" in put:
        (tmp_path / "audit.txt").write_text(put["finding"])
    facts = RunFacts("pca", job_text=put.get("job", "x"), folder=tmp_path)
    scores = Scores(put.get("label", "client"), {put.get("score", "a"): X[:, :2], "b": X[:, :2]})
    text = render_report(model, ledger, facts, scores)
    assert set(Tags(text).tags) <= OWN_TAGS
    assert "&lt;script&gt;" in text


def test_the_seed_of_a_model_file_is_a_number(tmp_path: Path) -> None:
    """How a tag came into `seed_`: a model file that anybody may have made, and nobody looked at the types in it."""
    from fedspan.core.checkpoint import load_tree, save_tree

    X = next(iter(clients().values()))
    fedspan.FederatedPCA(2, random_state=0).fit([X, X]).save(tmp_path / "model")
    tree = load_tree(tmp_path / "model", "model")
    tree["learned"]["seed_"] = EVIL
    save_tree(tmp_path / "model", "model", tree)
    with pytest.raises(CheckpointError, match=r"seed_ must be int, but the data holds str"):
        fedspan.FederatedPCA.load(tmp_path / "model")


@pytest.mark.parametrize("name", PAGES)
def test_each_page_forbids_scripts_and_fetching(tmp_path: Path, name: str) -> None:
    policy = Tags(PAGES[name](tmp_path)).policy
    assert policy is not None
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; install Debian's chromium")
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("name", ["pca", "audit"])
def test_in_a_browser_either_wall_holds_by_itself(
    tmp_path: Path, browser: Browser, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> tuple[str, int]:
        file = tmp_path / "page.html"
        file.write_text(PAGES[name](tmp_path), encoding="utf-8")
        browser.open(file, 1000)
        browser.evaluate("new Promise(done => setTimeout(done, 200))")  # time for an image to fail
        return browser.evaluate("document.title"), browser.evaluate("document.querySelectorAll('body script').length")

    title, scripts = look()
    assert (title.startswith("fedspan"), scripts) == (True, 0)
    assert browser.problems == []
    with monkeypatch.context() as patch:
        drop_policy(patch)
        title, scripts = look()
        assert (title.startswith("fedspan"), scripts) == (True, 0)
    drop_escaping(monkeypatch)
    title, scripts = look()
    assert title.startswith("fedspan")
    assert scripts > 5  # they are there, and did not run
    assert any("Content Security Policy" in problem for problem in browser.problems)
    drop_policy(monkeypatch)
    assert look()[0] == "owned"


ACTING = [
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x9b31m",
    "\r",
    "\b",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\ufeff",
    "\U000e0041",
    "\ud800",
]


@pytest.mark.parametrize("character", ACTING, ids=ascii)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(character: str) -> None:
    shown = printable(f"north{character}south")
    assert shown.isprintable()
    assert shown.startswith("north\\")
    assert printable(shown) == shown
    assert character[0] not in format.escape(character)


def test_what_people_write_stays_as_it_is() -> None:
    text = "Größe 3\u00a0µm → ‖Z‖² ≤ 1\u202f000, 高さ, עברית, عمر"
    assert printable(text) == text
    assert printable("a\n\tb", lines=True) == "a\n\tb"
    assert printable("a\n\tb") == "a\\n\\tb"


def test_no_line_of_progress_acts_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def say() -> str:
        console = Console(width=80)
        with console.capture() as capture:
            progress.say(console, "submitted to north\x1b[2J\u202e: job 1")
        return capture.get()

    assert "\x1b" not in say()
    assert "\u202e" not in say()
    monkeypatch.setattr(progress, "printable", str)
    assert "\x1b[2J" in say()


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_no_error_acts_on_the_terminal(tmp_path: Path, debug: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a key in a job file that somebody sent."""
    job = tmp_path / "job.toml"
    job.write_text('[job]\ntask = "pca"\n[data]\nclients = ["\\u001b[2J\\u202e.csv", "b.csv"]\n')

    def refuse() -> str:
        result = CliRunner().invoke(app, [*debug, "run", str(job), "--out", str(tmp_path / "run")])
        assert result.exit_code == 2
        return result.stderr

    assert "\\x1b[2J\\u202e" in refuse()
    assert "\x1b" not in refuse()
    assert "\u202e" not in refuse()
    monkeypatch.setattr("fedspan.cli.main.printable", lambda text, **_: text)
    assert "\u202e" in refuse()


def test_what_a_site_says_is_made_printable_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = '{"error": "no\\u001b[2J' + "x" * 9999 + '", "input": false}'
    with pytest.raises(ClientError) as refused:
        read_answer(answer, "north\x1b")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 3000
    monkeypatch.setattr("fedspan.engines.transport.printable", str)
    with pytest.raises(FedspanError, match="\x1b"):
        read_answer(answer, "north")


def test_a_sites_log_has_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    from fedspan.deployment import site_service

    assert any(isinstance(each, PrintableLog) for each in site_service._LOG.filters)
    log, handler = logging.getLogger("fedspan.test"), logging.Formatter()
    made = []
    log.addHandler(caplog.handler)
    for defended in (True, False):
        log.filters[:] = [PrintableLog()] if defended else []
        try:
            raise ValueError("evil\x1b[2J")
        except ValueError:
            log.warning("refused: %s", "job\nforged line\x1b", exc_info=True)
        made.append(handler.format(caplog.records[-1]))
    log.filters.clear()
    log.removeHandler(caplog.handler)
    assert "\x1b" not in made[0]
    assert made[0].startswith("refused: job\\nforged line\\x1b\nTraceback")
    assert "\x1b" in made[1]
