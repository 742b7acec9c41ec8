"""The page of a site, for its administrator: what waits for approval, what runs, what it may do, and what left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from fedspan._foreign import printable
from fedspan.deployment.approval.decisions import Decisions, OrderRecord
from fedspan.deployment.approval.signed_order import verify_order
from fedspan.deployment.kit import read_expiry_dates, role
from fedspan.deployment.local import find_activity
from fedspan.deployment.policy import FILE, Policy
from fedspan.deployment.site_budget import describe_budget
from fedspan.deployment.site_evidence import describe_entry, verify_book
from fedspan.deployment.site_rules.book import Book, BookLine
from fedspan.deployment.site_rules.pause import Pause
from fedspan.deployment.site_rules.rules_in_words import describe_rules
from fedspan.deployment.site_rules.run_list import SiteRun, list_site_runs
from fedspan.deployment.site_rules.shutter import Shutter
from fedspan.errors import FedspanError, InputError, PrivacyError
from fedspan.jobs.checking.order_in_words import describe_order
from fedspan.privacy.budget import Budget
from fedspan.reports.format import Html, escape, format_bytes, format_count, format_duration
from fedspan.reports.page import render_details, render_key_figures, render_table
from fedspan.web.frame import render_form, render_live, render_words

_LAST_LINES = 25  # of the book, on the first page
_MOST_LINES = 5000  # on the page of the whole book
_MOST_RUNS = 15
_MOST_DECIDED = 10
_SOON = 30  # days before the end of a certificate
_SILENT_FOR = 600.0  # seconds without a word after which a run does not count as running
_BOOK = "book"


class SitePages:
    """What `fedspan site ui` serves. Everything is read anew for each page, from the files of the kit."""

    def __init__(self, kit: Path) -> None:
        if role(kit) != "site":
            raise InputError(f"{kit} is a {role(kit)}'s kit. This page is for a site's administrator.")
        Policy.read(kit)  # what is wrong with the site's file is told in the terminal
        self.kit, self.name = kit, kit.resolve().name
        self._words: dict[tuple[str, bytes], list[tuple[str, str]]] = {}  # of orders, which do not change
        self._read: tuple[int, list[BookLine]] = (-1, [])  # the size of the book, and its lines

    @property
    def title(self) -> str:
        """The name of the page."""
        return f"Site {self.name}"

    def find_file(self, path: str) -> Path | None:
        """No files."""
        return None

    def show(self, path: str, token: str) -> str | None:
        """The first page, or the whole book."""
        if path == _BOOK:
            return self._show_book()
        return self._show_site(token) if path == "" else None

    def act(self, action: str, form: Mapping[str, str]) -> str:
        """Approve, refuse, pause or go on, as the command line does."""
        if action == "approve":
            order = Decisions(self.kit).approve(_read_digest(form))
            return (
                f"Approved order {order.digest[:16]} of {order.submitter.name}. It runs as soon as all sites are free."
            )
        if action == "refuse":
            record = Decisions(self.kit).refuse(_read_digest(form), form.get("reason", ""))
            return f"Refused order {record.digest[:16]}. Its researcher is told: {record.reason or 'no reason'}"
        if action == "pause":
            Pause(self.kit).begin()
            Book(self.kit).write("administrator", act="paused the site")
            return "Paused: no run begins or goes on here until you end the pause."
        if action == "unpause":
            Pause(self.kit).end()
            Book(self.kit).write("administrator", act="ended the pause")
            return "The pause is over."
        raise InputError(f"There is nothing called {action!r} to be done here.")

    def _show_site(self, token: str) -> str:
        policy, entries = Policy.read(self.kit), self._read_book()
        records = Decisions(self.kit).list_all()
        waiting = [record for record in reversed(records) if record.state == "waiting"]
        runs = list_site_runs(entries)
        head = (
            f"<header><h1>Site {escape(self.name)}</h1><span class='soft'>All of this can also be seen and done with "
            f"<code>fedspan site</code>.</span></header>"
        )
        return "\n".join(
            [
                head,
                f'<div id="status" data-live>{self._show_status(policy, len(waiting), runs, entries, token)}</div>',
                render_live("waiting", "Waiting for your approval", self._show_waiting(waiting, policy, token)),
                render_live("runs", "Runs at this site", self._show_runs(runs)),
                render_live("decided", "Decided orders", self._show_decided(records, policy, token)),
                render_live("budget", "Privacy budget", self._show_budget(policy)),
                render_live("rules", "What jobs may do here", self._show_rules(policy)),
                render_live("log", "The site's book", self._show_log(entries)),
            ]
        )

    def _show_status(
        self, policy: Policy, waiting: int, runs: list[SiteRun], entries: list[BookLine], token: str
    ) -> str:
        running, jobs = find_activity(self.kit)
        paused = Pause(self.kit).path.exists()
        figures = {
            "process": "runs" if running else "does not run",
            "new runs": "paused" if paused else "may begin",
            "waiting for you": format_count(waiting, "job"),
            "job processes": str(jobs),
            "certificates": self._describe_certificates(),
            "the book": format_count(len(entries), "line"),
        }
        told = []
        if not running:
            told.append(f"No process of this site runs here. Start it with: fedspan site start {self.kit}")
        told += [
            f"Table {printable(name)} is shut, because too many questions were refused." for name in self._find_shut()
        ]
        notes = "".join(f'<p class="told wrong">{escape(text)}</p>' for text in told)
        button = (
            render_form("unpause", token, "End the pause", kind="yes")
            if paused
            else render_form("pause", token, "Pause this site")
        )
        return f"{render_key_figures(figures)}{notes}{button}"

    def _find_shut(self) -> list[str]:
        try:
            return Shutter(self.kit).list_shut()
        except InputError:
            return ["(all)"]

    def _describe_certificates(self) -> str:
        dates = read_expiry_dates(self.kit)
        if not dates:
            return "none"
        days = (min(dates.values()) - datetime.now(UTC)).days
        return "expired" if days < 0 else f"{'only ' if days < _SOON else ''}{format_count(days, 'day')} left"

    def _show_waiting(self, waiting: list[OrderRecord], policy: Policy, token: str) -> str:
        if not waiting:
            return '<p class="empty">No job waits for your approval.</p>'
        return "".join(self._show_order(record, policy, token) for record in waiting)

    def _show_order(self, record: OrderRecord, policy: Policy, token: str) -> str:
        digest = {"digest": record.digest}
        words = self._describe(record, policy)
        by = next((text for word, text in words if word == "asked by"), "an unknown researcher").split(" (")[0]
        wants = next((text for word, text in words if word == "wants"), "")
        forms = [
            render_form("approve", token, "Approve", digest, kind="yes"),
            render_form("refuse", token, "Refuse", digest, ask=("reason", "Reason, told to the researcher"), kind="no"),
        ]
        since = f"<p class='soft'>since {_format_time(record.first_seen)}</p>"
        first = [pair for pair in words if pair[0] not in ("digest", "run")]
        rest = [pair for pair in words if pair[0] in ("digest", "run")]
        heading = f"<h3>{escape(by)} asks for {escape(wants.split(' (task')[0])}</h3>"
        names = render_details("Digest of the order, and name of the run", render_words(rest))
        return f'<article class="card waiting">{heading}{since}{render_words(first)}{"".join(forms)}{names}</article>'

    def _describe(self, record: OrderRecord, policy: Policy) -> list[tuple[str, str]]:
        """An order in words; kept, because it is read for every look at the page."""
        file = (self.kit / "local" / FILE).read_bytes()
        budget = b"" if policy.epsilon is None else f"{self._find_spent(policy):.4g}".encode()
        key = (record.digest, file + budget)
        if key not in self._words:
            self._words = {k: v for k, v in self._words.items() if k[1] == key[1]}
            try:
                self._words[key] = describe_order(verify_order(self.kit, record.signed), policy)
            except FedspanError as error:
                return [("digest", record.digest), ("cannot run", printable(str(error)))]
        return self._words[key]

    def _find_spent(self, policy: Policy) -> float:
        try:
            return Budget(policy.budget).spent
        except PrivacyError:
            return 0.0

    def _show_runs(self, runs: list[SiteRun]) -> str:
        if not runs:
            return '<p class="empty">No run was opened at this site yet.</p>'
        active = find_activity(self.kit)[1] > 0
        rows = [
            [
                run.run[:12],
                run.by or "not signed",
                f"{run.algorithm} on {run.table}",
                format_bytes(run.bytes),
                _format_time(run.last),
                Html(_show_progress(run, active)),
            ]
            for run in runs[:_MOST_RUNS]
        ]
        more = f"<p class='soft'>and {len(runs) - _MOST_RUNS} earlier ones</p>" if len(runs) > _MOST_RUNS else ""
        return (
            render_table(["run", "asked by", "method", "left this site", "last word", "state"], rows, {3}, "wordy")
            + more
        )

    def _show_decided(self, records: list[OrderRecord], policy: Policy, token: str) -> str:
        decided = [record for record in records if record.state != "waiting"]
        if not decided:
            return '<p class="empty">No order was decided about yet.</p>'
        parts = []
        for record in sorted(decided, key=lambda each: each.decided or each.first_seen, reverse=True)[:_MOST_DECIDED]:
            words = self._describe(record, policy)
            by = next((text for word, text in words if word == "asked by"), "an unknown researcher").split(" (")[0]
            how = {"admitted": "ran without approval"}.get(record.state, record.state)
            reason = f": {record.reason}" if record.reason else ""
            when = _format_time(record.decided or record.first_seen)
            form = ""
            if record.state != "refused":
                form = render_form(
                    "refuse",
                    token,
                    "Refuse after all",
                    {"digest": record.digest},
                    ask=("reason", "Reason, told to the researcher"),
                    kind="no",
                )
            summary = f"{when}  {how}{reason} – order {record.digest[:12]} of {by}"
            parts.append(render_details(summary, render_words(words) + form))
        return "".join(parts)

    def _show_budget(self, policy: Policy) -> str:
        try:
            lines = describe_budget(policy)
        except FedspanError as error:
            return f'<p class="told wrong">{escape(str(error))}</p>'
        return f"<pre>{escape(chr(10).join(lines))}</pre>" if len(lines) > 1 else f"<p>{escape(lines[0])}</p>"

    def _show_rules(self, policy: Policy) -> str:
        file = f"<p class='soft'>from {escape(str(self.kit / 'local' / FILE))}, which you edit</p>"
        return render_words(describe_rules(policy)) + file

    def _read_book(self) -> list[BookLine]:
        """All lines; read again only if the file has grown or changed its size."""
        path = Book(self.kit).path
        size = path.stat().st_size if path.exists() else 0
        if size != self._read[0]:
            self._read = size, list(Book(self.kit).read())
        return self._read[1]

    def _show_log(self, entries: list[BookLine]) -> str:
        if not entries:
            return '<p class="empty">Nothing was written yet.</p>'
        more = f'<p><a href="/{_BOOK}">All {len(entries)} lines, and whether the chain is whole</a></p>'
        return f"<pre>{_format_lines(entries[-_LAST_LINES:])}</pre>{more}"

    def _show_book(self) -> str:
        entries = self._read_book()
        try:
            kind, said = "told", "; ".join(verify_book(self.kit))
        except InputError as error:
            kind, said = "told wrong", str(error)
        shown = entries[-_MOST_LINES:]
        left_out = (
            f"<p class='soft'>the last {len(shown)} of {len(entries)} lines</p>" if len(shown) < len(entries) else ""
        )
        head = f'<nav><a href="/">Back to the site</a></nav><h1>The book of site {escape(self.name)}</h1>'
        return f'{head}<p class="{kind}">{escape(said)}</p>{left_out}<pre>{_format_lines(shown)}</pre>'


def _read_digest(form: Mapping[str, str]) -> str:
    digest = form.get("digest", "")
    if len(digest) != 64:
        raise InputError("The form does not say which order it is about. Load the page again.")
    return digest


def _show_progress(run: SiteRun, active: bool) -> str:
    at = f"round {run.round} of at most {run.rounds}"
    if run.state == "refused":
        return f"refused: {escape(run.reason)}"
    if run.state == "ended":
        spent = "" if run.charged is None else f", epsilon {run.charged:.3g} spent"
        return f"over after round {run.round}{spent}"
    if not active or run.silent_for() > _SILENT_FOR:
        return f"stopped in {at}"
    quiet = run.silent_for()
    waits = f", silent for {format_duration(round(quiet))}" if quiet >= 10 else ""
    bar = f'<progress max="{max(run.rounds, 1)}" value="{min(run.round, run.rounds)}"></progress> '
    return f"{bar}{at}{waits}"


def _format_time(text: str) -> str:
    """A time of the book, as it is on the clock of this machine."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return printable(text)


def _format_lines(entries: list[BookLine]) -> str:
    lines = [f"{_format_time(entry.when)}  {describe_entry(entry)}" for entry in reversed(entries)]
    return escape("\n".join(lines))
