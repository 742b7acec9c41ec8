"""Fitted models for use without fedspan: scikit-learn's own estimators, and ONNX graphs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedspan._files import write_whole
from fedspan._types import Array
from fedspan._version import __version__
from fedspan.errors import InputError, MissingExtraError
from fedspan.estimators._bases.federated_estimator import FederatedEstimator, explain_refusal, get_feature_names
from fedspan.estimators._options.classifier_methods import count_cells
from fedspan.numerics.swish import Swish, split_models

_OPSET, _IR = 18, 9  # old enough for runtimes of 2023, and all that is used here is in them


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
            "A model with clip cannot be exported, because scikit-learn cannot cut columns; fit one without clip, or "
            "use transform(X, client)."
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


def _add_scaling(model: FederatedEstimator, name: str, last: Any, mean: Array | None) -> Any:
    """The last step with the mean that it subtracts, or behind a scaler that does (None: nothing is subtracted)."""
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

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
    names = get_feature_names(model)
    if names is not None:
        first.feature_names_in_ = names.copy()
    return last if first is last else Pipeline([("scale", first), (name, last)])


def projection_to_onnx(model: FederatedEstimator, path: str | os.PathLike[str]) -> None:
    """`transform` as a graph of float64: X (n, d) → transformed (n, k)."""
    check_is_fitted(model)
    helper = _load_onnx_helper()
    W = np.asarray(model.find_projection(), dtype=np.float64)
    nodes, arrays, rows = [], {"W": W}, "X"
    if np.any(model.mean_ != 0.0):
        nodes, rows = [helper.make_node("Sub", ["X", "mean"], ["centered"])], "centered"
        arrays["mean"] = np.asarray(model.mean_, dtype=np.float64)
    nodes.append(helper.make_node("MatMul", [rows, "W"], ["transformed"]))
    _write(path, model, nodes, arrays, {"X": model.n_features_in_}, {"transformed": (np.float64, W.shape[1])})


def network_to_onnx(model: FederatedEstimator, inputs: dict[str, int], path: str | os.PathLike[str]) -> None:
    """`predict` and `predict_proba` as a graph of float64: inputs (n, width) by name → label, probabilities."""
    helper = _load_onnx_helper()
    net = Swish(count_cells(model.hidden), len(model.labels_), bool(model.intercept))
    omega, beside = split_models(net, model.coef_, sum(inputs.values()))
    W0, W1 = net.split(omega)
    # Names with a slash: those of views are the users' own.
    nodes = [helper.make_node("Concat", list(inputs), ["/rows"], axis=1)] if len(inputs) > 1 else []
    rows = "/rows" if nodes else next(iter(inputs))
    arrays = {"/one": np.array(1.0)}
    if model.scaling_ is not None:
        how = model.scaling_
        arrays |= {"/mean": how.mean, "/slope": how.slope, "/low": np.array(-how.bound), "/high": np.array(how.bound)}
        nodes += [
            helper.make_node("Sub", [rows, "/mean"], ["/centered"]),
            helper.make_node("Mul", ["/centered", "/slope"], ["/scaled"]),
            helper.make_node("Max", ["/scaled", "/low"], ["/cut below"]),
            helper.make_node("Min", ["/cut below", "/high"], ["/Z"]),
        ]
        rows = "/Z"
    nodes += _add_layer(helper, arrays, rows, W1, 1, "/H", net.intercept)
    nodes += [
        # Swish as h/(1+e^-h): onnxruntime up to 1.24 takes h·sigmoid(h) for a node that it has not got for doubles.
        helper.make_node("Neg", ["/H"], ["/minus"]),
        helper.make_node("Exp", ["/minus"], ["/falling"]),
        helper.make_node("Add", ["/falling", "/one"], ["/below"]),
        helper.make_node("Div", ["/H", "/below"], ["/S"]),
        *_add_layer(helper, arrays, "/S", W0, 0, "/outputs", net.intercept),
    ]
    if beside is None:
        nodes.append(helper.make_node("Softmax", ["/outputs"], ["probabilities"], axis=1))
    else:
        arrays["/half"] = np.array(0.5)
        nodes += [
            helper.make_node("Softmax", ["/outputs"], ["/network"], axis=1),
            *_add_layer(helper, arrays, rows, beside, 2, "/linear outputs", True),
            helper.make_node("Softmax", ["/linear outputs"], ["/linear"], axis=1),
            helper.make_node("Add", ["/network", "/linear"], ["/both"]),
            helper.make_node("Mul", ["/both", "/half"], ["probabilities"]),
        ]
    _write_classifier(path, model, nodes, arrays, inputs)


def logistic_to_onnx(model: FederatedEstimator, weights: Array, path: str | os.PathLike[str]) -> None:
    """The same of a linear model with weights (P+1, L), the last row its intercepts."""
    helper = _load_onnx_helper()
    arrays: dict[str, Array] = {}
    nodes = [
        *_add_layer(helper, arrays, "X", weights, 0, "/outputs", True),
        helper.make_node("Softmax", ["/outputs"], ["probabilities"], axis=1),
    ]
    _write_classifier(path, model, nodes, arrays, {"X": model.n_features_in_})


def _write_classifier(
    path: str | os.PathLike[str],
    model: FederatedEstimator,
    nodes: list[Any],
    arrays: dict[str, Array],
    inputs: dict[str, int],
) -> None:
    """Add the most probable class to a graph that ends in probabilities, and write it."""
    helper = _load_onnx_helper()
    labels = np.array(model.labels_)
    kind = np.dtype(object) if labels.dtype.kind == "U" else labels.dtype
    arrays["/classes"] = labels.astype(kind)
    nodes += [
        helper.make_node("ArgMax", ["probabilities"], ["/place"], axis=1, keepdims=0),
        helper.make_node("Gather", ["/classes", "/place"], ["label"]),
    ]
    _write(path, model, nodes, arrays, inputs, {"label": (kind, None), "probabilities": (np.float64, len(labels))})


def linear_to_sklearn(model: FederatedEstimator) -> BaseEstimator:
    """A fitted `LinearRegression`, whatever the squared or robust loss was; that of counts has no plain twin."""
    from sklearn.linear_model import LinearRegression

    if model.loss == "poisson":
        raise InputError(
            "A Poisson regression cannot be written as a scikit-learn model that is safe to read; use to_onnx."
        )
    linear = LinearRegression(fit_intercept=bool(model.intercept))
    linear.coef_, linear.intercept_ = model.coef_.copy(), float(model.intercept_)
    linear.n_features_in_, linear.rank_ = model.n_features_in_, int(model.rank_)
    names = get_feature_names(model)
    if names is not None:
        linear.feature_names_in_ = names.copy()
    return linear


def linear_to_onnx(model: FederatedEstimator, path: str | os.PathLike[str], *, exponential: bool) -> None:
    """`predict` of a linear regression as a graph of float64: X (n, d) → predicted (n,)."""
    helper = _load_onnx_helper()
    last = "eta" if exponential else "predicted"
    nodes = [helper.make_node("MatMul", ["X", "beta"], ["product"]), helper.make_node("Add", ["product", "b"], [last])]
    if exponential:
        nodes.append(helper.make_node("Exp", ["eta"], ["predicted"]))
    arrays = {"beta": model.coef_, "b": np.array(model.intercept_)}
    _write(path, model, nodes, arrays, {"X": model.n_features_in_}, {"predicted": (np.float64, None)})


def _add_layer(
    helper: Any, arrays: dict[str, Array], inputs: str, W: Array, number: int, output: str, intercept: bool
) -> list[object]:
    """The nodes of one layer, whose weights are put among the arrays; with intercepts, the last row of W is added."""
    if not intercept:
        arrays[f"/W{number}"] = W
        return [helper.make_node("MatMul", [inputs, f"/W{number}"], [output])]
    arrays |= {f"/W{number}": W[:-1], f"/b{number}": W[-1]}
    product = f"{output} without intercepts"
    return [
        helper.make_node("MatMul", [inputs, f"/W{number}"], [product]),
        helper.make_node("Add", [product, f"/b{number}"], [output]),
    ]


def _load_onnx_helper() -> Any:
    try:
        import onnx.helper
    except ImportError:
        raise MissingExtraError("writing ONNX", "onnx") from None
    return onnx.helper


def _write(
    path: str | os.PathLike[str],
    model: FederatedEstimator,
    nodes: list[Any],
    arrays: dict[str, Array],
    inputs: dict[str, int],
    outputs: dict[str, tuple[Any, int | None]],
) -> None:
    """Check the graph and write it whole. `inputs`: their widths; `outputs`: type and width (None: one per row)."""
    import onnx

    helper, dtype = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        type(model).__name__,
        [helper.make_tensor_value_info(name, dtype(np.dtype(np.float64)), ["n", d]) for name, d in inputs.items()],
        [
            helper.make_tensor_value_info(name, dtype(np.dtype(kind)), ["n"] if width is None else ["n", width])
            for name, (kind, width) in outputs.items()
        ],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in arrays.items()],
    )
    whole = helper.make_model(
        graph,
        producer_name="fedspan",
        producer_version=__version__,
        ir_version=_IR,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
    names = get_feature_names(model)
    if names is not None:
        helper.set_model_props(whole, {"features": "\n".join(names)})
    onnx.checker.check_model(whole, full_check=True)
    with explain_refusal(path):
        write_whole(path, whole.SerializeToString(), public=True)
