"""Fitted steps of scikit-learn that do what a model does: columns to features, linear maps, the network, its softmax.

Every function in them is a ufunc of numpy or scipy, so a skops file of them holds nothing that has to be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.special import entr, expit, log_expit
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, LabelEncoder, MinMaxScaler, OneHotEncoder, StandardScaler

from fedspan._types import Array
from fedspan.estimators.exports.original_columns import OriginalColumn

Step: TypeAlias = Any  # an estimator of scikit-learn, whose fitted attributes have no types


def build_column_step(columns: Sequence[OriginalColumn]) -> BaseEstimator:
    """A fitted `ColumnTransformer` from a table with the original columns (others do not count) to the features."""
    from sklearn.compose import ColumnTransformer

    steps, example = [], []
    for j, column in enumerate(columns):
        steps.append((f"column {j}", _fill_numbers(column) if column.words is None else _encode_words(column), [j]))
        number = 0.0 if column.fill is None else column.fill[0]
        example.append(number if column.words is None else column.words[0])
    step = ColumnTransformer(steps, sparse_threshold=0.0).fit(np.array([example, example], dtype=object))
    step.feature_names_in_ = np.array([column.name for column in columns], dtype=object)
    for _, part, (j,) in step.transformers_:
        first = part[0] if isinstance(part, Pipeline) else part
        first.feature_names_in_ = step.feature_names_in_[[j]]
    return step


def _fill_numbers(column: OriginalColumn) -> BaseEstimator:
    """Numbers as they are, and gaps refused; or filled with the value of the only neighbour, the example."""
    from sklearn.impute import KNNImputer  # skops trusts it, and not SimpleImputer

    return FunctionTransformer(np.positive, validate=True) if column.fill is None else KNNImputer(n_neighbors=1)


def _encode_words(column: OriginalColumn) -> BaseEstimator:
    """Words as 0 and 1. A missing word is spread over the others by their frequencies, or refused as unknown."""
    words = list(column.words or ())
    if column.fill is None:
        return OneHotEncoder(categories=[words], sparse_output=False, handle_unknown="error")
    gaps = ("", None, np.nan)
    encode = OneHotEncoder(categories=[[*words, *gaps]], sparse_output=False, handle_unknown="error")
    spread = np.tile(column.fill, (len(gaps), 1))
    return make_pipeline(encode, FrozenEstimator(build_linear_map(np.vstack([np.eye(len(words)), spread]))))


def build_linear_map(W: Array) -> BaseEstimator:
    """A fitted `TruncatedSVD` that multiplies rows by W (d, k)."""
    from sklearn.decomposition import TruncatedSVD

    svd = TruncatedSVD(W.shape[1])
    svd.components_, svd.n_features_in_ = np.ascontiguousarray(W.T), len(W)
    return svd


def build_clipping(mean: Array, slope: Array, bound: float) -> BaseEstimator:
    """A fitted `MinMaxScaler` that maps x to clip((x - mean)·slope, ±bound)."""
    scaler = MinMaxScaler(feature_range=(-bound, bound), clip=True).fit(np.zeros((2, len(mean))))
    scaler.scale_, scaler.min_ = slope.copy(), -mean * slope
    return scaler


def build_softmax(W: Array, intercept: Array, labels: Sequence[object]) -> BaseEstimator:
    """A fitted `LogisticRegression` whose outputs are X W (d, L) plus intercepts."""
    from sklearn.linear_model import LogisticRegression

    codes = np.arange(len(labels))
    model = LogisticRegression().fit(np.zeros((len(labels), len(W))), codes)
    # scikit-learn has one equation for two classes: their difference.
    model.coef_ = np.ascontiguousarray((W[:, 1:] - W[:, :1]).T if len(labels) == 2 else W.T)
    model.intercept_ = intercept[1:] - intercept[0] if len(labels) == 2 else intercept.copy()
    model.classes_ = np.array(labels)
    return model


def build_network_step(W1: Array, W0: Array, labels: Sequence[object], *, intercept: bool) -> Pipeline:
    """The two-layer network with swish inside, as a `Pipeline`.

    scikit-learn's networks have no swish, but h·σ(h) = -log σ(-h) - H(σ(h)) with H(p) = -p log p - (1-p) log (1-p), and
    these three terms are ufuncs, which the last layer adds up.
    """
    steps: list[tuple[str, Step]] = [("weights", build_linear_map(W1[:-1] if intercept else W1))]
    if intercept:
        add = StandardScaler(with_std=False)
        add.mean_, add.var_, add.scale_, add.n_features_in_, add.n_samples_seen_ = -W1[-1], None, None, W1.shape[1], 1
        steps.append(("intercepts", add))

    def chain_ufuncs(*functions: np.ufunc) -> Pipeline:
        return make_pipeline(*(FunctionTransformer(function) for function in functions))

    terms = FeatureUnion(
        [
            ("log", chain_ufuncs(np.negative, log_expit)),
            ("entropy", chain_ufuncs(expit, entr)),
            ("entropy of the rest", chain_ufuncs(np.negative, expit, entr)),
        ]
    )
    steps.append(("swish", terms.fit(np.zeros((1, W1.shape[1])))))
    last, shift = (W0[:-1], W0[-1]) if intercept else (W0, np.zeros(W0.shape[1]))
    steps.append(("softmax", build_softmax(-np.vstack([last, last, last]), shift, labels)))
    return Pipeline(steps)


def build_average(models: Sequence[tuple[str, BaseEstimator]], labels: Sequence[object]) -> BaseEstimator:
    """A fitted `VotingClassifier` that averages the models' probabilities."""
    from sklearn.ensemble import VotingClassifier

    vote = VotingClassifier(list(models), voting="soft")
    vote.estimators_, vote.classes_ = [model for _, model in models], np.array(labels)
    vote.le_ = LabelEncoder()
    vote.le_.classes_ = vote.classes_
    return vote
