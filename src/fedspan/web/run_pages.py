"""The page of a researcher: the run folders in a folder, how far those are that are at work, and their reports."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd
from fedspan.errors import FedspanError, InputError
from fedspan.jobs.folder import ListedRun, RunFolder, list_runs
from fedspan.jobs.model import Job
from fedspan.jobs.tasks import TASKS, rounds_limit
from fedspan.reports.disclosure import solver_name
from fedspan.reports.format import Html, accuracy_of, escape, format_bytes, format_count, format_duration
from fedspan.reports.page import render_details, render_key_figures, render_notes, render_table
from fedspan.web.frame import render_live

_MOST_SHOWN_RUNS = 200
_LAST_ROUNDS = 12
_LAST_NOTES = 20
_STATES = {"done": "done", "interrupted": "stopped", "not started": "nothing was sent yet"}


@dataclass(frozen=True)
class RunState:
    """One run as it is now. `rounds` is how many it may take, if that is known."""

    listed: ListedRun
    at_work: bool
    ledger: Ledger
    rounds: int | None
    remote: bool = False  # it is on a federation

    @property
    def round(self) -> int:
        """The last round that has ended."""
        return max((event.round for event in self.ledger.events if isinstance(event, RoundEnd)), default=0)

    @property
    def notes(self) -> list[str]:
        """What was said on the way: what it waits for, a resumption, why it ended."""
        return [event.text for event in self.ledger.events if isinstance(event, Note)]

    def describe(self) -> str:
        """Where it stands, in a few words."""
        if self.listed.result == "done" and not self.at_work:
            return "done"
        if not self.at_work:
            return _STATES[self.listed.result] if not self.round else f"stopped after round {self.round}"
        if self.round == 0:
            return self.notes[-1] if self.remote and self.notes else "opens the clients"
        most = "" if self.rounds is None else f" of at most {self.rounds}"
        return f"round {self.round}{most}"


class RunPages:
    """What `fedspan ui` serves. Everything is read from the run folders; nothing is changed."""

    title = "Runs"

    def __init__(self, place: Path) -> None:
        list_runs(place)  # which says what is wrong with the folder
        self.place = place
        self._ledgers: dict[Path, tuple[tuple[int, int], Ledger]] = {}
        self._limits: dict[Path, int | None] = {}

    def find_file(self, path: str) -> Path | None:
        """The report or the audit of a run: `run/<name>/report`."""
        parts = path.split("/")
        if len(parts) != 3 or parts[0] != "run" or parts[2] not in ("report", "audit"):
            return None
        listed = self._find(parts[1])
        if listed is None:
            return None
        folder = RunFolder(listed.path)
        file = folder.report if parts[2] == "report" else folder.audit
        return file if file.is_file() else None

    def show(self, path: str, token: str) -> str | None:
        """The list of runs, or one of them: `run/<name>`."""
        if path == "":
            return self._show_list()
        parts = path.split("/")
        listed = self._find(parts[1]) if len(parts) == 2 and parts[0] == "run" else None
        return None if listed is None else self._show_run(self._read_state(listed))

    def act(self, action: str, form: Mapping[str, str]) -> str:
        """Nothing can be done here."""
        raise InputError("This page only shows; runs are started, resumed and stopped on the command line.")

    def _find(self, name: str) -> ListedRun | None:
        """The run folder with that name: one of those that are listed, so that no other file can be asked for."""
        return next((run for run in list_runs(self.place) if _name_of_run(run) == name), None)

    def _show_list(self) -> str:
        runs = [self._read_state(run) for run in list_runs(self.place)[:_MOST_SHOWN_RUNS]]
        at_work = sum(run.at_work for run in runs)
        head = (
            f"<header><h1>Runs</h1><span class='soft'>in {escape(str(self.place.resolve()))}; the same as "
            "<code>fedspan runs</code></span></header>"
        )
        figures = render_key_figures({"runs": str(len(runs)), "at work now": str(at_work)})
        if not runs:
            table = "<p class='empty'>There are no run folders here. Make one with: fedspan run JOB.toml --out "
            table += f"{escape(shlex.quote(str(self.place / 'first-run')))}</p>"
        else:
            rows = [
                [
                    Html(f'<a href="/run/{escape(_name_of_run(run.listed))}">{escape(_name_of_run(run.listed))}</a>'),
                    run.listed.task,
                    f"{run.listed.changed:%Y-%m-%d %H:%M}",
                    Html(_show_bar(run) + escape(run.describe())),
                ]
                for run in runs
            ]
            table = render_table(["run", "task", "last change", "state"], rows, set(), "wordy")
        return f'{head}<div id="runs" data-live>{figures}{table}</div>'

    def _show_run(self, run: RunState) -> str:
        name, folder = _name_of_run(run.listed), RunFolder(run.listed.path)
        links = [
            f'<a class="keep" href="/run/{escape(name)}/{page}">{words}</a>'
            for page, words, file in (("report", "Report", folder.report), ("audit", "Audit", folder.audit))
            if file.is_file()
        ]
        resume = ""
        if not run.at_work and run.listed.result != "done":
            resume = f"<p>To go on: <code>{escape(folder.command('resume'))}</code></p>"
        ledger = run.ledger
        figures = {"state": run.describe(), "task": run.listed.task}
        if ledger.started is not None:
            figures["method"] = solver_name(ledger.started)
        figures |= {
            "sent by the clients": format_bytes(ledger.bytes_up),
            "sent to them": format_bytes(ledger.bytes_down),
        }
        figures["time of the rounds"] = format_duration(ledger.seconds)
        status = f"{render_key_figures(figures)}<p>{_show_bar(run)}</p><p>{''.join(links)}</p>{resume}"
        notes = render_notes(run.notes[-_LAST_NOTES:]) if run.notes else "<p class='empty'>Nothing.</p>"
        job = render_details("Job file", f"<pre>{escape(folder.job.read_text(encoding='utf-8'))}</pre>")
        return (
            f'<nav><a href="/">All runs</a></nav><h1>{escape(name)}</h1>'
            f'<div id="status" data-live>{status}</div>'
            f"{render_live('rounds', 'Last rounds', _show_rounds(ledger))}"
            f"{render_live('notes', 'What was said', notes)}{job}"
        )

    def _read_state(self, listed: ListedRun) -> RunState:
        folder = RunFolder(listed.path)
        at_work = folder.is_at_work()
        limit = self._find_limit(folder) if at_work else None
        return RunState(listed, at_work, self._read_ledger(folder), limit, folder.federation.is_file())

    def _read_ledger(self, folder: RunFolder) -> Ledger:
        """The ledger, or what is seen here of a run on a federation; read again only if its file has changed."""
        path = folder.watched if folder.watched.is_file() else folder.ledger
        try:
            now = path.stat()
            key = (now.st_size, now.st_mtime_ns)
            if path not in self._ledgers or self._ledgers[path][0] != key:
                self._ledgers[path] = key, Ledger.read(path)
        except (OSError, FedspanError):
            return Ledger()
        return self._ledgers[path][1]

    def _find_limit(self, folder: RunFolder) -> int | None:
        if folder.path not in self._limits:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    job = Job.load(folder.job)
                    self._limits[folder.path] = rounds_limit(TASKS[job.task].estimator(**job.options()))
            except (FedspanError, TypeError, ValueError):
                self._limits[folder.path] = None
        return self._limits[folder.path]


def _name_of_run(run: ListedRun) -> str:
    return run.path.resolve().name


def _show_bar(run: RunState) -> str:
    if not run.at_work or run.rounds is None:
        return ""
    done = min(run.round, run.rounds)
    return f'<progress max="{max(run.rounds, 1)}" value="{done}" aria-label="rounds"></progress> '


def _show_rounds(ledger: Ledger) -> str:
    ended = [event for event in ledger.events if isinstance(event, RoundEnd) and event.round > 0][-_LAST_ROUNDS:]
    if not ended:
        return '<p class="empty">No round has ended yet.</p>'
    sent: dict[int, int] = {}
    for event in ledger.events:
        if isinstance(event, Exchange):
            sent[event.round] = sent.get(event.round, 0) + sum(event.bytes_up)
    label = accuracy_of(ended[-1].metrics)[0]
    rows = []
    for event in reversed(ended):
        error = accuracy_of(event.metrics)[1]
        shown = "–" if math.isnan(error) else f"{error:.2e}"
        rows.append([str(event.round), shown, format_bytes(sent.get(event.round, 0)), format_duration(event.seconds)])
    more = f"<p class='soft'>{format_count(ledger.rounds, 'round')} in all</p>"
    return render_table(["round", label, "sent by the clients", "time"], rows, {0, 1, 2, 3}) + more
