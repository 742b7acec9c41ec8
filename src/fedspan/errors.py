"""What can go wrong. Every message says what is wrong and where, why that matters, and what to do.

FedspanError                 anything that fedspan refuses, or that failed in a run
├── InputError               data, parameters or files that the caller must change (exit code 2); a ValueError
│   ├── CheckpointError      a checkpoint or model that is damaged, or belongs to another run
│   ├── PrivacyError         what is asked would release more than was agreed, so nothing was sent
│   └── PolicyRefusal        a site does not accept a job, by the job and its own file alone: told in full words
├── ProtocolError            a message that asks for, or carries, something undeclared
├── ClientError              a client failed, or too few of them answered: the run can be resumed
│   └── SiteRefusal          a site refused for a reason that only its own log has: asking again would count there
└── MissingExtraError        an optional dependency is not installed; an ImportError
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedspanError(Exception):
    """Anything that fedspan refuses, or that failed in a run."""


class InputError(FedspanError, ValueError):
    """The caller's data, parameters or files must be changed (exit code 2 on the command line)."""

    client: str | None = None  # whose data it is about, if the message names it


class CheckpointError(InputError):
    """A checkpoint or model is damaged, or belongs to another run."""


class PrivacyError(InputError):
    """What is asked would release more than was agreed, so nothing was sent."""


class PolicyRefusal(InputError):
    """A site does not accept what a job asks for, and says why in full.

    Only code that has looked at nothing but the job and the site's own file may raise it, because its words leave the
    site. Whatever else goes wrong at a site leaves as a code without a reason. `passing`: a message came at the wrong
    time, so the same job may well go on later.
    """

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


class ProtocolError(FedspanError):
    """A message asked for something undeclared, or carried something undeclared."""


class ClientError(FedspanError):
    """A client failed, or too few of them answered."""


class SiteRefusal(ClientError):
    """A site refused, and only its own log says why. It counts refusals, so it must not be asked again and again."""


class MissingExtraError(FedspanError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency. Install it with: pip install 'fedspan[{extra}]'")


def suggest(word: str, known: Iterable[str]) -> str:
    """A sentence to follow the report of a mistyped name: "Did you mean 'solver'?", or all known names."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
