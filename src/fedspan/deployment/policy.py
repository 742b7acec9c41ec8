"""What a site allows: `local/fedspan.toml` in its kit, written by `fedspan site init` and owned by the site.

A run that asks for less protection than it demands is refused before a row is read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedspan.data.preparation import Preparation
from fedspan.engines.start import NAMES, Opening
from fedspan.errors import InputError, PrivacyError, ProtocolError, nearest
from fedspan.privacy.budget import Budget

FILE = "fedspan.toml"
ALGORITHMS = tuple(name.lower() for name in NAMES)


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

    def prepared(self, asked: Preparation) -> Preparation:
        """How its columns are made for a job: only of those that are open to jobs."""
        id, label, columns = asked.id or self.id, asked.label or self.label, asked.columns or self.columns
        if self.columns is not None:
            used = [*(columns or ()), *(name for name in (id, label) if name is not None)]
            closed = [name for name in used if name not in (*self.columns, self.id, self.label)]
            if closed:
                raise InputError(f"the column {closed[0]!r} is not open to jobs here")
        return replace(asked, id=id, label=label, columns=columns)


@dataclass(frozen=True)
class Policy:
    """The site's file, checked."""

    tables: Mapping[str, SiteTable]
    algorithms: tuple[str, ...] = ALGORITHMS
    rows: bool = True  # whether the site says how many rows it has
    names: bool = True  # whether it says what its columns are called
    secure: bool = True  # secure sums only
    others: int = 2  # so many other sites at least in a secure sum
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
            raise InputError(f"need {path}, there is none; make it with: fedspan site init {kit} --data FILE") from None
        except ValueError as error:
            raise InputError(f"need TOML in {path}: {error}") from None
        return cls.parse(tree, kit, path)

    @classmethod
    def parse(cls, tree: Mapping[str, Any], kit: Path, path: Path) -> Policy:
        """The policy that a document describes; what is unknown is refused: it may have been meant to protect."""
        known = {"tables", "allow", "require"}
        for name in tree:
            if name not in known:
                raise InputError(f"need a known table in {path}, got [{name}]; {nearest(name, known)}")
        tables = {name: SiteTable(**_table(path, name, given, kit)) for name, given in tree.get("tables", {}).items()}
        if not tables:
            raise InputError(f"need a table of data in {path}, got none; write [tables.default] with path = …")
        allow = _checked(path, "allow", tree.get("allow", {}), {"algorithms": list, "rows": bool, "names": bool})
        kinds = {"secure": bool, "others": int, "row_norm": float, "epsilon": float, "delta": float}
        require = _checked(path, "require", tree.get("require", {}), kinds)
        if "algorithms" in allow:
            allow["algorithms"] = tuple(str(name).lower() for name in allow["algorithms"])
            odd = [name for name in allow["algorithms"] if name not in ALGORITHMS]
            if odd:
                raise InputError(f"need known algorithms in {path}, got {odd[0]!r}; {nearest(odd[0], ALGORITHMS)}")
        if ("epsilon" in require) != ("delta" in require):
            raise InputError(f"need epsilon and delta together in [require] of {path}, got one of them")
        if require.get("others", 1) < 1:
            raise InputError(f"need at least 1 other site in a sum, got others = {require['others']} in {path}")
        return cls(tables, **allow, **require, budget=kit / "fedspan" / "budget.json")

    def table(self, asked: Mapping[str, Any]) -> SiteTable:
        """The table that a job may name; never a path."""
        name = asked.get("name") or "default"
        if name not in self.tables:
            raise InputError(f"there is no table {name!r} here; a job names one of: {', '.join(self.tables)}")
        return self.tables[name]

    def check(self, opening: Opening, name: str, released: Mapping[str, int] | None = None) -> Budget | None:
        """The budget to charge, if the run is protected as this site demands; else a refusal with its reason.

        `released` is what a run that goes on has released, and was charged for, before.
        """
        algorithm, t = type(opening.algorithm).__name__.lower(), opening.threshold
        if algorithm not in self.algorithms:
            raise PrivacyError(
                f"the algorithm {algorithm!r} is not allowed here; allowed: {', '.join(self.algorithms)}"
            )
        if name not in opening.clients:
            raise ProtocolError("this site is not among the clients of the run")
        if t is not None and (isinstance(t, bool) or not isinstance(t, int) or not 2 <= t <= len(opening.clients)):
            raise ProtocolError(f"need a threshold from 2 to the {len(opening.clients)} sites, got {t!r}")
        if self.secure and t is None:
            raise PrivacyError(
                "secure sums only are accepted here; write [secure] enabled = true in the job, "
                "with an algorithm that asks for sums"
            )
        if self.secure and t is not None and t < self.others + 1:
            raise PrivacyError(
                f"need at least {self.others} other sites in every sum, the run would go on with {t - 1}; "
                f"write [secure] threshold = {self.others + 1} or more in the job"
            )
        return self._noise(opening, released or {})

    def _noise(self, opening: Opening, released: Mapping[str, int]) -> Budget | None:
        plan = opening.plan
        if plan is None:
            if self.epsilon is not None or self.row_norm is not None:
                raise PrivacyError("runs without noise are not accepted here; write a [privacy] table in the job")
            return None
        planned: list[Any] = getattr(
            opening.algorithm, "planned", list
        )()  # none: an algorithm that has no sensitivities
        rates = {name: rate[0] if rate else 1.0 for name, _, _, _, *rate in planned}
        if dict(plan.sampled) != rates:
            raise PrivacyError("the plan counts on other samples of rows than the algorithm draws; nothing was opened")
        sampling = getattr(opening.algorithm, "private", None)
        if not plan.system or (sampling and sampling.simulate):
            raise PrivacyError("simulated noise can be taken off again by the server; leave privacy.simulate out")
        if plan.spread > (opening.threshold or 1):
            raise PrivacyError(f"the noise would be shared by {plan.spread} sites, more than are surely in a sum")
        if self.row_norm is not None and not 0 < plan.row_norm <= self.row_norm:
            raise PrivacyError(f"need a row norm of at most {self.row_norm:g}, the job has {plan.row_norm:g}")
        if self.epsilon is None or self.delta is None:
            return None
        budget = Budget(self.budget)
        if budget.allowance != (self.epsilon, self.delta):
            raise PrivacyError(
                f"the site's file and its budget differ in epsilon or delta ({self.epsilon:g} and "
                f"{budget.allowance[0]:g}); its administrator must grant it anew: fedspan site init --replace"
            )
        budget.affords(
            (name, plan.multiplier(name), plan.sampled[name], max(0, n - released.get(name, 0)))
            for name, n in plan.limits.items()
        )
        return budget


def _table(path: Path, name: str, given: Any, kit: Path) -> dict[str, Any]:
    kinds = {f.name: list if f.name == "columns" else str for f in fields(SiteTable)}
    table = _checked(path, f"tables.{name}", given, kinds)
    if "path" not in table:
        raise InputError(f"need the path of a file or the address of a database in [tables.{name}] of {path}")
    for key in ("path", "held_out"):
        if key in table and "://" not in table[key]:
            table[key] = str((kit / table[key]).absolute())
    if "columns" in table:
        table["columns"] = tuple(map(str, table["columns"]))
    return table


def _checked(path: Path, where: str, given: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"need [{where}] of {path} to be a table, got {given!r}")
    for key, value in given.items():
        if key not in kinds:
            raise InputError(f"need a known key in [{where}] of {path}, got {key!r}; {nearest(key, kinds)}")
        kind = (int, float) if kinds[key] is float else kinds[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kinds[key] is not bool):
            raise InputError(f"need {where}.{key} of {path} to be of type {kinds[key].__name__}, got {value!r}")
    return dict(given)
