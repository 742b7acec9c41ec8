"""Fitted models as ONNX graphs, which begin with what the tables of the fit went through."""

from __future__ import annotations

import os

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedspan._types import Array
from fedspan.estimators._bases.export import get_original_columns
from fedspan.estimators._bases.federated_estimator import FederatedEstimator, explain_refusal, get_feature_names
from fedspan.estimators._options.classifier_methods import count_cells
from fedspan.estimators.exports.onnx_graph import OnnxGraph
from fedspan.numerics.swish import Swish, split_models

Path = str | os.PathLike[str]


def projection_to_onnx(model: FederatedEstimator, path: Path) -> None:
    """`transform` as a graph: X (n, d), or a column each (n, 1) → transformed (n, k)."""
    check_is_fitted(model)
    graph = OnnxGraph()
    _project(graph, _begin(graph, model), model.mean_, model.find_projection())
    _write_projection(graph, model, path, len(model.components_))


def personal_to_onnx(model: FederatedEstimator, i: int, path: Path) -> None:
    """The same of one client's own components, with its cuts if there are some."""
    check_is_fitted(model)
    graph = OnnxGraph()
    rows = _begin(graph, model)
    if model.bounds_ is not None:
        low, high = np.asarray(model.bounds_[i], dtype=np.float64)
        rows = graph.add("Min", graph.add("Max", rows, low[None, :]), high[None, :])
    W = model.components_[i].T / model.scale_[:, None]
    _project(graph, rows, model.means_[i], W)
    _write_projection(graph, model, path, W.shape[1])


def _project(graph: OnnxGraph, rows: str, mean: Array, W: Array) -> None:
    if np.any(mean != 0.0):
        rows = graph.add("Sub", rows, np.asarray(mean, dtype=np.float64))
    graph.add("MatMul", rows, np.asarray(W, dtype=np.float64), output="transformed")


def _write_projection(graph: OnnxGraph, model: FederatedEstimator, path: Path, k: int) -> None:
    _write(graph, model, path, transformed=(np.float64, k))


def network_to_onnx(model: FederatedEstimator, inputs: dict[str, int], path: Path) -> None:
    """`predict` and `predict_proba` as a graph: inputs (n, width) by name → label, probabilities."""
    graph = OnnxGraph()
    net = Swish(count_cells(model.hidden), len(model.labels_), bool(model.intercept))
    omega, beside = split_models(net, model.coef_, sum(inputs.values()))
    W0, W1 = net.split(omega)
    rows = _begin(graph, model) if len(inputs) == 1 else graph.read_rows(inputs)
    if model.scaling_ is not None:
        how = model.scaling_
        scaled = graph.add("Mul", graph.add("Sub", rows, how.mean), how.slope)
        rows = graph.add("Min", graph.add("Max", scaled, -how.bound), how.bound)
    H = graph.add_layer(rows, W1, intercept=net.intercept)
    # Swish as h/(1+e^-h): onnxruntime up to 1.24 takes h·sigmoid(h) for a node that it has not got for doubles.
    S = graph.add("Div", H, graph.add("Add", graph.add("Exp", graph.add("Neg", H)), 1.0))
    outputs = graph.add_layer(S, W0, intercept=net.intercept)
    if beside is None:
        graph.add("Softmax", outputs, axis=1, output="probabilities")
    else:
        network = graph.add("Softmax", outputs, axis=1)
        linear = graph.add("Softmax", graph.add_layer(rows, beside, intercept=True), axis=1)
        graph.add("Mul", graph.add("Add", network, linear), 0.5, output="probabilities")
    _write_classifier(graph, model, path)


def logistic_to_onnx(model: FederatedEstimator, weights: Array, path: Path) -> None:
    """The same of a linear model with weights (P+1, L), the last row its intercepts."""
    graph = OnnxGraph()
    graph.add("Softmax", graph.add_layer(_begin(graph, model), weights, intercept=True), axis=1, output="probabilities")
    _write_classifier(graph, model, path)


def linear_to_onnx(model: FederatedEstimator, path: Path, *, exponential: bool) -> None:
    """`predict` of a linear regression as a graph: X (n, d) → predicted (n,)."""
    graph = OnnxGraph()
    product = graph.add("MatMul", _begin(graph, model), model.coef_)
    eta = graph.add("Add", product, model.intercept_, output="" if exponential else "predicted")
    if exponential:
        graph.add("Exp", eta, output="predicted")
    _write(graph, model, path, predicted=(np.float64, None))


def _begin(graph: OnnxGraph, model: FederatedEstimator) -> str:
    """The features: the input X, or made of the columns of a table."""
    columns = get_original_columns(model)
    return graph.read_columns(columns) if columns else graph.read_rows({"X": model.n_features_in_})


def _write_classifier(graph: OnnxGraph, model: FederatedEstimator, path: Path) -> None:
    """Add the most probable class to a graph that ends in probabilities, and write it."""
    labels = np.array(model.labels_)
    kind = np.dtype(object) if labels.dtype.kind == "U" else labels.dtype
    place = graph.add("ArgMax", "probabilities", axis=1, keepdims=0)
    graph.add("Gather", labels.astype(kind), place, output="label")
    _write(graph, model, path, label=(kind, None), probabilities=(np.float64, len(labels)))


def _write(graph: OnnxGraph, model: FederatedEstimator, path: Path, **outputs: tuple[object, int | None]) -> None:
    names = get_feature_names(model)
    with explain_refusal(path):
        graph.write(path, type(model).__name__, outputs, None if names is None else [str(name) for name in names])
