"""Runs whose questions rounding decides as much as can be, recorded: what was asked, and what was heard.

As a script it records all of them under whatever BLAS kernel OPENBLAS_CORETYPE names, into one file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))

from table import TABLE

from fedspan.algorithms import Faps, Gram, Krylov, LocalPower, PersonalEigen, PersonalPaper, Ssi
from fedspan.core.checkpoint import load_tree, save_tree
from fedspan.core.ledger import Exchange
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Replies, tasks_of
from fedspan.core.run import Session, run
from fedspan.engines import InProcess
from fedspan.secure.masking import Secure

SEED = 11


def spectrum(values: np.ndarray, seed: int = 0, rows: int = 400) -> Mapping[str, Any]:
    """Four clients whose pooled second moments have exactly (to rounding) these eigenvalues."""
    rng = np.random.default_rng(seed)
    d = len(values)
    U, _ = np.linalg.qr(rng.normal(size=(rows, d)))
    V, _ = np.linalg.qr(rng.normal(size=(d, d)))
    X = (U * np.sqrt(1e4 * values)) @ V.T
    return {f"c{i}": X[i::4] for i in range(4)}


D = 60
SPECTRA = {
    "decaying": 0.8 ** np.arange(D),
    "flat": np.ones(D),
    "doubled": np.repeat(0.7 ** np.arange(D // 2), 2),
    "two levels": np.where(np.arange(D) < 7, 1.0, 0.1),
    "low rank": np.where(np.arange(D) < 3, 1.0 + np.arange(D), 0.0),
    "nearly doubled": np.repeat(0.7 ** np.arange(D // 2), 2) * (1 + 1e-9 * (np.arange(D) % 2)),
}
SOLVERS = {
    "krylov": Krylov(k=5, tol=1e-6, center=False),
    "krylov 1e-12": Krylov(k=5, tol=1e-12, center=False),
    "krylov short": Krylov(k=5, tol=1e-9, center=False, keep=4),
    "krylov on a grid": Krylov(k=5, tol=1e-6, center=False, rounded=True),
    "krylov on a grid 1e-9": Krylov(k=5, tol=1e-9, center=False, rounded=True),
    "krylov wide": Krylov(k=5, tol=1e-6, center=False, width="auto"),
    "krylov wide 1e-12": Krylov(k=3, tol=1e-12, center=False, width="auto"),
    "krylov wide on a grid": Krylov(k=5, tol=1e-6, center=False, width="auto", rounded=True),
    "krylov wide on a grid 1e-9": Krylov(k=3, tol=1e-9, center=False, width=9, rounded=True),
    "ssi": Ssi(k=5, tol=1e-6, center=False),
    "ssi 1e-12": Ssi(k=5, tol=1e-12, center=False),
    "localpower": LocalPower(k=5, tol=1e-6, center=False),
    "faps": Faps(k=5, center=False),
    "gram": Gram(k=5, center=False),
    "personal eigen": PersonalEigen(k=3, share="sums", collect=False, center="none", rounds=5),
    "personal paper": PersonalPaper(k=3, share="sums", collect=False, center="none", rounds=5),
}
QUALIFYING = [name for name, row in TABLE.items() if not isinstance(row.server.replay(), str)]


def cases() -> dict[str, tuple[Any, Any, int, Any]]:
    """Name → (algorithm, clients, rounds, plan)."""
    found: dict[str, tuple[Any, Any, int, Any]] = {}
    for name in QUALIFYING:
        row = TABLE[name]
        found[name] = (row.server, row.clients, max(row.rounds, 12), row.plan())
    for solver, algorithm in SOLVERS.items():
        for kind, values in SPECTRA.items():
            if solver.startswith("personal") and kind not in ("decaying", "nearly doubled"):
                continue  # the k components that a run starts from are then any of many, and sites cannot tell which
            found[f"{solver}, {kind}"] = (algorithm, lambda values=values: spectrum(values), 40, None)
    return found


class Recorder:
    """A session that writes down what goes through it, and the engine that starts it."""

    def __init__(self, clients: Any) -> None:
        self.engine, self.record = InProcess(clients, threads=1), []
        self.clients = self.engine.clients

    def start(self, server: Any, channel: Any, seed: int, protection: Protection | None = None) -> Session:
        self.inner = self.engine.start(server, channel, seed, protection)
        self.plan, self.kind = protection.plan if protection else None, server.client
        return self

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        question = {name: np.array(x) for name, x in ask.arrays.items()}
        ask = replace(ask, narrow={})  # verified sums come at full width
        replies, event = self.inner.exchange(ask, cohort, round, exchange)
        total = dict(replies.total)
        if self.plan:
            total = self.plan.to_numbers(ask.task, tasks_of(self.kind)[ask.task].releases, total)
        to = None if ask.to is None else list(ask.to)
        wrapped = {name: marks for name, marks in replies.wrapped.items() if marks.any()}
        self.record.append([[round, exchange], ask.task, question, to, total, dict(replies.each), wrapped])
        return replies, event

    def snapshot(self) -> Any: ...
    def restore(self, saved: Any, after: int) -> None: ...

    def close(self) -> None:
        self.inner.close()


def record_run(name: str) -> list[Any]:
    algorithm, clients, rounds, plan = cases()[name]
    recorder = Recorder(clients())
    run(algorithm, recorder, rounds=rounds, seed=SEED, secure=Secure(), privacy=plan)
    return recorder.record


def read_runs(path: Path) -> dict[str, list[Any]]:
    return dict(load_tree(path, "runs"))


if __name__ == "__main__":
    save_tree(sys.argv[1], "runs", {name: record_run(name) for name in cases()})
