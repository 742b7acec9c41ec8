"""Tell a running federation who was removed or taken back: the server, and every site that is there."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedspan.deployment import flare_admin
from fedspan.deployment.approval.waiting import find_refusal
from fedspan.deployment.flare_job import write_job
from fedspan.deployment.membership.removals import REMOVAL_NOTICE, REMOVALS_TAKEN
from fedspan.deployment.operations.federation_status import survey_sites

_NOTICE_PATIENCE = 20.0  # seconds for the sites' answers
_NOTICE_POLL = 0.3


@dataclass(frozen=True)
class Delivered:
    """Which sites have noted a list, and which have not: they are not there, or did not say so."""

    noted: tuple[str, ...]
    missing: tuple[str, ...]


def deliver_removals(kit: Path, removals: Mapping[str, object], site: str | None, *, gone: bool) -> Delivered:
    """Send the signed list to all sites, and let the server cut off (`gone`) or let in again a site of that name.

    It travels as a job that every site refuses: what a job requires of a site is read before anything is deployed.
    """
    with flare_admin.connect(kit) as session:
        if site is not None:
            flare_admin.change_site(session, site, enabled=not gone)
        found = survey_sites(session)
        there = [one.name for one in found if one.answers and one.name != (site if gone else None)]
        absent = [one.name for one in found if not one.answers and one.name != (site if gone else None)]
        said = ""
        if there:
            job = _send_notice(session, removals, there)
            end = time.monotonic() + _NOTICE_PATIENCE
            while time.monotonic() < end and not all(f"Site {name!r} {REMOVALS_TAKEN}" in said for name in there):
                history = flare_admin.read_meta(session, job).get("schedule_history")
                said = " ".join(find_refusal(str(line)) for line in history) if isinstance(history, list) else ""
                time.sleep(_NOTICE_POLL)
            flare_admin.abort(session, job)
    noted = tuple(name for name in there if f"Site {name!r} {REMOVALS_TAKEN}" in said)
    return Delivered(noted, tuple(sorted({*absent, *there} - set(noted))))


def _send_notice(session: flare_admin.AdminSession, removals: Mapping[str, object], sites: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = write_job(Path(folder) / "job", "fedspan-removed", [], sites)
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        meta["resource_spec"] = {site: {REMOVAL_NOTICE: dict(removals)} for site in sites}
        (path / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        return flare_admin.send_job(session, path)
