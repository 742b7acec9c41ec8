"""The site's end of a federation, whatever carries the messages: it says what it has, opens a run, answers questions.

Nothing that goes wrong here leaves as a traceback: the server is told one sentence, and the site's log has it too.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from fedspan import __version__
from fedspan._types import Array
from fedspan.algorithms.gcca.deep import DeepView
from fedspan.algorithms.gcca.entities import Entities
from fedspan.channel import wire
from fedspan.core.checkpoint import load_tree, save_tree
from fedspan.data.survey import TableSurvey
from fedspan.data.table import Table, open_source
from fedspan.deployment.policy import Policy, SiteTable
from fedspan.engines.site import Site, explain
from fedspan.engines.start import Opening, preparation_from
from fedspan.errors import CheckpointError, InputError, ProtocolError
from fedspan.estimators.prepare import alone
from fedspan.privacy.budget import Budget
from fedspan.privacy.guard import Guard
from fedspan.secure.masking import Party

_LOG = logging.getLogger("fedspan.site")


class Station:
    """One site in one job. `kit` is its folder: `local/fedspan.toml` says what it allows, `fedspan/runs` remembers."""

    def __init__(self, name: str, kit: Path) -> None:
        self.name, self.kit = name, kit
        self.lock = Lock()  # a late question may meet the next one
        self.open_run: _Run | None = None

    def describe(self, text: str) -> str:
        """What this site has, as far as it says: the schema of a table by digest, sizes, versions."""
        return self._answered(lambda: json.dumps(self._describe(json.loads(text))))

    def open(self, text: str) -> str:
        """Begin a run, or a further part of one, or go on with it."""

        def begin() -> str:
            opening, policy = Opening.from_json(text), Policy.read(self.kit)
            memory = _Memory(self.kit / "fedspan" / "runs" / opening.run / str(opening.part))
            saved = None if opening.after is None else memory.recall(opening.after)
            budget = policy.check(opening, self.name, (saved or {}).get("released"))
            table = policy.table(opening.table)
            self.open_run = _Run(self.name, opening, lambda: client_data(table, opening), budget, memory, saved)
            _LOG.info("opened run %s part %d: %r", opening.run, opening.part, opening.algorithm)
            return json.dumps({"opened": opening.run})

        return self._answered(begin)

    def exchange(self, blob: bytes, kept: int) -> bytes | str:
        """The reply to a question. `kept` is the last round that the server can go back to."""

        def reply() -> bytes:
            if self.open_run is None:
                raise ProtocolError("a question came before a run was opened")
            return self.open_run.answer(blob, kept)

        return self._answered(reply)

    def _answered(self, work: Callable[[], Any]) -> Any:
        try:
            with self.lock:
                return work()
        except Exception as error:
            _LOG.warning("refused or failed: %s", explain(error), exc_info=not isinstance(error, InputError))
            return json.dumps({"error": explain(error), "input": isinstance(error, InputError)})

    def _describe(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        policy = Policy.read(self.kit)
        told: dict[str, Any] = {"versions": versions(), "secure": policy.secure, "others": policy.others}
        if asked["fedspan"] != __version__:
            raise InputError(
                f"need the same fedspan everywhere, the server has {asked['fedspan']} and this site has {__version__}; "
                "install the same version"
            )
        site_table = policy.table(asked["table"])
        table = opened(site_table, asked["table"], in_batches=True)
        names = list(table.names) if table.names is not None else None
        told |= {
            "n_features": int(table.X.shape[1]),
            "digest": schema_digest(names, int(table.X.shape[1]), dict(table.units)),
            "units": dict(table.units) if policy.names else {},
            "names": names if policy.names else None,
            "rows": int(table.X.shape[0]) if policy.rows else 0,
        }
        if asked.get("labels") and table.labels is not None:
            values, counts = np.unique(table.labels, return_counts=True)
            told["labels"] = values.tolist()
            if policy.rows and not policy.secure and policy.epsilon is None:  # else they are this site's own numbers
                told["counts"] = counts.tolist()
        return told


class _Memory:
    """What a client remembers of a run, on the site's disk, by rounds: as far back as the server may go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:09d}.safetensors"

    def _rounds(self) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in self.folder.glob("round-*.safetensors"))

    def keep(self, round: int, snapshot: Any, kept: int) -> None:
        """Remember, and forget what nobody will go back to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tree(self._path(round), "client", snapshot)
        for old in [known for known in self._rounds() if known <= kept][:-1]:
            self._path(old).unlink(missing_ok=True)

    def recall(self, after: int) -> Any:
        """What was remembered after that round; what came later is forgotten, because it is repeated."""
        rounds = self._rounds()
        if rounds and rounds[0] > after:
            raise CheckpointError(
                f"this site remembers round {rounds[0]} and later ones, the server goes on after round {after}: one of "
                "them was set back; start the run anew"
            )
        for round in [known for known in rounds if known > after]:
            self._path(round).unlink()
            rounds.remove(round)
        return load_tree(self._path(rounds[-1]), "client") if rounds else None


class _Run:
    """One part of one run at this site."""

    def __init__(
        self,
        name: str,
        opening: Opening,
        open_data: Callable[[], Any],
        budget: Budget | None,
        memory: _Memory,
        saved: Any,
    ) -> None:
        algorithm, plan = opening.algorithm, opening.plan
        options = algorithm.client_options() | ({"row_norm": plan.row_norm} if plan else {})

        def make() -> Any:
            return algorithm.client(open_data(), **options)  # type: ignore[call-arg]

        self.asks, self.memory = algorithm.asks(), memory
        guard = Guard(plan, budget) if plan else None
        vault = Party(name, opening.threshold) if opening.threshold else None
        self.site = Site(name, algorithm.client, make, opening.channel, opening.seed, guard, vault)
        self.client: Any = None
        self.kept: Any = None  # the state that was written down last
        if saved is not None:
            self.site.restore(saved)

    def answer(self, blob: bytes, kept: int) -> bytes:
        """Decode, let the site do what is asked, remember, encode."""
        message = wire.decode(blob)
        if not message.task.startswith("@") and message.task not in self.asks:
            raise ProtocolError(
                f"{message.task!r} is not what this algorithm asks; it asks {', '.join(sorted(self.asks))}"
            )
        if self.client is None:
            self.client = self.site.open()
        reply, site = self.site.handle(message, self.client), self.site
        linked = any(x is not None for x in (site.up, site.down, site.guard))  # they change with every answer
        if site.started and (linked or site.state is not self.kept):
            self.memory.keep(message.round, site.snapshot(), kept)  # before the answer leaves
            self.kept = site.state
        return wire.encode(reply)


def opened(table: SiteTable, asked: Mapping[str, Any], *, in_batches: bool = False) -> Table:
    """The site's table as a job may see it. Views settle by themselves what concerns their own columns."""
    draft = table.prepared(preparation_from(asked.get("preparation")))
    if asked.get("alone") and not draft.trivial:
        draft = alone({"here": table.path}, draft, strict=False)["here"]
    return open_source(table.path, draft, in_batches)


def client_data(table: SiteTable, opening: Opening) -> Any:
    """What the algorithm's client is made of."""
    asked, told, needs = opening.table, opening.told, opening.algorithm.client.needs
    if needs == "survey":
        return TableSurvey(table.path, table.prepared(preparation_from(asked.get("preparation"))))
    rows = opened(table, asked, in_batches=needs == "rows")
    if needs == "labelled":
        if rows.labels is None:
            raise InputError("need a column of labels; name it in data.label, or in the site's table")
        codes = _codes(rows.labels, told["labels"])
        weights = told.get("weights")
        return (rows.X, codes) if weights is None else (rows.X, codes, np.array(weights, dtype=np.float64)[codes])
    if needs == "entities":
        held = opened(replace(table, path=table.held_out), asked).X if table.held_out else None
        return Entities(rows.X, rows.ids, table.secret, held)
    if needs == "network":
        return DeepView(rows.X, _network(table), ids=rows.ids, secret=table.secret)
    return rows.X


def _codes(labels: Array, classes: list[Any]) -> Array:
    known = np.array(classes)
    codes = np.searchsorted(known, labels)
    if (codes == len(known)).any() or (known[codes] != labels).any():
        raise InputError("the labels have changed since the run began; start it anew")
    return codes


def _network(table: SiteTable) -> Any:
    """The site's own maker of networks, named in its own file: no job can name one."""
    if table.network is None:
        raise InputError('need network = "module:function" in this site\'s table for deep GCCA')
    module, _, function = table.network.partition(":")
    return getattr(import_module(module), function)


def schema_digest(names: list[str] | None, n_features: int, units: Mapping[str, str]) -> str:
    """One digest of the columns' names, their order and their units."""
    return blake2b(json.dumps([names, n_features, sorted(units.items())]).encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """What computes at this site."""
    found = {"fedspan": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "nvflare"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
