"""The audit of a run folder: what left each client, and what the server could work out from it, measured by attacks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.learning.vertical import FeatureBased
from fedspan.audit._replay import find_kind, rebuild_algorithm, rebuild_channel
from fedspan.audit.attacks import error
from fedspan.audit.audit_page import render_audit
from fedspan.audit.embedding_attacks import attack_embeddings
from fedspan.audit.entity_attacks import VERTICAL, attack_entities, read_view_tables
from fedspan.audit.evidence import ATTACKED, Evidence, choose_milestones
from fedspan.audit.findings import AuditResult, Released
from fedspan.audit.protected import describe_protection
from fedspan.audit.row_test import RowTest, probe_longest_row
from fedspan.core.ledger import Exchange, Ledger
from fedspan.core.protocol import Declared, Sensitivity, Server, Task, tasks_of
from fedspan.data.tables import open_table
from fedspan.engines.transcript import Talk, Transcript
from fedspan.errors import InputError
from fedspan.estimators.gcca import FederatedGCCA
from fedspan.estimators.parameters import is_whole
from fedspan.jobs.folder import RunFolder
from fedspan.jobs.model import Job, estimator
from fedspan.jobs.runner import rewrite_report
from fedspan.reports.disclosure import describe_privacy, solver_name
from fedspan.reports.format import format_bytes


def audit(folder: str | os.PathLike[str], clients: int = 8) -> AuditResult:
    """Attack what the clients of a run sent, as a curious server could, and write audit.html into the run folder.

    Parameters:
        folder: A run folder, as `fedspan run JOB.toml --transcript` leaves it. Without a transcript the audit lists
            what was sent, and attacks nothing.
        clients: How many clients to attack, the first by name.

    Returns:
        What left each client and what was recovered about it. Errors are measured against the clients' data, if the
        files that the job names can be read here. The run's report is written anew, with the findings in it.
    """
    if not is_whole(clients) or clients < 1:
        raise InputError(f"clients must be an integer of at least 1, but is {clients!r}.")
    place = RunFolder.find(Path(folder))
    job = Job.load(place.job)
    with place.lock():
        result = examine_run(place, job, clients)
        write_whole(place.audit, render_audit(result))
        write_whole(place.audited, "".join(f"{line}\n" for line in result.list_findings()))
        result.page = place.audit
    if place.model.exists():
        rewrite_report(place, job)
    return result


def examine_run(folder: RunFolder, job: Job, most: int) -> AuditResult:
    """Read the ledger and the transcript, and attack the first `most` clients."""
    ledger = Ledger.read(folder.ledger) if folder.ledger.exists() else Ledger()
    if not ledger.exchanges:
        raise InputError(
            f"Nothing was sent yet in the run {folder.path}, so there is nothing to audit. Finish it with "
            "`fedspan resume`."
        )
    facts, kind = job.facts(folder), find_kind(ledger.started)
    tasks = dict(tasks_of(AgreeOnColumns.client)) | (tasks_of(kind.client) if kind else {})
    solver = "unknown solver" if ledger.started is None else solver_name(ledger.started)
    result = AuditResult(
        solver,
        describe_privacy(ledger, facts.privacy),
        len({client for e in ledger.events if isinstance(e, Exchange) for client in e.clients}),
        ledger.rounds,
        ledger.bytes_up,
        list_releases(ledger, tasks),
    )
    transcript, channel = Transcript(folder.transcript), rebuild_channel(kind, job)
    if not transcript.answers():
        result.notes.append(
            "The messages were not kept, so no attack was run; to keep them, run the job again with --transcript."
        )
        return result
    if facts.hides_rows:
        talks = list(transcript.talks(channel))
        for talk in talks:
            note_shape(result, talk)
        result.notes += describe_protection(facts, job, ledger, talks, tasks)
        if kind is not None and kind.__name__ in VERTICAL:
            result.notes += attack_entities(job, talks, _read_view_counts(folder, job), secure=facts.secure)
        if kind is not None and issubclass(kind, FeatureBased):
            result.notes += _attack_embeddings(job, talks)
        return result
    if kind is not None and issubclass(kind, FeatureBased):
        talks = list(transcript.talks(channel))
        hear_talks(result, iter(talks), "")
        result.notes += _attack_embeddings(job, talks)
        return result
    if kind is not None and kind.__name__ in VERTICAL:
        talks = list(transcript.talks(channel))
        hear_talks(result, iter(talks), "")
        result.notes += attack_entities(job, talks, _read_view_counts(folder, job), secure=False)
        return result
    if kind is None or ledger.started is None or kind.__name__ not in ATTACKED:
        hear_talks(result, transcript.talks(channel), "")
        result.notes.append(_explain_no_attack(ledger, job, solver))
        return result
    algorithm = rebuild_algorithm(kind, ledger.started)
    _attack_clients(result, job, algorithm, transcript.talks(channel), most, ledger.started.seed)
    result.notes += _measure_model(folder, job, result.evidence)
    return result


def _read_view_counts(folder: RunFolder, job: Job) -> Array | None:
    """How many views have each entity, if some lack any."""
    if not folder.model.exists():
        return None
    model = estimator(job.task).load(folder.model)
    return model.view_counts_ if isinstance(model, FederatedGCCA) else None


def _attack_embeddings(job: Job, talks: Sequence[Talk]) -> list[str]:
    """What the server of vertical learning can work out about the features of rows."""
    tables, _, problem = read_view_tables(job)
    if problem:
        return [f"What the server knows of rows could not be measured, because tables cannot be read here. ({problem})"]
    return attack_embeddings(talks, tables)


def _explain_no_attack(ledger: Ledger, job: Job, solver: str) -> str:
    if ledger.started is None:
        return (
            "No attack has been run on this transcript: its ledger, of an older version, does not say which solver ran."
        )
    return (
        f"No attack has been run on this transcript: there is none yet for the messages of {solver} (task {job.task}). "
        "What was sent is listed above; that does not mean that nothing can be worked out from it."
    )


def list_releases(ledger: Ledger, tasks: Mapping[str, Task]) -> dict[str, Released]:
    """What each task sent, by the ledger, with what the client's class declares about it."""
    released: dict[str, Released] = {}
    for e in ledger.events:
        if isinstance(e, Exchange):
            here = released.setdefault(e.task, Released(e.task))
            here.bytes_up += sum(e.bytes_up)
            here.answers.update(c for c, up in zip(e.clients, e.bytes_up, strict=True) if up)
    for name in released.keys() & tasks.keys():
        declared = tasks[name].releases
        released[name].shapes = {array: set() for array in declared}
        released[name].bounds = {array: _describe_bound_of(bound) for array, bound in declared.items()}
    return released


def _describe_bound_of(declared: Declared) -> str:
    if not isinstance(declared, Sensitivity):
        return "none known" if declared is None else "public"
    return {0: "1", 1: "C"}.get(declared.power, f"C^{declared.power}")


def note_shape(result: AuditResult, talk: Talk) -> None:
    """Remember of which shape the arrays of an answer are."""
    here = result.released.setdefault(talk.task, Released(talk.task))
    for name, array in talk.answer.items():
        if not name.startswith("@"):  # what secure aggregation adds for itself
            here.shapes.setdefault(name, set()).add(" × ".join(map(str, array.shape)) or "one number")


def _compare_bytes(result: AuditResult, sent: int) -> None:
    if sent != result.bytes_up:
        result.notes.append(
            f"The ledger counts {format_bytes(result.bytes_up)} sent up, but the transcript holds {format_bytes(sent)}"
            ": the run was interrupted in between, or messages are missing."
        )


def _attack_clients(
    result: AuditResult, job: Job, algorithm: Server[Any], talks: Iterator[Talk], most: int, seed: int
) -> None:
    """Attack the first `most` clients with all that they sent, and test one row of the first that has its data here."""
    result.evidence = [_open_client(name, job, result) for name in sorted(job.clients)[:most]]
    if len(job.clients) > most:
        result.notes.append(f"The first {most} of {len(job.clients)} clients were attacked; for more, give --clients.")
    tested = next((e for e in result.evidence if e.rows is not None), None)
    kept = hear_talks(result, talks, "" if tested is None else tested.client)
    result.row_test = try_longest_row(algorithm, tested, kept, seed)
    result.notes += [note for e in result.evidence for note in e.notes]


def try_longest_row(
    algorithm: Server[Any], tested: Evidence | None, talks: Sequence[Talk], seed: int
) -> RowTest | None:
    if tested is None or tested.rows is None or tested.rows.shape[0] < 2:
        return None
    return probe_longest_row(algorithm, tested.client, tested.rows, talks, seed)


def _open_client(name: str, job: Job, result: AuditResult) -> Evidence:
    """One client's evidence, with its rows if they can be read here."""
    if job.preparation.weight is not None or job.client_weight != "rows":
        result.notes.append(f"Client {name!r}: its rows have weights, so errors are not known.")
        return Evidence(name)
    try:
        return Evidence(name, open_table(job.sources()[name]()).X)
    except InputError as problem:
        result.notes.append(f"Client {name!r}: its rows cannot be read here, so errors are not known. ({problem})")
        return Evidence(name)


def hear_talks(result: AuditResult, talks: Iterator[Talk], tested: str) -> list[Talk]:
    """Hear all answers, and attack after some of the rounds. The talks of the client `tested` are returned."""
    by_name = {e.client: e for e in result.evidence}
    milestones, now, sent = choose_milestones(result.rounds), 0, 0
    kept = []
    for talk in talks:
        if talk.round != now and now in milestones:
            _attack_all(result, now)
        now, sent = talk.round, sent + talk.bytes_up
        note_shape(result, talk)
        if talk.client in by_name:
            by_name[talk.client].hear(talk)
        if talk.client == tested:
            kept.append(talk)
    _attack_all(result, now)
    for e in result.evidence:
        e.fit()
    _compare_bytes(result, sent)
    return kept


def _attack_all(result: AuditResult, round: int) -> None:
    for e in result.evidence:
        e.attack(round)


def _measure_model(folder: RunFolder, job: Job, evidence: Sequence[Evidence]) -> list[str]:
    """What anyone who has the model knows about all clients together (FedPower, Example 2)."""
    truths: list[Array] = [e.truth for e in evidence if e.truth is not None]
    if not folder.model.exists() or len(truths) < len(job.clients):
        return []
    model = estimator(job.task).load(folder.model)
    pooled = np.sum(truths, axis=0)
    V = np.asarray(model.components_).T
    found = error((V * model.singular_values_**2) @ V.T, pooled)
    return [
        f"The model alone gives anyone who has it the pooled second-moment matrix with a relative error of {found:.2g}."
    ]
