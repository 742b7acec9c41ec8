"""The pages in a real browser: nothing complains, everything fits, buttons work, and what changes is seen by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="needs fedspan[flare]")

from browser import Browser, chromium
from gated_site import ask, make_hospitals, serve

from fedspan.deployment.approval.decisions import Decisions
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.web.site_pages import SitePages

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium here; install Debian's chromium"),
    pytest.mark.xdist_group("browser"),
]
WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def three(tmp_path: Path) -> LoopbackFederation:
    return make_hospitals(tmp_path)


def until(browser: Browser, script: str, seconds: float = 60.0) -> Any:
    """The value of the script in the page, as soon as there is one."""
    end = time.monotonic() + seconds
    while not (found := browser.evaluate(script)):
        assert time.monotonic() < end, f"waited in vain for {script}"
        time.sleep(0.05)
    return found


def text_of(browser: Browser, place: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(place)}).innerText"))


def has_text(place: str, words: str) -> str:
    return f"(document.querySelector({json.dumps(place)})?.innerText ?? '').includes({json.dumps(words)})"


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_of_a_site_fits_and_complains_of_nothing(
    browser: Browser, three: LoopbackFederation, width: int, tmp_path: Path
) -> None:
    three.carry_out(ask(parameters={"solver": "gram"}))
    with serve(SitePages(three.sites["north"])) as server:
        browser.visit(server.link, width, dark=width == 400)
        until(browser, "document.querySelector('article.waiting') !== null")
        assert browser.evaluate("location.href") == f"http://127.0.0.1:{server.port}/"
        assert not browser.evaluate(WIDE), "wider than the window"
        time.sleep(2.5)  # so that it was brought up to date once
        assert browser.problems == []
        own = f"http://127.0.0.1:{server.port}/"
        assert all(url.startswith((own, "data:")) for url in browser.fetched), browser.fetched
        assert text_of(browser, "h1") == "Site north"
        labels = browser.evaluate("[...document.querySelectorAll('input:not([type=hidden])')].map(i => i.ariaLabel)")
        assert labels
        assert all(labels)
        browser.evaluate("document.querySelector('#log a').click()")
        until(browser, has_text("h1", "The book of site north"))
        assert not browser.evaluate(WIDE)
        assert browser.problems == []


def test_a_job_that_comes_later_is_seen_approved_and_refused(browser: Browser, three: LoopbackFederation) -> None:
    """The page shows it without a new load, keeps what is typed, and its buttons decide."""
    kit = three.sites["east"]
    first, second = ask(), ask(parameters={"n_components": 3})
    with serve(SitePages(kit)) as server:
        browser.visit(server.link, 1280)
        until(browser, has_text("#waiting", "No job waits"))
        three.carry_out(first)
        until(browser, "document.querySelectorAll('article.waiting').length === 1")
        assert "ada@uni.example.org asks for the principal components" in text_of(browser, "#waiting")
        browser.evaluate("document.querySelector('article details').open = true")
        browser.evaluate("document.querySelector('article button.yes').click()")
        until(browser, has_text("p.told[role=status]", "Approved order"))
        approved = [record.state for record in Decisions(kit).list_all()]
        assert approved == ["approved"]
        for site in ("north", "south"):
            (other,) = Decisions(three.sites[site]).list_waiting()
            Decisions(three.sites[site]).approve(other.digest)
        assert three.carry_out(first)["done"]
        until(browser, has_text("#runs", "Ssi on default"))

        three.carry_out(second)
        until(browser, "document.querySelectorAll('article.waiting').length === 1")
        browser.evaluate("document.querySelector('input[name=reason]').value = 'not before <May>'")
        three.carry_out(ask(parameters={"n_components": 4}))
        time.sleep(4.5)  # two looks: what was typed is still there
        assert browser.evaluate("document.querySelector('input[name=reason]').value") == "not before <May>"
        browser.evaluate("document.querySelector('article button.no').click()")
        until(browser, has_text("p.told[role=status]", "Its researcher is told: not before <May>"))
        assert "not before <May>" in three.carry_out(second)["error"]
        assert browser.problems == []
    until(browser, has_text("#stale", "No answer"))


def test_another_page_in_the_same_browser_can_press_no_button(
    browser: Browser, three: LoopbackFederation, tmp_path: Path
) -> None:
    """It can send the form, with the cookie if the browser adds it; it does not know the token of the page."""
    three.carry_out(ask())
    kit = three.sites["south"]
    (record,) = Decisions(kit).list_waiting()
    with serve(SitePages(kit)) as server:
        browser.visit(server.link, 1280)
        until(browser, "document.querySelector('article.waiting') !== null")
        form = f"""<form method=post action="http://127.0.0.1:{server.port}/do/approve">
            <input name=digest value={record.digest}><input name=form_token value=guess></form>
            <script>document.forms[0].submit()</script>"""
        (tmp_path / "evil.html").write_text(form)
        browser.open(tmp_path / "evil.html", 1280)
        until(browser, "document.body.innerText.includes('link') || document.body.innerText.includes('form')")
        assert [each.state for each in Decisions(kit).list_all()] == ["waiting"]
