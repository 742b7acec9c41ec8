"""The audit of a federated run at one of its sites: what left this site, and what the server could work out from it.

It needs nothing from anybody else: the site's book says what left, and the messages are those that the site kept
(`[keep] transcript_mb` in its file). Errors are measured against the site's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import printable
from fedspan.audit.audit_page import render_audit
from fedspan.audit.auditor import hear_talks, list_releases, note_shape, try_longest_row
from fedspan.audit.evidence import ATTACKED, Evidence
from fedspan.audit.findings import AuditResult
from fedspan.audit.protected import check_randomness, describe_bound
from fedspan.channel import wire
from fedspan.core.checkpoint import field_values
from fedspan.core.ledger import Exchange, Ledger, RoundEnd, Started
from fedspan.core.protocol import tasks_of
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_rules.book import Book, BookLine
from fedspan.deployment.site_rules.kept_messages import KeptMessages
from fedspan.deployment.site_service import ORDER
from fedspan.deployment.site_tables.site_data import open_site_table
from fedspan.engines.start import StartMessage
from fedspan.engines.transcript import Talk, Transcript
from fedspan.errors import FedspanError, InputError
from fedspan.reports.disclosure import solver_name


@dataclass(frozen=True)
class PartAudit:
    """What was found of one part of a run: sites first agree on means, say, and then learn."""

    part: int
    result: AuditResult


def audit_site(kit: Path, run: str) -> list[PartAudit]:
    """Audit all parts of a run at this site, and write a page for each into `fedspan/audits` of its kit.

    Parameters:
        kit: The site's kit.
        run: The run, by the beginning of its name, as `fedspan site log` shows it.
    """
    policy, entries = Policy.read(kit), list(Book(kit).read())
    names = {str(entry.facts["run"]) for entry in entries if str(entry.facts.get("run", "")).startswith(run)}
    if len(names) != 1 or not run:
        found = "no run" if not names or not run else f"{len(names)} runs"
        raise InputError(f"The book has {found} whose name begins with {run!r}. See: fedspan site log {kit}")
    name = names.pop()
    folders = sorted((kit / "fedspan" / "runs" / name).glob(f"*/{ORDER}"), key=lambda path: int(path.parent.name))
    if not folders:
        raise InputError(f"This site has no longer what the run {name[:12]} was opened with, so it cannot be audited.")
    audits = []
    for place in folders:
        part, site = int(place.parent.name), kit.resolve().name
        try:
            start = StartMessage.from_json(place.read_text(encoding="utf-8"))
        except (OSError, FedspanError) as error:
            raise InputError(
                f"{place} cannot be read ({printable(str(error))}), so the run cannot be audited."
            ) from None
        result = _examine_part(policy, site, start, place.parent, _list_answers(entries, name, part))
        page = kit / "fedspan" / "audits" / f"{name[:16]}-{part}.html"
        make_private_folder(page.parent)
        write_whole(page, render_audit(result))
        result.page = page
        audits.append(PartAudit(part, result))
    return audits


def _list_answers(entries: Iterable[BookLine], run: str, part: int) -> list[BookLine]:
    """The answers of one part of a run: those since it was opened, and before another one was."""
    found, now = [], -1
    for entry in entries:
        if entry.facts.get("run") != run:
            continue
        opened = entry.facts.get("part")
        if entry.event == "opened" and type(opened) is int:
            now = opened
        elif entry.event == "answered" and now == part:
            found.append(entry)
    return found


def _examine_part(policy: Policy, site: str, start: StartMessage, folder: Path, answers: list[BookLine]) -> AuditResult:
    algorithm = start.algorithm
    ledger, tasks = _write_ledger(site, start, answers), dict(tasks_of(algorithm.client))
    solver = solver_name(ledger.started) if ledger.started else type(algorithm).__name__
    result = AuditResult(
        solver, _describe_guards_of(start), 1, ledger.rounds, ledger.bytes_up, list_releases(ledger, tasks)
    )
    kept = KeptMessages(folder, 0)
    with TemporaryDirectory() as place:
        talks = list(_replay_messages(kept, site, start, Path(place)))
    if not talks:
        result.notes.append(
            "The messages were not kept, so no attack was run. To keep those of later runs, write transcript_mb = 50 "
            "in [keep] of the site's file."
        )
    elif start.threshold is not None or start.privacy is not None:
        for talk in talks:
            note_shape(result, talk)
        if start.threshold is not None:
            result.notes.append(check_randomness(talks, tasks))
    elif type(algorithm).__name__ in ATTACKED:
        evidence = _open_evidence(policy, site, start)
        result.evidence = [evidence]
        heard = hear_talks(result, iter(talks), site)
        result.row_test = try_longest_row(algorithm, evidence, heard, start.seed)
        result.notes += evidence.notes
    else:
        hear_talks(result, iter(talks), "")
        result.notes.append(
            f"There is no attack yet on the messages of {solver}. What was sent is listed above; that does not mean "
            "that nothing can be worked out from it."
        )
    if start.privacy is not None:
        result.notes.append(describe_bound(start.privacy.epsilon, start.privacy.delta))
    if not kept.whole:
        result.notes.append("The messages after a certain size were not kept (transcript_mb in the site's file).")
    return result


def _write_ledger(site: str, start: StartMessage, answers: Iterable[BookLine]) -> Ledger:
    """What the book says of the answers, as a ledger of this site alone."""
    algorithm, ledger, last = start.algorithm, Ledger(), 0
    options: dict[str, object] = {
        key: value for key, value in field_values(algorithm).items() if isinstance(value, bool | int | float | str)
    }
    why = "as the server opened it at this site"
    ledger.add(Started(type(algorithm).__name__, algorithm.family, options, start.seed, why))
    for entry in answers:
        task, round, size = str(entry.facts.get("task")), entry.facts.get("round"), entry.facts.get("bytes")
        if type(round) is not int or type(size) is not int:
            continue
        if round != last:
            ledger.add(RoundEnd(last, 0.0, {}))
        last = round
        ledger.add(Exchange(round, 0, task, (site,), (0,), (size,), (0.0,), secure=start.threshold is not None))
    ledger.add(RoundEnd(last, 0.0, {}))
    return ledger


def _replay_messages(kept: KeptMessages, site: str, start: StartMessage, place: Path) -> Iterator[Talk]:
    """The messages, decoded as the two sides decode them."""
    sitting, transcript = -1, Transcript(place)
    for pair in kept.read():
        if pair.sitting != sitting:
            sitting, transcript = pair.sitting, Transcript(place)
        transcript.record_down(site, wire.decode(pair.question))
        transcript.record_up(site, wire.decode(pair.answer))
    yield from Transcript(place).talks(start.channel)


def _describe_guards_of(start: StartMessage) -> str:
    said = "No secure sums: the server saw what this site sent by itself."
    if start.threshold is not None:
        said = f"Secure sums over at least {start.threshold} sites"
        said += ", each step verified by this site." if start.verified else "."
    if start.privacy is None:
        return f"{said} No noise."
    return f"{said} Noise for epsilon {start.privacy.epsilon:g} at delta {start.privacy.delta:g}."


def _open_evidence(policy: Policy, site: str, start: StartMessage) -> Evidence:
    """This site's own rows, as the run saw them, to measure errors against."""
    try:
        table = policy.find_table(start.table)
        opened = open_site_table(table, table.choose(start.table))
        return Evidence(site, opened.X)
    except FedspanError as error:
        evidence = Evidence(site)
        evidence.notes.append(f"The site's table cannot be read as the run saw it, so errors are not known. ({error})")
        return evidence
