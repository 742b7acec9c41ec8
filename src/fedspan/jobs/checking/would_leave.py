"""What would leave each client if a job ran: the tasks of the algorithm that would be chosen, in their own words."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from fedspan.algorithms.agree_columns import ColumnsClient
from fedspan.algorithms.registry import OPENINGS
from fedspan.channel.stage import Channel
from fedspan.core.protection import Protection
from fedspan.core.protocol import AnyServer, tasks_of
from fedspan.core.run import Session
from fedspan.data.preparation import Preparation
from fedspan.data.remote_tables import RemoteTable
from fedspan.errors import FedspanError
from fedspan.jobs.tasks import TASKS


class _Chosen(Exception):
    """The algorithm that a fit begins with."""

    def __init__(self, server: AnyServer) -> None:
        self.server = server


class _StoppedEngine:
    """An engine that reaches nobody: it ends with what would be asked."""

    def __init__(self, data: Mapping[str, object]) -> None:
        self.clients = sorted(data)

    def start(self, server: AnyServer, channel: Channel, seed: int, protection: Protection | None = None) -> Session:
        raise _Chosen(server)


class TableSize:
    """What must be known of the tables to choose an algorithm."""

    def __init__(self, features: Mapping[str, int], rows: Mapping[str, int], classes: int = 0) -> None:
        self.features, self.rows, self.classes = features, rows, max(2, classes)


def find_algorithm(task: str, options: Mapping[str, object], size: TableSize) -> AnyServer:
    """The algorithm that a job would begin with; raises what the estimator refuses."""
    model = TASKS[task].estimator(**{**options, "engine": _StoppedEngine, "checkpoint": None})  # type: ignore[arg-type]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _begin_fit(task, model, size)
    except _Chosen as chosen:
        return chosen.server
    raise FedspanError("This task asks its clients for nothing.")


def _begin_fit(task: str, model: object, size: TableSize) -> None:
    fit = model.fit  # type: ignore[attr-defined]
    if not TASKS[task].learns_label:
        fit({name: RemoteTable(d, rows=size.rows[name]) for name, d in size.features.items()})
        return
    n = 4 * size.classes
    y = np.arange(n) % size.classes
    X = {name: np.random.default_rng(0).normal(size=(n, d)) for name, d in size.features.items()}
    fit(X, y if TASKS[task].over == "views" else dict.fromkeys(X, y))


def describe_leaving(
    server: AnyServer, how: Preparation, *, privacy: Mapping[str, object], secure: bool, views: bool
) -> Sequence[str]:
    """Sentences on what the server would see."""
    lines = []
    if not views:
        agreed = tasks_of(ColumnsClient)
        if how.unsettled:
            lines.append(f"Before the run, of each client: {agreed['list_categories'].shows}.")
        if how.needs_means:
            whose = "summed over all clients" if secure else "of each client"
            lines.append(f"Before the run, {whose}: {agreed['add_up_columns'].shows}.")
    tasks = tasks_of(server.client)
    shown = [tasks[name].shows for name in sorted(server.asks()) if tasks[name].releases and tasks[name].shows]
    whose = "summed over all clients; no single client's values" if secure else "of each client"
    noise = f", with noise for ε = {privacy['epsilon']:g}, δ = {privacy['delta']:g}" if privacy else ""
    lines.append(f"With {type(server).__name__.lower()} ({whose}{noise}): {'; '.join(dict.fromkeys(shown))}.")
    if type(server) in OPENINGS:
        lines.append("After that, what the private method releases; its noise is planned from these first answers.")
    return [*lines, "The rows stay where they are."]
