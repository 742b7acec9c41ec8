"""What to think of an answer before using it: how the run ended, what it warned of, and what protected the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedspan.core.ledger import Exchange, Ledger
from fedspan.privacy.request import RowDP
from fedspan.reports.format import escape, shorten_paths

WARNING = "warning: "  # how a note begins that is a warning
_SHOWN_AT_ONCE = 4  # warnings that are shown at once


@dataclass(frozen=True)
class ShownProtection:
    """What protected the rows: `level` is "strong", "partial" or "none"."""

    level: str
    name: str
    sentence: str


def list_warnings(ledger: Ledger) -> list[str]:
    """What the run warned of, each warning once."""
    return list(dict.fromkeys(note.removeprefix(WARNING) for note in ledger.notes if note.startswith(WARNING)))


def render_verdict(outcome: str, detail: str, converged: bool, warnings: Sequence[str]) -> str:
    """The first box of a report: how the run ended, and what to watch out for."""
    items = "".join(f"<li>{escape(shorten_paths(text))}</li>" for text in warnings[:_SHOWN_AT_ONCE])
    rest = len(warnings) - _SHOWN_AT_ONCE
    more = f"<p>{rest} more warnings are in the notes.</p>" if rest > 0 else ""
    listed = f"<ul>{items}</ul>{more}" if items else ""
    kind = "good" if converged and not warnings else "caution"
    says = f"<p><strong>{escape(outcome[:1].upper() + outcome[1:])}.</strong>{escape(detail)}</p>"
    return f'<div class="verdict {kind}">{says}{listed}</div>'


def classify_protection(ledger: Ledger, privacy: RowDP | None = None) -> ShownProtection:
    """What protected the rows in this run, from what was sent and not from what was asked for."""
    sent = [event for event in ledger.events if isinstance(event, Exchange)]
    secure = bool(sent) and all(event.secure for event in sent)
    delta = 1e-6 if privacy is None else privacy.delta
    epsilon = ledger.epsilon(delta)
    if sent and not math.isinf(epsilon):
        if privacy is not None and privacy.simulate:
            return ShownProtection(
                "none", "Simulated noise", "Anyone who knows the seed can take the noise away again."
            )
        sums = " and secure sums" if secure else ""
        return ShownProtection(
            "strong",
            f"ε = {epsilon:.3g}{sums}",
            "Differential privacy bounds what everything that left the clients can tell about any single row.",
        )
    if secure:
        return ShownProtection(
            "partial",
            "Secure sums",
            "The server saw sums over the clients, and no single client's part. The sums themselves are exact.",
        )
    return ShownProtection(
        "none", "No protection added", "The rows stayed with the clients, but the server saw each client's answers."
    )


def render_protection(protection: ShownProtection) -> str:
    """A badge and a sentence."""
    badge = f'<span class="badge {protection.level}">{escape(protection.name)}</span>'
    return f"<p>{badge}{escape(protection.sentence)}</p>"
