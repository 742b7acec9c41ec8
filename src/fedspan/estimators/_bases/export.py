"""Fitted models as scikit-learn's own estimators, which begin with what the tables of the fit went through."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import VotingClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import FederatedEstimator, get_feature_names
from fedspan.estimators._options.classifier_methods import count_cells
from fedspan.estimators.exports.original_columns import OriginalColumn, find_original_columns
from fedspan.estimators.exports.sklearn_steps import (
    Step,
    build_average,
    build_clipping,
    build_column_step,
    build_network_step,
    build_softmax,
)
from fedspan.numerics.swish import Swish, split_models


def pca_to_sklearn(model: FederatedEstimator) -> BaseEstimator:
    """A fitted `PCA`; behind a `StandardScaler` in a `Pipeline` if the model scales, which PCA itself cannot."""
    from sklearn.decomposition import PCA

    check_is_fitted(model)
    pca = PCA(len(model.components_), whiten=bool(model.whiten))
    pca.n_components_, pca.n_samples_, pca._fit_svd_solver = len(model.components_), int(model.n_samples_), "full"
    pca.components_, pca.singular_values_ = model.components_.copy(), model.singular_values_.copy()
    pca.explained_variance_ = model.explained_variance_.copy()
    pca.explained_variance_ratio_ = model.explained_variance_ratio_.copy()
    pca.noise_variance_ = float(model.noise_variance_)
    return _add_scaling(model, "pca", pca, model.mean_)


def personal_to_sklearn(model: FederatedEstimator, i: int) -> BaseEstimator:
    """One client's own components as a fitted `PCA`. Its variances are NaN: the client never told them."""
    from sklearn.decomposition import PCA

    if model.bounds_ is not None:
        raise InputError(
            "A model with clip cannot become a scikit-learn model, which cannot cut columns one by one; use "
            "to_onnx(path, client)."
        )
    pca = PCA(len(model.components_[i]))
    pca.n_components_, pca._fit_svd_solver = len(model.components_[i]), "full"
    pca.components_ = model.components_[i].copy()
    pca.explained_variance_ = np.full(len(model.components_[i]), np.nan)  # scikit-learn 1.6 looks for it in transform
    return _add_scaling(model, "pca", pca, model.means_[i])


def svd_to_sklearn(model: FederatedEstimator) -> BaseEstimator:
    """A fitted `TruncatedSVD`, behind a `StandardScaler` that does not centre if the model scales.

    It has no `explained_variance_`: scikit-learn means a variance around the mean there, and no mean was computed.
    """
    from sklearn.decomposition import TruncatedSVD

    check_is_fitted(model)
    svd = TruncatedSVD(len(model.components_))
    svd.components_, svd.singular_values_ = model.components_.copy(), model.singular_values_.copy()
    return _add_scaling(model, "svd", svd, None)


def _add_scaling(model: FederatedEstimator, name: str, last: Step, mean: Array | None) -> Step:
    """The last step with the mean that it subtracts, or behind a scaler that does (None: nothing is subtracted)."""
    d = model.n_features_in_
    last.n_features_in_ = d
    first = last
    if np.any(model.scale_ != 1.0):
        first = StandardScaler(with_mean=mean is not None)
        first.mean_ = np.zeros(d) if mean is None else mean.copy()
        first.scale_, first.var_ = model.scale_.copy(), model.scale_**2
        first.n_samples_seen_, first.n_features_in_ = int(model.n_samples_), d
    if mean is not None:
        last.mean_ = mean.copy() if first is last else np.zeros(d)
    return _add_columns(model, [(name, last)] if first is last else [("scale", first), (name, last)])


def _add_columns(model: FederatedEstimator, steps: list[tuple[str, Step]]) -> Step:
    """The steps behind one that makes features of a table's columns, if there is something to make.

    One step alone needs no `Pipeline`. If the features are the table's columns, the first step knows their names.
    """
    columns, names = get_original_columns(model), get_feature_names(model)
    if columns:
        steps = [("columns", build_column_step(columns)), *steps]
    elif names is not None:
        _tell_names(steps[0][1], names)
    return steps[0][1] if len(steps) == 1 else Pipeline(steps)


def _tell_names(step: Step, names: Array) -> None:
    """Let a step know the columns' names, and what is inside it, which would warn otherwise."""
    if isinstance(step, Pipeline):
        _tell_names(step[0], names)
    elif isinstance(step, TransformedTargetRegressor):
        _tell_names(step.regressor_, names)
    else:
        step.feature_names_in_ = names.copy()
        for part in step.estimators_ if isinstance(step, VotingClassifier) else []:
            _tell_names(part, names)


def get_original_columns(model: FederatedEstimator) -> list[OriginalColumn]:
    """The columns that the model's features were made of; none if they are the features."""
    return find_original_columns(vars(model).get("preparation_"), get_feature_names(model))


def network_to_sklearn(model: FederatedEstimator, features: int) -> BaseEstimator:
    """The network in the steps that scikit-learn has; `features` are those of all views together."""
    net = Swish(count_cells(model.hidden), len(model.labels_), bool(model.intercept))
    omega, beside = split_models(net, model.coef_, features)
    W0, W1 = net.split(omega)
    last = build_network_step(W1, W0, model.labels_, intercept=net.intercept)
    name = "network"
    if beside is not None:
        both = [(name, last), ("linear", build_softmax(beside[:-1], beside[-1], model.labels_))]
        name, last = "average", build_average(both, model.labels_)
    if model.scaling_ is None:
        return _add_columns(model, [(name, last)])
    how = model.scaling_
    return _add_columns(model, [("scale", build_clipping(how.mean, how.slope, how.bound)), (name, last)])


def logistic_to_sklearn(model: FederatedEstimator, weights: Array) -> BaseEstimator:
    """A fitted `LogisticRegression` with weights (P+1, L), the last row its intercepts."""
    return _add_columns(model, [("classify", build_softmax(weights[:-1], weights[-1], model.labels_))])


def linear_to_sklearn(model: FederatedEstimator) -> BaseEstimator:
    """A fitted `LinearRegression`, whatever the squared or robust loss was; for counts, inside one that takes exp."""
    from sklearn.linear_model import LinearRegression

    linear = LinearRegression(fit_intercept=bool(model.intercept))
    linear.coef_, linear.intercept_ = model.coef_.copy(), float(model.intercept_)
    linear.n_features_in_, linear.rank_ = model.n_features_in_, int(model.rank_)
    if model.loss != "poisson":
        return _add_columns(model, [("regress", linear)])
    counts = TransformedTargetRegressor(LinearRegression(), func=np.log, inverse_func=np.exp)
    counts.regressor_, counts._training_dim = linear, 1
    counts.transformer_ = FunctionTransformer(np.log, np.exp, validate=True).fit(np.ones((1, 1)))
    return _add_columns(model, [("regress", counts)])
