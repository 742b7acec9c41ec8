"""Between the server and a site: three calls with text or bytes in them, whatever carries them.

What a site refuses comes back as JSON with an `error`; what it answers to a question comes back as bytes.
A site gives its reason if that depends on the job and on its own file alone; else it gives a random code, under which
its own log has the reason.
"""

from __future__ import annotations

import re
import secrets
from typing import Protocol, TypedDict

from fedspan._foreign import parse_json, printable
from fedspan.errors import ClientError, InputError, SiteRefusal

_LONGEST_REFUSAL = 2000  # characters of what a site says


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
    """What a site says instead of an answer. `input`: the job must be changed first."""

    error: str
    input: bool


_CODE = re.compile(r"refused \[[0-9a-f]{8}\]")


def refuse_without_reason() -> tuple[str, Refusal]:
    """A random code for the site's log, and a refusal that says nothing but this code."""
    code = secrets.token_hex(4)
    return code, {"error": f"refused [{code}]", "input": False}


def read_answer(answer: object, site: str) -> dict[str, object]:
    """A site's answer in JSON; what it refused is raised."""
    try:
        tree = parse_json(answer) if isinstance(answer, str) else None
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise ClientError(f"Site {site!r} must answer in JSON, but sent {_excerpt(answer)}.")
    if "error" in tree:
        said = str(tree["error"])
        if _CODE.fullmatch(said):
            raise SiteRefusal(f"Site {site!r} {said}. Its administrator finds the reason in its log, by this code.")
        kind = InputError if tree.get("input") else ClientError
        raise kind(f"Site {site!r} refused: {printable(said[:_LONGEST_REFUSAL])}")
    return tree


def _excerpt(answer: object) -> str:
    return repr(answer[:40]) if isinstance(answer, str) else f"a {type(answer).__name__}"
