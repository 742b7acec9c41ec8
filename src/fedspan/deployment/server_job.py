"""The server's part of a job: it carries out what a researcher requests of a federation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import parse_json, printable
from fedspan._version import __version__
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.algorithms.matching.match_by_tags import How
from fedspan.channel.recipe import channel_from
from fedspan.core.checkpoint import Checkpoint, build, save_tree
from fedspan.core.ledger import Ledger, Note
from fedspan.core.participation import Participation
from fedspan.core.run import run
from fedspan.data.preparation import Preparation
from fedspan.data.remote_tables import RemoteTable
from fedspan.deployment.later_checkpoint import LaterCheckpoint
from fedspan.deployment.run_request import COMPARING_ESTIMATORS, LABELLED_ESTIMATORS, VIEW_ESTIMATORS, RunRequest
from fedspan.engines.handshake import describe_kinds, handshake
from fedspan.engines.remote import RemoteEngine
from fedspan.engines.site import explain
from fedspan.engines.start import algorithm_from, preparation_from
from fedspan.engines.transport import Transport
from fedspan.errors import ClientError, InputError, SiteRefusal
from fedspan.estimators.catalogue import ESTIMATORS
from fedspan.estimators.matching.match_entities import METHODS
from fedspan.estimators.prepare import agree_on_means
from fedspan.privacy.request import RowDP
from fedspan.secure.masking import Secure

try:
    import fcntl
except ImportError:  # a system without it has no lock; jobs are described and submitted all the same
    fcntl = None  # type: ignore[assignment]


class Outcome(TypedDict):
    """How a run ended. `input`: the job or the sites' data must be changed first.

    `again`: the same job may well succeed later, because a site or the network failed, and nobody refused.
    """

    done: bool
    error: NotRequired[str]
    input: NotRequired[bool]
    again: NotRequired[bool]


class _Matched(TypedDict):
    """What the server remembers of rows that were matched."""

    entities: int


def _check_have_ids(request: RunRequest, tables: Mapping[str, RemoteTable], ledger: Ledger) -> None:
    """Views need the same rows: by their ids, which all sites have or none."""
    bare = [site for site, table in tables.items() if not table.ids]
    unkeyed = [site for site, table in tables.items() if not table.keyed]
    if len(bare) == len(tables) and request.match == "order":
        ledger.add(Note("warning: The sites' tables have no ids, so rows were matched by their order only."))
    elif request.match == "order" and not bare and unkeyed and request.estimator not in COMPARING_ESTIMATORS:
        ledger.add(
            Note(
                f"warning: Site {unkeyed[0]!r} has no secret for ids, so their order was not compared, and rows were "
                'matched by it. Set data.match = "psi", or have every site name a secret_file.'
            )
        )
    elif bare:
        raise InputError(
            f"Either every site has ids or none does, but site {bare[0]!r} has none. Ask its owner to write id = … in "
            "its fedspan.toml."
        )


def read_outcome(folder: Path) -> Outcome:
    """How the run ended whose results are in that folder."""
    try:
        return build(Outcome, parse_json((folder / "outcome.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise ClientError(f"The server does not say how the run ended: {printable(str(error))}") from None


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """One process at a time works on a run; the lock goes with the process, however it ends."""
    with (place / "lock").open("wb") as file:
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClientError("Another job is working on this run. Wait until it has ended, or abort it.") from None
        yield


class ServerJob:
    """Where the server carries out requests: in a folder outside the job, so that a run survives the job."""

    def __init__(self, transport: Transport, sites: Sequence[str], folder: Path) -> None:
        self.transport, self.sites, self.folder = transport, tuple(sorted(sites)), folder
        self.ledger: Ledger | None = None

    def carry_out(self, request: RunRequest, results: Path) -> None:
        """Run it, from its checkpoint if it has one; leave model, ledger and outcome in `results`."""
        place = self.folder / request.run
        make_private_folder(place)
        make_private_folder(results)
        with _lock(place):
            outcome = self._carry_out(request, place)
            write_whole(results / "outcome.json", json.dumps(outcome))
            for name in ("ledger.jsonl", "model.safetensors"):
                if (place / name).exists():
                    shutil.copyfile(place / name, results / name)

    def _carry_out(self, request: RunRequest, place: Path) -> Outcome:
        self.ledger = ledger = Ledger(place / "ledger.jsonl")
        engine = RemoteEngine(self.transport, self.sites, request.run, timeout=request.timeout)
        engine.where = request.table
        try:
            # A round that is repeated is noise spent twice: with noise, none is begun before the last one is on disk.
            kind = Checkpoint if request.privacy else LaterCheckpoint
            checkpoint = kind(place / "checkpoint", request.checkpoint_every)
            try:
                work = self._fit if request.estimator else self._run
                work(request, engine, ledger, checkpoint, place)
            finally:
                if isinstance(checkpoint, LaterCheckpoint):
                    checkpoint.settle()
        except Exception as error:
            ledger.add(Note(f"ended: {explain(error)}"))
            refused = engine.refused or isinstance(error, SiteRefusal)
            again = isinstance(error, ClientError | OSError) and not refused
            return {"done": False, "error": explain(error), "input": isinstance(error, InputError), "again": again}
        finally:
            engine.close()
            ledger.close()
        return {"done": True}

    def _fit(
        self, request: RunRequest, engine: RemoteEngine, ledger: Ledger, checkpoint: Checkpoint, place: Path
    ) -> None:
        """Fit an estimator and save it."""
        name = str(request.estimator)
        secure = request.choose_secure(len(self.sites))
        tables = self._describe(request, engine, ledger, secure)
        if name in VIEW_ESTIMATORS:
            tables = self._match_rows(request, engine, ledger, secure, tables)
        options = dict(request.parameters)
        if options.get("participation"):
            options["participation"] = build(Participation, options["participation"], defaults=True)
        options["privacy"] = build(RowDP, request.privacy, defaults=True) if request.privacy else None
        options |= {"secure": secure or False, "engine": engine, "checkpoint": checkpoint}
        model: Any = ESTIMATORS[name](**options)
        more: dict[str, Any] = {"retries": request.retries}
        more |= {} if request.min_clients is None else {"min_clients": request.min_clients}
        missing = preparation_from(request.table.get("preparation")).missing
        if name == "FederatedGCCA" and missing in ("mask", "drop"):
            more["missing"] = missing
        model.fit(tables, **more, ledger=ledger)
        model.save(place / "model.safetensors")

    def _describe(
        self, request: RunRequest, engine: RemoteEngine, ledger: Ledger, secure: Secure | None
    ) -> dict[str, RemoteTable]:
        """Ask the sites what their files say of their tables; then for means, if they are to fill gaps."""
        name, views = str(request.estimator), request.estimator in VIEW_ESTIMATORS
        preparation = preparation_from(request.table.get("preparation"))
        engine.where = {**request.table, "alone": views}
        tables = handshake(
            self.transport,
            self.sites,
            {"fedspan": __version__, "table": engine.where, "labels": name in LABELLED_ESTIMATORS},
            timeout=request.timeout,
            same_columns=not views,
        )
        first = next(iter(tables.values()))
        ledger.add(Note(f"handshake: {first.n_features} features"))
        for warning in [] if views else describe_kinds(tables):
            ledger.add(Note(warning))
        if views:
            _check_have_ids(request, tables, ledger)
        else:
            told = next((table for table in tables.values() if table.columns is not None), first)
            preparation = replace(preparation, categories=dict(told.categories))
            if not preparation.trivial:  # so that the model can prepare new rows in the same way
                preparation = replace(preparation, columns=preparation.columns or told.columns)
            if preparation.needs_means:
                preparation = self._agree_on_means(request, engine, ledger, secure, told, preparation)
            engine.where = {**engine.where, "preparation": asdict(preparation)}
        return {site: replace(table, preparation=preparation) for site, table in tables.items()}

    def _match_rows(
        self,
        request: RunRequest,
        engine: RemoteEngine,
        ledger: Ledger,
        secure: Secure | None,
        tables: Mapping[str, RemoteTable],
    ) -> dict[str, RemoteTable]:
        """The tables of views once their rows belong together; each site knows where its own rows stand.

        Rows are matched once in a run: one that is resumed goes on in the same order. What was cut off before the
        order was known begins again, and the sites with new keys.
        """
        if request.match == "order":
            if request.estimator not in COMPARING_ESTIMATORS and all(table.keyed for table in tables.values()):
                why = "all sites must have the same rows in the same order"
                run(
                    CompareOrder(),
                    engine,
                    rounds=0,
                    seed=0,
                    retries=request.retries,
                    secure=secure,
                    ledger=ledger,
                    why=why,
                )
            return dict(tables)
        done = self.folder / request.run / "matched.json"
        part = engine.parts
        if done.exists():
            entities = build(_Matched, parse_json(done.read_bytes()))["entities"]
            engine.parts += 1
        else:
            why = "the sites' rows are matched by their ids"
            lacking = preparation_from(request.table.get("preparation")).missing
            how: How = "union" if lacking == "mask" else "intersection"  # views may then lack entities
            algorithm = METHODS[request.match](parties=len(tables), how=how)
            state = run(algorithm, engine, rounds=0, seed=0, retries=request.retries, ledger=ledger, why=why).state
            entities = state.entities
            write_whole(done, json.dumps({"entities": entities}))
            whose = "at least one site has" if how == "union" else "all sites have"
            ledger.add(
                Note(f"The sites matched their rows by their ids ({request.match}): {entities} entities that {whose}.")
            )
        return {site: replace(table, rows=entities).tell(matched=part) for site, table in tables.items()}

    def _agree_on_means(
        self,
        request: RunRequest,
        engine: RemoteEngine,
        ledger: Ledger,
        secure: Secure | None,
        table: RemoteTable,
        preparation: Preparation,
    ) -> Preparation:
        """The preparation with the means over all sites: one sum."""
        if request.privacy:
            raise InputError(
                "The sites cannot agree on means in a run with privacy, because that would tell about single rows; "
                "give data.fill."
            )
        columns = table.columns
        features = table.n_features if columns is None else len(columns)
        algorithm = AgreeOnColumns(features, columns, tuple(preparation.categories.items()))
        return agree_on_means(algorithm, preparation, engine, ledger, secure=secure, retries=request.retries)

    def _run(
        self, request: RunRequest, engine: RemoteEngine, ledger: Ledger, checkpoint: Checkpoint, place: Path
    ) -> None:
        """Run an algorithm by itself, as `fedspan.run` would: what it estimates is the model."""
        algorithm = algorithm_from(request.algorithm, request.fields)
        labels = request.parameters.get("labels")
        if labels:
            engine.tables = {site: RemoteTable(0, told={"labels": labels}) for site in self.sites}
        result = run(
            algorithm,
            engine,
            rounds=request.rounds,
            seed=request.seed,
            channel=None if request.channel is None else channel_from(request.channel),
            retries=request.retries,
            min_clients=request.min_clients,
            secure=request.choose_secure(len(self.sites)),
            checkpoint=checkpoint,
            ledger=ledger,
        )
        save_tree(place / "model.safetensors", "model", {"estimate": algorithm.estimate(result.state)})
