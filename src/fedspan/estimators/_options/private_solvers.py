"""From a request for differential privacy to a solver that can keep it, and its plan; or why a solver cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedspan.algorithms import FedPower, NoisyGram, NoisyPower, PaperNoise
from fedspan.core.protocol import declared_releases
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_parameters import SpectralParameters
from fedspan.estimators.launch import count_sharers, warn_caller
from fedspan.privacy.plan import Plan, expected_error, plan_for
from fedspan.privacy.request import PaperDP, RowDP
from fedspan.secure.masking import Secure

_WIDE = 5000  # features up to which d(d+1)/2 numbers are sent
_TYPICAL = 16  # C²/(k·λ_k) for k = 5: 7 on a9a, 16 on covtype, 21 on MNIST, 118 on w8a (benchmarks/fedpower/private.py)
_ROUNDS = 10  # of the papers' narrow iterations: each costs budget
_LARGE = 0.3  # a projection distance above which components say little

_REASONS = {
    "krylov": "Rayleigh-Ritz over several rounds mixes their noise and is worse than one round of gram",
    "davidson": "each client's own eigenpairs have no known sensitivity",
    "faps": "its mask depends on the rows in a way that has no known sensitivity",
    "localpower": "what several local steps release has no known sensitivity",
    "uda": "a client's own eigenvectors have no known sensitivity",
    "wda": "a client's own eigenvectors have no known sensitivity",
    "drsvd": "NoisyPower(width=…) does the same with fewer releases",
}

PAPER_WARNING = (
    "PaperDP is FedPower's own calibration. It reproduces the paper's tables and is not a guarantee: the proof treats "
    "the local iterates as fixed although they depend on the private rows, and it bounds one column where r are "
    "released. Its epsilon is per communication and per entry of AᵀA, and the ledger's row-level epsilon is infinite. "
    "Use RowDP for a guarantee."
)


@dataclass(frozen=True)
class PrivateSolver:
    """A solver that keeps a promise of privacy, and the plan of its noise."""

    solver: NoisyGram | NoisyPower
    plan: Plan
    why: str
    clients: int
    shared: bool  # the clients share the noise of a sum

    def expect_error(self, features: int, theta: float) -> float:
        """The projection distance that the noise makes, if θ is the k-th eigenvalue of M."""
        gram = isinstance(self.solver, NoisyGram)
        task, array = ("triangle", "G") if gram else ("project", "Y")
        C = self.plan.row_norm
        bound = C**2 * (math.sqrt(2) if self.plan.neighbours == "replace-one" else 1.0)
        deviation = self.plan.noise[task][array] * bound
        more = 1.0 if self.shared else math.sqrt(self.clients)
        return expected_error(deviation, features, self.solver.k, theta, symmetric=gram) * more


def build_private_plan(
    asked: SpectralParameters, dp: RowDP, secure: Secure | None, schema: Schema, clients: int, min_clients: int | None
) -> PrivateSolver:
    """The solver that keeps privacy=RowDP(…), and the plan of its noise: checked before anything is sent."""
    solver, why = _choose(asked, schema)
    if asked.scale:
        raise InputError(
            "scale=True cannot be combined with privacy=RowDP(…), because it would read the deviations off the private "
            "rows. Divide the columns by public numbers instead."
        )
    if asked.local_steps not in (None, 1):
        raise InputError(
            "local_steps cannot be combined with privacy=RowDP(…), because what several local steps release has no "
            "known sensitivity; leave it out."
        )
    for name, value in (("participation", asked.participation), ("bits", asked.bits)):
        if value is not None:
            raise InputError(f"{name} cannot be combined with privacy=RowDP(…); leave it out.")
    check_delta(dp, schema.rows)
    solver = replace(solver, k=int(asked.n_components), center=asked.center)
    if isinstance(solver, NoisyPower):
        solver = replace(solver, d=schema.n_features)
    spread = count_sharers(secure, clients, min_clients)
    plan = plan_for(dp, declared_releases(solver.client), solver.planned(), spread=spread)
    return PrivateSolver(solver, plan, why, clients, secure is not None)


def check_delta(dp: RowDP, rows: int) -> None:
    """Refuse a δ at which a whole row may be shown."""
    if dp.delta * rows >= 1:
        raise InputError(
            f"delta must be below 1 / {rows} rows, but is {dp.delta!r}: at that delta a whole row may be shown."
        )


def _choose(asked: SpectralParameters, schema: Schema) -> tuple[NoisyGram | NoisyPower, str]:
    solver, k = asked.solver, int(asked.n_components)
    if isinstance(solver, NoisyGram | NoisyPower):
        return solver, "as requested"
    if solver == "gram":
        return NoisyGram(), "as requested"
    if solver == "auto":
        if schema.n_features <= _WIDE:
            return NoisyGram(), "with privacy, one noisy Gram matrix has the smallest error"
        return NoisyPower(), f"with privacy, more than {_WIDE} features are too many for a Gram matrix"
    if solver in ("ssi", "fedpower"):
        width = k if solver == "ssi" else min(2 * k, schema.n_features)
        rounds = min(int(asked.max_rounds), _ROUNDS)
        return NoisyPower(k=k, width=width, rounds=rounds), f"{solver} as requested, with noise in its {rounds} rounds"
    name = solver if isinstance(solver, str) else type(solver).__name__.lower()
    raise InputError(
        f"solver {name!r} cannot keep row-level privacy: {_REASONS.get(name, 'its sensitivity is not known')}. Use "
        "solver='gram', or fedspan.algorithms.NoisyPower(width=…) for very many features."
    )


def add_paper_noise(dp: PaperDP, solver: object) -> PaperNoise:
    """FedPower with the paper's noise."""
    if not isinstance(solver, FedPower) or isinstance(solver, PaperNoise):
        name = type(solver).__name__.lower()
        raise InputError(f"privacy=PaperDP(…) is for solver='fedpower', not for {name!r}; use RowDP or fedpower.")
    second = dp.epsilon if dp.server_epsilon is None else dp.server_epsilon
    return PaperNoise(**vars(solver), epsilon1=dp.epsilon, epsilon2=second, delta=dp.delta)


def forecast_error(chosen: PrivateSolver, dp: RowDP, schema: Schema) -> str:
    """The error to expect, before any budget is spent; a warning if it is large."""
    largest = chosen.plan.row_norm**2 / chosen.solver.k
    error = chosen.expect_error(schema.n_features, schema.rows * (dp.expect or largest / _TYPICAL))
    if dp.expect is not None:
        guess = "with the variance given in RowDP(expect=…)"
    else:
        best = chosen.expect_error(schema.n_features, schema.rows * largest)
        guess = f"on a typical table ({best:.2g} if its variances are as large as row_norm allows)"
    text = f"Expected projection distance: about {error:.2g} {guess}."
    if not chosen.shared and chosen.clients > 1:
        less = math.sqrt(chosen.clients)
        text += f" Every client adds all of the noise: with secure=True it would be {less:.2g} times smaller."
    if error > _LARGE:
        warn_caller(
            f"{text} Above {_LARGE:g} the components say little: raise epsilon, lower row_norm, ask for fewer "
            "components, or join more rows. Nothing has been sent yet."
        )
    return text


def describe_error(chosen: PrivateSolver, features: int, theta: float) -> str:
    """The error to expect once the (noised) variances are known: it costs nothing to say."""
    error = min(chosen.expect_error(features, theta), 1.0) if theta > 0 else 1.0
    return f"With the variances that were found, the expected projection distance is about {error:.2g}."
