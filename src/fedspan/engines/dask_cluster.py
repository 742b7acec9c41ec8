"""Clients on the workers of a Dask cluster, or the parts of one client that is too large for one machine.

Each worker holds a group of clients as an actor, and returns one partial sum for each block of them. The results are
those of `InProcess`, to the bit on machines alike. If a worker is lost, its group is made anew on another one, hears
all that it was asked before (its answers are the same again), and is asked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspan._types import Array
from fedspan._version import __version__
from fedspan.channel.stage import Channel
from fedspan.core.protection import Protection
from fedspan.core.protocol import AnyServer, tasks_of
from fedspan.core.run import Session
from fedspan.core.snapshot import SessionSnapshot
from fedspan.data.clients import name_clients
from fedspan.engines.client_group import ClientGroup, GroupedSession, share_clients
from fedspan.engines.hub import find_blocks
from fedspan.engines.inprocess import InProcess, LocalSession
from fedspan.errors import FedspanError, InputError, MissingExtraError
from fedspan.secure.session import SecureSession, find_threshold

if TYPE_CHECKING:
    from distributed import ActorFuture, Client

_MOST_TRIES = 3  # workers on which a group is made, one after the other, if they are lost
_NOT_OURS = b"!"  # begins the answer that is an error which is not ours


class Dask:
    """An engine over clients on a Dask cluster.

    Parameters:
        client: A `distributed.Client`, connected.
        clients: One entry per client, as for `InProcess`. What is in memory is sent to the workers; a path or a
            function without arguments is opened there.
        max_open: How many clients a worker holds open at once.
    """

    def __init__(
        self, client: Client, clients: Mapping[str, object] | Sequence[object], *, max_open: int = 256
    ) -> None:
        if find_spec("distributed") is None:
            raise MissingExtraError("engines.Dask", "dask")
        self.client, self.max_open = client, max_open
        self.data = dict(sorted(name_clients(clients).items()))
        self.clients: Sequence[str] = tuple(self.data)

    def start(self, server: AnyServer, channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        if protection is not None and protection.plan is not None:
            raise InputError("Runs with privacy keep account of budgets in one process; use InProcess for them.")
        if protection is None or protection.secure is None:
            return self._open(server, channel, seed, protection)
        if protection.secure.is_verified(server, len(self.data), protection.min_clients):
            raise InputError("Verified sums are for clients that are apart; use Secure(verified=False) with Dask.")
        public = [name for name, task in tasks_of(server.client).items() if task.public]
        t = find_threshold(protection.secure, channel, len(self.data), protection.min_clients)
        inner = self._open(server, channel, seed, protection, t)
        return SecureSession(inner, t, protection.min_clients or len(self.data), public, protection.retries)

    def _open(
        self,
        server: AnyServer,
        channel: Channel,
        seed: int,
        protection: Protection | None,
        threshold: int | None = None,
    ) -> Session:
        workers = self._find_workers()
        blocks = find_blocks(self.clients)
        shares = share_clients(self.clients, len(workers), blocks)
        links = []
        for at, names in enumerate(shares):
            data = {name: self.data[name] for name in names}
            made = _Recipe(data, server, channel, seed, protection, threshold, blocks, self.max_open)
            links.append(_DaskLink(self.client, made, workers[at], repeats=threshold is None))
        return _DaskSession(links, shares, blocks)

    def _find_workers(self) -> list[str]:
        """The workers' addresses; all must have this version of fedspan."""
        versions: dict[str, str] = self.client.run(_tell_version)
        if not versions:
            raise InputError(
                "The Dask cluster has no workers. Start some, or wait for them: client.wait_for_workers(2)."
            )
        odd = {worker: version for worker, version in versions.items() if version != __version__}
        if odd:
            worker, version = next(iter(sorted(odd.items())))
            raise InputError(
                f"{len(odd)} of {len(versions)} workers of the Dask cluster have another version of fedspan: {worker} "
                f"has {version}, but here it is {__version__}. Install the same version everywhere."
            )
        return sorted(versions)


def _tell_version() -> str:
    return __version__ if find_spec("fedspan") is not None else "none"


class _Recipe:
    """What a group is made of, wherever it is made."""

    def __init__(
        self,
        data: Mapping[str, object],
        server: AnyServer,
        channel: Channel,
        seed: int,
        protection: Protection | None,
        threshold: int | None,
        blocks: Mapping[str, int],
        max_open: int,
    ) -> None:
        self.data, self.server, self.channel, self.seed = data, server, channel, seed
        self.protection, self.threshold = protection, threshold
        self.blocks = {name: blocks[name] for name in data}
        self.max_open = max_open

    def make(self) -> ClientGroup:
        """The group, here."""
        engine = InProcess(self.data, threads=1, max_open=self.max_open)
        session = LocalSession(engine, self.server, self.channel, self.seed, self.protection, self.threshold)
        return ClientGroup(session, self.blocks)


class DaskGroup:
    """The actor on a worker."""

    def __init__(self, recipe: _Recipe) -> None:
        self.group = recipe.make()

    def handle(self, blob: bytes) -> bytes:
        """The answer; an error that is not ours is one, too, so that no worker is taken for lost because of it."""
        try:
            return self.group.handle(blob)
        except Exception as error:
            return _NOT_OURS + f"{type(error).__name__}: {error}".encode()

    def close(self) -> None:
        """Let the clients go."""
        self.group.close()


class _DaskLink:
    """The way to a group on a worker. `repeats`: whether a group that is lost can be made again."""

    def __init__(self, client: Client, recipe: _Recipe, worker: str, *, repeats: bool) -> None:
        self.client, self.recipe, self.repeats = client, recipe, repeats
        self.asked: list[bytes] = []  # what the group was asked since `start_from`
        self.tries, self.pending = 1, b""
        self.future: ActorFuture[bytes] | None = None
        self._make(worker)

    def _make(self, worker: str | None) -> None:
        chosen = None if worker is None else [worker]
        made = self.client.submit(DaskGroup, self.recipe, actor=True, pure=False, workers=chosen)
        self.actor: Any = made.result()  # a stand-in for the group, whose methods return futures

    def send(self, blob: bytes) -> None:
        self.pending = blob
        self.future = None
        with suppress(OSError, RuntimeError, ValueError):  # a worker that is lost is found when its answer is asked for
            self.future = self.actor.handle(blob)

    def receive(self) -> bytes:
        while True:
            try:
                if self.future is None:
                    raise OSError("the worker is gone")
                answer: bytes = self.future.result()
                break
            except (OSError, RuntimeError, ValueError) as error:
                self._make_again(error)
        if answer.startswith(_NOT_OURS):
            raise RuntimeError(answer[1:].decode())
        self.asked.append(self.pending)
        return answer

    def _make_again(self, error: Exception) -> None:
        """Make the group on another worker, let it hear what it was asked before, and ask again."""
        self.tries += 1
        if not self.repeats or self.tries > _MOST_TRIES:
            hint = "Its keys are lost with it" if not self.repeats else f"{_MOST_TRIES} were lost in this run"
            raise FedspanError(
                f"A worker of the Dask cluster was lost ({error}). {hint}: go on from the checkpoint, with a new "
                "cluster."
            ) from None
        self._make(None)
        for blob in self.asked:
            self.actor.handle(blob).result()
        self.future = self.actor.handle(self.pending)

    def start_from(self, blob: bytes) -> None:
        """Forget what was asked before: the group can be brought here by that question alone."""
        self.asked = [blob]

    def close(self) -> None:
        """Let the group go."""
        with suppress(Exception):
            self.actor.close().result()
        del self.actor


class _DaskSession(GroupedSession):
    """A session of groups that may be made again from the last snapshot."""

    def __init__(self, links: Sequence[_DaskLink], shares: Sequence[Sequence[str]], blocks: Mapping[str, int]) -> None:
        super().__init__(links, shares, blocks)
        self.groups = list(links)

    def snapshot(self) -> SessionSnapshot:
        saved = super().snapshot()
        for at, link in enumerate(self.groups):
            link.start_from(self.ask_to_restore(at, saved, 0))
        return saved


def split_client(source: object) -> dict[str, object]:
    """The parts of one large client, as clients of their own: the sums over them are those of the whole.

    Parameters:
        source: A folder of Parquet files (each file is a part), or a `dask.array` in blocks of whole rows.
    """
    if isinstance(source, str | os.PathLike):
        files = sorted(each for each in Path(source).glob("*.parquet") if each.name[0] not in "._")
        if not files:
            raise InputError(f"{source} is not a folder with Parquet files.")
        return {each.stem: str(each.resolve()) for each in files}
    if find_spec("dask") is not None:
        import dask.array as da

        if isinstance(source, da.Array):
            if source.ndim != 2 or source.numblocks[1] != 1:
                raise InputError(
                    f"The array must be in blocks of whole rows, but its blocks are {source.numblocks}. Use "
                    "source.rechunk({1: -1})."
                )
            width = len(str(source.numblocks[0]))
            return {f"{i:0{width}d}": _compute_later(source.blocks[i]) for i in range(source.numblocks[0])}
    raise InputError(f"A large client is a folder of Parquet files or a dask.array, but is {type(source).__name__}.")


def _compute_later(block: object) -> Callable[[], Array]:
    """What opens one block where it is asked."""

    def compute() -> Array:
        return block.compute(scheduler="synchronous")  # type: ignore[attr-defined]

    return compute
