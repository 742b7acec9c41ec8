"""A fitted model in a file and back: one safetensors file, equal models give equal files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedspan.core.checkpoint import build, load_tree, save_tree
from fedspan.data.preparation import Preparation
from fedspan.errors import FedspanError, InputError

M = TypeVar("M")


def save_model(model: Any, path: str | os.PathLike[str], learned: Sequence[str]) -> None:
    """Write the parameters that are plain values, and those learned attributes (plain data, see checkpoint.py)."""
    check_is_fitted(model)
    given = {name: v for name, v in model.get_params(deep=False).items() if name != "checkpoint"}  # a path of here
    plain = {name: v for name, v in given.items() if isinstance(v, bool | int | float | str)}
    values: dict[str, Any] = {name: getattr(model, name) for name in learned}
    names = getattr(model, "feature_names_in_", None)
    values["feature_names_in_"] = None if names is None else [str(name) for name in names]
    values["preparation_"] = getattr(model, "preparation_", None)
    save_tree(path, "model", {"estimator": type(model).__name__, "params": plain, "learned": values})


def load_model(cls: type[M], path: str | os.PathLike[str], **more: Any) -> M:
    """The model that `save_model` wrote; `more` are parameters that a file cannot hold (networks)."""
    tree = load_tree(path, "model")
    if tree.get("estimator") != cls.__name__:
        raise InputError(f"need a {cls.__name__}, {path} holds a {tree.get('estimator')}; use its own load()")
    try:
        model = cls(**tree["params"], **more)
    except TypeError as error:
        raise FedspanError(f"{path} was written by another version of fedspan: {error}") from None
    for name, value in tree["learned"].items():
        if name == "preparation_":
            setattr(model, name, build(Preparation | None, value))
        elif name != "feature_names_in_":
            setattr(model, name, value)
        elif value is not None:
            model.feature_names_in_ = np.array(value, dtype=object)  # type: ignore[attr-defined]
    return model
