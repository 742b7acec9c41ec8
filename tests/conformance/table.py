"""Every algorithm, one row each. A new algorithm adds its row here, and all properties are tested for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

from fedspan.algorithms import (
    AltMaxVar,
    ColumnsKrylov,
    CuteMaxVar,
    Davidson,
    DeepMaxVar,
    DrSvd,
    Faps,
    FedAdam,
    FedAvg,
    FedPower,
    FedSgd,
    Gram,
    KeptMaxVar,
    Krylov,
    Limit,
    LocalPower,
    LocalSsca,
    LogisticNewton,
    MaxVarDavidson,
    MaxVarKrylov,
    Mvlsa,
    NoisyGram,
    NoisyPower,
    NoisyRefine,
    PaperNoise,
    PerPca,
    PersonalAuto,
    PersonalEigen,
    PersonalPaper,
    RegressionNewton,
    Sampling,
    Scaffold,
    Ssca,
    SscaMomentum,
    Ssi,
    StudyViews,
    Uda,
    VerticalGuarded,
    VerticalLinear,
    VerticalSgd,
    VerticalSsca,
    Wda,
)
from fedspan.algorithms.gcca.deep import DeepView
from fedspan.core.protocol import Array, Server, declared_releases
from fedspan.numerics.swish import Swish
from fedspan.privacy.plan import Plan, plan_for
from fedspan.privacy.request import RowDP

Clients = Mapping[str, Array]


def hospitals() -> Clients:
    """Five uneven clients of rows with 12 features: a decaying spectrum, a mean that is not zero.

    The deviations of the features are within a factor of 3: the coarsest channel must not round a scale to zero.
    """
    rng = np.random.default_rng(7)
    mix = scipy.fft.idct(np.eye(12), axis=0, norm="ortho") * 0.75 ** np.arange(12)
    sizes = {"ada": 40, "bo": 13, "cy": 25, "dee": 2, "eve": 31}
    return {name: rng.normal(size=(n, 12)) @ mix.T + np.arange(12) for name, n in sizes.items()}


def views() -> Clients:
    """Four views of 40 entities with 4 to 6 features: two common factors, a mean that is not zero."""
    rng = np.random.default_rng(8)
    common = rng.normal(size=(40, 2))
    widths = {"ada": 6, "bo": 4, "cy": 5, "dee": 4}
    return {name: common @ rng.normal(size=(2, n)) + 0.3 * rng.normal(size=(40, n)) + 1.0 for name, n in widths.items()}


def views_with_gaps() -> Clients:
    """The same, where each view lacks some entities: their rows are NaN."""
    rng = np.random.default_rng(9)
    return {name: np.where(rng.random((40, 1)) < 0.2, np.nan, X) for name, X in views().items()}


def deep_views() -> Any:
    """Four views of 40 entities, with networks that hold all that a state must: batch norm, dropout, momentum."""
    from torch import nn, optim

    rng = np.random.default_rng(8)
    Z = rng.normal(size=(40, 2))

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))

    mixes = {name: rng.normal(size=(2, 3)) for name in ("ada", "bo", "cy", "dee")}
    kinds = {"ada": None, "dee": None, "bo": optim.RMSprop, "cy": lambda p: optim.SGD(p, lr=0.05, momentum=0.9)}
    return {name: DeepView(np.tanh(Z @ A), network, kinds[name]) for name, A in mixes.items()}


def labelled() -> Any:
    """The rows of `hospitals` around zero, with a class for each: its first feature is above the middle, or not."""
    return {name: (rows - np.arange(12), (rows[:, 0] > 0).astype(int)) for name, rows in hospitals().items()}


def labelled_views() -> Any:
    """Five views of the same rows, and their classes."""
    X, y = (np.concatenate(parts) for parts in zip(*labelled().values(), strict=True))
    return {name: (X[:, i:12:5], y) for i, name in enumerate(hospitals())}


ON_PARTS = (Limit(0.5, (1.0, -1.0), ((0,), (1,))), Limit(0.9, (1.0,), ((1,),)))


def in_parts(make: Any = labelled) -> Any:
    """The same with a part for each row."""
    return {name: (X, y, None, np.arange(len(y)) % 2, 2) for name, (X, y) in make().items()}


def measured_views() -> Any:
    """Five views of the rows of `measured`, and their counts."""
    X, y = (np.concatenate(parts) for parts in zip(*measured().values(), strict=True))
    return {name: (X[:, i:12:5], y) for i, name in enumerate(hospitals())}


def measured() -> Any:
    """The rows of `labelled`, with a count for each that depends on two features."""
    rng = np.random.default_rng(9)
    return {
        name: (rows, rng.poisson(np.exp(0.5 + 0.4 * rows[:, 0] - 0.3 * rows[:, 3])))
        for name, (rows, _) in labelled().items()
    }


NET = Swish(hidden=3, classes=2)
BIASED = Swish(hidden=3, classes=2, intercept=True, length2=100.0)


def principal(server: Any, clients: Clients) -> Array:
    """The leading eigenvectors (d, k) of the pooled rows, centered and scaled as the server was told to."""
    A = np.vstack(list(clients.values()))
    B = A - A.mean(axis=0) if server.center else A
    B = B / A.std(axis=0) if server.scale else B
    return np.linalg.eigh(B.T @ B)[1][:, ::-1][:, : server.k]


@dataclass(frozen=True, eq=False)
class Row:
    """An algorithm, and what is promised of it. Equal to itself only, so that its runs can be looked up by it."""

    server: Server[Any]
    rounds: int = 5  # for the tests that compare runs to the bit: enough to do all that it does
    clients: Callable[[], Clients] = hospitals
    enough: int = 100  # rounds in which it reaches the centralised answer,
    angle: float | None = 1e-6  # to this angle; None: the theory promises none
    answer: Callable[[Any, Clients], Array] = principal  # the centralised answer, (d, k)
    privacy: RowDP | None = None  # with which it must be run; then no lossy channel may be

    def plan(self) -> Plan | None:
        if self.privacy is None:
            return None
        return plan_for(self.privacy, declared_releases(self.server.client), self.server.planned())


SIMULATED = RowDP(epsilon=5.0, delta=1e-3, row_norm=15.0, simulate=True)  # keyed noise, so that runs repeat

TABLE: dict[str, Row] = {
    "ssi": Row(Ssi(k=3, tol=1e-9)),
    "ssi scaled": Row(Ssi(k=2, tol=1e-9, scale=True), enough=400),
    "krylov": Row(Krylov(k=3, tol=1e-9), rounds=4),
    "krylov restarted": Row(Krylov(k=2, tol=1e-9, center=False, keep=4)),
    "krylov rounded": Row(Krylov(k=3, tol=1e-7, rounded=True), angle=1e-4),
    "krylov wide": Row(Krylov(k=2, tol=1e-9, width="auto"), rounds=4),
    "krylov wide rounded": Row(Krylov(k=2, tol=1e-7, width=6, rounded=True, scale=True), rounds=4, angle=1e-4),
    "davidson": Row(Davidson(k=3, tol=1e-9)),
    "faps": Row(Faps(k=3, tol=1e-14), enough=400),
    "faps accelerated": Row(Faps(k=3, tol=1e-9, accelerate=True), rounds=12, enough=200),
    "localpower": Row(LocalPower(k=3, tol=1e-9)),
    "fedpower": Row(FedPower(k=3), angle=None),
    "uda": Row(Uda(k=3), rounds=2, angle=None),
    "wda": Row(Wda(k=3), rounds=2, angle=None),
    "drsvd": Row(DrSvd(k=3), rounds=2, angle=None),
    "gram": Row(Gram(k=3), rounds=2),
    "noisy gram": Row(NoisyGram(k=3), rounds=2, angle=None, privacy=SIMULATED),
    "noisy refine": Row(NoisyRefine(k=3), rounds=2, angle=None, privacy=SIMULATED),
    "noisy block": Row(NoisyPower(k=2, d=12, width=6, rounds=3, center=False), angle=None, privacy=SIMULATED),
    "paper noise": Row(PaperNoise(k=3, tol=0.0), angle=None),
    "gram scaled": Row(Gram(k=3, scale=True), rounds=2),
    "personal auto": Row(PersonalAuto(k=3), angle=None),
    "personal auto, sums": Row(PersonalAuto(k=3, share="sums", scale=True, collect=False), angle=None),
    "personal eigen": Row(PersonalEigen(k=2, center="global", rounds=3), angle=None),
    "personal paper": Row(PersonalPaper(k=2, rounds=3, start="random", count=3, shrinkage=30.0), angle=None),
    "perpca": Row(PerPca(k=3, rounds=3), angle=None),
    # Their clients hold views, not rows that could be split; tests/algorithms/test_maxvar.py has the answer's angle.
    "altmaxvar": Row(AltMaxVar(k=2, tol=0, last=5), clients=views, angle=None),
    "cutemaxvar": Row(CuteMaxVar(k=2, tol=0, local="sgd", batch=10, last=5), clients=views, angle=None),
    "mvlsa": Row(Mvlsa(k=2), rounds=2, clients=views, angle=None),
    "maxvar krylov": Row(MaxVarKrylov(k=2, tol=1e-9, last=5), clients=views, angle=None),
    "maxvar davidson": Row(MaxVarDavidson(k=2, tol=1e-9, last=5), clients=views, angle=None),
    "maxvar krylov rounded": Row(MaxVarKrylov(k=2, tol=1e-6, rounded=True, last=5), clients=views, angle=None),
    "maxvar krylov wide": Row(MaxVarKrylov(k=2, tol=1e-9, width="auto", last=5), clients=views, angle=None),
    "maxvar krylov twice": Row(
        MaxVarKrylov(k=2, tol=1e-9, width="auto", local_rank=3, last=5), clients=views, angle=None
    ),
    "maxvar krylov twice rounded": Row(
        MaxVarKrylov(k=2, tol=1e-6, width="auto", local_rank=3, rounded=True, last=5), clients=views, angle=None
    ),
    "kept maxvar": Row(KeptMaxVar(k=2, tol=1e-9, last=5), clients=views, angle=None),
    "kept maxvar masked": Row(KeptMaxVar(k=2, tol=1e-6, last=5, missing="mask"), clients=views_with_gaps, angle=None),
    "study of views": Row(
        StudyViews(k=2, ridges=(0.1, 1.0), folds=3, shuffles=3), rounds=15, clients=views, angle=None
    ),
    "columns krylov": Row(ColumnsKrylov(k=3, tol=1e-9, last=5), clients=views, angle=None),
    "columns krylov hidden": Row(
        ColumnsKrylov(k=3, tol=1e-7, hide=True, rounded=True, scale=True, last=5), clients=views, angle=None
    ),
    "deep maxvar": Row(DeepMaxVar(k=2, steps=3, batch_size=16, alpha=5.0), rounds=3, clients=deep_views, angle=None),
    "ssca": Row(Ssca(NET, batch=2, rounds=5), clients=labelled, angle=None),
    "ssca clipped": Row(Ssca(NET, batch=2, rounds=5, clip=0.5), clients=labelled, angle=None),
    "ssca private": Row(
        Ssca(NET, batch=4, rounds=5, private=Sampling(111, 12, 0.2, simulate=True)),
        clients=labelled,
        angle=None,
        privacy=SIMULATED,
    ),
    "ssca limited": Row(
        Ssca(NET, batch=2, rounds=6, objective="norm", limits=(Limit(0.6),)), rounds=6, clients=labelled, angle=None
    ),
    "ssca scaled": Row(Ssca(BIASED, batch=20, rounds=5, standardize=True), clients=labelled, angle=None),
    "fedsgd": Row(FedSgd(NET, batch=2, rounds=5, momentum=0.1), clients=labelled, angle=None),
    "fedavg": Row(FedAvg(NET, batch=2, rounds=5, steps=3), clients=labelled, angle=None),
    "fedavg scaled": Row(FedAvg(BIASED, batch=20, rounds=5, steps=3, standardize=True), clients=labelled, angle=None),
    "scaffold": Row(Scaffold(NET, batch=2, rounds=5, steps=3), clients=labelled, angle=None),
    "fedadam": Row(FedAdam(NET, batch=2, rounds=5, steps=3), clients=labelled, angle=None),
    "local ssca": Row(LocalSsca(BIASED, batch=20, rounds=5, steps=3, standardize=True), clients=labelled, angle=None),
    "local ssca corrected": Row(
        LocalSsca(NET, batch=20, rounds=5, steps=3, drift="correct"), clients=labelled, angle=None
    ),
    "local ssca beside a linear model": Row(
        LocalSsca(BIASED, batch=20, rounds=5, steps=3, standardize=True, blend=2000), clients=labelled, angle=None
    ),
    "vertical guarded": Row(
        VerticalGuarded(BIASED, batch=20, rounds=5, every=2, standardize=True), clients=labelled_views, angle=None
    ),
    "ssca as momentum": Row(SscaMomentum(NET, batch=2, rounds=5), clients=labelled, angle=None),
    "newton": Row(LogisticNewton(l2=0.01), rounds=4, clients=labelled, angle=None),
    "newton by gradients": Row(LogisticNewton(l2=0.01, solver="lbfgs"), rounds=6, clients=labelled, angle=None),
    "least squares": Row(RegressionNewton(), rounds=2, clients=measured, angle=None),
    "poisson regression": Row(RegressionNewton(loss="poisson"), rounds=4, clients=measured, angle=None),
    "huber regression": Row(RegressionNewton(loss="huber", robust=True), rounds=8, clients=measured, angle=None),
    "vertical least squares": Row(VerticalLinear(l2=0.01, rounds=4), rounds=4, clients=measured_views, angle=None),
    "vertical poisson": Row(VerticalLinear(loss="poisson", rounds=6), rounds=6, clients=measured_views, angle=None),
    "vertical huber": Row(
        VerticalLinear(loss="huber", l2=0.01, rounds=6), rounds=6, clients=measured_views, angle=None
    ),
    "vertical ssca": Row(VerticalSsca(NET, batch=10, rounds=5), clients=labelled_views, angle=None),
    "vertical ssca as printed": Row(
        VerticalSsca(NET, batch=10, rounds=5, objective="norm", limits=(Limit(0.6),), paper=True, exchange="each"),
        clients=labelled_views,
        angle=None,
    ),
    "ssca with limits on parts": Row(
        Ssca(NET, batch=2, rounds=6, limits=ON_PARTS, validation=0.2), rounds=6, clients=in_parts, angle=None
    ),
    "vertical ssca with limits on parts": Row(
        VerticalSsca(NET, batch=10, rounds=6, limits=ON_PARTS, validation=0.2),
        rounds=6,
        clients=lambda: in_parts(labelled_views),
        angle=None,
    ),
    "vertical ssca scaled": Row(
        VerticalSsca(BIASED, batch=10, rounds=5, standardize=True), clients=labelled_views, angle=None
    ),
    "vertical sgd": Row(VerticalSgd(NET, batch=10, rounds=5, momentum=0.1), clients=labelled_views, angle=None),
}
