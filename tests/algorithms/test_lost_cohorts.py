"""When nobody of a cohort answers, a run ends with a sentence, and goes on from its checkpoint to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan.algorithms import (
    AltMaxVar,
    FedAvg,
    FedPower,
    FedSgd,
    MaxVarKrylov,
    PerPca,
    PersonalAuto,
    PersonalEigen,
    PersonalPaper,
    Ssca,
)
from fedspan.core.checkpoint import Checkpoint, flatten
from fedspan.core.participation import Participation
from fedspan.core.protocol import Server
from fedspan.core.run import Info, Result, run
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.errors import ClientError
from fedspan.numerics.swish import Swish

RNG = np.random.default_rng(2)
NAMES = ("ada", "bo", "cy", "dee")
ROWS = {name: RNG.normal(size=(25, 6)) * [5, 3, 1, 1, 1, 1] + i for i, name in enumerate(NAMES)}
COMMON = RNG.normal(size=(30, 2))
VIEWS = {name: COMMON @ RNG.normal(size=(2, 4)) + 0.2 * RNG.normal(size=(30, 4)) for name in NAMES}
LABELLED = {name: (X, (X[:, 0] > X[:, 0].mean()).astype(int)) for name, X in ROWS.items()}
NET = Swish(hidden=3, classes=2)
SOME = Participation(count=2)

CASES: list[tuple[Server[Any], Any, dict[str, Any], int, str]] = [
    (PersonalAuto(k=2, count=2), ROWS, {}, 1, "validate"),
    (PersonalAuto(k=2, share="sums", collect=False), ROWS, {}, 2, "retain"),
    (PersonalAuto(k=2), ROWS, {}, 2, "collect"),
    (PersonalEigen(k=2, rounds=4, tol=0, shrinkage=3.0), ROWS, {}, 2, "step"),
    (PersonalPaper(k=2, rounds=5, count=2, shrinkage=3.0, tol=0), ROWS, {}, 2, "descend"),
    (PerPca(k=2, rounds=4, tol=0), ROWS, {}, 2, "deflate"),
    (FedPower(k=2, fraction=0.5), ROWS, {}, 1, "show"),
    (FedPower(k=2, fraction=0.5, align="none"), ROWS, {}, 1, "iterate"),
    (FedPower(k=2, p=1, count=2, scheme=1), ROWS, {}, 3, "multiply"),
    (Ssca(NET, batch=5, rounds=6), LABELLED, {"participation": SOME}, 3, "gradient"),
    (Ssca(NET, batch=5, rounds=6, clip=1.0), LABELLED, {"participation": SOME}, 3, "clipped"),
    (FedSgd(NET, batch=5, rounds=6), LABELLED, {"participation": SOME}, 3, "gradient"),
    (FedAvg(NET, batch=5, rounds=6, steps=2), LABELLED, {"participation": SOME}, 3, "local"),
    (AltMaxVar(k=2, tol=0, last=5), VIEWS, {}, 2, "update"),
    (MaxVarKrylov(k=2, tol=0, last=5), VIEWS, {}, 2, "fit_view"),
]


def solve(server: Server[Any], clients: Any, more: dict[str, Any], lose_after: int | None = None) -> Result[Any]:
    engine = InProcess(clients, threads=1)

    def cut_the_line(info: Info) -> None:
        if info.round == lose_after:
            engine.faults = Faults(lose_reply=1.0)

    return run(server, engine, rounds=6, seed=4, min_clients=1, retries=1, callback=cut_the_line, **more)


def bits(result: Result[Any]) -> Any:
    skeleton, arrays = flatten(result.state)
    return result.rounds, repr(skeleton), [np.ascontiguousarray(a).tobytes() for a in arrays.values()]


@pytest.mark.parametrize(
    ("server", "clients", "more", "last", "task"), CASES, ids=[f"{type(c[0]).__name__} {c[4]}" for c in CASES]
)
def test_a_lost_cohort_is_told_in_a_sentence_and_the_run_resumes_to_the_bit(
    server: Server[Any], clients: Any, more: dict[str, Any], last: int, task: str, tmp_path: Path
) -> None:
    """`last` is the last round that was complete, `task` what nobody answers in the next."""
    with pytest.raises(ClientError, match=rf"'{task}'.*resume from the checkpoint"):
        solve(server, clients, {**more, "checkpoint": Checkpoint(tmp_path)}, lose_after=last)
    resumed = solve(server, clients, {**more, "checkpoint": Checkpoint(tmp_path)})
    assert f"resumed after round {last}" in resumed.ledger.notes
    assert bits(resumed) == bits(solve(server, clients, more))
