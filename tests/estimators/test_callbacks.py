"""The course of a run, read back from where the callbacks wrote it, by the readers of those who own the formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import FederatedClassifier, FederatedPCA
from fedspan.core.callbacks import MLflowLogger, TensorBoardLogger, chain
from fedspan.errors import MissingExtraError

rng = np.random.default_rng(0)
CLIENTS = {"a": rng.normal(size=(60, 8)) * np.arange(1, 9), "b": rng.normal(size=(30, 8))}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of MLflow in a folder."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def expected(model: Any, name: str) -> list[float]:
    return [row[name] for row in model.history_ if row["round"] > 0]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow_has_every_round(store: str) -> None:
    from mlflow.tracking import MlflowClient

    model = FederatedPCA(2, solver="ssi", tol=1e-3, random_state=0)
    with MLflowLogger(store, "hospitals", "first", model.get_params()) as log:
        model.set_params(callback=log).fit(CLIENTS)
    client = MlflowClient(store)
    run = client.get_run(log.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["solver"] == "ssi"
    assert client.get_experiment(run.info.experiment_id).name == "hospitals"
    for name in ("kkt", "objective", "bytes_up", "bytes_down", "seconds"):
        course = sorted(client.get_metric_history(log.run_id, name), key=lambda metric: metric.step)
        assert [metric.step for metric in course] == list(range(1, model.n_rounds_ + 1))
        assert [metric.value for metric in course] == pytest.approx(expected(model, name))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow_is_told_of_a_run_that_failed(store: str) -> None:
    from mlflow.tracking import MlflowClient

    def fail(info: Any) -> None:
        raise RuntimeError("here")

    with pytest.raises(RuntimeError), MLflowLogger(store) as log:
        FederatedPCA(2, solver="ssi", callback=chain(log, fail), random_state=0).fit(CLIENTS)
    assert MlflowClient(store).get_run(log.run_id).info.status == "FAILED"


def test_tensorboard_has_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    y = {name: np.where(rows[:, 0] > 0, 1, 0) for name, rows in CLIENTS.items()}
    model = FederatedClassifier(hidden=4, rounds=12, batch_size=10, cost_limit=0.5, random_state=0)
    seen: list[int] = []
    with TensorBoardLogger(tmp_path / "tb") as log:
        model.set_params(callback=chain(log, lambda info: seen.append(info.round))).fit(CLIENTS, y)
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert seen == list(range(1, 13))
    for name in ("cost", "norm2", "constraint_1", "slack_1", "bytes_up", "bytes_down", "seconds"):
        course = events.Scalars(name)
        assert [point.step for point in course] == seen
        assert [point.value for point in course] == pytest.approx(expected(model, name), rel=1e-6)


def test_a_chain_calls_each_in_order() -> None:
    said: list[str] = []
    chain(lambda info: said.append("one"), lambda info: said.append("two"))(None)  # type: ignore[arg-type]
    assert said == ["one", "two"]


@pytest.mark.parametrize(("module", "make"), [("mlflow", MLflowLogger), ("tensorboard", TensorBoardLogger)])
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, make: Any
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fedspan\[{module}\]'"):
        make(str(tmp_path / "x"))
