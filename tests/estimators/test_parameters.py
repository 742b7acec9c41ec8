"""The table of parameters: constructors, checks, job files and docstrings say the same."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from fedspan import FederatedPCA, FederatedSVD, InputError
from fedspan.estimators.catalogue import ESTIMATORS
from fedspan.estimators.parameters import Parameter, parameters_of
from fedspan.jobs.model import rows_of
from fedspan.jobs.tasks import TASKS

# The public constructors: what stands before the star is positional.
SHARED = "privacy=None, secure=False, engine=None, callback=None, verbose=False, checkpoint=None, random_state=None"
SIGNATURES = {
    "FederatedPCA": "n_components=2, *, solver='auto', center=True, scale=False, whiten=False, tol=1e-06, "
    "max_rounds=200, local_steps=None, bits=None, width='auto', angle_tol=None, check=True, participation=None",
    "FederatedSVD": "n_components=2, *, solver='auto', scale=False, tol=1e-06, max_rounds=200, local_steps=None, "
    "bits=None, width='auto', angle_tol=None, check=True, participation=None",
    "FederatedGCCA": "n_components=2, *, solver='auto', local_solver='exact', local_steps=10, batch_size=None, "
    "bits=None, first_bits=8, start=None, ridge=0.0, folds=None, center=True, scale=False, tol=1e-06, "
    "max_rounds=200, patience=None",
    "DeepFederatedGCCA": "networks=None, n_components=2, *, bits=None, first_bits=8, local_steps=10, batch_size=1000, "
    "lr=0.001, weight_decay=0.0, rounds=50, optimizer=None, alpha=inf, tol=0.0",
    "PersonalizedPCA": "n_components=2, *, method='auto', shrinkage='auto', center=True, scale=False, tol=1e-08, "
    "max_rounds=500, local_steps=None, step=None, clip=None, collect=True, participation=None",
    "FederatedClassifier": "*, method='auto', hidden='auto', batch_size=100, rounds=1000, standardize=True, "
    "intercept=True, l2=None, validation=0.1, early_stopping=True, calibrate=True, cost_limit=None, limits=None, "
    "warm_start=False, strict=False, class_weight=None, model=None, local_steps=None, participation=None",
    "VerticalFederatedClassifier": "*, method='auto', hidden='auto', batch_size=100, rounds=1000, standardize=True, "
    "intercept=True, l2=None, validation=0.1, early_stopping=True, calibrate=True, cost_limit=None, limits=None, "
    "warm_start=False, class_weight=None, model=None, exchange='sum'",
    "VerticalPCA": "n_components=2, *, solver='krylov', center=True, scale=False, hide_scores=False, bits=None, "
    "tol=1e-06, max_rounds=200",
    "VerticalSVD": "n_components=2, *, solver='krylov', scale=False, hide_scores=False, bits=None, tol=1e-06, "
    "max_rounds=200",
    "VerticalFederatedRegressor": "*, loss='squared', l2=0.0, standardize=True, intercept=True, epsilon=1.35, "
    "tol=1e-14, max_rounds=500",
    "FederatedRegressor": "*, loss='squared', solver='auto', l2=0.0, standardize=True, intercept=True, epsilon=1.35, "
    "robust=False, tol=1e-14, max_rounds=100",
}


def shown(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_constructor_is_the_published_one(name: str) -> None:
    assert shown(inspect.signature(ESTIMATORS[name])) == f"({SIGNATURES[name]}, {SHARED})"


@pytest.mark.parametrize("kind", ESTIMATORS.values())
def test_the_table_has_the_constructors_names_order_and_defaults(kind: type) -> None:
    given = inspect.signature(kind).parameters
    assert list(parameters_of(kind)) == list(given)
    for name, row in parameters_of(kind).items():
        assert row.required == (given[name].default is inspect.Parameter.empty)
        assert row.required or row.default is given[name].default
        assert row.required or row.find_problem(row.default) is None, "the default is allowed"


@pytest.mark.parametrize("kind", ESTIMATORS.values())
def test_the_docstring_says_what_the_table_says(kind: type) -> None:
    text = inspect.getdoc(kind) or ""
    section = text.split("Parameters:\n")[1].split("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.M)
    said = {name: " ".join(words.split()) for name, words in entries}
    assert list(said) == list(parameters_of(kind))
    for name, row in parameters_of(kind).items():
        assert said[name].startswith(row.says.rstrip(".")), f"{kind.__name__}.{name}"


def test_all_wrong_parameters_are_told_at_once_and_only_by_fit() -> None:
    model = FederatedPCA(0, solver="krilov", tol=2, max_rounds=1.5, secure="yes", privacy=3)
    with pytest.raises(InputError) as refused:
        model.fit([np.eye(4)])
    for name in ("n_components", "solver", "tol", "max_rounds", "secure", "privacy"):
        assert f"{name} must be " in str(refused.value)
    assert str(refused.value).count(" must be ") == 6
    assert not hasattr(model, "n_rounds_")


def test_parameters_are_set_read_and_cloned_as_in_scikit_learn() -> None:
    model = FederatedSVD(3, tol=1e-3)
    assert clone(model.set_params(bits=4)).get_params() == model.get_params()
    assert "center" not in model.get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'componets'"):
        model.set_params(componets=2)
    with pytest.raises(TypeError, match="componets"):
        FederatedSVD(componets=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        FederatedSVD(2, "krylov")  # type: ignore[misc]


@pytest.mark.parametrize("task", TASKS)
def test_a_job_file_can_hold_what_can_be_written_down(task: str) -> None:
    kind = TASKS[task].estimator
    assert kind.task == task
    python_only = {"privacy", "secure", "engine", "callback", "verbose", "checkpoint", "model", "networks", "optimizer"}
    assert set(rows_of(task)) == set(parameters_of(kind)) - python_only
    assert all(row.default is not None or row.example is not None for row in rows_of(task).values())


@pytest.mark.parametrize(
    ("row", "good", "bad", "allowed"),
    [
        (Parameter("", least=1, kinds=(int,)), [1, np.int64(3)], [0, 1.0, True, "1", None], "an integer of at least 1"),
        (Parameter("", least=0, below=1, kinds=(float,)), [0, 0.5, np.float32(0.1)], [1, -1, math.nan, False],
         "a number from 0 to below 1"),
        (Parameter("", above=0, kinds=(float, type(None))), [1, math.inf, None], [0, "1"], "a number above 0 or None"),
        (Parameter("", above=0, most=1, kinds=(float,)), [1, 0.1], [0, 1.5], "a number above 0 and at most 1"),
        (Parameter("", most=9, kinds=(int,)), [-3, 9], [10], "an integer of at most 9"),
        (Parameter("", least=2, most=16, choices=("auto",), kinds=(int, str, type(None))), [2, 16, "auto", None],
         [1, 17, "x"], "an integer from 2 to 16, 'auto' or None"),
        (Parameter("", least=1, choices=("mle",), share=True, kinds=(int, float, str, type(None))),
         [1, 0.5, "mle", None], [0, 1.0, 0.0, math.nan, True, "x"],
         "an integer of at least 1, a share above 0 and below 1, 'mle' or None"),
        (Parameter("", kinds=(bool,)), [True, np.True_], [1, "yes"], "True or False"),
        (Parameter("", kinds=(str,)), ["any"], [1], "a string"),
    ],
)  # fmt: skip
def test_what_a_row_allows(row: Parameter, good: list[Any], bad: list[Any], allowed: str) -> None:
    assert [value for value in good if row.find_problem(value) is not None] == []
    assert [value for value in bad if row.find_problem(value) is None] == []
    assert row.describe_allowed() == allowed


def test_a_long_value_is_cut_and_a_reason_is_given() -> None:
    row = Parameter("", kinds=(int,), name="k", reason="It counts.")
    problem = row.find_problem(np.zeros((40, 40)))
    assert problem is not None
    assert problem.endswith("... It counts.") or problem.endswith(". It counts.")
    assert len(problem) < 150
