"""Callbacks that log a run to MLflow or TensorBoard, and a way to use several at once.

A callback is anything that can be called with `info` after every round. The loggers are context managers too, so that a
run that failed is marked as such, and the last lines are written.

>>> from fedspan.core.callbacks import chain
>>> rounds = []
>>> both = chain(lambda info: rounds.append(info.round), lambda info: None)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from fedspan.core.ledger import Exchange, RoundEnd
from fedspan.core.run import Info
from fedspan.errors import MissingExtraError

Callback = Callable[[Info], None]


def chain(*callbacks: Callback) -> Callback:
    """One callback that calls each of these, in this order."""

    def call(info: Info) -> None:
        for callback in callbacks:
            callback(info)

    return call


class _Progress:
    """The metrics of a round and what the run has cost so far; every event of the ledger is read only once."""

    def __init__(self) -> None:
        self._seen = 0
        self._costs = {"bytes_up": 0.0, "bytes_down": 0.0, "seconds": 0.0}

    def collect(self, info: Info) -> dict[str, float]:
        """What to log after a round: finite numbers only."""
        for event in info.ledger.events[self._seen :]:
            if isinstance(event, Exchange):
                self._costs["bytes_up"] += sum(event.bytes_up)
                self._costs["bytes_down"] += sum(event.bytes_down)
            elif isinstance(event, RoundEnd):
                self._costs["seconds"] += event.seconds
        self._seen = len(info.ledger.events)
        return {name: value for name, value in info.metrics.items() if math.isfinite(value)} | self._costs


class MLflowLogger:
    """Every round's metrics, bytes and seconds as the metrics of one MLflow run, which begins with the first round.

    Parameters:
        tracking_uri: A server or a folder, as MLflow names them; None: whatever MLflow is configured to use. The extra
            installs MLflow's light client; for a database ("sqlite:///mlflow.db"), install mlflow itself.
        experiment: The name of the experiment, which is created if it does not exist.
        run_name: The name of the run; None: MLflow makes one up.
        params: What to log as the run's parameters, for example `estimator.get_params()`.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str = "fedspan",
        run_name: str | None = None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtraError("Logging to MLflow", "mlflow") from None
        self._client = MlflowClient(tracking_uri)
        self._experiment, self._name, self._params = experiment, run_name, dict(params or {})
        self._progress = _Progress()
        self.run_id: str | None = None

    def __call__(self, info: Info) -> None:
        from mlflow.entities import Metric

        run, now = self.run_id or self._begin(), int(1000 * time.time())
        progress = self._progress.collect(info)
        self._client.log_batch(run, [Metric(name, value, now, info.round) for name, value in progress.items()])

    def _begin(self) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(self._experiment)
        where = found.experiment_id if found else self._client.create_experiment(self._experiment)
        run_id: str = self._client.create_run(where, run_name=self._name).info.run_id
        params = [Param(name, str(value)) for name, value in self._params.items() if value is not None]
        self._client.log_batch(run_id, params=params)
        self.run_id = run_id
        return run_id

    def close(self, failed: bool = False) -> None:
        """Mark the run as finished, or as failed."""
        if self.run_id:
            self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)


class TensorBoardLogger:
    """Every round's metrics, bytes and seconds as scalars in an event file in `folder`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingExtraError("Logging to TensorBoard", "tensorboard") from None
        self._writer = EventFileWriter(os.fspath(folder))
        self._progress = _Progress()

    def __call__(self, info: Info) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in self._progress.collect(info).items()]
        self._writer.add_event(Event(step=info.round, wall_time=time.time(), summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
