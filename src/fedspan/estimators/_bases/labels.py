"""Labels and groups of rows: which classes there are over all clients, and the weight of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.learning.count_samples import CountClasses
from fedspan.data.clients import name_clients
from fedspan.data.remote_tables import RemoteTable, count_remote_classes
from fedspan.errors import InputError
from fedspan.estimators._bases.federated_estimator import ClientData

ClassWeight: TypeAlias = str | Mapping[Any, float] | None


_MOST_FRACTIONS = 20  # values that are not whole numbers may be classes up to this many, or a tenth of the rows


def match_to_rows(given: ClientData, data: Mapping[str, Any], what: str) -> dict[str, Array]:
    """One array per client, in the order of the clients' ids."""
    by_name = name_clients(given)
    if set(by_name) != set(data):
        odd = sorted(set(by_name) ^ set(data))[0]
        has, lacks = (what, "rows") if odd in by_name else ("rows", what)
        raise InputError(f"Every client must have rows and {what}, but client {odd!r} has {has} and no {lacks}.")
    out = {}
    for name in data:
        out[name] = np.asarray(by_name[name])
        rows = len(out[name]) if callable(data[name]) else data[name].shape[0]  # a file is not open yet
        if out[name].ndim != 1 or len(out[name]) != rows:
            raise InputError(
                f"Client {name!r} has {rows} rows, so it needs {rows} {what}, but they have shape {out[name].shape}."
            )
    return out


def encode_labels(y: Mapping[str, Array], least: int = 2) -> tuple[list[Any], dict[str, Array]]:
    """All classes that any client has seen, sorted, and the number of each row's class."""
    kinds = {name: "text" if labels.dtype.kind in "OUS" else "number" for name, labels in y.items()}
    if len(set(kinds.values())) > 1:
        odd = next(name for name, kind in kinds.items() if kind == "text")
        raise InputError(f"Labels must be of one kind, but client {odd!r} has text and others have numbers.")
    for name, labels in y.items():
        if (labels.dtype.kind == "f" and not np.isfinite(labels).all()) or (
            labels.dtype.kind == "O" and not all(isinstance(label, str) for label in labels)
        ):
            raise InputError(f"Every row must have a label, but client {name!r} has a row without one; drop such rows.")
    if "text" in kinds.values():
        y = {name: labels.astype(str) for name, labels in y.items()}
    classes = np.unique(np.concatenate([np.unique(labels) for labels in y.values()]))
    if len(classes) < least:
        raise InputError(f"At least {least} classes are needed over all clients, but the labels have {len(classes)}.")
    n = sum(map(len, y.values()))
    if classes.dtype.kind == "f" and len(classes) > max(_MOST_FRACTIONS, n // 10) and (classes % 1 != 0).any():
        raise InputError(
            f"The labels have {len(classes)} different values in {n} rows, and not all are whole numbers: they look "
            "like measurements, not like classes. Use a regressor, or group them into classes."
        )
    return classes.tolist(), {name: np.searchsorted(classes, labels) for name, labels in y.items()}


def check_targets(name: str, y: Array) -> Array:
    """Targets as numbers; what is none is refused with its row."""
    try:
        numbers = np.asarray(y, dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(
            f"Client {name!r}: targets must be numbers, but some are text. To learn classes, use FederatedClassifier."
        ) from None
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers)))
        raise InputError(f"Client {name!r}: every row must have a finite target, but row {row} has {numbers[row]}.")
    return numbers


def weigh_rows(
    class_weight: ClassWeight, labels: list[Any], codes: Mapping[str, Array], counts: Array | None = None
) -> dict[str, Array]:
    """The weight of each row's loss, by client; empty if all are 1. `counts` replace the classes' numbers of rows."""
    if counts is None:
        counts = np.sum([np.bincount(code, minlength=len(labels)) for code in codes.values()], axis=0)
    by_class = weigh_classes(class_weight, labels, counts)
    return {} if by_class is None else {name: by_class[code] for name, code in codes.items()}


def weigh_classes(class_weight: ClassWeight, labels: list[Any], counts: Array) -> Array | None:
    """The weight of each class, from its number of rows; None if all are 1."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str):  # "balanced"
        return np.asarray(np.sum(counts) / (len(labels) * np.maximum(counts, 1)))
    unknown = [label for label in class_weight if label not in labels]
    if unknown:
        known = ", ".join(map(repr, labels[:10]))
        raise InputError(f"class_weight must be of known classes, but {unknown[0]!r} is not one. Known: {known}.")
    return np.array([float(class_weight.get(label, 1.0)) for label in labels])


def guessing_loss(labels: Sequence[object], codes: Mapping[str, Array], weight: Mapping[str, Array]) -> float:
    """The mean loss of a model that knows only the shares of the classes; if they are not known here, of equal ones."""
    if not codes:
        return float(np.log(len(labels)))
    rows = [(code, weight.get(name, np.ones(len(code)))) for name, code in codes.items()]
    by_class = np.sum([np.bincount(code, w, minlength=len(labels)) for code, w in rows], axis=0)
    shares = np.maximum(by_class / max(by_class.sum(), 1e-300), 1e-300)
    return float(-(by_class @ np.log(shares)) / sum(len(code) for code, _ in rows))


def tell_labels(
    tables: Mapping[str, RemoteTable],
    class_weight: ClassWeight,
    count: Callable[[CountClasses, dict[str, RemoteTable]], Array],
) -> tuple[list[Any], dict[str, RemoteTable]]:
    """The classes over all sites of a federation, and the tables whose sites are to be told them and their weights.

    `count` finds the rows of each class at all sites. It is called only if weights depend on it, and sites do not tell
    it by themselves.
    """
    labels, counts = count_remote_classes(tables)
    told = {name: table.tell(labels=labels, weights=None) for name, table in tables.items()}
    if class_weight == "balanced" and not counts.any():
        counts = count(CountClasses(len(labels)), told)
    by_class = weigh_classes(class_weight, labels, counts)
    if by_class is None:
        return labels, told
    return labels, {name: table.tell(weights=by_class.tolist()) for name, table in told.items()}
