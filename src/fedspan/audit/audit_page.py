"""The page of an audit: what left, what could be worked out from it by which round, and what that means."""

from __future__ import annotations

import math
from html import escape

from fedspan import __version__
from fedspan.audit.auditor import (
    Audit,
    certainty,
    evidence_rows,
    faps_rows,
    number,
    released_rows,
    told_rows,
)
from fedspan.audit.evidence import NEAR, Evidence
from fedspan.cli.progress import size
from fedspan.reports.charts import line_chart
from fedspan.reports.page import figure, figures, notes, page, table

_ROUNDING = 1e-16  # an error below this is rounding error, and is drawn here
_ERRORS = (
    "The attack takes all answers of one client as equations on its second-moment matrix M = AᵀA (of the rows after "
    "centering and scaling) and solves them by symmetric least squares. <em>Determined</em> is the share of M's "
    "entries that the equations fix, <em>fit</em> how badly one matrix explains all answers (near 0: they are products "
    "with M; large: masked or noised), <em>error</em> ‖M̂ − M‖ / ‖M‖ against the true M, for an attacker who happens "
    "to choose the best cut-off. A blind guess knows the trace of M and nothing else."
)
_FAPS = (
    "FAPS masks its products, so they are no equations on M. But what it sends tends to P⊥MZ beside the common basis "
    "Z; its penalty β, once it can be read, tells the size of the largest eigenvalue of M (it is 0.15 of it in the "
    "first ten rounds, and then at least 0.1); and at its end it sends ZᵀMZ. <em>From all rounds</em> is least squares "
    "on what all rounds tell of P⊥MZ, each weighed by how near the client was to Z. It is obscurity, not a guarantee."
)
_TOLD = (
    "The strongest attacker knows all rows of the client but one, and asks whether this one was there too. He does the "
    "client's tasks himself, with the row and without it, and sees which is nearer: the score is +0.5 if the row was "
    "there and −0.5 if not, give or take the noise that was on the wire. Only differential privacy bounds this."
)


def render(audit: Audit) -> str:
    """The whole page."""
    parts = [
        f"<h1>Audit of a federated run</h1><p>{escape(_headline(audit))}</p>",
        figures(_key_figures(audit)),
        f"<p><strong>Privacy:</strong> {escape(audit.privacy)}</p>",
        "<h2>What left the clients</h2>",
        table(["task", "answers each", "arrays", "sensitivity", "bytes, all"], released_rows(audit), numbers={1, 4}),
        '<p class="soft" style="margin-top:8px">Sensitivity, as the task declares it: how much one row of norm at most '
        "C can change the array (in Frobenius norm). None known: it cannot be combined with differential privacy.</p>",
    ]
    if audit.evidence:
        head = ["client", "determined", "fit", "error", "verdict"]
        parts += [
            "<h2>What the server could work out</h2>", f"<p>{_ERRORS}</p>",
            table(head, evidence_rows(audit), numbers={1, 2, 3}), _charts(audit),
        ]  # fmt: skip
    if any(e.faps for e in audit.evidence):
        head = [
            "client",
            "error of P⊥MZ",
            "β as read",
            "largest eigenvalue of M",
            "error of M from these",
            "from all rounds",
        ]
        parts += [
            "<h2>What the mask of FAPS does not hide</h2>", f"<p>{_FAPS}</p>",
            table(head, faps_rows(audit), numbers={1, 2, 3, 4, 5}), _faps_charts(audit),
        ]  # fmt: skip
    if audit.told:
        where = f"Row {audit.row} of client {audit.at!r}, the one of largest norm."
        parts += [
            "<h2>Was this row there?</h2>", f"<p>{_TOLD} {escape(where)}</p>",
            table(["task", "array", "score", "answer"], told_rows(audit), numbers={2}),
        ]  # fmt: skip
    if audit.notes:
        parts += ["<h2>Notes</h2>", notes(audit.notes)]
    parts.append(
        f'<p class="soft">Written by fedspan {escape(__version__)} from job.toml, ledger.jsonl and transcript in this '
        "folder. An attack that fails shows that this attack fails, not that none can succeed.</p>"
    )
    return page("fedspan audit", parts)


def _headline(audit: Audit) -> str:
    attacked = [e for e in audit.evidence if e.course]
    if not attacked:
        return "No attack was tried: see the notes."
    known = [e for e in attacked if e.whole or e.least <= NEAR]
    if known:
        return (
            f"The server could work out the second-moment matrix of {len(known)} of the {len(attacked)} clients that "
            f"were attacked, to {NEAR:.0%} or better."
        )
    if all(e.truth is None for e in attacked):
        return "The clients' rows are not here, so errors could not be measured."
    best = min((e for e in attacked if e.truth is not None), key=lambda e: e.least)
    return (
        f"Of none of the {len(attacked)} clients that were attacked could the server work out the second-moment matrix "
        f"to {NEAR:.0%}; the smallest error is {number(best.least)} (a blind guess has {number(best.guess)})."
    )


def _key_figures(audit: Audit) -> dict[str, str]:
    out = {
        "solver": audit.solver, "clients": f"{audit.clients:,}", "rounds": str(audit.rounds),
        "bytes up": size(audit.bytes_up), "attacked": str(len(audit.evidence)),
    }  # fmt: skip
    errors = [e.least for e in audit.evidence if not math.isnan(e.least)]
    if errors:
        out["smallest error"] = number(min(errors))
    if audit.told:
        out["membership"] = certainty(max(t.result.mu for t in audit.told)).split(" of ")[0]
    return out


def _charts(audit: Audit) -> str:
    drawn = [_chart(e) for e in audit.evidence if e.truth is not None and len(e.course) > 1]
    if not drawn:
        why = "No course to draw: one round, or the true matrices are not here."
        return f'<p class="soft" style="margin-top:8px">{why}</p>'
    return f'<div class="charts" style="margin-top:12px">{"".join(drawn)}</div>'


def _chart(e: Evidence) -> str:
    what = f"Least squares: error of M by round, client {e.client}"
    errors = [max(p.error, _ROUNDING) for p in e.course]
    return figure(what, _lines([p.round for p in e.course], errors, what, e.guess))


def _faps_charts(audit: Audit) -> str:
    drawn = []
    for e in audit.evidence:
        if e.truth is not None and len(e.faps) > 1:
            what = f"Error of P⊥MZ as sent, by round, client {e.client}"
            errors = [max(p.off_diagonal, _ROUNDING) for p in e.faps]
            drawn.append(figure(what, _lines([p.round for p in e.faps], errors, what, 0.0)))
    return f'<div class="charts" style="margin-top:12px">{"".join(drawn)}</div>'


def _lines(rounds: list[int], errors: list[float], what: str, guess: float) -> str:
    return line_chart(rounds, errors, what, "round", float(f"{guess:.2g}"), bytes_=False, level_name="blind guess")
