"""What a site allows: `local/fedspan.toml` in its kit, written by `fedspan site init` and owned by the site.

A run that asks for less protection than it demands is refused before a row is read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedspan.algorithms.registry import ALGORITHMS
from fedspan.data.preparation import Preparation
from fedspan.engines.start import StartMessage, TableRequest
from fedspan.errors import InputError, PrivacyError, ProtocolError, suggest
from fedspan.privacy.budget import Budget

FILE = "fedspan.toml"
ALGORITHM_NAMES = tuple(name.lower() for name in ALGORITHMS)


@dataclass(frozen=True)
class SiteTable:
    """One table of the site: jobs know its name, never its address. `columns`: the only ones that a job may use."""

    path: str
    columns: tuple[str, ...] | None = None
    id: str | None = None
    label: str | None = None
    secret: str = ""  # keys the digests of ids; the sites share it, and the server does not have it
    held_out: str | None = None  # further rows of the same columns
    network: str | None = None  # for deep GCCA: module:function of the site's own, which makes its network

    def limit(self, asked: Preparation) -> Preparation:
        """How its columns are made for a job: only of those that are open to jobs."""
        id, label, columns = asked.id or self.id, asked.label or self.label, asked.columns or self.columns
        if self.columns is not None:
            used = [*(columns or ()), *(name for name in (id, label) if name is not None)]
            closed = [name for name in used if name not in (*self.columns, self.id, self.label)]
            if closed:
                raise InputError(f"Column {closed[0]!r} is not open to jobs at this site.")
        return replace(asked, id=id, label=label, columns=columns)


@dataclass(frozen=True)
class Policy:
    """The site's file, checked."""

    tables: Mapping[str, SiteTable]
    algorithms: tuple[str, ...] = ALGORITHM_NAMES
    rows: bool = True  # whether the site says how many rows it has
    names: bool = True  # whether it says what its columns are called
    secure: bool = True  # secure sums only
    others: int = 2  # at least this many other sites in a secure sum
    row_norm: float | None = None
    epsilon: float | None = None  # over all runs, with `delta`; None: runs without noise are accepted
    delta: float | None = None
    budget: Path = field(default=Path("budget.json"))

    @classmethod
    def read(cls, kit: Path) -> Policy:
        """The policy of a site, from its kit."""
        path = kit / "local" / FILE
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InputError(f"There is no {path}. Write it with: fedspan site init {kit} --data FILE") from None
        except ValueError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        return cls.parse(tree, kit, path)

    @classmethod
    def parse(cls, tree: Mapping[str, Any], kit: Path, path: Path) -> Policy:
        """The policy that a document describes; what is unknown is refused: it may have been meant to protect."""
        known = {"tables", "allow", "require"}
        for name in tree:
            if name not in known:
                raise InputError(f"[{name}] in {path} is not a known section. {suggest(name, known)}")
        tables = {
            name: SiteTable(**_read_table(path, name, given, kit)) for name, given in tree.get("tables", {}).items()
        }
        if not tables:
            raise InputError(f"{path} names no table of data. Write [tables.default] with path = …")
        allow = _check_keys(path, "allow", tree.get("allow", {}), {"algorithms": list, "rows": bool, "names": bool})
        kinds = {"secure": bool, "others": int, "row_norm": float, "epsilon": float, "delta": float}
        require = _check_keys(path, "require", tree.get("require", {}), kinds)
        if "algorithms" in allow:
            allow["algorithms"] = tuple(str(name).lower() for name in allow["algorithms"])
            odd = [name for name in allow["algorithms"] if name not in ALGORITHM_NAMES]
            if odd:
                hint = suggest(odd[0], ALGORITHM_NAMES)
                raise InputError(f"{odd[0]!r} in [allow] of {path} is not an algorithm of fedspan. {hint}")
        if ("epsilon" in require) != ("delta" in require):
            raise InputError(f"[require] of {path} must have both epsilon and delta, or neither.")
        if require.get("others", 1) < 1:
            raise InputError(f"others in [require] of {path} must be at least 1, but is {require['others']}.")
        return cls(tables, **allow, **require, budget=kit / "fedspan" / "budget.json")

    def find_table(self, asked: TableRequest) -> SiteTable:
        """The table that a job may name; never a path."""
        name = asked.get("name") or "default"
        if name not in self.tables:
            raise InputError(f"This site has no table {name!r}. A job may name one of: {', '.join(self.tables)}.")
        return self.tables[name]

    def check(self, start: StartMessage, name: str, released: Mapping[str, int] | None = None) -> Budget | None:
        """The budget to charge, if the run is protected as this site demands; else a refusal with its reason.

        `released` is what a run that goes on has released, and was charged for, before.
        """
        algorithm, t = type(start.algorithm).__name__.lower(), start.threshold
        if algorithm not in self.algorithms:
            raise PrivacyError(
                f"The algorithm {algorithm!r} is not allowed at this site. Allowed are: {', '.join(self.algorithms)}."
            )
        if name not in start.clients:
            raise ProtocolError("This site is not among the clients of the run.")
        if t is not None and not 2 <= t <= len(start.clients):
            raise ProtocolError(f"The threshold must be from 2 to the {len(start.clients)} sites, but is {t}.")
        if self.secure and t is None:
            raise PrivacyError(
                "This site accepts secure sums only. Write [secure] enabled = true in the job, with an algorithm that "
                "asks for sums."
            )
        if self.secure and t is not None and t < self.others + 1:
            raise PrivacyError(
                f"This site needs at least {self.others} other sites in every sum, but the run would go on with "
                f"{t - 1}. Write [secure] threshold = {self.others + 1} or more in the job."
            )
        return self._check_noise(start, released or {})

    def _check_noise(self, start: StartMessage, released: Mapping[str, int]) -> Budget | None:
        plan = start.plan
        if plan is None:
            if self.epsilon is not None or self.row_norm is not None:
                raise PrivacyError("This site does not accept runs without noise. Write a [privacy] table in the job.")
            return None
        if dict(plan.sampled) != {release.task: release.sampled for release in start.algorithm.planned()}:
            raise PrivacyError("The plan counts on other samples of rows than the algorithm draws.")
        if not plan.system or start.algorithm.simulates():
            raise PrivacyError("The server could remove simulated noise again. Leave privacy.simulate out of the job.")
        if plan.spread > (start.threshold or 1):
            raise PrivacyError(
                f"The noise would be shared by {plan.spread} sites, more than the {start.threshold or 1} that are "
                "surely in a sum."
            )
        if self.row_norm is not None and not 0 < plan.row_norm <= self.row_norm:
            raise PrivacyError(
                f"The row norm must be at most {self.row_norm!r} at this site, but is {plan.row_norm!r} in the job."
            )
        if self.epsilon is None or self.delta is None:
            return None
        budget = Budget(self.budget)
        if budget.allowance != (self.epsilon, self.delta):
            raise PrivacyError(
                "This site's file and its budget differ in epsilon or delta. Its administrator must grant the budget "
                "again, with: fedspan site init --replace"
            )
        budget.check_affordable(
            (name, plan.multiplier(name), plan.sampled[name], max(0, n - released.get(name, 0)))
            for name, n in plan.limits.items()
        )
        return budget


def _read_table(path: Path, name: str, given: Any, kit: Path) -> dict[str, Any]:
    kinds = {f.name: list if f.name == "columns" else str for f in fields(SiteTable)}
    table = _check_keys(path, f"tables.{name}", given, kinds)
    if "path" not in table:
        raise InputError(f"[tables.{name}] of {path} must have a path: a file, or the address of a database.")
    for key in ("path", "held_out"):
        if key in table and "://" not in table[key]:
            table[key] = str((kit / table[key]).absolute())
    if "columns" in table:
        table["columns"] = tuple(map(str, table["columns"]))
    return table


def _check_keys(path: Path, where: str, given: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"[{where}] of {path} must be a section with keys, but is {given!r}.")
    for key, value in given.items():
        if key not in kinds:
            raise InputError(f"{key!r} in [{where}] of {path} is not a known key. {suggest(key, kinds)}")
        kind = (int, float) if kinds[key] is float else kinds[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kinds[key] is not bool):
            raise InputError(f"{where}.{key} of {path} must be of type {kinds[key].__name__}, but is {value!r}.")
    return dict(given)
