"""An order: what a researcher asks of a federation, as plain data; and how the server carries it out.

It names an estimator with its parameters, or an algorithm with its fields. Where data is, it cannot say: that is the
sites' own business.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import fedspan
from fedspan._files import write_whole
from fedspan.channel.recipe import channel_from
from fedspan.core.checkpoint import Checkpoint, save_tree
from fedspan.core.ledger import Ledger, Note
from fedspan.core.participation import Participation
from fedspan.core.run import run
from fedspan.data.remote_table import RemoteTable
from fedspan.deployment.later_checkpoint import LaterCheckpoint
from fedspan.engines.remote import RemoteEngine, Transport, handshake
from fedspan.engines.site import explain
from fedspan.engines.start import algorithm_from, identifier, preparation_from
from fedspan.errors import ClientError, InputError, ProtocolError
from fedspan.estimators.prepare import agree
from fedspan.privacy.request import RowDP
from fedspan.secure.masking import Secure

LABELLED = ("FederatedClassifier", "VerticalFederatedClassifier")
VIEWS = ("FederatedGCCA", "VerticalFederatedClassifier")
ESTIMATORS = ("FederatedPCA", "FederatedSVD", "PersonalizedPCA", *LABELLED, "FederatedGCCA")


@dataclass(frozen=True)
class Order:
    """`secure` None: secure sums if there are three sites or more, where the estimator can do with sums."""

    run: str
    estimator: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str | None = None  # in place of an estimator
    fields: Any = None
    channel: Any = None
    rounds: int = 0
    seed: int = 0
    table: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    secure: Mapping[str, Any] | None = None
    sums: bool = True  # whether secure sums are to be the default
    min_clients: int | None = None
    checkpoint_every: int = 1
    timeout: float = 60.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Any) -> Order:
        """The order in a job, or a refusal."""
        known = {f.name for f in fields(cls)}
        if not isinstance(tree, dict) or not set(tree) <= known or "run" not in tree:
            raise ProtocolError("need an order of fedspan in the job, got something else")
        identifier(tree["run"])  # it names a folder here, too
        order = cls(**tree)
        if (order.estimator is None) == (order.algorithm is None):
            raise ProtocolError("need either an estimator or an algorithm in the order")
        if order.estimator is not None and order.estimator not in ESTIMATORS:
            raise ProtocolError(f"need an estimator that runs in a federation, got {order.estimator!r}")
        return order

    def secured(self, sites: int) -> Secure | None:
        """The secure sums that are asked for, or that are the default among so many sites."""
        if self.secure is None:
            return Secure() if self.sums and sites >= 3 else None
        return Secure(self.secure.get("threshold")) if self.secure.get("enabled") else None


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process at a time works on a run; the lock goes with the process, however it ends."""
    with (place / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClientError("the run is still at work in another job; wait until it has ended, or abort it") from None
        yield


class Desk:
    """Where the server carries out orders: a folder outside the job, so that a run survives the job."""

    def __init__(self, transport: Transport, sites: Sequence[str], folder: Path) -> None:
        self.transport, self.sites, self.folder = transport, tuple(sorted(sites)), folder
        self.ledger: Ledger | None = None

    def carry_out(self, order: Order, results: Path) -> None:
        """Run it, from its checkpoint if it has one; leave model, ledger and outcome in `results`."""
        place = self.folder / order.run
        place.mkdir(parents=True, exist_ok=True)
        results.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            self._carry_out(order, place, results)

    def _carry_out(self, order: Order, place: Path, results: Path) -> None:
        self.ledger = ledger = Ledger(place / "ledger.jsonl")
        engine = RemoteEngine(self.transport, self.sites, order.run, timeout=order.timeout)
        outcome: dict[str, Any] = {"done": True}
        try:
            work: Callable[..., None] = self._fit if order.estimator else self._run
            # A round that is repeated is noise spent twice: with noise, none is begun before the last one is on disk.
            kind = Checkpoint if order.privacy else LaterCheckpoint
            checkpoint = kind(place / "checkpoint", order.checkpoint_every)
            try:
                work(order, engine, ledger, checkpoint, place)
            finally:
                if isinstance(checkpoint, LaterCheckpoint):
                    checkpoint.settle()
        except Exception as error:
            outcome = {"done": False, "error": explain(error), "input": isinstance(error, InputError)}
            ledger.add(Note(f"ended: {explain(error)}"))
        finally:
            engine.close()
            ledger.close()
        write_whole(results / "outcome.json", json.dumps(outcome))
        for name in ("ledger.jsonl", "model.safetensors"):
            if (place / name).exists():
                shutil.copyfile(place / name, results / name)

    def _fit(self, order: Order, engine: RemoteEngine, ledger: Ledger, checkpoint: Checkpoint, place: Path) -> None:
        name = str(order.estimator)
        secure = order.secured(len(self.sites))
        draft = preparation_from(order.table.get("preparation"))
        engine.where = {**order.table, "alone": name in VIEWS}
        done = draft
        if name not in VIEWS:  # what views have is their own
            names = {site: site for site in self.sites}
            done = agree(names, draft, private=bool(order.privacy), secure=secure, engine=engine, ledger=ledger)
            engine.where = {**engine.where, "preparation": asdict(done)}
        asked = {"fedspan": fedspan.__version__, "table": engine.where, "labels": name in LABELLED}
        tables = handshake(self.transport, self.sites, asked, timeout=order.timeout, same_columns=name not in VIEWS)
        tables = {site: replace(table, preparation=done) for site, table in tables.items()}
        said = ", ".join(f"{site} {table.rows} rows" for site, table in tables.items())
        ledger.add(Note(f"handshake: {next(iter(tables.values())).n_features} features; {said}"))
        if order.privacy and not all(table.rows for table in tables.values()):
            raise InputError("privacy needs the number of rows, some site does not tell it (allow.rows); ask its owner")
        options = dict(order.parameters)
        if options.get("participation"):
            options["participation"] = Participation(**options["participation"])
        model = getattr(fedspan, name)(
            **options,
            privacy=RowDP(**order.privacy) if order.privacy else None,
            secure=secure or False,
            engine=engine,
            checkpoint=checkpoint,
        )
        more = {} if order.min_clients is None else {"min_clients": order.min_clients}
        model.fit(tables, **more, ledger=ledger)
        model.save(place / "model.safetensors")

    def _run(self, order: Order, engine: RemoteEngine, ledger: Ledger, checkpoint: Checkpoint, place: Path) -> None:
        """An algorithm by itself, as `fedspan.run` would: what it estimates is the model."""
        algorithm = algorithm_from(order.algorithm, order.fields)
        engine.where = order.table
        labels = order.parameters.get("labels")
        if labels:
            engine.tables = {site: RemoteTable(0, told={"labels": labels}) for site in self.sites}
        result = run(
            algorithm, engine, rounds=order.rounds, seed=order.seed, checkpoint=checkpoint, ledger=ledger,
            secure=order.secured(len(self.sites)), min_clients=order.min_clients,
            channel=None if order.channel is None else channel_from(order.channel),
        )  # fmt: skip
        save_tree(place / "model.safetensors", "model", {"estimate": algorithm.estimate(result.state)})
