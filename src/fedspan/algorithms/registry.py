"""All algorithms of this package by the names of their classes: what a site can build, and a report can look up.

They are those that `fedspan.algorithms` exports, and what may come before them: the matching of ids, the agreement on
means, the numbers of rows of each class, and what a private run finds out first.
"""

from __future__ import annotations

from typing import Any

import fedspan.algorithms as algorithms
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.learning.count_samples import CountClasses, CountSamples
from fedspan.algorithms.matching.compare_order import CompareOrder
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.matching.match_ring import MatchRing
from fedspan.algorithms.spectral.private_bounds import Census, PrivateMean
from fedspan.core.protocol import Server

MATCHINGS: tuple[type[Server[Any]], ...] = (MatchRing, MatchDigests)
OPENINGS: tuple[type[Server[Any]], ...] = (Census, PrivateMean, CountSamples)

_EXPORTED = {name: vars(algorithms)[name] for name in algorithms.__all__}

_BEFORE: tuple[type[Server[Any]], ...] = (AgreeOnColumns, CountClasses, CompareOrder, *MATCHINGS, *OPENINGS)
ALGORITHMS: dict[str, type[Server[Any]]] = {
    **{name: kind for name, kind in _EXPORTED.items() if isinstance(kind, type) and Server in kind.__mro__},
    **{kind.__name__: kind for kind in _BEFORE},
}
