"""Algorithm 1 of personalized PCA with its iterates in view: what figures 1 (a) and 2 share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from figures import NOISE, lam

from fedspan.algorithms import PersonalPaper
from fedspan.core.ledger import Ledger
from fedspan.core.protocol import Array
from fedspan.core.run import Info, run
from fedspan.engines import InProcess


class Watched(InProcess):
    """An engine whose clients' iterates can be looked at."""

    def start(self, *args: Any) -> Any:
        self.session = super().start(*args)
        return self.session


def iterates(
    train: list[Array], var_u: float, seed: int, rounds: int, step: Any, see: Callable[[list[Array]], None]
) -> Ledger:
    """Algorithm 1 from random points; `see` is shown all U_{i,t} after every round."""
    r = 10
    server = PersonalPaper(
        r, lam(var_u), "none", start="random", noise=NOISE, step=step, rounds=rounds, tol=-1.0, collect=False
    )
    engine = Watched(train, threads=1)

    def watch(info: Info) -> None:
        if info.round <= rounds:
            see([site.state.U for site in engine.session.sites.values()])

    return run(server, engine, rounds=rounds, seed=seed, callback=watch).ledger


def settled(curve: Sequence[float]) -> float:
    """The iteration from which on an error stays within 1 % of its end."""
    away = np.abs(np.array(curve) / curve[-1] - 1) > 0.01
    return float(np.max(np.nonzero(away)[0], initial=-1) + 2)
