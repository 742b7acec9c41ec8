"""Only a comparison: do the rows of all clients stand for the same entities, in the same order?

For methods that do not compare themselves; those on views ask the same questions at their beginning (gcca/entities.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.gcca.entities import MATCH_TASKS, MATCH_TURNS, Entities, EntitiesClient, match_entities
from fedspan.core.protocol import Client, Course, Replay, Round, Server
from fedspan.core.replay import CLOSE
from fedspan.core.rng import Streams


class OrderClient(EntitiesClient[None]):
    """A client whose rows have ids."""

    State = type(None)

    def __init__(self, data: Entities) -> None:
        self.entities = data

    def init(self) -> None:
        return None


@dataclass(frozen=True)
class SameOrder:
    """How many entities there are, once all clients have the same ones in the same order."""

    entities: int


@dataclass(frozen=True)
class CompareOrder(Server[SameOrder]):
    """One sum: whether all clients have the same ids in the same order. If not, the run is refused."""

    State: ClassVar[type] = SameOrder
    client: ClassVar[type[Client[object]]] = OrderClient
    family: ClassVar[str] = "matching"

    def asks(self) -> frozenset[str]:
        return MATCH_TASKS

    def course(self) -> Course:
        return Course(MATCH_TURNS)

    def replay(self) -> Replay | str:
        return {task: {"key": CLOSE} for task in MATCH_TASKS}

    def init(self, rng: Streams) -> Round[SameOrder]:
        entities, _ = yield from match_entities(rng)
        return SameOrder(entities)

    def round(self, state: SameOrder, rng: Streams) -> Round[SameOrder]:
        yield from ()
        return state

    def done(self, state: SameOrder) -> bool:
        return True

    def estimate(self, state: SameOrder) -> Array:
        return np.array([float(state.entities)])

    def metrics(self, state: SameOrder) -> dict[str, float]:
        return {"entities": float(state.entities)}
