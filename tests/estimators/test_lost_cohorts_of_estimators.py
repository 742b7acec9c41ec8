"""A whole cohort is lost: `fit` ends with a sentence, and the same `fit` later goes on from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import FederatedClassifier, FederatedGCCA, FederatedSVD, Participation, PersonalizedPCA
from fedspan.core.run import Info
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.errors import ClientError

RNG = np.random.default_rng(2)
NAMES = ("ada", "bo", "cy", "dee")
ROWS = {name: RNG.normal(size=(25, 6)) * [5, 3, 1, 1, 1, 1] for name in NAMES}
LABELS = {name: (X[:, 0] > 0).astype(int) for name, X in ROWS.items()}
COMMON = RNG.normal(size=(30, 2))
VIEWS = {name: COMMON @ RNG.normal(size=(2, 4)) + 0.2 * RNG.normal(size=(30, 4)) for name in NAMES}
SOME = Participation(count=2)

MODELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "personalized": (lambda **more: PersonalizedPCA(2, participation=SOME, **more), (ROWS,), "shared_components_"),
    "personalized eigen": (
        lambda **more: PersonalizedPCA(2, method="eigen", max_rounds=5, tol=0, **more),
        (ROWS,),
        "shared_components_",
    ),
    "fedpower": (
        lambda **more: FederatedSVD(2, solver="fedpower", participation=SOME, max_rounds=6, tol=0, **more),
        (ROWS,),
        "components_",
    ),
    "classifier": (
        lambda **more: FederatedClassifier(hidden=3, rounds=6, batch_size=5, participation=SOME, **more),
        (ROWS, LABELS),
        "coef_",
    ),
    "gcca": (lambda **more: FederatedGCCA(2, solver="altmaxvar", max_rounds=5, tol=0, **more), (VIEWS,), "common_"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_fit_says_that_nobody_answered_and_resumes(name: str, tmp_path: Path) -> None:
    make, data, learned = MODELS[name]
    lines: list[InProcess] = []

    def engine(clients: Any) -> InProcess:
        lines.append(InProcess(clients, threads=1))
        return lines[-1]

    def cut_the_line(info: Info) -> None:
        lines[-1].faults = Faults(lose_reply=1.0)

    options: dict[str, Any] = {"random_state": 0, "engine": engine}
    with pytest.raises(ClientError, match="resume from the checkpoint"):
        make(callback=cut_the_line, checkpoint=tmp_path, **options).fit(*data, min_clients=1)
    resumed = make(checkpoint=tmp_path, **options).fit(*data, min_clients=1)
    whole = make(**options).fit(*data, min_clients=1)
    assert "resumed after round 1" in resumed.ledger_.notes
    np.testing.assert_array_equal(getattr(resumed, learned), getattr(whole, learned))
