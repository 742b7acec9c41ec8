"""Who of a federation is there now, from the sites' own mouths: the server's list still has a site that was killed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedspan._foreign import printable
from fedspan.deployment.flare_admin import AdminSession, find_last_signs, find_site_facts, find_site_jobs

_FIRST, _NEXT = 1.0, 0.3  # seconds for an answer; less once a site was silent, so that the whole answer is not late


@dataclass(frozen=True)
class SiteStatus:
    """One site now.

    Parameters:
        name: The site's name.
        answers: Whether it answered within a second.
        jobs: The jobs that it says it carries out.
        fedspan: The version of fedspan there; empty if it did not say.
        days: For how many days its certificate is still valid, as it says itself.
        paused: Whether its administrator has paused it.
        silent_for: For how many seconds the server has not heard of it; None: not since the server was started.
    """

    name: str
    answers: bool
    jobs: tuple[str, ...] = ()
    fedspan: str = ""
    days: int | None = None
    paused: bool = False
    silent_for: float | None = None

    def describe(self) -> str:
        """Say it in words."""
        if self.answers and self.paused:
            return "paused by its administrator"
        if self.answers:
            return f"carries out {', '.join(job[:8] for job in self.jobs)}" if self.jobs else "idle"
        if self.silent_for is None:
            return "not connected"
        return f"does not answer; last heard of {self.silent_for:.0f} s ago"


def survey_sites(session: AdminSession, names: Sequence[str] | None = None, *, facts: bool = False) -> list[SiteStatus]:
    """Ask those sites, or all that the server knows, one by one: one that is frozen must not hide the others.

    `facts`: ask them for their versions and certificates, too.
    """
    signs = find_last_signs(session)
    found, patience = [], _FIRST
    for name in sorted(signs if names is None else names):
        jobs = find_site_jobs(session, name, patience) if name in signs else None
        if jobs is None:
            patience = _NEXT if name in signs else patience
            since = time.time() - signs[name] if name in signs else None
            found.append(SiteStatus(name, answers=False, silent_for=None if since is None else max(0.0, since)))
        else:
            told = find_site_facts(session, name, patience) if facts else {}
            days = told.get("days")
            found.append(
                SiteStatus(
                    name,
                    answers=True,
                    jobs=tuple(jobs),
                    fedspan=printable(str(told.get("fedspan", "")))[:40],
                    days=days if isinstance(days, int) else None,
                    paused=told.get("paused") is True,
                )
            )
    return found


def name_absent(found: Iterable[SiteStatus]) -> str:
    """The sites that do not answer, in words; nothing if all do."""
    absent = [one for one in found if not one.answers]
    states = ["is not connected" if one.silent_for is None else "does not answer" for one in absent]
    return ", ".join(f"site {one.name!r} {state}" for one, state in zip(absent, states, strict=True))
