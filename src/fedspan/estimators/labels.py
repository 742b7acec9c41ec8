"""Labels and groups of rows: which classes there are over all clients, and the weight of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.data.clients import named
from fedspan.data.remote_table import RemoteTable, remote_classes
from fedspan.errors import InputError


def matched(given: Mapping[str, Any] | Sequence[Any], data: Mapping[str, Any], what: str) -> dict[str, Array]:
    """One array per client, in the order of the clients' ids."""
    by_name = named(given)
    if set(by_name) != set(data):
        odd = sorted(set(by_name) ^ set(data))[0]
        raise InputError(f"need {what} for just the {len(data)} clients that have rows, client {odd!r} has only one")
    out = {}
    for name in data:
        out[name] = np.asarray(by_name[name])
        rows = getattr(data[name], "shape", (len(out[name]),))[0]
        if out[name].ndim != 1 or len(out[name]) != rows:
            raise InputError(f"need {what} for each of the {rows} rows, got shape {out[name].shape} (client {name!r})")
    return out


def encode(y: Mapping[str, Array], least: int = 2) -> tuple[list[Any], dict[str, Array]]:
    """All classes that any client has seen, sorted, and the number of each row's class."""
    kinds = {name: "text" if labels.dtype.kind in "OUS" else "number" for name, labels in y.items()}
    if len(set(kinds.values())) > 1:
        odd = next(name for name, kind in kinds.items() if kind == "text")
        raise InputError(f"need labels of one kind, got numbers and text (client {odd!r}); write them all alike")
    for name, labels in y.items():
        if (labels.dtype.kind == "f" and not np.isfinite(labels).all()) or (
            labels.dtype.kind == "O" and not all(isinstance(label, str) for label in labels)
        ):
            raise InputError(f"need a label for every row, got a missing one (client {name!r}); drop those rows")
    if "text" in kinds.values():
        y = {name: labels.astype(str) for name, labels in y.items()}
    classes = np.unique(np.concatenate([np.unique(labels) for labels in y.values()]))
    if len(classes) < least:
        raise InputError(f"need at least {least} classes over all clients, got {len(classes)}")
    return classes.tolist(), {name: np.searchsorted(classes, labels) for name, labels in y.items()}


def row_weights(class_weight: Any, labels: list[Any], codes: Mapping[str, Array]) -> dict[str, Array]:
    """The weight of each row's loss, by client; empty if all are 1."""
    counts = np.sum([np.bincount(code, minlength=len(labels)) for code in codes.values()], axis=0)
    by_class = class_weights(class_weight, labels, counts)
    return {} if by_class is None else {name: by_class[code] for name, code in codes.items()}


def class_weights(class_weight: Any, labels: list[Any], counts: Array) -> Array | None:
    """The weight of each class, of which there are so many rows; None if all are 1."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        if not counts.any():
            raise InputError("class_weight='balanced' needs the number of rows of each class, which not all sites tell")
        return np.asarray(np.sum(counts) / (len(labels) * np.maximum(counts, 1)))
    if isinstance(class_weight, Mapping):
        return np.array([float(class_weight.get(label, 1.0)) for label in labels])
    raise InputError(f"need class_weight to be None, 'balanced' or a mapping, got {class_weight!r}")


def told_labels(tables: Mapping[str, RemoteTable], class_weight: Any) -> tuple[list[Any], dict[str, RemoteTable]]:
    """The classes over all sites of a federation, and the tables whose sites are to be told them and their weights."""
    labels, counts = remote_classes(tables)
    by_class = class_weights(class_weight, labels, counts)
    weights = None if by_class is None else by_class.tolist()
    return labels, {name: table.telling(labels=labels, weights=weights) for name, table in tables.items()}
