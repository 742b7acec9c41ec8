"""Every algorithm, one row each. A new algorithm adds its row here, and all properties are tested for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

from fedspan.algorithms import (
    Davidson,
    DrSvd,
    Faps,
    FedAvg,
    FedPower,
    FedSgd,
    Gram,
    Krylov,
    Limit,
    LocalPower,
    Ssca,
    SscaMomentum,
    Ssi,
    Uda,
    VerticalSgd,
    VerticalSsca,
    Wda,
)
from fedspan.numerics.swish import Swish
from fedspan.protocol import Array, Server

Clients = Mapping[str, Array]


def hospitals() -> Clients:
    """Five uneven clients of rows with 12 features: a decaying spectrum, a mean that is not zero.

    The deviations of the features are within a factor of 3: the coarsest channel must not round a scale to zero.
    """
    rng = np.random.default_rng(7)
    mix = scipy.fft.idct(np.eye(12), axis=0, norm="ortho") * 0.75 ** np.arange(12)
    sizes = {"ada": 40, "bo": 13, "cy": 25, "dee": 2, "eve": 31}
    return {name: rng.normal(size=(n, 12)) @ mix.T + np.arange(12) for name, n in sizes.items()}


def principal(server: Any, clients: Clients) -> Array:
    """The leading eigenvectors (d, k) of the pooled rows, centered and scaled as the server was told to."""
    A = np.vstack(list(clients.values()))
    B = A - A.mean(axis=0) if server.center else A
    B = B / A.std(axis=0) if server.scale else B
    return np.linalg.eigh(B.T @ B)[1][:, ::-1][:, : server.k]


def labelled() -> Any:
    """The same rows around zero, with a class for each: its first feature is above the middle, or not."""
    return {name: (rows - np.arange(12), (rows[:, 0] > 0).astype(int)) for name, rows in hospitals().items()}


def views() -> Any:
    """Five views of the same rows, and their classes."""
    X, y = (np.concatenate(parts) for parts in zip(*labelled().values(), strict=True))
    return {name: (X[:, i:12:5], y) for i, name in enumerate(hospitals())}


NET = Swish(hidden=3, classes=2)


@dataclass(frozen=True)
class Row:
    """An algorithm, and what is promised of it."""

    server: Server[Any]
    rounds: int = 5  # for the tests that compare runs to the bit: enough to do all that it does
    clients: Callable[[], Clients] = hospitals
    enough: int = 100  # rounds in which it reaches the centralised answer,
    angle: float | None = 1e-6  # to this angle; None: the theory promises none
    answer: Callable[[Any, Clients], Array] = principal  # the centralised answer, (d, k)


TABLE: dict[str, Row] = {
    "ssi": Row(Ssi(k=3, tol=1e-9)),
    "ssi scaled": Row(Ssi(k=2, tol=1e-9, scale=True), enough=400),
    "krylov": Row(Krylov(k=3, tol=1e-9), rounds=4),
    "krylov restarted": Row(Krylov(k=2, tol=1e-9, center=False, keep=4)),
    "krylov rounded": Row(Krylov(k=3, tol=1e-7, rounded=True), angle=1e-4),
    "davidson": Row(Davidson(k=3, tol=1e-9)),
    "faps": Row(Faps(k=3, tol=1e-14), enough=400),
    "faps accelerated": Row(Faps(k=3, tol=1e-9, accelerate=True), rounds=12, enough=200),
    "localpower": Row(LocalPower(k=3, tol=1e-9)),
    "fedpower": Row(FedPower(k=3), angle=None),
    "uda": Row(Uda(k=3), rounds=2, angle=None),
    "wda": Row(Wda(k=3), rounds=2, angle=None),
    "drsvd": Row(DrSvd(k=3), rounds=2, angle=None),
    "gram": Row(Gram(k=3), rounds=2),
    "ssca": Row(Ssca(NET, batch=2, rounds=5), clients=labelled, angle=None),
    "ssca clipped": Row(Ssca(NET, batch=2, rounds=5, clip=0.5), clients=labelled, angle=None),
    "ssca limited": Row(
        Ssca(NET, batch=2, rounds=6, objective="norm", limits=(Limit(0.6),)), rounds=6, clients=labelled, angle=None
    ),
    "fedsgd": Row(FedSgd(NET, batch=2, rounds=5, momentum=0.1), clients=labelled, angle=None),
    "fedavg": Row(FedAvg(NET, batch=2, rounds=5, steps=3), clients=labelled, angle=None),
    "ssca as momentum": Row(SscaMomentum(NET, batch=2, rounds=5), clients=labelled, angle=None),
    "vertical ssca": Row(VerticalSsca(NET, batch=10, rounds=5), clients=views, angle=None),
    "vertical ssca as printed": Row(
        VerticalSsca(NET, batch=10, rounds=5, objective="norm", limits=(Limit(0.6),), paper=True, exchange="each"),
        clients=views,
        angle=None,
    ),
    "vertical sgd": Row(VerticalSgd(NET, batch=10, rounds=5, momentum=0.1), clients=views, angle=None),
    "gram scaled": Row(Gram(k=3, scale=True), rounds=2),
}
