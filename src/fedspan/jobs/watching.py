"""What a run tells whoever watches it: a terminal, a notebook, a log. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from fedspan.core.ledger import Ledger
from fedspan.core.run import Info


def _say_nothing() -> str:
    return ""


@dataclass(frozen=True)
class Outlook:
    """What is known of a run before its first round.

    Parameters:
        ledger: The ledger that the run writes.
        max_rounds: The most rounds that it can take.
        tol: The accuracy at which it stops; 0: it runs all rounds.
        metrics: The metrics worth showing, by their labels.
        budget: ε and δ of a private run.
        notice: A line to show beside the progress, or an empty one: that a stop was asked for, say.
    """

    ledger: Ledger
    max_rounds: int
    tol: float
    metrics: Mapping[str, str] = field(default_factory=lambda: {"objective": "objective"})
    budget: tuple[float, float] | None = None
    notice: Callable[[], str] = _say_nothing


class Progress(Protocol):
    """Shows a run while it goes on."""

    @property
    def shows_notice(self) -> bool:
        """Whether it shows the outlook's notice, so that nobody else has to print it."""
        ...

    def say(self, text: str) -> None:
        """Show one line about the run."""
        ...

    def warn(self, text: str) -> None:
        """Show a warning."""
        ...

    def follow(self, outlook: Outlook) -> AbstractContextManager[Callable[[Info], None]]:
        """Show the rounds: the callable is called after each, inside the context."""
        ...


class Silence:
    """Shows nothing."""

    shows_notice = False

    def say(self, text: str) -> None:
        """Drop the line."""

    def warn(self, text: str) -> None:
        """Drop the warning: the runner passes it on as Python's own."""

    def follow(self, outlook: Outlook) -> AbstractContextManager[Callable[[Info], None]]:
        """Ignore every round."""
        return nullcontext(lambda info: None)
