"""Between the server and a site: three calls with text or bytes in them, whatever carries them.

What a site refuses comes back as JSON with an `error`; what it answers to a question comes back as bytes.
"""

from __future__ import annotations

import json
from typing import Protocol, TypedDict

from fedspan.errors import ClientError, InputError


class SiteEndpoint(Protocol):
    """A site's end, as it is called over a network."""

    def describe(self, asked: str) -> str:
        """What the site says of a table, in JSON."""
        ...

    def open(self, start: str) -> str:
        """Begin a run, or go on with it."""
        ...

    def exchange(self, blob: bytes, kept: int) -> bytes | str:
        """The reply to a question; `kept` is the last round that the server can go back to."""
        ...


class Transport(Protocol):
    """Calls one site, and returns what it said. Raises TimeoutError, or what else went wrong."""

    def describe(self, site: str, asked: str, timeout: float) -> str: ...
    def open(self, site: str, start: str, timeout: float) -> str: ...
    def exchange(self, site: str, blob: bytes, kept: int, timeout: float) -> bytes | str: ...


class Refusal(TypedDict):
    """What a site says instead of an answer. `input`: the job or the site's data must be changed first."""

    error: str
    input: bool


def read_answer(answer: object, site: str) -> dict[str, object]:
    """A site's answer in JSON; what it refused is raised."""
    try:
        tree = json.loads(answer) if isinstance(answer, str) else None
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise ClientError(f"Site {site!r} must answer in JSON, but sent {_excerpt(answer)}.")
    if "error" in tree:
        kind = InputError if tree.get("input") else ClientError
        raise kind(f"Site {site!r} refused: {tree['error']}")
    return tree


def _excerpt(answer: object) -> str:
    return repr(answer[:40]) if isinstance(answer, str) else f"a {type(answer).__name__}"
