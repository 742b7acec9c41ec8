"""The page of a site: it says what the command line says, and its buttons do what the command line does."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("flask", reason="needs fedspan[flare]")

from gated_site import Visitor, ask, make_hospitals, serve
from typer.testing import CliRunner

from fedspan.cli.main import app
from fedspan.deployment.approval.decisions import Decisions
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_budget import grant_budget
from fedspan.deployment.site_rules.book import Book
from fedspan.deployment.site_rules.pause import Pause
from fedspan.deployment.site_rules.rules_in_words import describe_rules
from fedspan.deployment.site_rules.run_list import list_site_runs
from fedspan.errors import InputError
from fedspan.web.site_pages import SitePages


def words_of(page: str) -> str:
    """What a reader sees."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture
def three(tmp_path: Path) -> LoopbackFederation:
    return make_hospitals(tmp_path)


def test_a_job_that_waits_is_shown_in_words_and_approved(three: LoopbackFederation) -> None:
    request, kit = ask(), three.sites["north"]
    assert "waiting for the approval" in three.carry_out(request)["error"]
    for site in ("east", "south"):
        (record,) = Decisions(three.sites[site]).list_waiting()
        Decisions(three.sites[site]).approve(record.digest)
    with serve(SitePages(kit)) as server:
        visitor = Visitor(server)
        page = visitor.enter()
        words = words_of(page)
        (record,) = Decisions(kit).list_waiting()
        pending = CliRunner().invoke(app, ["site", "pending", str(kit)]).output
        for line in pending.splitlines():
            if line.startswith("  ") and "fedspan site" not in line:
                assert " ".join(line[17:].split()) in words, line
        token = re.search(r'name="form_token" value="([^"]+)"', page)
        assert token
        form = {"form_token": token[1], "digest": record.digest}
        assert visitor.ask("/do/approve", {**form, "digest": record.digest[:8]})[0] == 303
        assert "does not say which order" in visitor.ask("/")[1]
        assert visitor.ask("/do/approve", form)[0] == 303
        assert f"Approved order {record.digest[:16]}" in words_of(visitor.ask("/")[1])
        assert three.carry_out(request)["done"]
        after = words_of(visitor.ask("/")[1])
    assert "No job waits for your approval." in after
    assert "over after round 3" in after
    assert "Ssi on default" in after
    assert any("approved order" in str(entry.facts.get("act")) for entry in Book(kit).read())


def test_a_refusal_reaches_the_researcher_with_its_reason(three: LoopbackFederation) -> None:
    request, kit = ask(), three.sites["east"]  # which is heard first
    three.carry_out(request)
    pages = SitePages(kit)
    (record,) = Decisions(kit).list_waiting()
    said = pages.act("refuse", {"digest": record.digest, "reason": "no <b>ethics</b> vote"})
    assert "no <b>ethics</b> vote" in said
    assert "no <b>ethics</b> vote" in three.carry_out(request)["error"]
    page = pages.show("", "t")
    assert page is not None
    assert "<b>ethics</b>" not in page
    assert "no <b>ethics</b> vote" in unescape(page)
    pages.act("approve", {"digest": record.digest})
    for site in ("north", "south"):
        (other,) = Decisions(three.sites[site]).list_waiting()
        Decisions(three.sites[site]).approve(other.digest)
    assert three.carry_out(request)["done"]
    pages.act("refuse", {"digest": record.digest})  # after it ran: the form is there for orders that were approved
    with pytest.raises(InputError, match="nothing called 'delete'"):
        pages.act("delete", {})


def test_pausing_and_the_book(three: LoopbackFederation) -> None:
    kit = three.sites["east"]
    pages = SitePages(kit)
    assert "Paused" in pages.act("pause", {})
    assert Pause(kit).path.exists()
    page = pages.show("", "t")
    assert page is not None
    assert "End the pause" in page
    pages.act("unpause", {})
    assert not Pause(kit).path.exists()
    book = pages.show("book", "t")
    assert book is not None
    assert "the book is whole: 2 lines" in book
    path = Book(kit).path
    path.write_bytes(path.read_bytes().replace(b"paused the site", b"PAUSED the site", 1))
    broken = pages.show("book", "t")
    assert broken is not None
    assert "was changed" in broken
    assert pages.show("nothing", "t") is None


def test_the_rules_are_told_as_the_file_has_them(three: LoopbackFederation, tmp_path: Path) -> None:
    kit = three.sites["east"]
    path = kit / "local" / "fedspan.toml"
    path.write_text(
        path.read_text().replace("transcript_mb = 0", "transcript_mb = 7")
        + '\n[algorithms."gram"]\napproval = "never"\nothers = 4\nverified = true\ntables = ["default"]\n'
    )
    said = dict(describe_rules(Policy.read(kit)))
    assert said["approval"] == "Every job waits until you have approved it."
    assert "at least 2 other sites" in said["sums"]
    assert said["method gram"].startswith("No job waits for your approval. Every sum must be over at least 4 other")
    assert "7 MB" in said["kept here"]
    assert "no privacy budget" in said["noise"]
    assert "lab0, lab1" in said["table default"]
    path.write_text(path.read_text().replace("[require]", "[require]\nepsilon = 2.0\ndelta = 1e-6"))
    grant_budget(kit, 2.0, 1e-6)
    assert "may spend epsilon 2 at delta 1e-06" in dict(describe_rules(Policy.read(kit)))["noise"]
    page = SitePages(kit).show("", "t")
    assert page is not None
    assert "epsilon 2 at delta 1e-06, over all runs" in words_of(page)


def test_the_list_of_runs_counts_what_the_book_tells(three: LoopbackFederation) -> None:
    request, kit = ask(), three.sites["east"]
    three.carry_out(request)
    for site in three.sites.values():
        (record,) = Decisions(site).list_waiting()
        Decisions(site).approve(record.digest)
    assert three.carry_out(request)["done"]
    entries = list(Book(kit).read())
    (run,) = list_site_runs(entries)
    answered = [entry.facts for entry in entries if entry.event == "answered"]
    assert run.run == request.run
    assert (run.answers, run.bytes) == (len(answered), sum(int(str(each["bytes"])) for each in answered))
    assert run.round == answered[-1]["round"]
    assert run.by == "ada@uni.example.org"
    assert run.silent_for() >= 0


def test_only_a_sites_kit_has_this_page(three: LoopbackFederation, tmp_path: Path) -> None:
    (tmp_path / "ada" / "startup" / "fed_admin.json").write_text("{}")
    with pytest.raises(InputError, match="for a site's administrator"):
        SitePages(tmp_path / "ada")
    with pytest.raises(InputError, match="not a FLARE kit"):
        SitePages(tmp_path / "nothing")
