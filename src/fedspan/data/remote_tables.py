"""A table that stays at its site in a federation: what the site said of it, in place of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np

from fedspan._types import Array
from fedspan.data.preparation import Preparation
from fedspan.errors import InputError

Label = str | int | float


@dataclass(frozen=True)
class RemoteTable:
    """What an estimator is given for a client in a federation.

    `told` is what the site is told when its client is made, besides the algorithm: the classes to learn, for example.
    `rows` is a figure that the site's owner wrote down, or 0; how many there are is found by the algorithms' own sums.
    """

    n_features: int
    names: tuple[str, ...] | None = None
    rows: int = 0
    labels: Mapping[Label, int | None] | None = None  # the classes, with the rows of each if the site tells it
    told: Mapping[str, object] = field(default_factory=dict)
    units: tuple[tuple[str, str], ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()  # what columns hold, as far as the site says it
    columns: tuple[str, ...] | None = None  # as they are in the table, where the site tells it
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the words of columns
    ids: bool = False  # whether its rows have ids
    keyed: bool = False  # whether its site has a secret to digest them with
    preparation: Preparation | None = None  # how its columns are made, if they are

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.n_features

    def tell(self, **more: object) -> RemoteTable:
        """The same table, whose site is told something more."""
        return replace(self, told={**self.told, **more})


def is_remote(tables: Mapping[str, object]) -> TypeGuard[Mapping[str, RemoteTable]]:
    """Whether those are tables of a federation, by client; a mixture is refused."""
    kinds = {isinstance(table, RemoteTable) for table in tables.values()}
    if len(kinds) > 1:
        raise InputError("Either all clients must be sites of a federation or none, but there are both.")
    return kinds == {True}


def count_remote_classes(tables: Mapping[str, RemoteTable], least: int = 2) -> tuple[list[Label], Array]:
    """All classes that any site has seen, sorted, and how many rows each has: zeros if some site does not tell."""
    without = [name for name, table in tables.items() if table.labels is None]
    if without:
        raise InputError(f"Every site must have a column of labels, but {without[0]!r} has none. Set data.label.")
    labels = {name: table.labels or {} for name, table in tables.items()}
    is_text = {name: {isinstance(label, str) for label in seen} for name, seen in labels.items()}
    if len(set().union(*is_text.values())) > 1:
        odd = next(name for name, kinds in is_text.items() if True in kinds)
        raise InputError(
            f"Labels must be all numbers or all text, but client {odd!r} has text and others have numbers. Write them "
            "all alike."
        )
    classes = sorted(set().union(*labels.values()))
    if len(classes) < least:
        raise InputError(f"There must be at least {least} classes over all clients, but there are {len(classes)}.")
    counts = [[seen.get(label, 0) for seen in labels.values()] for label in classes]
    if any(None in row for row in counts):
        return classes, np.zeros(len(classes))  # some site does not tell: a part of the counts would mislead
    return classes, np.array(counts).sum(axis=1)
