"""The check of a job at one site, for the site's administrator: nothing of it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedspan.deployment.policy import Policy
from fedspan.deployment.site_tables.site_check import Inspection, inspect_table, rehearse
from fedspan.jobs.model import Job


@dataclass(frozen=True)
class SiteReport:
    """What is wrong with the site's own tables, and how the job would end here."""

    tables: Mapping[str, Inspection]
    ended: str  # empty: the job would run
    log: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether the job would run here."""
        return not self.ended

    def to_dict(self) -> dict[str, object]:
        """All of it as plain data."""
        tables = {name: {"rows": found.rows, "problems": found.problems} for name, found in self.tables.items()}
        return {"ok": self.ok, "tables": tables, "error": self.ended or None, "log": list(self.log)}

    def __str__(self) -> str:
        lines = []
        for name, found in self.tables.items():
            lines.append(f"table {name}: {found.rows} rows")
            lines += [f"- {problem}" for problem in found.problems]
        lines += [f"log: {line}" for line in self.log]
        verdict = f"Not ready: {self.ended}" if self.ended else "Ready: the job would run at this site."
        return "\n".join([*lines, verdict, "Nothing of this was sent."])


def check_at_site(kit: Path, job: Path) -> SiteReport:
    """Look at the tables of a site's kit, and carry out the job on copies of this site alone."""
    policy = Policy.read(kit)
    request = Job.load_for(job, lambda: ["copy-0", "copy-1", "copy-2"]).to_request()
    tables = {name: inspect_table(table) for name, table in policy.tables.items()}
    rehearsal = rehearse(kit, request)
    return SiteReport(tables, str(rehearsal.outcome.get("error", "")), rehearsal.log)
