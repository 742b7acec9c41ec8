"""What FederatedGCCA finds out first: the ridge, how many components are shared, how well views really agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array
from fedspan.algorithms import StudyViews
from fedspan.algorithms.gcca.kept_maxvar import Missing
from fedspan.algorithms.gcca.study import StudyState, chance_level
from fedspan.core.run import Result
from fedspan.estimators._options.maxvar_solvers import MaxVarParameters
from fedspan.estimators.parameters import is_whole

RIDGES = (1e-3, 0.1, 0.3, 1.0, 3.0, 10.0)  # that ridge="auto" tries, in units of a view's mean eigenvalue
_USUAL_FOLDS = 5
_PERMUTATIONS = 19
_LOOKED_AT_FIRST = 6  # components that n_components="auto" looks at; twice as many if all of them are shared

RunStudy = Callable[[StudyViews, str], Result[StudyState]]


@dataclass(frozen=True)
class Studied:
    """What was found. `by_chance` is the eigenvalue that components must be above; nan if nobody looked."""

    k: int
    ridge: float
    relative: bool
    held_out: Array  # (k,) how well views agree about entities that they did not learn from; empty if nobody looked
    by_chance: float
    last: Result[StudyState] | None  # the run in which it was found


def needs_study(asked: MaxVarParameters) -> bool:
    """Whether something is to be found out before the solver runs."""
    return asked.n_components == "auto" or asked.ridge == "auto" or asked.folds is not None


def study_views(asked: MaxVarParameters, missing: Missing, run: RunStudy) -> Studied:
    """Find the ridge and the number of components that are asked for; `run` runs a study under a name."""
    count = isinstance(asked.n_components, str)
    if not needs_study(asked):
        return Studied(int(asked.n_components), float(asked.ridge), False, np.zeros(0), np.nan, None)
    relative = isinstance(asked.ridge, str)
    study = StudyViews(
        k=int(asked.n_components) if is_whole(asked.n_components) else _LOOKED_AT_FIRST,
        ridges=RIDGES if relative else (float(asked.ridge),),
        folds=int(asked.folds or _USUAL_FOLDS),
        shuffles=_PERMUTATIONS if count else 0,
        center=bool(asked.center),
        scale=bool(asked.scale),
        relative=relative,
        missing=missing,
    )
    result = run(study, "study")
    state = result.state
    held_out, ridge = state.agreement, state.ridge
    if not count:
        return Studied(study.k, ridge, relative, held_out, np.nan, result)
    level = chance_level(state.chance)
    k = int(np.sum(state.theta > level))
    while k == study.k and len(state.theta) == k:  # there may be more
        study = replace(study, k=2 * study.k, ridges=(ridge,), relative=relative)
        result = run(study, f"study-{study.k}")
        state, held_out = result.state, result.state.agreement
        level = chance_level(state.chance)
        k = int(np.sum(state.theta > level))
    return Studied(k, ridge, relative, held_out[:k], level, result)
