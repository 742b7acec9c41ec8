"""A table that stays where it is: what its site said of it, in place of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedspan.errors import InputError


@dataclass(frozen=True)
class RemoteTable:
    """What an estimator is given for a client in a federation.

    `told` is what the site is told when its client is made, besides the algorithm: the classes to learn, say. A site
    that does not say how many rows it has counts as one without rows; the algorithms ask for sums themselves.
    """

    n_features: int
    names: tuple[str, ...] | None = None
    rows: int = 0
    labels: Mapping[Any, int | None] | None = None  # the classes, with how many rows each has if the site tells
    told: Mapping[str, Any] = field(default_factory=dict)
    units: tuple[tuple[str, str], ...] = ()
    preparation: Any = None  # how its columns are made, if they are

    @property
    def X(self) -> RemoteTable:
        """It stands for the matrix, too."""
        return self

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.n_features

    def telling(self, **told: Any) -> RemoteTable:
        """The same table, of whose site something more is asked."""
        return replace(self, told={**self.told, **told})


def is_remote(tables: Iterable[Any]) -> bool:
    """Whether those are tables of a federation; a mixture is refused."""
    kinds = {isinstance(table, RemoteTable) for table in tables}
    if len(kinds) > 1:
        raise InputError("need all clients in a federation or all of them here, got some of each")
    return kinds == {True}


def remote_classes(tables: Mapping[str, RemoteTable], least: int = 2) -> tuple[list[Any], np.ndarray]:
    """All classes that any site has seen, sorted, and how many rows there are of each: zeros if that is not told."""
    bare = [name for name, table in tables.items() if table.labels is None]
    if bare:
        raise InputError(f"need a column of labels at every site, {bare[0]!r} has none; name it in data.label")
    kinds = {name: {isinstance(label, str) for label in table.labels or ()} for name, table in tables.items()}
    if len(set().union(*kinds.values())) > 1:
        odd = next(name for name, kind in kinds.items() if True in kind)
        raise InputError(f"need labels of one kind, got numbers and text (client {odd!r}); write them all alike")
    classes = sorted(set().union(*(table.labels or () for table in tables.values())))
    if len(classes) < least:
        raise InputError(f"need at least {least} classes over all clients, got {len(classes)}")
    told = [(table.labels or {}).get(label, 0) for label in classes for table in tables.values()]
    if None in told:
        return classes, np.zeros(len(classes))  # some site does not tell: a part of the counts would mislead
    return classes, np.array(told).reshape(len(classes), -1).sum(axis=1)
