"""How a run begins at a site: which algorithm, with which protection. Plain data in JSON; no code, no paths.

The site builds the algorithm from its own installed package, and takes from it which client it needs, with which
options, and which tasks it may be asked for. So a server cannot ask for anything that the named algorithm does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any

import fedspan.algorithms as algorithms
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.channel.recipe import channel_from, recipes_of
from fedspan.channel.stage import Channel
from fedspan.core.checkpoint import build, flatten, unflatten
from fedspan.core.protocol import Server
from fedspan.data.preparation import PLAIN, Preparation
from fedspan.errors import CheckpointError, FedspanError, ProtocolError, nearest
from fedspan.privacy.plan import Plan

KNOWN: dict[str, Any] = {
    name: kind for name in algorithms.__all__ if hasattr(kind := getattr(algorithms, name), "client")
} | {"AgreeOnColumns": AgreeOnColumns}
NAMES = tuple(KNOWN)  # fmt: skip


@dataclass(frozen=True)
class Opening:
    """What a site must know before it answers a run's questions. `part` numbers the runs of one job."""

    run: str
    part: int
    algorithm: Server[Any]
    channel: Channel
    seed: int
    clients: tuple[str, ...]
    plan: Plan | None = None
    threshold: int | None = None  # of secure sums
    table: Mapping[str, Any] = field(default_factory=dict)  # which of the site's tables, which of its columns
    told: Mapping[str, Any] = field(default_factory=dict)
    after: int | None = None  # go on from what was remembered after that round

    def to_json(self) -> str:
        plan = None if self.plan is None else {**asdict(self.plan), "budgets": None}  # a site keeps its own
        return json.dumps(
            {
                "run": self.run, "part": self.part, "algorithm": type(self.algorithm).__name__,
                "fields": plain_fields(self.algorithm), "channel": recipes_of(self.channel), "seed": self.seed,
                "clients": self.clients, "plan": plan, "threshold": self.threshold, "table": self.table,
                "told": self.told, "after": self.after,
            }
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Opening:
        """The opening in a message, or a refusal."""
        try:
            tree = json.loads(text)
            plan = None if tree["plan"] is None else Plan(**tree["plan"])
            return cls(
                identifier(tree["run"]), int(tree["part"]), algorithm_from(tree["algorithm"], tree["fields"]),
                channel_from(tree["channel"]), int(tree["seed"]), tuple(map(str, tree["clients"])), plan,
                tree["threshold"], dict(tree["table"]), dict(tree["told"]), tree["after"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError, CheckpointError) as error:
            if isinstance(error, FedspanError) and not isinstance(error, CheckpointError):
                raise
            raise ProtocolError(f"need the opening of a run, got something else ({error})") from None


def algorithm_from(name: Any, skeleton: Any) -> Server[Any]:
    """An algorithm of this package, by its name and the values of its fields."""
    if name not in NAMES:
        raise ProtocolError(f"need an algorithm of fedspan, got {name!r}; {nearest(str(name), NAMES)}")
    kind = KNOWN[name]
    values = unflatten(skeleton, {})
    default = {f.name: f.default for f in fields(kind) if f.name not in values and f.default is not MISSING}
    rebuilt: Server[Any] = build(kind, {**default, **values})
    return rebuilt


def plain_fields(algorithm: Server[Any]) -> Any:
    """The fields of an algorithm that a client could need: all but its class and what only the server starts from."""
    if type(algorithm).__name__ not in NAMES or not is_dataclass(algorithm):
        raise ProtocolError(f"{type(algorithm).__name__} is not in fedspan.algorithms: the sites do not have it")
    values = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if f.name not in ("client", "prior")}
    try:
        skeleton, arrays = flatten(values)
    except CheckpointError as error:
        raise ProtocolError(f"{type(algorithm).__name__} holds what cannot be sent to a site: {error}") from None
    if arrays:
        raise ProtocolError(f"{type(algorithm).__name__} holds arrays, which are not sent to sites")
    return skeleton


def identifier(name: Any) -> str:
    """A run's name, fit to be a folder's."""
    if not isinstance(name, str) or not name.isalnum() or not 8 <= len(name) <= 64:
        raise ProtocolError(f"need a run named by 8 to 64 letters and digits, got {name!r}")
    return name


def preparation_from(tree: Any) -> Preparation:
    """How a job wants the columns to be made, in plain data."""
    if tree is None:
        return PLAIN
    try:
        columns = None if tree["columns"] is None else tuple(map(str, tree["columns"]))
        words = {str(name): tuple(map(str, given)) for name, given in tree["categories"].items()}
        fill = {str(name): float(value) for name, value in tree["fill"].items()}
        return Preparation(**{**tree, "columns": columns, "categories": words, "fill": fill})
    except (KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"need the preparation of columns, got something else ({error})") from None
