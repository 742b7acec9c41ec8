"""From the parameters of FederatedPCA and FederatedSVD to a run: which solver, which channel, how much noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from fedspan.algorithms import Faps, FedPower, Gram, Krylov, LocalPower, Prior, Ssi
from fedspan.channel import Channel, delta, only, pack, quantize
from fedspan.core.protocol import Server
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.private_solvers import (
    PAPER_WARNING,
    Measured,
    PrivateSolver,
    add_paper_noise,
    build_private_plan,
    check_private_request,
    forecast_error,
)
from fedspan.estimators._options.spectral_parameters import SOLVERS, SpectralParameters
from fedspan.estimators.choice import Auto, ProblemSize
from fedspan.estimators.launch import set_options, warn_caller
from fedspan.estimators.parameters import is_whole
from fedspan.privacy.request import PaperDP, RowDP
from fedspan.secure.masking import Secure

_LEAST_TOL32 = 1e-7  # float32 components leave a violation of about 2e-8
_LEAST_TOL64 = 1e-16  # and float64 ones of about 1e-16


@dataclass(frozen=True)
class ChosenSolver:
    """What a request comes to: the solver with all its options, why it was chosen, and what happens on the links."""

    solver: Server[Any]
    why: str
    channel: Channel
    private: PrivateSolver | None = None
    note: str = ""  # for the ledger, before anything is sent


def check_components(n_components: int, features: int) -> None:
    """Refuse more components than there are features."""
    if n_components > features:
        raise InputError(f"n_components must be at most the {features} features, but is {n_components}.")


def choose_solver(
    asked: SpectralParameters,
    schema: Schema,
    clients: int,
    k: int,
    *,
    privacy: RowDP | PaperDP | None = None,
    secure: Secure | None = None,
    prior: Prior | None = None,
    min_clients: int | None = None,
    measure: Callable[[RowDP], Measured] | None = None,
) -> ChosenSolver:
    """The solver of k components for data of that schema; a combination that makes no sense is refused.

    `measure` finds out what a private run must know first.
    """
    if isinstance(privacy, RowDP) and measure is not None:
        if prior is not None:
            raise InputError("warm_start cannot be combined with privacy=RowDP(…); leave it out.")
        check_private_request(asked, schema, k)
        measured = measure(privacy)
        private = build_private_plan(asked, k, measured, secure, schema, clients, min_clients)
        note = forecast_error(private, measured, schema)
        return ChosenSolver(private.solver, private.why, Channel(), private, note)
    if schema.dtype == "float32" and 0 < asked.tol < _LEAST_TOL32:
        raise InputError(
            f"tol must be at least {_LEAST_TOL32:g} if all rows are float32, as the components are then, but is "
            f"{asked.tol!r}. Raise tol, or give the rows as float64."
        )
    if 0 < asked.tol < _LEAST_TOL64:
        raise InputError(
            f"tol must be 0 (all rounds) or at least {_LEAST_TOL64:g}, which is as exact as float64 can be, but is "
            f"{asked.tol!r}."
        )
    solver, why = _pick(asked, schema, clients, k, paper=isinstance(privacy, PaperDP), prior=prior)
    if not is_whole(asked.n_components) and not isinstance(solver, Gram | Krylov):
        raise InputError(
            f"n_components={asked.n_components!r} needs all variances, which solver {type(solver).__name__.lower()!r} "
            "is not made for; use 'gram' or 'krylov', or give a number of components."
        )
    options: dict[str, object] = {"k": k, "tol": asked.tol, "center": asked.center, "scale": asked.scale}
    if not isinstance(privacy, PaperDP):  # without bits, the other solvers see the true residual in every round
        options["check"] = asked.check and asked.tol > 0 and (asked.bits is not None or isinstance(solver, Faps))
    solver = set_options(solver, {**options, **_collect_extras(asked, solver, prior)})
    if isinstance(privacy, PaperDP):
        solver = add_paper_noise(privacy, solver)
        warn_caller(PAPER_WARNING)
        return ChosenSolver(solver, why, build_spectral_channel(solver, asked.bits), note=PAPER_WARNING)
    return ChosenSolver(solver, why, build_spectral_channel(solver, asked.bits))


def _pick(
    asked: SpectralParameters, schema: Schema, clients: int, k: int, *, paper: bool, prior: Prior | None
) -> tuple[Server[Any], str]:
    """The solver before its options are set, and why it was chosen."""
    solver = asked.solver
    if isinstance(solver, str) and solver != "auto":
        return SOLVERS[solver](), "as requested"
    if not isinstance(solver, str | Auto):
        return solver, "as requested"
    partial, local_steps = asked.participation is not None, asked.local_steps is not None
    if paper:
        return FedPower(), "privacy=PaperDP(…) is the noise of this method's paper"
    if asked.angle_tol is not None:
        return Krylov(), "angle_tol was requested"
    if asked.bits == "auto":
        return Krylov(), "bits='auto' was requested"
    if prior is not None:
        return Krylov(), "a warm start was requested"
    if asked.bits is not None and not (partial or local_steps):
        return Ssi(), "its iterates settle, so that they can be sent with few bits"
    if not is_whole(asked.n_components) and asked.n_components != "auto" and not (partial or local_steps):
        return Gram(), f"n_components={asked.n_components!r} needs all variances"
    by_time = solver if isinstance(solver, Auto) else Auto()
    problem = ProblemSize(schema.n_features, k, clients, schema.rows, partial, local_steps, schema.density)
    return by_time.choose(problem)


def _collect_extras(asked: SpectralParameters, solver: Server[Any], prior: Prior | None) -> dict[str, object]:
    """What only some solvers can do; the others refuse it."""
    name = type(solver).__name__.lower()
    extras: dict[str, object] = {}
    if asked.local_steps is not None:
        extras[_find_steps_option(solver, name)] = asked.local_steps
    if asked.participation is not None:
        if not isinstance(solver, FedPower):
            raise InputError(
                f"solver {name!r} needs every client's part of each sum, because the sum over some clients answers "
                "another problem. Use solver='fedpower' for partial participation."
            )
        part = asked.participation
        extras |= {"count": part.count, "fraction": part.fraction, "scheme": part.scheme}
    if prior is not None:
        if not isinstance(solver, Krylov):
            raise InputError(f"A warm start is for solver 'krylov' and 'davidson', not for {name!r}; leave it out.")
        extras["prior"] = prior
    if asked.bits == "auto":
        if not isinstance(solver, Krylov):
            raise InputError(
                f"bits='auto' is for solver 'krylov' and 'davidson', not for {name!r}; give a number of bits."
            )
        if asked.tol < 1e-14:
            raise InputError(
                f"tol must be above 1e-14 to choose the bits by it, but is {asked.tol!r}; leave bits=None."
            )
        extras["rounded"] = True
    if asked.angle_tol is not None:
        if type(solver) is not Krylov:
            raise InputError(f"angle_tol is for solver 'krylov', not for {name!r}, which knows no bound; leave it out.")
        extras["angle_tol"] = asked.angle_tol
    return extras | _collect_width(asked, solver, name)


def _collect_width(asked: SpectralParameters, solver: Server[Any], name: str) -> dict[str, object]:
    """The width of krylov's first block. "auto" leaves that of a solver that was given as an object as it is."""
    if type(solver) is Krylov:
        given = not isinstance(asked.solver, str | Auto)
        return {} if given and asked.width == "auto" else {"width": asked.width}
    if asked.width not in (None, "auto"):
        raise InputError(f"width is for solver 'krylov', not for {name!r}; leave it out.")
    return {}


def _find_steps_option(solver: Server[Any], name: str) -> str:
    """What a solver calls its local steps."""
    known = {option.name for option in fields(solver)}  # type: ignore[arg-type]
    for steps in ("p", "q"):
        if steps in known:
            return steps
    raise InputError(f"local_steps is for solver 'fedpower' and 'localpower', not for {name!r}; leave it out.")


def build_spectral_channel(solver: Server[Any], bits: int | str | None) -> Channel:
    """Both links. A number of bits is a quantiser with memories on both sides, where the solver's theory allows it."""
    if isinstance(solver, Krylov) and bits in (None, "auto"):
        return Channel(up=pack(), down=pack())  # lossless: it packs what the solver itself has rounded
    if bits is None:
        return Channel()
    if isinstance(bits, str) or not isinstance(solver, Ssi | LocalPower | FedPower):
        hint = "use bits='auto'" if isinstance(solver, Krylov) else "leave bits=None"
        raise InputError(f"bits={bits!r} is for solvers whose iterates settle (ssi, localpower, fedpower); {hint}.")
    stage = delta(quantize(bits))
    return Channel(up=only(["Y"], stage), down=only(["Z"], stage))
