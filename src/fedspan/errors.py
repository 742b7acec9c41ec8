"""What can go wrong, each with a sentence that says what was needed, what was found and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedspanError(Exception):
    """Anything that fedspan refuses or that failed in a run."""


class InputError(FedspanError, ValueError):
    """The caller's data, parameters or files are not what is needed (exit code 2 on the command line)."""


class CheckpointError(InputError):
    """A checkpoint is damaged, or belongs to another run."""


class PrivacyError(InputError):
    """What is asked would release more than was agreed; nothing was sent."""


class ProtocolError(FedspanError):
    """A message asked for something undeclared, or carried something undeclared."""


class ClientError(FedspanError):
    """A client failed, or too few of them answered."""


class MissingExtraError(FedspanError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional dependency; do: pip install 'fedspan[{extra}]'")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the nearest known one, or all of them."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
