"""The site's end of a federation, whatever carries the messages: it says what it has, opens a run, answers questions.

What it has is what its own file says. If it refuses, it gives the reason only where that depends on the job and on this
file alone; everything else leaves as a code, and the reason is in the site's log.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

from fedspan._files import make_private_folder, write_whole
from fedspan._foreign import PrintableLog, parse_json
from fedspan._types import Json
from fedspan._version import __version__
from fedspan.algorithms.matching.match_by_tags import MatchedRows, read_matched_rows
from fedspan.channel import wire
from fedspan.core.checkpoint import build, load_tree, save_tree
from fedspan.core.protocol import AnyClient
from fedspan.core.snapshot import SiteSnapshot
from fedspan.deployment.approval.admission import Admission
from fedspan.deployment.approval.signed_order import Order
from fedspan.deployment.kit_identity import KitIdentity
from fedspan.deployment.policy import FILE, Policy, SiteTable
from fedspan.deployment.site_rules.asked_questions import QuestionsOnDisk
from fedspan.deployment.site_rules.book import Book, BookError, BookEvent, list_arrays
from fedspan.deployment.site_rules.kept_messages import KeptMessages
from fedspan.deployment.site_rules.pause import Pause
from fedspan.deployment.site_rules.rosters import Rosters
from fedspan.deployment.site_rules.shutter import MOST, Shutter
from fedspan.deployment.site_rules.verified_rules import AskedOnDisk, check_same_opening
from fedspan.deployment.site_tables.site_data import open_client_data
from fedspan.engines.handshake import Description, DescriptionRequest
from fedspan.engines.questions import QuestionCheck
from fedspan.engines.site import Site, explain
from fedspan.engines.start import StartMessage
from fedspan.engines.transport import Refusal, refuse_without_reason
from fedspan.errors import CheckpointError, FedspanError, InputError, PolicyRefusal, ProtocolError
from fedspan.privacy.budget import Budget
from fedspan.privacy.guard import Guard, NoiseSource
from fedspan.privacy.keyring import read_key
from fedspan.secure.identity import Identity
from fedspan.secure.masking import Party
from fedspan.secure.opening import RunOpening
from fedspan.secure.witness import Witness

ORDER = "order.json"  # what a run was opened with, beside what is remembered of it
_LOG = logging.getLogger("fedspan.site")
_LOG.addFilter(PrintableLog())
T = TypeVar("T")


class SiteService:
    """One site in one job. `kit` is its folder: `local/fedspan.toml` says what it allows, `fedspan/runs` remembers."""

    def __init__(
        self, name: str, kit: Path, identity: Identity | None = None, admission: Admission | None = None
    ) -> None:
        self.name, self.kit, self.shutter = name, kit, Shutter(kit)
        self.admission = admission or Admission(kit, None)  # whether the job's order may be carried out here
        self.book, self.pause = Book(kit), Pause(kit)
        self.identity = identity or KitIdentity.find(kit)  # with which it signs the keys of verified runs
        self.lock = Lock()  # a late question may meet the next one
        self.open_run: _Run | None = None
        self.file = b""  # the site's own file, as it was when the run was opened
        self.closed_by: str | None = None  # the refusal that closed the last run

    def describe(self, asked: str) -> str:
        """What this site's file says of a table; the data is not looked at."""
        return self._answer(lambda: json.dumps(self._describe(asked)))

    def open(self, start: str) -> str:
        """Begin a run, or a further part of one, or go on with it."""
        return self._answer(lambda: self._open(start))

    def exchange(self, blob: bytes, kept: int) -> bytes | str:
        """The reply to a question. `kept` is the last round that the server can go back to."""
        return self._answer(lambda: self._exchange(blob, kept))

    def _answer(self, work: Callable[[], T]) -> T | str:
        """What the work gives, or a refusal in JSON.

        The words of a `PolicyRefusal` leave, because they were found without the data. Of everything else only a code
        leaves: the run is closed, and the refusal counts, for it may depend on values.
        """
        with self.lock:
            try:
                return work()
            except PolicyRefusal as error:
                _LOG.warning("refused: %s%s", error, f" ({error.__cause__})" if error.__cause__ else "")
                self._note_refusal(reason=str(error))
                told: Refusal = {"error": str(error), "input": not error.passing}
                return json.dumps(told)
            except Exception as error:
                code, refusal = refuse_without_reason()
                _LOG.warning("refused [%s]: %s", code, explain(error), exc_info=not isinstance(error, InputError))
                self._note_refusal(code=code)
                return self._close_run(json.dumps(refusal))

    def _note_refusal(self, **facts: Json) -> None:
        """Write a refusal into the book; nothing leaves with it, so a full disk does not change it."""
        run: dict[str, Json] = (
            {} if self.open_run is None else {"run": self.open_run.name, "table": self.open_run.table}
        )
        try:
            self.book.write("refused", **run, **facts)
        except BookError as error:
            _LOG.error("%s", error)

    def _write_down(self, event: BookEvent, **facts: Json) -> None:
        """Write into the book what is about to leave; without the book nothing does."""
        try:
            self.book.write(event, **facts)
        except BookError as error:
            raise PolicyRefusal(
                "This site cannot keep its book of what leaves, so it answers nothing; its log says why.", passing=True
            ) from error

    def _close_run(self, refusal: str) -> str:
        """Count a refusal; whatever else the run asks is answered by the same one."""
        if self.open_run is not None:
            self._count(self.open_run.table)
            self._forget_run(refusal)
        return refusal

    def _forget_run(self, refusal: str | None = None) -> None:
        """The run is over here, at least for now: what it has not sent of its noise is free again."""
        if self.open_run is not None:
            if self.open_run.site.guard:
                self.open_run.site.guard.settle()
            facts = self.open_run.describe_end()
            try:
                self.book.write("ended", **facts, refused=refusal is not None)
            except BookError as error:  # nothing leaves with it
                _LOG.error("%s", error)
        self.open_run, self.closed_by = None, refusal

    def end(self) -> None:
        """The job is over, however it ended: say in the book what left in its last run."""
        with self.lock:
            self._forget_run()

    def _count(self, table: str) -> None:
        count = self.shutter.count(table)
        if count < MOST:
            state = f"after {MOST} within a day the table is shut"
        else:
            state = f"the table is shut now; open it with: fedspan site reopen {self.kit} {table}"
        _LOG.warning(
            "that was number %d for table %r; %s. What is wrong with the data: fedspan site check %s",
            count,
            table,
            state,
            self.kit,
        )

    def _read_file(self) -> bytes:
        """The site's own file, to see whether it changes: then what it allows now is asked of the run again."""
        try:
            return (self.kit / "local" / FILE).read_bytes()
        except OSError:
            return b""

    def _read_policy(self) -> Policy:
        try:
            return Policy.read(self.kit)
        except InputError as error:  # its words name paths
            raise PolicyRefusal("This site's own file is not valid; its log says why.") from error

    def _describe(self, text: str) -> Description:
        policy = self._read_policy()
        with tell_in_full():
            asked = _read_request(text)
            if asked["fedspan"] != __version__:
                raise PolicyRefusal(
                    f"The server has fedspan {asked['fedspan']}, but this site has {__version__}. Install the same "
                    "version."
                )
            self.admission.admit(policy)
            return policy.describe(asked["table"], labels=bool(asked.get("labels")), versions=find_versions())

    def _open(self, text: str) -> str:
        self._forget_run()
        self.pause.check_running()
        self.file = self._read_file()
        policy = self._read_policy()
        with tell_in_full():
            start = StartMessage.from_json(text)
            order = self.admission.check_opening(policy, start)
            table = policy.find_table(start.table)
            name = start.table.get("name") or "default"
            self.shutter.check_open(name)
        memory = _Memory(self.kit / "fedspan" / "runs" / start.run / str(start.part))
        saved = None if start.after is None else memory.recall(start.after)
        with tell_in_full():
            budget = policy.check(start, self.name)
            remember_groups = self._fix_groups(start, table)
            witness = self._open_witness(start, memory.folder) if start.verified else None
            guard = make_guard(start, policy, budget)  # last: nothing is reserved for a run that is refused
        matched = self._recall_match(start)
        opening = _Opening(self.name, name, start, policy, lambda: open_client_data(table, start, matched))
        self.open_run = _Run(opening, guard, memory, saved, self._note_not_finite, witness, remember_groups)
        self._write_down("opened", **_describe_opening(start, name), **_describe_order(order))
        make_private_folder(memory.folder)
        write_whole(memory.folder / ORDER, text)
        _LOG.info("opened run %s part %d: %r", start.run, start.part, start.algorithm)
        return json.dumps({"opened": start.run})

    def _recall_match(self, start: StartMessage) -> MatchedRows | None:
        """Where this site's rows stand, if they were matched in an earlier part of the run that is opened."""
        part = start.told.get("matched")
        if part is None:
            return None
        if type(part) is not int or not 0 <= part < start.part:
            raise PolicyRefusal("The server must name the part of the run in which rows were matched.")
        saved = _Memory(self.kit / "fedspan" / "runs" / start.run / str(part)).recall(0)
        matched = None if saved is None else read_matched_rows(saved.state)
        if matched is None:
            raise PolicyRefusal("This site does not know where its rows stand in this run. Start a new run.")
        return matched

    def _fix_groups(self, start: StartMessage, table: SiteTable) -> Callable[[], None]:
        """Refuse a run of other groups than before, and return what remembers its groups."""
        if start.threshold is None or start.privacy is not None:
            return lambda: None
        groups = start.groups or (tuple(sorted(start.clients)),)
        rosters, name = Rosters(self.kit / "fedspan" / "rosters.json"), start.table.get("name") or "default"
        rosters.check(name, table.path, groups, self.name)
        return lambda: rosters.record(name, table.path, groups, self.name)

    def _open_witness(self, start: StartMessage, folder: Path) -> Witness:
        if self.identity is None:
            raise PolicyRefusal("This site's kit has no key and certificate to sign with, so it cannot verify a run.")
        opening = RunOpening(start.algorithm, start.seed, start.rounds, start.groups, start.digest, start.plan)
        check_same_opening(folder, start.digest)
        return Witness(self.name, opening, self.identity, AskedOnDisk(folder))

    def _note_not_finite(self, table: str, array: str) -> None:
        """Numbers that are not finite left as zeros: the server may have made them so, to find out about values."""
        _LOG.warning("%r had numbers that are too large or not finite; others were sent in their place", array)
        self._count(table)

    def _exchange(self, blob: bytes, kept: int) -> bytes | str:
        if self.open_run is None and self.closed_by is not None:
            return self.closed_by
        if self.open_run is None:
            raise PolicyRefusal("A question came before a run was opened. Start or resume it.", passing=True)
        self.pause.check_running()
        self.shutter.check_open(self.open_run.table)
        if self._read_file() != self.file:
            self._forget_run()
            raise PolicyRefusal("This site's own file has changed since the run was opened. Resume it.", passing=True)
        self.admission.check_still(self.open_run.policy)
        reply = self.open_run.answer(blob, kept)
        encoded = wire.encode(reply)
        facts: dict[str, Json] = {"run": self.open_run.name, "table": self.open_run.table, "task": reply.task}
        facts |= {"round": reply.round, "arrays": list_arrays(reply.arrays), "bytes": len(encoded)}
        self._write_down("answered", **facts)
        try:
            self.open_run.kept_messages.add(blob, encoded)
        except OSError as error:
            raise PolicyRefusal(
                "This site cannot keep the messages of this run, so it answers nothing; its log says why.", passing=True
            ) from error
        self.open_run.count_answer(reply.task, len(encoded))
        return encoded


@contextmanager
def tell_in_full() -> Iterator[None]:
    """Tell what is refused in here with its reason: only for code that looks at the job and the site's file alone."""
    try:
        yield
    except PolicyRefusal:
        raise
    except FedspanError as error:
        raise PolicyRefusal(str(error), passing=not isinstance(error, InputError)) from None


def _read_request(text: str) -> DescriptionRequest:
    try:
        return build(DescriptionRequest, parse_json(text, constants=True))
    except (CheckpointError, ValueError) as error:
        raise ProtocolError(f"The server must ask for a description, but sent something else: {error}") from None


def make_guard(start: StartMessage, policy: Policy, budget: Budget | None) -> Guard | None:
    """The guard of a private run, with noise from this site's own key; its budget must hold all that is planned."""
    if start.plan is None:
        return None
    make_private_folder(policy.noise_key.parent)
    key = budget.key if budget else read_key(policy.noise_key)
    return Guard(start.plan, NoiseSource(start.name_noise(), key), budget)


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
        make_private_folder(self.folder)
        save_tree(self._path(round), "client", snapshot)
        for old in [known for known in self._rounds() if known <= kept][:-1]:
            self._path(old).unlink(missing_ok=True)

    def recall(self, after: int) -> SiteSnapshot | None:
        """What was remembered after that round; what came later is forgotten, because it is repeated."""
        rounds = self._rounds()
        if rounds and rounds[0] > after:
            raise PolicyRefusal(
                f"The server goes on after round {after}, but this site remembers only round {rounds[0]} and later: "
                "one of them was set back. Start a new run."
            )
        for round in [known for known in rounds if known > after]:
            self._path(round).unlink()
            rounds.remove(round)
        return build(SiteSnapshot, load_tree(self._path(rounds[-1]), "client")) if rounds else None


class _Opening(NamedTuple):
    """What a run is opened with at this site."""

    site: str
    table: str
    start: StartMessage
    policy: Policy
    open_data: Callable[[], object]


class _Run:
    """One part of one run at this site."""

    def __init__(
        self,
        opening: _Opening,
        guard: Guard | None,
        memory: _Memory,
        saved: SiteSnapshot | None,
        on_not_finite: Callable[[str, str], None],
        witness: Witness | None,
        remember_groups: Callable[[], None],
    ) -> None:
        name, self.table, start, self.policy, self.open_data = opening
        self.name, self.part, self.privacy = start.run, start.part, start.privacy
        self.answers = self.bytes = 0  # since it was opened here
        algorithm, plan = start.algorithm, start.plan
        self.kind = algorithm.client
        self.options = algorithm.client_options() | ({"row_norm": plan.row_norm} if plan else {})
        self.asks, self.memory = algorithm.asks(), memory
        self.kept_messages = KeptMessages(memory.folder, self.policy.transcript)
        # With noise, what leaves is protected however few rows it is about.
        self.least_rows = 1 if start.privacy else self.policy.find_table(start.table).min_rows
        vault = Party(name, start.threshold) if start.threshold and witness is None else None
        tell = partial(on_not_finite, self.table)
        self.site = Site(name, self.kind, start.channel, start.seed, guard, vault, tell, witness)
        if witness is None:
            record = QuestionsOnDisk(memory.folder)
            after = -1 if start.after is None else start.after
            self.site.questions = QuestionCheck(algorithm, start.channel, start.rounds, record, start.digest, after)
        self.remember_groups, self.remembered = remember_groups, False
        self.client: AnyClient | None = None
        self.kept: object = None  # the state that was written down last
        if saved is not None:
            self.site.restore(saved)

    def answer(self, blob: bytes, kept: int) -> wire.Message:
        """Decode, let the site do what is asked, remember."""
        with tell_in_full():
            message = wire.decode(blob)
            self._check_asked(message.task)
            question = self.site.read(message)
        if question.reply is None and self.client is None:
            self.client = self.kind(self.open_data(), **self.options)  # type: ignore[call-arg]
            self.client.least_rows = self.least_rows
        if not self.remembered and not message.task.startswith("@"):
            self.remember_groups()  # before the first masked answer leaves
            self.remembered = True
        reply, site = self.site.answer(question, self.client), self.site
        linked = any(x is not None for x in (site.up, site.down, site.guard, site.witness))  # change with each answer
        if site.started and (linked or site.state is not self.kept):
            self.memory.keep(message.round, site.snapshot(), kept)  # before the answer leaves
            self.kept = site.state
        return reply

    def count_answer(self, task: str, size: int) -> None:
        """One more answer is about to leave."""
        self.answers += not task.startswith("@")
        self.bytes += size

    def describe_end(self) -> dict[str, Json]:
        """What the book says when it is over: how much left, and what all noised releases of this part cost so far."""
        facts: dict[str, Json] = {"run": self.name, "part": self.part, "table": self.table}
        facts |= {"answers": self.answers, "bytes": self.bytes}
        if self.privacy is not None and self.site.guard is not None:
            facts |= {"charged": self.site.guard.charged(self.privacy.delta), "delta": self.privacy.delta}
        return facts

    def _check_asked(self, task: str) -> None:
        """Refuse what this algorithm does not ask for, or what the site does not answer."""
        if not task.startswith("@") and task not in self.asks:
            raise ProtocolError(f"This algorithm does not ask for {task!r}, only for {', '.join(sorted(self.asks))}.")
        forbidden = self.policy.forbids(task)
        if forbidden is not None:
            raise PolicyRefusal(forbidden)


def _describe_opening(start: StartMessage, table: str) -> dict[str, Json]:
    """What the book says of a run that was opened: who takes part, what is computed, and with which protection."""
    privacy = start.privacy
    return {
        "run": start.run,
        "part": start.part,
        "table": table,
        "order": start.digest.hex(),
        "algorithm": type(start.algorithm).__name__,
        "sites": list(start.clients),
        "rounds": start.rounds,
        "secure": start.threshold,
        "verified": start.verified,
        "epsilon": None if privacy is None else privacy.epsilon,
        "delta": None if privacy is None else privacy.delta,
    }


def _describe_order(order: Order | None) -> dict[str, Json]:
    """What the book says of the signed order that led to a run."""
    return {} if order is None else {"signed": order.digest, "by": order.submitter.name}


def find_versions() -> dict[str, str]:
    """What computes at this site."""
    found = {"fedspan": __version__, "python": platform.python_version()}
    for package in ("numpy", "scipy", "nvflare"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
