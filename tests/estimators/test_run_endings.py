"""How fits end: on a checkpoint that has no rounds left, without answers, and with a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import fedspan
from fedspan import InputError, RowDP
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.errors import ClientError

RNG = np.random.default_rng(0)
CLIENTS = {name: RNG.normal(size=(40, 6)) @ RNG.normal(size=(6, 6)) for name in "abc"}
LABELS = {name: (X[:, 0] > 0).astype(int) for name, X in CLIENTS.items()}
VIEWS = dict(zip("abc", np.split(RNG.normal(size=(60, 9)) @ RNG.normal(size=(9, 9)), 3, axis=1), strict=True))
Fit = Callable[..., Any]

UNFINISHED: dict[str, Fit] = {
    "pca": lambda **more: fedspan.FederatedPCA(2, solver="ssi", tol=1e-12, max_rounds=3, random_state=0, **more).fit(
        CLIENTS
    ),
    "svd": lambda **more: fedspan.FederatedSVD(2, solver="ssi", tol=1e-12, max_rounds=2, random_state=0, **more).fit(
        CLIENTS
    ),
    "gcca": lambda **more: fedspan.FederatedGCCA(
        2, solver="altmaxvar", tol=1e-12, max_rounds=2, random_state=0, **more
    ).fit(VIEWS),
    "personalized": lambda **more: fedspan.PersonalizedPCA(
        2, method="eigen", shrinkage=5.0, tol=1e-15, max_rounds=2, random_state=0, **more
    ).fit(CLIENTS),
    "classifier": lambda **more: fedspan.FederatedClassifier(
        hidden=4, batch_size=10, rounds=5, cost_limit=1e-6, random_state=0, **more
    ).fit(CLIENTS, LABELS),
}


@pytest.mark.parametrize("task", UNFINISHED)
def test_a_second_fit_on_a_finished_checkpoint_is_the_same_model_with_the_same_warning(
    task: str, tmp_path: Path
) -> None:
    """Nothing is left to do, so the new ledger has no round: what is known comes from the state."""
    fits = []
    for _ in range(2):
        with pytest.warns(ConvergenceWarning) as told:
            fits.append((UNFINISHED[task](checkpoint=tmp_path), [str(w.message) for w in told]))
    (first, before), (second, after) = fits
    assert before == after
    assert second.n_rounds_ == first.n_rounds_
    assert second.history_ == []
    for name in first.learned:
        value = vars(first)[name]
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(vars(second)[name], value)


def test_the_warning_points_at_the_callers_line() -> None:
    with pytest.warns(ConvergenceWarning) as told:
        UNFINISHED["pca"]()
    assert told[0].filename == __file__


FITS: dict[str, Fit] = {
    "pca": lambda **fit: fedspan.FederatedPCA(2, random_state=0, engine=lossy).fit(CLIENTS, **fit),
    "svd": lambda **fit: fedspan.FederatedSVD(2, random_state=0, engine=lossy).fit(CLIENTS, **fit),
    "gcca": lambda **fit: fedspan.FederatedGCCA(2, random_state=0, engine=lossy).fit(VIEWS, **fit),
    "personalized": lambda **fit: fedspan.PersonalizedPCA(2, random_state=0, engine=lossy).fit(CLIENTS, **fit),
    "classifier": lambda **fit: fedspan.FederatedClassifier(
        hidden=2, batch_size=5, rounds=5, random_state=0, engine=lossy
    ).fit(CLIENTS, LABELS, **fit),
    "vertical-classifier": lambda **fit: fedspan.VerticalFederatedClassifier(
        hidden=2, batch_size=5, rounds=5, random_state=0, engine=lossy
    ).fit(VIEWS, np.arange(60) % 2, **fit),
}


def lossy(data: Any) -> InProcess:
    return InProcess(data, faults=Faults(lose_reply=0.3))


@pytest.mark.parametrize("task", FITS)
def test_clients_that_did_not_answer_are_asked_again_as_often_as_fit_says(task: str) -> None:
    model = FITS[task](retries=40)
    assert model.task == task
    assert any(row.get("missing") for row in model.ledger_.rows())
    with pytest.raises(ClientError):
        FITS[task](retries=0)
    with pytest.raises(InputError, match="retries must be a whole number of at least 0, but is -1"):
        FITS[task](retries=-1)


@pytest.mark.parametrize("task", FITS)
def test_every_model_writes_its_report(task: str, tmp_path: Path) -> None:
    model = FITS[task](retries=40)
    model.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert f"{model.seed_}" in page
    for write in (model.report, model.save):
        with pytest.raises(InputError, match=f"^Cannot write {tmp_path}/nowhere/it: No such file or directory; choose"):
            write(tmp_path / "nowhere" / "it")
    with pytest.raises(NotFittedError):
        clone(model).report(tmp_path / "unfitted.html")
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="loaded from a file, which does not hold the ledger"):
        type(model).load(tmp_path / "model").report(tmp_path / "again.html")
    assert not (tmp_path / "again.html").exists()


@pytest.mark.filterwarnings("ignore:Expected projection distance")
def test_the_report_of_a_private_fit_says_what_was_spent(tmp_path: Path) -> None:
    privacy = RowDP(5.0, 1e-3, 3.0, simulate=True)
    fedspan.FederatedPCA(2, privacy=privacy, secure=True, random_state=0).fit(CLIENTS).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "with ε = 5 at δ = 0.001; secure aggregation" in page
    assert "<dt>ε spent</dt>" in page
