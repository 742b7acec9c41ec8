"""What the tests of matching share: lists of ids that overlap, and runs whose clients' memories can be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspan.algorithms.matching.canonical_ids import canonical
from fedspan.algorithms.matching.match_by_tags import IdList, MatchByTags
from fedspan.core.ledger import Ledger
from fedspan.core.run import Session, run
from fedspan.engines import InProcess


class Watched(InProcess):
    """An engine whose last session can be asked what its clients remember."""

    session: Session

    def start(self, *given: Any, **named: Any) -> Session:
        self.session = super().start(*given, **named)
        return self.session


@dataclass(frozen=True)
class Matched:
    """What every client ends with."""

    rows: dict[str, np.ndarray]
    entities: int
    ledger: Ledger


def overlapping(parties: int, each: int, common: int, seed: int = 0) -> dict[str, list[str]]:
    """Lists that share `common` ids, each written in its own way and shuffled."""
    rng = np.random.default_rng(seed)
    lists = {}
    for i in range(parties):
        ids = [f"Person {j}" for j in range(common)] + [f"only {i} {j}" for j in range(each - common)]
        rng.shuffle(ids)
        lists[f"p{i}"] = [one.upper() if i % 2 else f" {one}" for one in ids]
    return lists


def match(server: MatchByTags, lists: Mapping[str, Any], seed: int = 0, **demands: Any) -> Matched:
    """Run it in this process."""
    data = {name: IdList(ids, workers=1, **demands) for name, ids in lists.items()}
    engine = Watched(data, threads=1)
    result = run(server, engine, rounds=0, seed=seed)
    rows: dict[str, Any] = {name: site.state for name, site in engine.session.snapshot().sites.items()}
    return Matched({name: state.rows for name, state in rows.items()}, result.state.entities, result.ledger)


def spelled(lists: Mapping[str, Any], matched: Matched) -> dict[str, list[bytes | None]]:
    """The entities in the common order, as each client knows them."""
    return {
        name: [None if at < 0 else canonical(lists[name][at]) for at in rows] for name, rows in matched.rows.items()
    }
