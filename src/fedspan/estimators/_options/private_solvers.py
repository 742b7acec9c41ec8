"""From a wish for differential privacy to a solver that can keep it, and its plan; or the reason why one cannot."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

from fedspan.algorithms import FedPower, NoisyGram, NoisyPower, PaperNoise
from fedspan.data.common_schema import Schema
from fedspan.errors import InputError
from fedspan.estimators.launch import secure_from, sharing
from fedspan.privacy.plan import Plan, Release, expected_error, plan_for
from fedspan.privacy.request import PaperDP, RowDP

_WIDE = 5000  # features up to which d(d+1)/2 numbers are sent
_TYPICAL = 16  # C²/(k·λ_k) for k = 5: 7 on a9a, 16 on covtype, 21 on MNIST, 118 on w8a (benchmarks/fedpower/private.py)
_TYPICAL = 16  # C²/(k·λ_k) for k = 5: 7 on a9a, 16 on covtype, 21 on MNIST, 118 on w8a
_ROUNDS = 10  # of the papers' narrow iterations: each costs budget

_REASONS = {
    "krylov": "Rayleigh-Ritz over the pairs of several rounds mixes their noise and is worse than one round of gram",
    "davidson": "each client's own eigenpairs have no known sensitivity",
    "faps": "its mask depends on the rows in a way that has no known sensitivity",
    "localpower": "what several local steps release has no known sensitivity",
    "uda": "a client's own eigenvectors have no known sensitivity",
    "wda": "a client's own eigenvectors have no known sensitivity",
    "drsvd": "use solver=NoisyPower(width=…), which is the same with fewer releases",
}


@dataclass(frozen=True)
class Private:
    """A solver, its plan, why it was taken, and the error to expect."""

    solver: NoisyGram | NoisyPower
    plan: Plan
    why: str

    def error(self, d: int, theta: float) -> float:
        """The projection distance that the noise makes, if θ is the k-th eigenvalue of M."""
        gram = isinstance(self.solver, NoisyGram)
        task, array = ("triangle", "G") if gram else ("project", "Y")
        C = self.plan.row_norm
        bound = C**2 * (math.sqrt(2) if self.plan.neighbours == "replace-one" else 1.0)
        deviation = self.plan.noise[task][array] * bound
        return expected_error(deviation, d, self.solver.k, theta, symmetric=gram)


def private(request: Any, schema: Schema, clients: int, min_clients: int | None) -> Private:
    """What a request with privacy=RowDP(…) comes to, checked before anything is sent."""
    dp: RowDP = request.privacy
    solver, why = _solver(request, schema)
    if request.scale:
        raise InputError("scale=True would read the deviations off the data; divide the columns by public ones instead")
    for name in ("participation", "bits", "prior"):
        if getattr(request, name) is not None:
            word = "warm_start" if name == "prior" else name
            raise InputError(f"{word} cannot be combined with privacy=RowDP(…); leave it out")
    if request.local_steps not in (None, 1):
        raise InputError("what several local steps release has no known sensitivity; leave local_steps out")
    if dp.delta * schema.rows >= 1:
        raise InputError(f"need delta below 1 / {schema.rows} rows, got {dp.delta!r}; at that delta a row may be shown")
    solver = replace(solver, k=request.n_components, center=request.center)
    if isinstance(solver, NoisyPower):
        solver = replace(solver, d=schema.n_features)
    spread = sharing(secure_from(request.secure), clients, min_clients)
    plan = plan_for(dp, solver.client, [Release(*planned) for planned in solver.planned()], spread=spread)
    return Private(solver, plan, why)


def _solver(request: Any, schema: Schema) -> tuple[NoisyGram | NoisyPower, str]:
    solver, k = request.solver, request.n_components
    if isinstance(solver, NoisyGram | NoisyPower):
        return solver, "it was asked for"
    if not isinstance(solver, str):
        name = type(solver).__name__.lower()
        raise InputError(f"solver {name!r} cannot keep row-level privacy: {_REASONS.get(name, 'use gram')}")
    if solver == "auto":
        if schema.n_features <= _WIDE:
            return NoisyGram(), "privacy is asked for, and one noisy Gram matrix has the least error"
        return NoisyPower(), f"privacy is asked for, and more than {_WIDE} features are too many for a Gram matrix"
    if solver == "gram":
        return NoisyGram(), "it was asked for"
    if solver in ("ssi", "fedpower"):
        width = k if solver == "ssi" else min(2 * k, schema.n_features)
        rounds = min(request.max_rounds, _ROUNDS)
        return NoisyPower(
            k=k, width=width, rounds=rounds
        ), f"{solver}, with noise in its {rounds} rounds, was asked for"
    raise InputError(
        f"solver {solver!r} cannot keep row-level privacy: {_REASONS.get(solver, 'it is not known')}; "
        "use solver='gram', or fedspan.algorithms.NoisyPower(width=…) for very many features"
    )


PAPER_WARNING = (
    "PaperDP is FedPower's own calibration, to reproduce its tables, not a guarantee: its proof holds the local "
    "iterates fixed although they depend on the private rows, and bounds one column where r are released; epsilon is "
    "per communication and per entry of AᵀA, and the ledger's row-level epsilon is infinite. Use RowDP for a guarantee"
)


def paper_noise(dp: PaperDP, solver: Any) -> PaperNoise:
    """FedPower with the paper's noise."""
    if type(solver) is not FedPower:
        name = type(solver).__name__.lower()
        raise InputError(f"privacy=PaperDP(…) is for solver='fedpower', got {name!r}; use RowDP, or fedpower")
    options = {f.name: getattr(solver, f.name) for f in fields(solver) if f.name != "client"}
    second = dp.epsilon if dp.server_epsilon is None else dp.server_epsilon
    return PaperNoise(**options, epsilon1=dp.epsilon, epsilon2=second, delta=dp.delta)


def forecast(chosen: Private, dp: RowDP, schema: Schema, clients: int, secure: bool) -> str:
    """The error to expect, before any budget is spent; a warning if it is large."""
    largest = chosen.plan.row_norm**2 / chosen.solver.k
    local = 1.0 if secure else math.sqrt(clients)
    error = chosen.error(schema.n_features, schema.rows * (dp.expect or largest / _TYPICAL)) * local
    if dp.expect is not None:
        guess = "with the variance that RowDP(expect=…) gives"
    else:
        best = chosen.error(schema.n_features, schema.rows * largest) * local
        guess = f"on a table like others ({best:.2g} if its variances are as large as row_norm allows)"
    text = f"expected projection distance about {error:.2g} {guess}"
    if not secure and clients > 1:
        text += f"; every client adds all of the noise: secure=True would make it {local:.2g} times less"
    if error > 0.3:
        warnings.warn(
            f"{text}: above 0.3 the components say little; raise epsilon, lower row_norm, take fewer components, or "
            "join more rows. Nothing was sent yet",
            UserWarning,
            stacklevel=5,
        )
    return text


def hindsight(chosen: Private, d: int, theta: float, clients: int, secure: bool) -> str:
    """The error to expect once the (noised) variances are known: it costs nothing to say."""
    error = chosen.error(d, theta) * (1.0 if secure else math.sqrt(clients)) if theta > 0 else math.inf
    return f"with the variances that were found, the projection distance to expect is about {min(error, 1.0):.2g}"
