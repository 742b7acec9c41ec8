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
from typing import Any, TypeVar

import numpy as np

from fedspan._types import Array
from fedspan._version import __version__
from fedspan.algorithms.gcca.deep import DeepView
from fedspan.algorithms.gcca.entities import Entities
from fedspan.channel import wire
from fedspan.core.checkpoint import build, load_tree, save_tree
from fedspan.core.protocol import AnyClient
from fedspan.core.snapshot import SiteSnapshot
from fedspan.data.survey import TableSurvey
from fedspan.data.tables import Table, open_table
from fedspan.deployment.policy import Policy, SiteTable
from fedspan.engines.handshake import Description, DescriptionRequest
from fedspan.engines.site import Site, explain
from fedspan.engines.start import StartMessage, TableRequest, preparation_from
from fedspan.engines.transport import Refusal
from fedspan.errors import CheckpointError, InputError, ProtocolError
from fedspan.estimators.prepare import settle_each
from fedspan.privacy.budget import Budget
from fedspan.privacy.guard import Guard
from fedspan.secure.masking import Party

_LOG = logging.getLogger("fedspan.site")
T = TypeVar("T")


class SiteService:
    """One site in one job. `kit` is its folder: `local/fedspan.toml` says what it allows, `fedspan/runs` remembers."""

    def __init__(self, name: str, kit: Path) -> None:
        self.name, self.kit = name, kit
        self.lock = Lock()  # a late question may meet the next one
        self.open_run: _Run | None = None

    def describe(self, asked: str) -> str:
        """What this site has, as far as it says: the schema of a table by digest, sizes, versions."""
        return self._answer(lambda: json.dumps(self._describe(_read_request(asked))))

    def open(self, start: str) -> str:
        """Begin a run, or a further part of one, or go on with it."""
        return self._answer(lambda: self._open(StartMessage.from_json(start)))

    def exchange(self, blob: bytes, kept: int) -> bytes | str:
        """The reply to a question. `kept` is the last round that the server can go back to."""
        return self._answer(lambda: self._exchange(blob, kept))

    def _answer(self, work: Callable[[], T]) -> T | str:
        """What the work gives, or a refusal in JSON."""
        try:
            with self.lock:
                return work()
        except Exception as error:
            _LOG.warning("refused or failed: %s", explain(error), exc_info=not isinstance(error, InputError))
            refusal: Refusal = {"error": explain(error), "input": isinstance(error, InputError)}
            return json.dumps(refusal)

    def _describe(self, asked: DescriptionRequest) -> Description:
        policy = Policy.read(self.kit)
        if asked["fedspan"] != __version__:
            raise InputError(
                f"The server has fedspan {asked['fedspan']}, but this site has {__version__}. Install the same version."
            )
        table = open_site_table(policy.find_table(asked["table"]), asked["table"], in_batches=True)
        names = list(table.names) if table.names is not None else None
        description: Description = {
            "versions": find_versions(),
            "secure": policy.secure,
            "others": policy.others,
            "n_features": int(table.X.shape[1]),
            "digest": digest_schema(names, int(table.X.shape[1]), dict(table.units)),
            "units": dict(table.units) if policy.names else {},
            "names": names if policy.names else None,
            "rows": int(table.X.shape[0]) if policy.rows else 0,
        }
        if asked.get("labels") and table.labels is not None:
            values, counts = np.unique(table.labels, return_counts=True)
            description["labels"] = values.tolist()
            if policy.rows and not policy.secure and policy.epsilon is None:  # else they are this site's own numbers
                description["counts"] = counts.tolist()
        return description

    def _open(self, start: StartMessage) -> str:
        policy = Policy.read(self.kit)
        memory = _Memory(self.kit / "fedspan" / "runs" / start.run / str(start.part))
        saved = None if start.after is None else memory.recall(start.after)
        budget = policy.check(start, self.name, saved.released if saved else None)
        table = policy.find_table(start.table)
        self.open_run = _Run(self.name, start, lambda: open_client_data(table, start), budget, memory, saved)
        _LOG.info("opened run %s part %d: %r", start.run, start.part, start.algorithm)
        return json.dumps({"opened": start.run})

    def _exchange(self, blob: bytes, kept: int) -> bytes:
        if self.open_run is None:
            raise ProtocolError("A question came before a run was opened.")
        return self.open_run.answer(blob, kept)


def _read_request(text: str) -> DescriptionRequest:
    try:
        return build(DescriptionRequest, json.loads(text))
    except (CheckpointError, ValueError) as error:
        raise ProtocolError(f"The server must ask for a description, but sent something else: {error}") from None


class _Memory:
    """What a client remembers of a run, on the site's disk, by rounds: as far back as the server may go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:09d}.safetensors"

    def _rounds(self) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in self.folder.glob("round-*.safetensors"))

    def keep(self, round: int, snapshot: SiteSnapshot, kept: int) -> None:
        """Remember, and forget what nobody will go back to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tree(self._path(round), "client", snapshot)
        for old in [known for known in self._rounds() if known <= kept][:-1]:
            self._path(old).unlink(missing_ok=True)

    def recall(self, after: int) -> SiteSnapshot | None:
        """What was remembered after that round; what came later is forgotten, because it is repeated."""
        rounds = self._rounds()
        if rounds and rounds[0] > after:
            raise CheckpointError(
                f"The server goes on after round {after}, but this site remembers only round {rounds[0]} and later: "
                "one of them was set back. Start a new run."
            )
        for round in [known for known in rounds if known > after]:
            self._path(round).unlink()
            rounds.remove(round)
        return build(SiteSnapshot, load_tree(self._path(rounds[-1]), "client")) if rounds else None


class _Run:
    """One part of one run at this site."""

    def __init__(
        self,
        name: str,
        start: StartMessage,
        open_data: Callable[[], object],
        budget: Budget | None,
        memory: _Memory,
        saved: SiteSnapshot | None,
    ) -> None:
        algorithm, plan = start.algorithm, start.plan
        self.kind, self.open_data = algorithm.client, open_data
        self.options = algorithm.client_options() | ({"row_norm": plan.row_norm} if plan else {})
        self.asks, self.memory = algorithm.asks(), memory
        guard = Guard(plan, budget) if plan else None
        vault = Party(name, start.threshold) if start.threshold else None
        self.site = Site(name, self.kind, start.channel, start.seed, guard, vault)
        self.client: AnyClient | None = None
        self.kept: object = None  # the state that was written down last
        if saved is not None:
            self.site.restore(saved)

    def answer(self, blob: bytes, kept: int) -> bytes:
        """Decode, let the site do what is asked, remember, encode."""
        message = wire.decode(blob)
        if not message.task.startswith("@") and message.task not in self.asks:
            raise ProtocolError(
                f"This algorithm does not ask for {message.task!r}, only for {', '.join(sorted(self.asks))}."
            )
        if self.client is None:
            self.client = self.kind(self.open_data(), **self.options)  # type: ignore[call-arg]
        reply, site = self.site.handle(message, self.client), self.site
        linked = any(x is not None for x in (site.up, site.down, site.guard))  # they change with every answer
        if site.started and (linked or site.state is not self.kept):
            self.memory.keep(message.round, site.snapshot(), kept)  # before the answer leaves
            self.kept = site.state
        return wire.encode(reply)


def open_site_table(table: SiteTable, asked: TableRequest, *, in_batches: bool = False) -> Table:
    """The site's table as a job may see it. Views settle by themselves what concerns their own columns."""
    draft = table.limit(preparation_from(asked.get("preparation")))
    if asked.get("alone") and not draft.trivial:
        draft = settle_each({"here": table.path}, draft, strict=False)["here"]
    return open_table(table.path, draft, in_batches)


def open_client_data(table: SiteTable, start: StartMessage) -> object:
    """What the algorithm's client is made of."""
    asked, needs = start.table, start.algorithm.client.needs
    if needs == "survey":
        return TableSurvey(table.path, table.limit(preparation_from(asked.get("preparation"))))
    rows = open_site_table(table, asked, in_batches=needs == "rows")
    if needs == "labelled":
        if rows.labels is None:
            raise InputError("This table has no column of labels. Name it in data.label, or in the site's own file.")
        codes = _encode_labels(rows.labels, start.told.get("labels"))
        weights = start.told.get("weights")
        return (rows.X, codes) if weights is None else (rows.X, codes, np.array(weights, dtype=np.float64)[codes])
    if needs == "entities":
        held = open_site_table(replace(table, path=table.held_out), asked).X if table.held_out else None
        return Entities(rows.X, rows.ids, table.secret, held)
    if needs == "network":
        return DeepView(rows.X, _find_network(table), ids=rows.ids, secret=table.secret)
    return rows.X


def _encode_labels(labels: Array, classes: object) -> Array:
    """The labels as their numbers among the classes that the server named."""
    if not isinstance(classes, list | tuple) or not classes:
        raise ProtocolError("The server must name the classes to learn, but named none.")
    known = np.array(classes)
    codes = np.searchsorted(known, labels)
    if (codes == len(known)).any() or (known[codes] != labels).any():
        raise InputError("The labels have changed since the run began. Start a new run.")
    return codes


def _find_network(table: SiteTable) -> Any:
    """The site's own maker of networks, named in its own file: no job can name one."""
    if table.network is None:
        raise InputError('Deep GCCA needs a network. Write network = "module:function" in this site\'s own file.')
    module, _, function = table.network.partition(":")
    return vars(import_module(module))[function]


def digest_schema(names: list[str] | None, n_features: int, units: Mapping[str, str]) -> str:
    """One digest of the columns' names, their order and their units."""
    return blake2b(json.dumps([names, n_features, sorted(units.items())]).encode(), digest_size=16).hexdigest()


def find_versions() -> dict[str, str]:
    """What computes at this site."""
    found = {"fedspan": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "nvflare"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
