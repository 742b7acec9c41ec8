"""How a run begins at a site: which algorithm, with which protection. Plain data in JSON; no code, no paths.

The site builds the algorithm from its own installed package, and takes from it which client it needs, with which
options, and which tasks it may be asked for. So a server cannot ask for anything that the named algorithm does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TypedDict

from fedspan._types import Json
from fedspan.algorithms.registry import ALGORITHMS
from fedspan.channel.recipe import ChannelRecipes, channel_from, recipes_of
from fedspan.channel.stage import Channel
from fedspan.core.checkpoint import build, field_values, flatten, unflatten
from fedspan.core.protocol import AnyServer
from fedspan.data.preparation import PLAIN, Preparation
from fedspan.errors import CheckpointError, ProtocolError, suggest
from fedspan.privacy.plan import Plan


class TableRequest(TypedDict, total=False):
    """Which of the site's tables, and how its columns become features. `alone`: each site decides for itself."""

    name: str | None
    preparation: Mapping[str, object] | None
    alone: bool


class _StartTree(TypedDict):
    """A `StartMessage` in JSON."""

    run: str
    part: int
    algorithm: str
    fields: object
    channel: ChannelRecipes
    seed: int
    clients: tuple[str, ...]
    plan: Plan | None
    threshold: int | None
    table: TableRequest
    told: dict[str, object]
    after: int | None


@dataclass(frozen=True)
class StartMessage:
    """What a site must know before it answers a run's questions. `part` numbers the runs of one job."""

    run: str
    part: int
    algorithm: AnyServer
    channel: Channel
    seed: int
    clients: tuple[str, ...]
    plan: Plan | None = None
    threshold: int | None = None  # of secure sums
    table: TableRequest = field(default_factory=TableRequest)
    told: Mapping[str, object] = field(default_factory=dict)
    after: int | None = None  # go on from what was remembered after that round

    def to_json(self) -> str:
        plan = None if self.plan is None else {**asdict(self.plan), "budgets": None}  # a site keeps its own
        tree = {
            "run": self.run,
            "part": self.part,
            "algorithm": type(self.algorithm).__name__,
            "fields": plain_fields(self.algorithm),
            "channel": recipes_of(self.channel),
            "seed": self.seed,
            "clients": self.clients,
            "plan": plan,
            "threshold": self.threshold,
            "table": self.table,
            "told": self.told,
            "after": self.after,
        }
        return json.dumps(tree)

    @classmethod
    def from_json(cls, text: str) -> StartMessage:
        """The start of a run in a message, or a refusal."""
        try:
            tree = build(_StartTree, json.loads(text))
        except (CheckpointError, ValueError) as error:
            raise ProtocolError(f"The server must say how a run starts, but sent something else: {error}") from None
        return cls(
            check_run_name(tree["run"]),
            tree["part"],
            algorithm_from(tree["algorithm"], tree["fields"]),
            channel_from(tree["channel"]),
            tree["seed"],
            tree["clients"],
            tree["plan"],
            tree["threshold"],
            tree["table"],
            tree["told"],
            tree["after"],
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
    """The fields of an algorithm that a client could need: all but what only the server starts from."""
    name = type(algorithm).__name__
    if name not in ALGORITHMS or not is_dataclass(algorithm):
        raise ProtocolError(f"{name} is not an algorithm of this package, so the sites do not have it.")
    values = {option: value for option, value in field_values(algorithm).items() if option != "prior"}
    try:
        skeleton, arrays = flatten(values)
    except CheckpointError as error:
        raise ProtocolError(f"{name} cannot be sent to a site: {error}") from None
    if arrays:
        raise ProtocolError(f"{name} has arrays among its options, and they are not sent to sites.")
    return skeleton


def check_run_name(name: object) -> str:
    """A run's name, if it is fit to be a folder's."""
    if not isinstance(name, str) or not name.isalnum() or not 8 <= len(name) <= 64:
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
