"""What the benchmarks of FAPS share: its synthetic problem (23), (24), and a run until its stop (27) or a true KKT."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fedspan
from fedspan.algorithms import Faps, Krylov, LocalPower, Ssi
from fedspan.core.run import Info
from fedspan.estimators._options.spectral_solvers import build_spectral_channel

THREE: dict[str, Any] = {"SSI": Ssi(), "LocalPower": LocalPower(), "FAPS": Faps()}


def geometric(n: int, xi: float) -> np.ndarray:
    return xi ** -np.arange(n)  # (24)


def problem(seed: int, singular: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The clients' rows of A = UΣVᵀ, (23); U and V are orthonormalised uniform numbers."""
    rng, n = np.random.default_rng(seed), len(singular)
    U = np.linalg.qr(rng.uniform(-1, 1, (n, n)))[0]
    V = np.linalg.qr(rng.uniform(-1, 1, (sum(sizes), n)))[0]
    return np.split((V * singular) @ U.T, np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class Spent:
    """What a run took, and how good it was; rounds are infinite if its stop was not met."""

    rounds: float
    megabytes: float
    seconds: float  # of the processor
    kkt: float
    error: float  # relative, of the leading singular values
    curve: list[tuple[int, float]]  # (round, true scaled KKT violation)
    errors: list[float]  # relative, after each round

    def rounds_to(self, error: float) -> float:
        """Rounds until the relative error was at most that."""
        return next((float(t) for t, e in enumerate(self.errors, 1) if e <= error), np.inf)


class ReachedError(Exception):
    """The estimate is good enough."""


class Pooled:
    """All rows in one place, for the truth only: M = Σ A_iᵀA_i and its leading singular values."""

    def __init__(self, clients: Sequence[np.ndarray], k: int) -> None:
        self.clients, self.k = clients, k
        self.M = np.sum([A.T @ A for A in clients], axis=0)
        self.trace = float(np.trace(self.M))
        self.best = np.sqrt(np.linalg.eigvalsh(self.M)[::-1][:k])

    def prepared(self, solver: Any, kkt: float) -> Any:
        tol = kkt if isinstance(solver, Krylov) else 0.0  # the others are stopped from outside
        return replace(solver, k=self.k, center=False, **({"tol": tol} if hasattr(solver, "tol") else {}))

    def until(
        self, solver: Any, seed: int, most: int, *, kkt: float = 0.0, change: float = 0.0, bits: Any = None
    ) -> Spent:
        """Until the true KKT violation is at most `kkt`, or the objective changes by at most `change` of itself."""
        curve: list[tuple[int, float]] = []
        errors: list[float] = []
        objective, met = -1.0, False

        def watch(info: Info) -> None:
            nonlocal objective, met
            Z = np.linalg.qr(info.estimate.T)[0]
            MZ = self.M @ Z
            T = Z.T @ MZ
            before, objective = objective, float(np.trace(T))
            curve.append((info.round, float(np.linalg.norm(MZ - Z @ T)) / self.trace))
            values = np.sqrt(np.maximum(np.linalg.eigvalsh(T)[::-1], 0))
            errors.append(float(np.linalg.norm(values - self.best) / np.linalg.norm(self.best)))
            met = curve[-1][1] <= kkt or abs(objective - before) <= change * objective
            if met:
                raise ReachedError

        solver = self.prepared(solver, kkt)
        ledger, started = fedspan.Ledger(), time.process_time()
        engine = fedspan.engines.InProcess(self.clients, max_open=1000)
        with contextlib.suppress(ReachedError):
            channel = build_spectral_channel(solver, bits)
            fedspan.run(solver, engine, rounds=most, seed=seed, channel=channel, ledger=ledger, callback=watch)
        sent = (ledger.bytes_up + ledger.bytes_down) / 1e6
        spent = time.process_time() - started
        return Spent(ledger.rounds if met else np.inf, sent, spent, curve[-1][1], errors[-1], curve, errors)


def means(runs: Sequence[Spent]) -> dict[str, float]:
    numbers = ("rounds", "megabytes", "seconds", "kkt", "error")
    return {name: float(np.mean([getattr(run, name) for run in runs])) for name in numbers}
