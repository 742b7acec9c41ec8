"""What a researcher is told while a job waits in the server's queue: which site it waits for, or which refused it.

FLARE's queue keeps a history for each job; a line of it holds what each site's gate said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedspan._foreign import printable
from fedspan.errors import PolicyRefusal

_LONGEST_WAIT = 20_000  # characters of what sites say, of which there may be a hundred
_LONGEST_WORDS = 1000  # of one site
_SAID_REFUSED = re.compile(r"Details: (.*)", re.DOTALL)
_SITE = re.compile(
    r"(?:^|; )([A-Za-z0-9_-]+): ((?:waiting|refused|This site is paused)(?:(?!; [A-Za-z0-9_-]+: ).)*)", re.DOTALL
)


def find_waiting(meta: Mapping[str, object]) -> str:
    """What the job waits for, as the sites said at the last look; empty if no site said anything."""
    told = _read_sites(_last_line(meta))
    return "; ".join(f"site {site!r}: {words}" for site, words in told)


def find_refusal(line: str) -> str:
    """What the sites said that refused, in one line of the history; empty if none did."""
    refused = [(site, words) for site, words in _read_sites(line) if words.startswith("refused")]
    return "; ".join(f"Site {site!r} {words}" for site, words in refused)


def check_not_refused(meta: Mapping[str, object]) -> None:
    """Raise what a site said that refused the job before it was deployed."""
    refusal = find_refusal(_last_line(meta))
    if refusal:
        raise PolicyRefusal(refusal if refusal.endswith(".") else f"{refusal}.")


def _last_line(meta: Mapping[str, object]) -> str:
    history = meta.get("schedule_history")
    return str(history[-1]) if isinstance(history, list) and history else ""


def _read_sites(line: str) -> list[tuple[str, str]]:
    found = _SAID_REFUSED.search(line[:_LONGEST_WAIT])
    said = [] if found is None else _SITE.findall(found[1])
    return [(site, printable(words.strip()[:_LONGEST_WORDS])) for site, words in said]
