"""What a check found, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedspan._foreign import printable
from fedspan.jobs._toml import bare_key, to_toml
from fedspan.jobs.checking.table_profile import TableProfile

Weight = Literal["problem", "warning", "note"]
_MOST_LISTED = 30  # columns of a table that the text lists
_WIDTH = 79


@dataclass(frozen=True)
class CheckFinding:
    """One thing that was found: where, what, and the line that would help, if there is one."""

    weight: Weight
    text: str
    clients: tuple[str, ...] = ()
    column: str | None = None
    fix: str | None = None

    def to_dict(self) -> dict[str, object]:
        """The finding as plain data."""
        return {
            "weight": self.weight,
            "clients": list(self.clients),
            "column": self.column,
            "text": self.text,
            "fix": self.fix,
        }


@dataclass(frozen=True)
class CheckResult:
    """What `fedspan.check` returns; print it to read it.

    Attributes:
        findings: All that was found, problems first.
        tables: What is in each client's table, by client.
        data: The keys of [data] with all proposals in them; None if there is nothing to change.
        leaves: What would leave each client if the job ran, in sentences.
    """

    findings: Sequence[CheckFinding]
    tables: Mapping[str, TableProfile]
    data: Mapping[str, object] | None = None
    leaves: Sequence[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the job can run as it is."""
        return not any(finding.weight == "problem" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence."""
        problems = [finding for finding in self.findings if finding.weight == "problem"]
        warnings = sum(finding.weight == "warning" for finding in self.findings)
        if not problems:
            more = f" There {'is 1 warning' if warnings == 1 else f'are {warnings} warnings'}." if warnings else ""
            return f"Ready: the job can run.{more}"
        stuck = sum(finding.fix is None for finding in problems)
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        if stuck == 0:
            return f"Not ready: {count}. The lines above solve all of them; look them over, then check again."
        lines = "; the lines above solve the others" if stuck < len(problems) else ""
        return f"Not ready: {count}, of which {stuck} must be solved in the tables or the job file{lines}."

    def to_toml(self) -> str:
        """The proposed [data] table; empty if there is nothing to change."""
        if self.data is None:
            return ""
        plain = {key: value for key, value in self.data.items() if key not in ("clients", "views", "held_out")}
        lines = ["[data]", *(f"{bare_key(key)} = {to_toml(value)}" for key, value in plain.items())]
        for key in ("clients", "views", "held_out"):
            places = self.data.get(key)
            if isinstance(places, Mapping):
                lines += ["", f"[data.{key}]", *(f"{bare_key(n)} = {to_toml(place)}" for n, place in places.items())]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, object]:
        """All of it as plain data, for JSON."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
            "tables": {name: _table_to_dict(table) for name, table in self.tables.items()},
            "data": self.data,
            "leaves": list(self.leaves),
        }

    def __str__(self) -> str:
        lines: list[str] = []
        for name, table in self.tables.items():
            lines += _describe_table(name, table)
        for weight in ("problem", "warning", "note"):
            found = [finding for finding in self.findings if finding.weight == weight]
            if found:
                lines += ["", {"problem": "Problems", "warning": "Warnings", "note": "Notes"}[weight]]
                for finding in found:
                    where = ", ".join(finding.clients)
                    column = f" column {finding.column!r}:" if finding.column is not None else ""
                    fix = f" → {finding.fix}" if finding.fix else ""
                    lines.append(f"- {where + ':' if where else ''}{column} {finding.text}{fix}".replace("-  ", "- "))
        if self.leaves:
            lines += ["", "What would leave each client", *(f"- {text}" for text in self.leaves)]
        if self.data is not None:
            lines += ["", "Put these lines in place of [data] in the job file:", "", self.to_toml().rstrip("\n")]
        return printable("\n".join([*lines, "", self.verdict]).lstrip("\n"), lines=True)


def _describe_table(name: str, table: TableProfile) -> list[str]:
    size = f"{table.rows} rows, {len(table.columns) or table.features or 0} columns"
    lines = ["", f"{name}: {table.place}: {size}"]
    if len(table.columns) > _MOST_LISTED:
        return [*lines, f"  (more than {_MOST_LISTED} columns: only what is odd is listed below)"]
    width = min(20, max((len(column) for column in table.columns), default=0))
    for column, profile in table.columns.items():
        share = f"{100 * profile.gaps / profile.rows:.0f} % missing" if profile.rows and profile.gaps else ""
        line = f"  {column[:width]:{width}}  {profile.kind:13}  {share:13}  {profile.describe()}"
        lines.append(line[:_WIDTH].rstrip())
    return lines


def _table_to_dict(table: TableProfile) -> dict[str, object]:
    columns = {
        name: {"kind": profile.kind, "rows": profile.rows, "missing": profile.gaps, "values": profile.describe()}
        for name, profile in table.columns.items()
    }
    return {"place": table.place, "rows": table.rows, "columns": columns}
