"""All algorithms of this package by the names of their classes: what a site can build, and a report can look up.

They are those that `fedspan.algorithms` exports, and the agreement on columns that comes before them.
"""

from __future__ import annotations

from typing import Any

import fedspan.algorithms as algorithms
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.core.protocol import Server

_EXPORTED = {name: vars(algorithms)[name] for name in algorithms.__all__}

ALGORITHMS: dict[str, type[Server[Any]]] = {
    **{name: kind for name, kind in _EXPORTED.items() if isinstance(kind, type) and Server in kind.__mro__},
    AgreeOnColumns.__name__: AgreeOnColumns,
}
