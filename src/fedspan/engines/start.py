"""How a run begins at a site: which algorithm, with which protection. Plain data in JSON; no code, no paths.

The site builds the algorithm from its own installed package, and takes from it which client it needs, with which
options, and which tasks it may be asked for. So a server cannot ask for anything that the named algorithm does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from typing import TypedDict

from fedspan._foreign import parse_json
from fedspan._types import Json
from fedspan.algorithms.registry import ALGORITHMS, OPENINGS
from fedspan.channel.recipe import ChannelRecipes, channel_from, recipes_of
from fedspan.channel.stage import Channel
from fedspan.core.checkpoint import build, field_values, flatten, unflatten
from fedspan.core.protocol import AnyServer, declared_releases
from fedspan.data.preparation import PLAIN, Preparation
from fedspan.errors import CheckpointError, ProtocolError, suggest
from fedspan.privacy.plan import Plan, plan_for
from fedspan.privacy.request import Neighbours, RowDP
from fedspan.secure.opening import Groups, digest_opening


class TableRequest(TypedDict, total=False):
    """Which of the site's tables, and how its columns become features. `alone`: each site decides for itself."""

    name: str | None
    preparation: Mapping[str, object] | None
    alone: bool


class NoiseRequest(TypedDict):
    """What a private run asks for. It says nothing of noise: each site works that out by itself."""

    epsilon: float
    delta: float
    row_norm: float
    neighbours: Neighbours
    simulate: bool


class _StartTree(TypedDict):
    """A `StartMessage` in JSON."""

    run: str
    part: int
    algorithm: str
    fields: object
    channel: ChannelRecipes
    seed: int
    clients: tuple[str, ...]
    privacy: NoiseRequest | None
    threshold: int | None
    table: TableRequest
    told: dict[str, object]
    after: int | None
    rounds: int
    verified: bool
    groups: Groups


@dataclass(frozen=True)
class StartMessage:
    """What a site must know before it answers a run's questions. `part` numbers the runs of one job.

    `digest` is that of all of it but `after`, as it came: what every site of a verified run must have been told alike,
    and what names the noise of a private one.
    """

    run: str
    part: int
    algorithm: AnyServer
    channel: Channel
    seed: int
    clients: tuple[str, ...]
    privacy: RowDP | None = None
    threshold: int | None = None  # of secure sums
    table: TableRequest = field(default_factory=TableRequest)
    told: Mapping[str, object] = field(default_factory=dict)
    after: int | None = None  # go on from what was remembered after that round
    rounds: int = 0  # the most that the run may take
    verified: bool = False  # whether the sites check what they are asked and shown
    groups: Groups = ()  # of sites, over which verified sums are taken
    digest: bytes = b""

    def to_json(self) -> str:
        tree = {
            "run": self.run,
            "part": self.part,
            "algorithm": type(self.algorithm).__name__,
            "fields": plain_fields(self.algorithm),
            "channel": recipes_of(self.channel),
            "seed": self.seed,
            "clients": self.clients,
            "privacy": None if self.privacy is None else _to_request(self.privacy),
            "threshold": self.threshold,
            "table": self.table,
            "told": self.told,
            "after": self.after,
            "rounds": self.rounds,
            "verified": self.verified,
            "groups": self.groups,
        }
        return json.dumps(tree)

    @cached_property
    def plan(self) -> Plan | None:
        """The noise of this run, as whoever holds the message works it out: from the request and the algorithm."""
        if self.privacy is None:
            return None
        spread = count_noise_sharers(len(self.clients), self.threshold)
        client = self.algorithm.client
        opens = type(self.algorithm) in OPENINGS
        return plan_for(self.privacy, declared_releases(client), self.algorithm.planned(), spread=spread, opens=opens)

    def name_noise(self) -> str:
        """The name under which a site releases and charges: a run that begins in another way is another one."""
        return f"{self.run}.{self.part}.{self.digest.hex()[:16]}"

    @classmethod
    def from_json(cls, text: str) -> StartMessage:
        """The start of a run in a message, or a refusal."""
        try:
            plain = parse_json(text, constants=True)
            tree = build(_StartTree, plain)
        except (CheckpointError, ValueError) as error:
            raise ProtocolError(f"The server must say how a run starts, but sent something else: {error}") from None
        return cls(
            check_run_name(tree["run"]),
            tree["part"],
            algorithm_from(tree["algorithm"], tree["fields"]),
            channel_from(tree["channel"]),
            tree["seed"],
            tree["clients"],
            None if tree["privacy"] is None else RowDP(**tree["privacy"]),
            tree["threshold"],
            tree["table"],
            tree["told"],
            tree["after"],
            tree["rounds"],
            tree["verified"],
            tree["groups"],
            digest_opening({key: value for key, value in plain.items() if key != "after"}),
        )


def count_noise_sharers(clients: int, threshold: int | None) -> int:
    """How many clients share the noise of a sum: all, if every one of them must be in it; else each adds all of it.

    Otherwise the difference of two sums, with and without one client, would have that client's share of the noise only.
    """
    return clients if threshold == clients else 1


def _to_request(dp: RowDP) -> NoiseRequest:
    if not isinstance(dp.row_norm, int | float):
        raise ProtocolError(f"A private run must begin with a number as row_norm, not with {dp.row_norm!r}.")
    return NoiseRequest(
        epsilon=float(dp.epsilon),
        delta=float(dp.delta),
        row_norm=float(dp.row_norm),
        neighbours=dp.neighbours,
        simulate=dp.simulate,
    )


def algorithm_from(name: object, skeleton: object) -> AnyServer:
    """An algorithm of this package, by its name and the values of its fields."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ProtocolError(f"{name!r} is not an algorithm of fedspan. {suggest(str(name), ALGORITHMS)}")
    try:
        return build(ALGORITHMS[name], unflatten(skeleton, {}), defaults=True)
    except (CheckpointError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"The options of {name} do not fit: {error}") from None


def plain_fields(algorithm: AnyServer) -> Json:
    """The fields of an algorithm as a site needs them, to ask and to check; an earlier model stays at the server."""
    name = type(algorithm).__name__
    if name not in ALGORITHMS or not is_dataclass(algorithm):
        raise ProtocolError(f"{name} is not an algorithm of this package, so the sites do not have it.")
    values = field_values(algorithm)
    try:
        if flatten(values.get("prior"))[1]:
            values = {option: value for option, value in values.items() if option != "prior"}
        skeleton, arrays = flatten(values)
    except CheckpointError as error:
        raise ProtocolError(f"{name} cannot be sent to a site: {error}") from None
    if arrays:
        raise ProtocolError(f"{name} has arrays among its options, and they are not sent to sites.")
    return skeleton


def check_run_name(name: object) -> str:
    """A run's name, if it is fit to be a folder's."""
    if not isinstance(name, str) or not (name.isascii() and name.isalnum()) or not 8 <= len(name) <= 64:
        raise ProtocolError(f"A run must be named by 8 to 64 letters and digits, not {name!r}.")
    return name


def preparation_from(tree: Mapping[str, object] | None) -> Preparation:
    """How a job wants the columns to be made, from plain data."""
    if tree is None:
        return PLAIN
    try:
        return build(Preparation, tree)
    except CheckpointError as error:
        raise ProtocolError(f"The preparation of the columns does not fit: {error}") from None
