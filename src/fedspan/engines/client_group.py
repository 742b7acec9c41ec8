"""Some clients of a run, and the server's ends of their links, somewhere else: another process, another machine.

A group answers a question by sums over its clients (by blocks, so that they are the same to the bit wherever the
clients are), or by every reply if that is asked for. Questions and answers are bytes: named arrays and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fedspan import errors
from fedspan._types import Arrays
from fedspan.channel import wire
from fedspan.core.checkpoint import build, flatten, unflatten
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Ask, Each, Replies, Sum
from fedspan.core.run import Session
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot
from fedspan.engines.hub import Collector
from fedspan.errors import FedspanError, InputError, MissingExtraError
from fedspan.secure.packing import PackedSum

_Tree: TypeAlias = Any  # plain data


class _Done(NamedTuple):
    """What one client's part of an exchange came to."""

    down: int
    up: int
    seconds: float


def share_clients(clients: Sequence[str], parts: int, blocks: Mapping[str, int]) -> list[list[str]]:
    """The clients in so many parts of about the same size, none of which cuts a block."""
    whole = [list(names) for _, names in groupby(clients, key=lambda name: blocks[name])]
    parts = min(parts, len(whole))
    cut = [len(whole) * i // parts for i in range(parts + 1)]
    return [[name for names in whole[low:high] for name in names] for low, high in pairwise(cut)]


def encode_tree(tree: object) -> bytes:
    """Plain data with arrays."""
    skeleton, arrays = flatten(tree)
    return wire.dump({"tree": json.dumps(skeleton)}, arrays)


def decode_tree(blob: bytes) -> _Tree:
    """The same back; its arrays are read-only."""
    meta, arrays = wire.load(blob)
    return unflatten(json.loads(meta["tree"]), arrays)


class Link(Protocol):
    """The way to a group: `send` may return before the answer is there."""

    def send(self, blob: bytes) -> None: ...
    def receive(self) -> bytes: ...
    def close(self) -> None: ...


class Collecting(Session, Protocol):
    """A session that folds its replies into a collector that it is given."""

    def collect(self, collector: Collector, round: int, exchange: int) -> Exchange: ...


class ClientGroup:
    """The group where its clients are. `session` is one of these clients alone."""

    def __init__(self, session: Collecting, blocks: Mapping[str, int]) -> None:
        self.session, self.blocks = session, dict(blocks)  # of its clients, in their order

    def handle(self, blob: bytes) -> bytes:
        """The answer to a question; an error is an answer, too."""
        try:
            return encode_tree(self._answer(decode_tree(blob)))
        except FedspanError as error:
            client = error.client if isinstance(error, InputError) else None
            return encode_tree({"error": str(error), "kind": type(error).__name__, "client": client})

    def _answer(self, asked: _Tree) -> object:
        if asked["what"] == "snapshot":
            return self.session.snapshot()
        if asked["what"] == "restore":
            self.session.restore(build(SessionSnapshot, asked["saved"]), int(asked["after"]))
            return {}
        want = Each() if asked["names"] is None else Sum(*asked["names"])
        ask = Ask(asked["task"], asked["arrays"], want, privately=asked["privately"])
        cohort = tuple(self.blocks if asked["cohort"] is None else asked["cohort"])
        collector = Collector(ask, cohort, self.blocks, apart=True)
        event = self.session.collect(collector, asked["round"], asked["exchange"])
        collector.close_block()
        parts = collector.parts if isinstance(want, Sum) else [("", collector.each)]
        done = {
            "down": np.array(event.bytes_down),
            "up": np.array(event.bytes_up),
            "seconds": np.array(event.seconds),
        }
        missing, failures = event.missing, event.failures
        return {"parts": parts, "done": done, "missing": missing, "failures": failures}

    def close(self) -> None:
        """Let the clients go."""
        self.session.close()


class GroupedSession:
    """A session whose clients are in groups: it asks all groups at once, and adds up what they give."""

    def __init__(self, links: Sequence[Link], shares: Sequence[Sequence[str]], blocks: Mapping[str, int]) -> None:
        self.links, self.blocks = list(links), blocks
        self.sizes = [len(names) for names in shares]
        self.group_of = {name: i for i, names in enumerate(shares) for name in names}

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        summed = isinstance(ask.want, Sum) and not isinstance(ask.want, PackedSum)
        shares: dict[int, list[str]] = {}
        for client in cohort:
            shares.setdefault(self.group_of[client], []).append(client)
        for at, names in shares.items():
            question = {
                "what": "exchange",
                "task": ask.task,
                "arrays": ask.arrays,
                "privately": {name: ask.privately[name] for name in names if name in ask.privately},
                "cohort": None if len(names) == self.sizes[at] else names,
                "names": list(ask.want.names) if summed and isinstance(ask.want, Sum) else None,
                "round": round,
                "exchange": exchange,
            }
            self.links[at].send(encode_tree(question))
        answers = self._receive(shares)
        collector = Collector(ask, cohort, None if summed else self.blocks)
        done: dict[str, _Done] = {}
        missing, failures = set[str](), dict[str, str]()
        each: dict[str, Arrays] = {}
        for at, names in shares.items():
            answer = answers[at]
            missing |= set(answer["missing"])
            failures |= answer["failures"]
            costs = (answer["done"][column].tolist() for column in ("down", "up", "seconds"))
            done |= {name: _Done(*one) for name, *one in zip(names, *costs, strict=True)}
            for first, part in answer["parts"]:
                if summed:
                    collector.add_part(first, part)
                else:
                    each |= part
        for client in cohort:
            if client in missing or not summed:
                collector.add(client, None if client in missing else each[client], failures.get(client))
        event = Exchange(
            round,
            exchange,
            ask.task,
            cohort,
            bytes_down=tuple(done[client].down for client in cohort),
            bytes_up=tuple(done[client].up for client in cohort),
            seconds=tuple(done[client].seconds for client in cohort),
            missing=tuple(collector.missing),
            failures=collector.failures,
        )
        return collector.replies(), event

    def _receive(self, groups: Iterable[int]) -> dict[int, _Tree]:
        """The answers of all groups that were asked; the first error among them is raised once all are here."""
        answers = {at: decode_tree(self.links[at].receive()) for at in groups}
        for answer in answers.values():
            if isinstance(answer, dict) and "error" in answer:
                kind = vars(errors).get(answer["kind"])
                known = isinstance(kind, type) and issubclass(kind, FedspanError) and kind is not MissingExtraError
                error = kind(answer["error"]) if kind and known else FedspanError(answer["error"])
                if isinstance(error, InputError):
                    error.client = answer["client"]
                raise error
        return answers

    def snapshot(self) -> SessionSnapshot:
        for link in self.links:
            link.send(encode_tree({"what": "snapshot"}))
        answers = self._receive(range(len(self.links)))
        saved = [build(SessionSnapshot, tree) for tree in answers.values()]
        hub = HubSnapshot(
            {name: memory for one in saved for name, memory in one.hub.down.items()},
            {name: memory for one in saved for name, memory in one.hub.up.items()},
        )
        return SessionSnapshot(hub, {name: site for one in saved for name, site in one.sites.items()})

    def ask_to_restore(self, at: int, saved: SessionSnapshot, after: int) -> bytes:
        """The question that gives a group what its clients remembered."""
        hub = HubSnapshot(
            {name: memory for name, memory in saved.hub.down.items() if self.group_of[name] == at},
            {name: memory for name, memory in saved.hub.up.items() if self.group_of[name] == at},
        )
        sites = {name: site for name, site in saved.sites.items() if self.group_of[name] == at}
        return encode_tree({"what": "restore", "saved": SessionSnapshot(hub, sites), "after": after})

    def restore(self, saved: SessionSnapshot, after: int) -> None:
        for at, link in enumerate(self.links):
            link.send(self.ask_to_restore(at, saved, after))
        self._receive(range(len(self.links)))

    def close(self) -> None:
        for link in self.links:
            link.close()
