"""What the two classifiers share: the classes, the parameters that were learned, and warnings of limits not kept."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.algorithms.learning.constraints.limits import LimitOutcome
from fedspan.algorithms.learning.count_samples import CountClasses
from fedspan.algorithms.learning.held_out import Evaluation
from fedspan.algorithms.learning.local_ssca import LocalSscaState
from fedspan.algorithms.learning.scaling import EarlierModel, Scaling
from fedspan.algorithms.learning.training_guard import HeldOutGuard
from fedspan.algorithms.learning.vertical_guarded import GuardedState
from fedspan.core.run import Result
from fedspan.data.remote_tables import RemoteTable
from fedspan.errors import InputError
from fedspan.estimators._bases.export import network_to_sklearn
from fedspan.estimators._bases.federated_estimator import (
    OF_RUN,
    OF_TABLES,
    FederatedEstimator,
    FitOptions,
    get_feature_names,
)
from fedspan.estimators._bases.labels import encode_labels
from fedspan.estimators._bases.onnx_export import network_to_onnx
from fedspan.estimators._options.classifier_methods import ChosenMethod
from fedspan.estimators.launch import warn_caller
from fedspan.estimators.limit_requests import judge_limits
from fedspan.numerics.operators import HeldMatrix
from fedspan.numerics.surrogate import CERTIFIED
from fedspan.numerics.swish import to_floats

OF_CLASSIFIERS = (
    "coef_",
    "evaluation_",
    "labels_",
    "limits_",
    "scaling_",
    "verified_",
    *OF_TABLES,
    *OF_RUN,
)  # what both of them learn


_LAST = 10  # rounds, whose losses say what a method without held-out rows has come to
_HUGE = 1e6  # a squared norm of parameters that only steps too long lead to


class FittedClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]
    """A classifier whose parameters are one vector."""

    warm_start: bool  # parameters of all of them
    model: object

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the columns of `predict_proba`."""
        check_is_fitted(self, "labels_")
        return np.array(self.labels_)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the network as an ONNX graph of float64: X (n, d), or one input per view → label, probabilities."""
        check_is_fitted(self)
        network_to_onnx(self, self._name_inputs(), path)

    def to_sklearn(self) -> BaseEstimator:
        """A fitted scikit-learn `Pipeline` with the same probabilities.

        The columns of all views stand side by side in it, in the order of the views' names.
        """
        check_is_fitted(self)
        return network_to_sklearn(self, sum(self._name_inputs().values()))

    def _scale_rows(self, X: HeldMatrix) -> HeldMatrix:
        """Raw rows as the network takes them."""
        return X if self.scaling_ is None else self.scaling_.apply(to_floats(X))

    @abstractmethod
    def _name_inputs(self) -> dict[str, int]:
        """The inputs of the network by name, and how many features each has."""

    def _find_earlier(self, features: int, names: Sequence[str] | None) -> EarlierModel | None:
        """The model to go on from, if that was asked for and there is one; other columns are refused."""
        if not self.warm_start or "coef_" not in vars(self):
            return None
        known = get_feature_names(self)
        renamed = names is not None and known is not None and tuple(known) != tuple(names)
        if features != self.n_features_in_ or renamed:
            raise InputError(
                f"The model was fitted on {self.n_features_in_} columns, and goes on only with the same ones in the "
                f"same order, but these tables have {features}"
                + ("" if names is None else f" ({', '.join(map(str, names))[:200]})")
                + ". Set warm_start=False to learn anew."
            )
        return EarlierModel(self.coef_, self.scaling_)

    def _encode(self, y: Mapping[str, Array]) -> tuple[list[Any], dict[str, Array]]:
        """The classes and the number of each row's class; a model that goes on keeps its classes."""
        if not self.warm_start or "coef_" not in vars(self):
            return encode_labels(y)
        found, codes = encode_labels(y, least=1)
        new = [label for label in found if label not in self.labels_]
        if new:
            raise InputError(
                f"The model knows the classes {', '.join(map(repr, self.labels_[:10]))}, and cannot learn {new[0]!r} "
                "as another one. Set warm_start=False to learn anew from all rows."
            )
        numbers = np.array([self.labels_.index(label) for label in found])
        return list(self.labels_), {name: numbers[code] for name, code in codes.items()}

    def _count_classes(self, algorithm: CountClasses, tables: Mapping[str, RemoteTable], options: FitOptions) -> Array:
        """How many rows each class has at all sites of a federation together: one sum, before the fit itself."""
        why = 'class_weight="balanced" needs the number of rows of each class first'
        result = self._run(algorithm, tables, options, why=why, rounds=0, part="classes")
        return algorithm.estimate(result.state)

    def _learn(self, chosen: ChosenMethod, result: Result[Any], labels: list[Any], guessing: float) -> None:
        """Keep what a run learned, and warn of what it did not reach. `guessing`: the loss of the classes' shares."""
        state = result.state
        self.coef_, self.labels_, self.covariance_ = chosen.method.estimate(state), labels, np.zeros((0, 0))
        self.scaling_: Scaling | None = state.opening.scaling
        kept = self._verify_limits(chosen, result)
        if chosen.limits and state.gap > CERTIFIED:
            warn_of_fit(
                f"In some round the server's problem was solved only to a relative duality gap of {state.gap:.1g}, "
                f"above {CERTIFIED:g}. The limits that were verified hold all the same; scale the features to about 1."
            )
        if state.failed:
            warn_of_fit(
                f"A loss was NaN or infinite in round {result.rounds}. The run was stopped, and the parameters of the "
                "last good round are kept; scale the features, or lower the step sizes."
            )
        self.converged_ = bool(result.converged and not state.failed and kept)
        self.evaluation_: Evaluation | None = None
        self.client_accuracy_: dict[str, list[float]] | None = None
        if isinstance(state, LocalSscaState | GuardedState):
            self.evaluation_ = state.evaluation
            self.converged_ = self._check_guard(state.guard, result.rounds)
        elif not state.failed and self.model is None:
            self.converged_ = self._check_cost(guessing) and self.converged_

    def _check_guard(self, guard: HeldOutGuard, rounds: int) -> bool:
        """Whether held-out rows stopped the run with a model that is better than none; a warning if not."""
        if not guard.better_than_prior:
            warn_of_fit(
                "The model is no better on held-out rows than the shares of the classes alone (a loss of "
                f"{guard.loss:.3g} against {guard.prior:.3g}). The columns may say nothing about the labels, or rows "
                "and labels may not belong together; check that they are in the same order."
            )
        elif not guard.closed and self.early_stopping:
            warn_of_fit(
                f"The held-out loss could still fall after {rounds} rounds (it is {guard.loss:.3g}). The best model so "
                "far is kept; raise rounds."
            )
        return guard.better_than_prior and (guard.closed or not self.early_stopping)

    def _check_cost(self, guessing: float) -> bool:
        """Whether the last rounds' losses are below that of guessing, where no rows were held out to say it."""
        losses = [float(row["cost"]) for row in self.history_[-_LAST:] if not np.isnan(row.get("cost", np.nan))]
        cost = float(np.median(losses)) if losses else np.nan
        if not cost >= guessing:  # in private runs no loss is known
            return True
        length = float(self.history_[-1].get("norm2", 0.0))
        grown = f"; the parameters have grown to ‖ω‖² = {length:.2g}, so its steps were too long" * (length > _HUGE)
        warn_of_fit(
            f"The model is no better than guessing by the shares of the classes: the training loss of the last rounds "
            f"is {cost:.3g}, that of guessing {guessing:.3g}{grown}. Scale the columns (standardize=True), take "
            "smaller steps, or raise rounds."
        )
        return False

    def _verify_limits(self, chosen: ChosenMethod, result: Result[Any]) -> bool:
        """Keep the verified left-hand sides of the limits; whether all limits hold."""
        state, limits = result.state, chosen.limits
        self.verified_: dict[str, float] = {}
        self.limits_: list[LimitOutcome] = []
        if not limits:
            return True
        if not len(state.best):
            if not state.failed:
                warn_of_fit(
                    "The limits were not verified, because that needs closing rounds; leave paper=False and ask for "
                    "2 rounds or more."
                )
            return bool(state.failed)
        bounds = np.array([limit.limit.bound for limit in limits])
        names = [limit.name for limit in limits]
        self.limits_ = judge_limits(limits, state.verified[1:], state.held_out)
        self.verified_ = {name: float(v) for name, v in zip(names, state.verified[1:] + bounds, strict=True)}
        broken = [name for name, value in zip(names, state.verified[1:], strict=True) if value > 0]
        if broken:
            reached = "; ".join(f"{name}: reached {self.verified_[name]:.4g}" for name in broken)
            warn_of_fit(
                f"Some limits do not hold after {result.rounds} rounds ({reached}). The model of least violation is "
                "kept; raise the bound, rounds, batch_size or hidden."
            )
        missed = [outcome for outcome in self.limits_ if outcome.met and outcome.held_out_met is False]
        if missed:
            seen = "; ".join(f"{outcome.name}: {outcome.held_out:.4g}" for outcome in missed)
            warn_of_fit(
                f"Some limits hold over the training rows, but not over those that were held out ({seen}). Few rows "
                "scatter, and a model may fit its training rows better than others; set a stricter bound to be safe."
            )
        return not broken


def warn_of_fit(text: str) -> None:
    """Warn that a fit is not what was asked for."""
    warn_caller(text, ConvergenceWarning)
