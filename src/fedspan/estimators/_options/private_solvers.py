"""From a request for differential privacy to a solver that can keep it, and its plan; or why a solver cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from fedspan.algorithms import FedPower, Known, NoisyGram, NoisyPower, NoisyRefine, PaperNoise
from fedspan.algorithms.spectral.private_bounds import Bounds, Census, PrivateMean
from fedspan.core.ledger import Counted, Ledger, Note
from fedspan.core.protocol import Server, declared_releases
from fedspan.core.run import Result
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_parameters import SpectralParameters
from fedspan.estimators.launch import count_sharers, warn_caller
from fedspan.privacy.noised_count import NoisedCount
from fedspan.privacy.plan import Plan, expected_error, plan_for
from fedspan.privacy.request import PaperDP, RowDP
from fedspan.secure.masking import Secure

_WIDE = 5000  # features up to which d(d+1)/2 numbers are sent
_TYPICAL = 16  # C²/(k·λ_k) for k = 5: 7 on a9a, 16 on covtype, 21 on MNIST, 118 on w8a (benchmarks/fedpower/private.py)
_ROUNDS = 10  # of the papers' narrow iterations: each costs budget
_LARGE = 0.3  # a projection distance above which components say little
_MANY = 0.2  # a share of shortened rows above which there is a warning
_MANY_FEATURES = 500  # from which centred rows are long beside their components
_NOISE_MATTERS = 0.1  # a projection distance from which a second look pays
_UNUSED = 1e-12  # a row norm for releases that do not depend on it

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


AnyNoisy = NoisyGram | NoisyRefine | NoisyPower


@dataclass(frozen=True)
class Measured:
    """What a private run found out first: the bound in `dp` is a number, and `spent` the share of μ² that it took."""

    dp: RowDP
    known: Known
    rows: NoisedCount
    longer: NoisedCount | None  # rows that are longer than the bound; None if the bound was found
    spent: float
    unit: bool = False  # rows get the norm 1, whatever it was


class RunPart(Protocol):
    """Runs one part of a private fit, in a checkpoint of its own."""

    def __call__(self, algorithm: Server[Bounds], plan: Plan, part: str) -> Result[Bounds]: ...


@dataclass(frozen=True)
class PrivateSolver:
    """A solver that keeps a promise of privacy, and the plan of its noise."""

    solver: AnyNoisy
    plan: Plan
    why: str
    clients: int
    shared: bool  # the clients share the noise of a sum

    def expect_error(self, features: int, theta: float, n: float) -> float:
        """The projection distance that the noise makes, if θ is the k-th eigenvalue of M."""
        gram, k = isinstance(self.solver, NoisyGram), self.solver.k
        task, array = ("triangle", "G") if gram else ("project", "Y")
        C = self.plan.row_norm
        bound = C**2 * (math.sqrt(2) if self.plan.neighbours == "replace-one" else 1.0)
        more = 1.0 if self.shared else math.sqrt(self.clients)
        found = expected_error(self.plan.noise[task][array] * bound, features, k, theta, symmetric=gram) * more
        if isinstance(self.solver, NoisyRefine):
            cut = min(1.0, math.sqrt(k * theta / n) / C)  # the part of a row that is in the components
            last = self.plan.noise["refine"]["Y"] * bound * cut
            found = min(found, expected_error(last, features, k, theta, symmetric=False) * more)
        return found


def check_private_request(asked: SpectralParameters, schema: Schema, k: int) -> None:
    """Refuse what cannot be private before anything is sent."""
    _choose(asked, k, schema, True)
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


def measure_rows(run_part: RunPart, dp: RowDP, center: bool, clients: int, sharers: int, ledger: Ledger) -> Measured:
    """Find out, for a small part of the budget, what a private run must know: n, and the bounds that are left open."""
    check_delta_before(dp, clients)
    auto, unit = dp.row_norm == "auto", dp.row_norm == "unit"
    own = center and (auto or unit or dp.center is not None)  # the mean has a bound of its own
    robust = dp.center == "robust" or (unit and dp.center is None)
    find_raw = auto or (own and robust)
    census = Census(search=find_raw, bounded=not unit)
    first = replace(dp, row_norm=_UNUSED) if find_raw else replace(dp, row_norm=1.0) if unit else dp
    plan = _plan_opening(census, first, sharers)
    found = run_part(census, plan, "census").state
    spent, n, mean = _sum_shares(census), found.n, None
    norm = 1.0 if unit else dp.row_norm
    rows, longer = _count_rows(found, plan, clients)
    ledger.add(Counted(rows.value, rows.deviation))
    check_delta(dp, rows, ledger)
    if auto and not center:
        norm = found.norm
    if own:
        raw = dp.center if isinstance(dp.center, float | int) else found.norm
        opening = PrivateMean(search=auto, prior=n)
        located = run_part(opening, _plan_opening(opening, replace(dp, row_norm=raw), sharers), "mean").state
        spent, mean = spent + _sum_shares(opening), located.mean
        norm = located.norm if auto else norm
        after = "after centering every row got the norm 1" if unit else f"after centering to {norm:.4g}"
        ledger.add(Note(f"Rows were shortened to {raw:.4g} for their mean, and {after}."))
    elif center:
        ledger.add(Note(f"Rows were shortened to {norm:.4g} for their mean, and again to {norm:.4g} after centering."))
    if auto:
        ledger.add(Note(f"row_norm {norm:.4g} was found by a noised histogram of the rows' lengths."))
    measured = Measured(
        replace(dp, row_norm=norm), Known(n, None if mean is None else tuple(mean.tolist())), rows, longer, spent, unit
    )
    _tell_counts(measured, ledger)
    return measured


def _plan_opening(opening: Census | PrivateMean, dp: RowDP, sharers: int) -> Plan:
    return plan_for(dp, declared_releases(opening.client), opening.planned(), spread=sharers, opens=True)


def _count_rows(found: Bounds, plan: Plan, clients: int) -> tuple[NoisedCount, NoisedCount | None]:
    """The noised numbers of rows, and of those that are longer than the bound if they were counted."""
    task, declared = ("tally" if "tally" in plan.noise else "census"), declared_releases(Census.client)

    def count(value: float, array: str) -> NoisedCount:
        return NoisedCount(value, plan.deviation(task, array, declared[task][array], 1, clients))

    return count(found.n, "n"), None if math.isnan(found.longer) else count(found.longer, "longer")


def _sum_shares(opening: Census | PrivateMean) -> float:
    return sum(release.share for release in opening.planned())


def _tell_counts(measured: Measured, ledger: Ledger) -> None:
    """Say, from noised counts, how many rows there are and how many were shortened; warn if it is many for sure."""
    rows, longer = measured.rows, measured.longer
    text = f"The table has {rows.describe('rows')}"
    if longer is None:
        ledger.add(Note(f"{text}."))
        return
    text += f"; {rows.describe_part(longer, f'longer than row_norm={measured.dp.row_norm:g}')}."
    ledger.add(Note(text))
    if longer.least > _MANY * rows.most:
        warn_caller(
            f"{text} They were shortened, which changes the components. Raise row_norm, or give row_norm='auto'; if "
            "the rows lie far from the origin, give RowDP(center='robust')."
        )


def build_private_plan(
    asked: SpectralParameters,
    k: int,
    measured: Measured,
    secure: Secure | None,
    schema: Schema,
    clients: int,
    min_clients: int | None,
) -> PrivateSolver:
    """The solver that keeps privacy=RowDP(…), and the plan of its noise."""
    center, spread = bool(asked.center), count_sharers(secure, clients, min_clients)

    def plan(solver: AnyNoisy, why: str) -> PrivateSolver:
        known = measured.known
        solver = replace(solver, k=k, center=center, counted=True, spent=measured.spent)
        solver = replace(solver, located=known.mean is not None, prior=known, unit=measured.unit)
        if isinstance(solver, NoisyPower):
            solver = replace(solver, d=schema.n_features)
        made = plan_for(measured.dp, declared_releases(solver.client), solver.planned(), spread=spread)
        return PrivateSolver(solver, made, why, clients, spread > 1)

    gram = plan(NoisyGram(), "")
    noisy = guess_error(gram, measured, schema.n_features) > _NOISE_MATTERS
    return plan(*_choose(asked, k, schema, noisy))


def check_delta_before(dp: RowDP, clients: int) -> None:
    """Refuse, before anything is spent, a δ that is too large however few rows each client has."""
    if dp.delta * clients >= 1:
        raise InputError(
            f"delta must be below 1 / number of rows, but is {dp.delta!r} for {clients} clients with at least one row "
            "each: at that delta a whole row may be shown. Nothing was released."
        )


def check_delta(dp: RowDP, rows: NoisedCount, ledger: Ledger) -> None:
    """Refuse a δ at which a whole row may be shown; if the noise leaves a doubt, say so.

    By the noised count, which is charged: a refusal by the exact number of rows would tell about it.
    """
    if dp.delta * rows.least >= 1:
        raise InputError(
            f"delta must be below 1 / number of rows, but is {dp.delta!r} for {rows.describe('rows')}: at that delta a "
            f"whole row may be shown. Only noised counts were released, for epsilon {ledger.epsilon(dp.delta):.2g} of "
            f"{dp.epsilon:g}."
        )
    if dp.delta * rows.most >= 1:
        ledger.add(
            Note(
                f"Whether delta={dp.delta:g} is below 1 / number of rows cannot be told from the noised count "
                f"({rows.figure()}); above, a whole row may be shown."
            )
        )


def _choose(asked: SpectralParameters, k: int, schema: Schema, noisy: bool) -> tuple[AnyNoisy, str]:
    """The solver, and why. `noisy`: one noisy Gram matrix would leave an error that matters."""
    solver, d = asked.solver, schema.n_features
    if isinstance(solver, NoisyGram | NoisyPower):
        return solver, "as requested"
    if solver == "gram":
        return NoisyGram(), "as requested"
    if solver == "auto":
        if d > _WIDE:
            rounds = 3 if d < 20 * k else 2
            return NoisyPower(rounds=rounds), f"with privacy, more than {_WIDE} features are too many for a Gram matrix"
        if d > _MANY_FEATURES and asked.center and noisy:
            return NoisyRefine(), (
                f"with privacy, {d} features and so few rows, half of the budget on a second look at the components "
                "gives the smallest error"
            )
        return NoisyGram(), "with privacy, one noisy Gram matrix has the smallest error at this size"
    if solver in ("ssi", "fedpower"):
        width = k if solver == "ssi" else min(2 * k, d)
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


def guess_error(chosen: PrivateSolver, measured: Measured, features: int, *, best: bool = False) -> float:
    """The error with the variance that the user expects, or a typical one; with `best`, the largest that C allows."""
    n, largest = measured.known.n, chosen.plan.row_norm**2 / chosen.solver.k
    variance = largest if best else measured.dp.expect or largest / _TYPICAL
    return chosen.expect_error(features, n * variance, n)


def forecast_error(chosen: PrivateSolver, measured: Measured, schema: Schema) -> str:
    """The error to expect, before most of the budget is spent; a warning if it is large."""
    error = guess_error(chosen, measured, schema.n_features)
    if measured.dp.expect is not None:
        guess = "with the variance given in RowDP(expect=…)"
    else:
        best = guess_error(chosen, measured, schema.n_features, best=True)
        guess = f"on a typical table ({best:.2g} if its variances are as large as row_norm allows)"
    text = f"Expected projection distance: about {error:.2g} {guess}."
    if measured.rows.hidden:
        text += f" The noise hides even the number of rows ({measured.rows.figure()})."
    if not chosen.shared and chosen.clients > 1:
        less = math.sqrt(chosen.clients)
        text += f" Every client adds all of the noise: with secure=True it would be {less:.2g} times smaller."
    if error > _LARGE or measured.rows.hidden:
        warn_caller(
            f"{text} Above {_LARGE:g} the components say little: raise epsilon, lower row_norm, ask for fewer "
            "components, or join more rows. Only noised counts have been sent yet."
        )
    return text


def describe_error(chosen: PrivateSolver, features: int, theta: float, n: float) -> str:
    """The error to expect once the (noised) variances are known: it costs nothing to say."""
    error = min(chosen.expect_error(features, theta, n), 1.0) if theta > 0 else 1.0
    return f"With the variances that were found, the expected projection distance is about {error:.2g}."
