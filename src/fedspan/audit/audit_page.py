"""The page of an audit: what left, what could be worked out from it by which round, and what that means."""

from __future__ import annotations

import math

from fedspan._version import __version__
from fedspan.audit.evidence import NEAR, Evidence
from fedspan.audit.findings import (
    EVIDENCE_HEAD,
    FAPS_HEAD,
    RELEASED_HEAD,
    ROW_HEAD,
    AuditResult,
    format_error,
    format_success_rate,
    list_evidence,
    list_faps,
    list_released,
    list_row_tests,
)
from fedspan.reports.drawing.charts import draw_line_chart
from fedspan.reports.format import escape, format_bytes
from fedspan.reports.page import (
    render_charts,
    render_figure,
    render_key_figures,
    render_notes,
    render_page,
    render_table,
)

_LEAST_DRAWN = 1e-16  # an error below this is rounding error, and is drawn here
_ABOUT_RELEASED = (
    "Sensitivity, as the task declares it: how much one row of norm at most C can change the array (in Frobenius "
    "norm). “None known” means that the array cannot be combined with differential privacy."
)
_ABOUT_ERRORS = (
    "The attacker treats all answers of one client as linear equations in its second-moment matrix M = AᵀA (of the "
    "rows after centering and scaling) and solves them by symmetric least squares. <em>Determined</em> is the share of "
    "M's entries that the equations fix. <em>Misfit</em> says how badly one matrix explains all answers: near 0, they "
    "are products with M; large, they are masked or noisy. <em>Error</em> is ‖M̂ − M‖ / ‖M‖ against the true M, for an "
    "attacker who happens to choose the best cut-off. A blind guess knows the trace of M and nothing else."
)
_ABOUT_FAPS = (
    "FAPS masks its products, so they are not linear equations in M. But what it sends approaches P⊥MZ outside the "
    "common basis Z; its penalty β, once it can be read, reveals the size of the largest eigenvalue of M (0.15 of it "
    "in the first ten rounds, then at least 0.1); and at the end it sends ZᵀMZ, or with check=True MZ itself, again if "
    "the first did not end the run. <em>From all rounds</em> is least squares on what all rounds say about "
    "P⊥MZ, each weighted by how close the client was to Z. This is obscurity, not a guarantee."
)
_ABOUT_ROW = (
    "The strongest attacker knows all rows of the client except one, and wants to know whether that row was in the "
    "data too. The attacker repeats the client's computation with the row and without it, and compares both with what "
    "was sent: the score is +0.5 if the row was there and −0.5 if not, give or take the noise on the wire. Only "
    "differential privacy limits this attack."
)


def render_audit(result: AuditResult) -> str:
    """The whole page."""
    parts = [
        f"<h1>Audit of a federated run</h1><p>{escape(_write_headline(result))}</p>",
        render_key_figures(_list_audit_figures(result)),
        f"<p><strong>Privacy:</strong> {escape(result.privacy)}</p>",
        "<h2>What left the clients</h2>",
        render_table(RELEASED_HEAD, list_released(result), numbers={1, 2}, kind="wordy"),
        f'<p class="soft" style="margin-top:8px">{_ABOUT_RELEASED}</p>',
    ]
    if result.evidence:
        table = render_table(EVIDENCE_HEAD, list_evidence(result), numbers={1, 2, 3}, kind="wordy")
        parts.append(f"<h2>What the server could work out</h2><p>{_ABOUT_ERRORS}</p>{table}{_render_courses(result)}")
    if any(e.faps for e in result.evidence):
        table = render_table(FAPS_HEAD, list_faps(result), numbers={1, 2, 3, 4, 5})
        parts.append(f"<h2>What the mask of FAPS does not hide</h2><p>{_ABOUT_FAPS}</p>{table}{_render_faps(result)}")
    if result.row_test and result.row_test.arrays:
        where = (
            f"Tested with row {result.row_test.row} of client {result.row_test.client!r}, which has the largest norm."
        )
        table = render_table(ROW_HEAD, list_row_tests(result), numbers={2})
        parts.append(f"<h2>Was this row in the data?</h2><p>{_ABOUT_ROW} {escape(where)}</p>{table}")
    if result.notes:
        parts.append(f"<h2>Notes</h2>{render_notes(result.notes)}")
    parts.append(
        f'<p class="soft">Written by fedspan {escape(__version__)} from job.toml, ledger.jsonl and transcript in this '
        "folder. An attack that fails shows that this attack fails, not that none can succeed.</p>"
    )
    return render_page("fedspan audit", parts)


def _write_headline(result: AuditResult) -> str:
    attacked = [e for e in result.evidence if e.course]
    if not attacked:
        return "No attack was run on single clients; the notes say why."
    known = [e for e in attacked if e.whole or e.least <= NEAR]
    if known:
        return (
            f"The server could work out the second-moment matrix of {len(known)} of the {len(attacked)} attacked "
            f"clients, with an error of {NEAR:.0%} or less."
        )
    measured = [e for e in attacked if e.truth is not None]
    if not measured:
        return "The clients' rows cannot be read here, so errors could not be measured."
    best = min(measured, key=lambda e: e.least)
    return (
        f"The server could not work out the second-moment matrix of any of the {len(attacked)} attacked clients with "
        f"an error of {NEAR:.0%} or less; the smallest error is {format_error(best.least)} (a blind guess has "
        f"{format_error(best.guess)})."
    )


def _list_audit_figures(result: AuditResult) -> dict[str, str]:
    figures = {
        "solver": result.solver,
        "clients": f"{result.clients:,}",
        "rounds": str(result.rounds),
        "bytes up": format_bytes(result.bytes_up),
        "clients attacked": str(len(result.evidence)),
    }
    errors = [e.least for e in result.evidence if not math.isnan(e.least)]
    if errors:
        figures["smallest error"] = format_error(min(errors))
    if result.row_test and result.row_test.arrays:
        strongest = max(t.result.mu for t in result.row_test.arrays)
        figures["row membership"] = format_success_rate(strongest)
    return figures


def _render_courses(result: AuditResult) -> str:
    drawn = [
        _render_errors(
            f"Error of M by round, client {e.client}", [p.round for p in e.course], [p.error for p in e.course], e.guess
        )
        for e in result.evidence
        if e.truth is not None and len(e.course) > 1
    ]
    return render_charts(drawn)


def _render_faps(result: AuditResult) -> str:
    drawn = [_render_faps_errors(e) for e in result.evidence if e.truth is not None and len(e.faps) > 1]
    return render_charts(drawn)


def _render_faps_errors(e: Evidence) -> str:
    caption = f"Error of P⊥MZ as sent, by round, client {e.client}"
    return _render_errors(caption, [p.round for p in e.faps], [p.off_diagonal for p in e.faps], 0.0)


def _render_errors(caption: str, rounds: list[int], errors: list[float], guess: float) -> str:
    drawn = [max(error, _LEAST_DRAWN) for error in errors]
    level = float(f"{guess:.2g}")
    return render_figure(caption, draw_line_chart(rounds, drawn, caption, "round", level, level_name="blind guess"))
