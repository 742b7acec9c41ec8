"""Reports in a real browser: nothing is fetched, nothing complains, every plot is there, and all of it can be read."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from cli_world import write_jobs
from typer.testing import CliRunner

from fedspan.cli.main import app
from fedspan.jobs.tasks import TASKS

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; install Debian's chromium"),
    pytest.mark.xdist_group("browser"),  # one browser, and each report once
]

PROTECTED = ["privacy.epsilon=4", "privacy.delta=1e-3", "privacy.row_norm=5", "privacy.simulate=true"]
RUNS: dict[str, tuple[str, list[str]]] = {
    **{task: (task, []) for task in TASKS},
    "protected": ("pca", [*PROTECTED, "secure.enabled=true"]),
    "partial": ("svd", ["job.participation={ count = 1 }", "job.max_rounds=30", "job.tol=1e-3"]),
    "audited": ("pca", ["job.solver=krylov", "run.transcript=true"]),
    "long": ("svd", ["job.solver=ssi", "job.tol=0", "job.max_rounds=90", "job.n_components=9"]),
}
PLOTS = {  # at least; what a reader of that report must find
    "pca": ["Explained variance of each component", "First two components", "Loadings of all features"],
    "svd": ["Share of the sum of squares", "First two components"],
    "gcca": ["KKT violation, by round", "by bytes sent", "Cost, by round", "First two common components"],
    "deep-gcca": ["Cost, by round", "First two common components"],
    "personalized": ["Map of the clients", "Distance of each client", "Reconstruction error on held-out rows"],
    "classifier": ["Cost (mean loss", "by bytes sent", "value minus bound", "multiplier, by round"],
    "vertical-classifier": ["Cost (mean loss", "by bytes sent"],
    "regressor": [],
    "vertical-regressor": [],
    "vertical-pca": ["KKT violation, by round", "Share of the variance of each component"],
    "vertical-svd": ["Share of the sum of squares of each component", "First two components"],
    "protected": ["Explained variance of each component"],
    "partial": ["Participation by round", "Change of the estimate, by bytes"],
    "audited": ["KKT violation, by bytes sent", "First two components"],
    "long": ["KKT violation, by round", "First two components"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_jobs(folder)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Callable[[str], Path]:
    """The page of a run, which is made when it is first asked for."""

    def make(name: str) -> Path:
        task, sets = RUNS[name]
        out = folder / name
        if not out.exists():
            words = [word for text in sets for word in ("--set", text)]
            result = CliRunner().invoke(app, ["run", str(folder / f"{task}.toml"), *words, "--out", str(out)])
            assert result.exit_code == 0, result.output
            if name == "audited":
                assert CliRunner().invoke(app, ["audit", str(out)]).exit_code == 0
        return out / "report.html"

    return make


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


# What is wrong with the page, in words; nothing if all is well.
LOOK = """
(() => {
  const wrong = [], wide = window.innerWidth;
  const colour = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const c = colour(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const page = document.documentElement;
  if (page.scrollWidth > wide) wrong.push(`the page is ${page.scrollWidth} wide`);
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg") && e.tagName !== "svg") continue;
    if (e.closest(".table") || e.closest("pre")) continue;
    const r = e.getBoundingClientRect();
    if (r.width && r.right > wide + 1) wrong.push(`${e.tagName} ends at ${r.right}`);
  }
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const e = words.currentNode.parentElement, said = words.currentNode.nodeValue.trim();
    if (!said || e.tagName === "title" || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.closest("svg");
    let size = parseFloat(style.fontSize);
    if (svg) size *= svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    if (size < 11) wrong.push(`"${said}" has ${size.toFixed(1)} pixels`);
    const ink = light(colour(svg ? style.fill : style.color)), paper = light(behind(e));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) wrong.push(`"${said}" has a contrast of ${contrast.toFixed(2)}`);
    if (svg) {
      const r = e.getBoundingClientRect(), s = svg.getBoundingClientRect();
      if (r.left < s.left - 1 || r.right > s.right + 1 || r.top < s.top - 2 || r.bottom > s.bottom + 2)
        wrong.push(`"${said}" is cut off`);
    }
  }
  for (const svg of document.querySelectorAll("svg")) {
    const name = svg.getAttribute("aria-label"), drawn = svg.getBoundingClientRect();
    if (drawn.width < 50 || drawn.height < 50) wrong.push(`${name}: ${drawn.width} by ${drawn.height}`);
    const marks = svg.querySelectorAll("polyline, .points, .bar, .below, .above, .dot");
    if (!marks.length) wrong.push(`${name}: nothing is drawn`);
    for (const mark of svg.querySelectorAll("*")) {
      for (const a of mark.attributes)
        if (/nan|infinity|undefined/i.test(a.value)) wrong.push(`${name}: ${a.name}=${a.value}`);
    }
    const all = [...marks].map(mark => mark.getBoundingClientRect());
    const right = Math.max(...all.map(r => r.right)), left = Math.min(...all.map(r => r.left));
    if (right - left < 20) wrong.push(`${name}: all marks within ${right - left} pixels`);
    if (left < drawn.left - 3 || right > drawn.right + 3) wrong.push(`${name}: marks outside`);
  }
  return wrong;
})()
"""


# Opens all that is folded, and says how many parts that are.
OPEN = "[...document.querySelectorAll('details')].map(e => e.open = true).length"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", RUNS)
def test_a_report_as_people_see_it(
    browser: Browser, report: Callable[[str], Path], name: str, width: int, dark: bool
) -> None:
    page = report(name)
    browser.open(page, width, dark=dark)
    assert browser.evaluate("window.innerWidth") == width
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert browser.evaluate(OPEN) > 0
    assert browser.evaluate(LOOK) == []
    assert browser.problems == []
    assert browser.fetched == [page.as_uri()]  # the page itself, and nothing else
    captions = browser.evaluate("[...document.querySelectorAll('figcaption')].map(e => e.textContent)")
    for plot in PLOTS[name]:
        assert any(plot in caption for caption in captions), f"{plot}: {captions}"


def test_the_audit_opens_from_the_report(browser: Browser, report: Callable[[str], Path]) -> None:
    browser.open(report("audited"), 1280)
    link = browser.evaluate("document.querySelector('a:not([download])').href")
    assert link == (report("audited").parent / "audit.html").as_uri()
    assert "is known to the server" in browser.evaluate(
        "document.querySelector('a:not([download])').closest('p').nextSibling.textContent"
    )
    for width in (1280, 400):
        browser.open(report("audited").parent / "audit.html", width)
        assert browser.problems == []
        assert browser.evaluate(LOOK) == []


def test_the_look_sees_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    """The check itself: each fault in a page is found."""
    faults = {
        '<p style="font-size:9px">small</p>': "9.0 pixels",
        '<p style="color:#999">pale</p>': "contrast",
        '<p style="width:3000px">wide</p>': "wide",
        '<svg viewBox="0 0 300 200" width="300" aria-label="x"></svg>': "nothing is drawn",
        '<svg viewBox="0 0 300 200" width="300" aria-label="x"><polyline points="0,NaN"/></svg>': "NaN",
        '<svg viewBox="0 0 300 200" width="300" aria-label="x"><text x="290" y="50">long words</text></svg>': "cut off",
    }
    for html, found in faults.items():
        path = tmp_path / "page.html"
        path.write_text(f'<!doctype html><meta name="viewport" content="width=device-width"><body>{html}</body>')
        browser.open(path, 400)
        assert any(found in words for words in browser.evaluate(LOOK)), html
    path.write_text("<!doctype html><script>console.error('here')</script>")
    browser.open(path, 400)
    assert browser.problems


def test_the_demo_as_people_see_it(browser: Browser, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo")]).exit_code == 0
    for width in (1280, 400):
        browser.open(tmp_path / "demo" / "report.html", width)
        browser.evaluate(OPEN)
        assert browser.evaluate(LOOK) == []
    assert tomllib.loads(browser.evaluate("document.querySelector('pre').textContent"))["job"]["task"] == "pca"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checker of accessibility, fetched from the npm registry: it is not part of this repository."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so axe-core cannot be fetched")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", "axe-core@4", "--silent", "--pack-destination", str(folder)]
    try:
        fetched = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=90).returncode == 0
    except subprocess.TimeoutExpired:
        fetched = False
    packed = list(folder.glob("*.tgz"))
    if not fetched or not packed:
        pytest.skip("the npm registry does not answer, so axe-core cannot be fetched")
    with tarfile.open(packed[0]) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


def find_barriers(browser: Browser, axe: str) -> list[str]:
    """What axe-core calls serious or critical for people who use a screen reader, a keyboard or other colours."""
    browser.evaluate(f"{axe}; 0")
    return list(
        browser.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations"
            ".filter(one => ['serious', 'critical'].includes(one.impact))"
            ".map(one => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map(node => node.html).join(' | ')}`))"
        )
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
@pytest.mark.parametrize("name", RUNS)
def test_a_report_has_no_serious_barrier(
    browser: Browser, report: Callable[[str], Path], axe: str, name: str, width: int, dark: bool
) -> None:
    pages = [report(name)] + ([report(name).parent / "audit.html"] if name == "audited" else [])
    for page in pages:
        browser.open(page, width, dark=dark)
        browser.evaluate(OPEN)
        assert find_barriers(browser, axe) == []


def test_axe_sees_a_barrier(browser: Browser, axe: str, tmp_path: Path) -> None:
    """The check itself."""
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><html><title>x</title><body><img src='data:,'><p style='color:#bbb'>pale</p>")
    browser.open(page, 1280)
    found = " ".join(find_barriers(browser, axe))
    assert "image-alt" in found
    assert "color-contrast" in found
    assert "html-has-lang" in found
