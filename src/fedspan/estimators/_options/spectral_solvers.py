"""From an estimator's parameters to a run: which solver, which channel, which engine. Shared by PCA and SVD."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedspan.algorithms import (
    Davidson,
    DrSvd,
    Faps,
    FedPower,
    Gram,
    Krylov,
    LocalPower,
    Prior,
    Ssi,
    Uda,
    Wda,
)
from fedspan.channel import Channel, delta, only, pack, quantize
from fedspan.core.ledger import Ledger, Note
from fedspan.core.participation import Participation
from fedspan.core.protocol import Server
from fedspan.core.run import Info, Result
from fedspan.data.clients import open_clients
from fedspan.data.common_schema import Schema
from fedspan.errors import InputError, nearest
from fedspan.estimators._options.private_solvers import PAPER_WARNING, forecast, hindsight, paper_noise, private
from fedspan.estimators.choice import Auto, Problem
from fedspan.estimators.launch import launch, secure_from, whole
from fedspan.privacy.request import PaperDP, RowDP

SOLVERS: dict[str, Callable[[], Server[Any]]] = {
    "gram": Gram, "krylov": Krylov, "davidson": Davidson, "faps": Faps, "ssi": Ssi, "localpower": LocalPower,
    "fedpower": FedPower, "uda": Uda, "wda": Wda, "drsvd": DrSvd,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What is asked of a spectral solver, in the estimators' words."""

    n_components: int
    solver: str | Auto | Server[Any]
    center: bool
    scale: bool
    tol: float
    max_rounds: int
    local_steps: int | None
    bits: int | str | None
    participation: Participation | None
    privacy: Any
    secure: Any
    prior: Prior | None = None


def checked(request: Request, schema: Schema) -> Request:
    """The request, if it makes sense for data of that schema."""
    k, d = request.n_components, schema.n_features
    if not whole(k) or not 1 <= k <= d:
        raise InputError(f"need n_components to be an integer from 1 to the {d} features, got {k!r}")
    if not isinstance(request.tol, int | float | np.floating) or not 0 <= request.tol < 1:
        raise InputError(f"need tol from 0 (run all rounds) to below 1, got {request.tol!r}")
    if not whole(request.max_rounds) or request.max_rounds < 1:
        raise InputError(f"need max_rounds to be an integer of at least 1, got {request.max_rounds!r}")
    if request.local_steps is not None and (not whole(request.local_steps) or request.local_steps < 1):
        raise InputError(f"need local_steps to be an integer of at least 1, got {request.local_steps!r}")
    if request.participation is not None and not isinstance(request.participation, Participation):
        raise InputError(f"need participation to be a fedspan.Participation, got {request.participation!r}")
    if request.privacy is not None and not isinstance(request.privacy, RowDP | PaperDP):
        raise InputError(f"need privacy to be a fedspan.RowDP or a fedspan.PaperDP, got {request.privacy!r}")
    secure_from(request.secure)
    return replace(request, n_components=int(k), max_rounds=int(request.max_rounds))


def choose(request: Request, schema: Schema, clients: int) -> tuple[Server[Any], str]:
    """The solver with the request's numbers in it, and one sentence on why it was taken."""
    solver, why = request.solver, "it was asked for"
    if solver == "auto" or isinstance(solver, Auto):
        problem = Problem(
            schema.n_features, request.n_components, clients, schema.rows,
            request.participation is not None, request.local_steps is not None,
        )  # fmt: skip
        if isinstance(request.privacy, PaperDP):
            solver, why = FedPower(), "privacy=PaperDP(…) is this paper's own noise"
        elif request.bits == "auto" or request.prior is not None:
            what = "bits='auto'" if request.bits == "auto" else "a warm start"
            solver, why = Krylov(), f"{what} is asked for, which krylov can do"
        elif request.bits is not None and not (problem.partial or problem.local_steps):
            solver, why = Ssi(), "a number of bits is asked for, which an iteration that settles can do"
        else:
            solver, why = (solver if isinstance(solver, Auto) else Auto()).choose(problem)
    if isinstance(solver, str):
        if solver not in SOLVERS:
            raise InputError(f"need a known solver, got {solver!r}; {nearest(solver, ['auto', *SOLVERS])}")
        solver = SOLVERS[solver]()
    known = {f.name for f in fields(solver)}  # type: ignore[arg-type]
    asked = {"k": request.n_components, "tol": request.tol, "center": request.center, "scale": request.scale}
    asked |= _extras(request, solver, known)
    return replace(solver, **{key: value for key, value in asked.items() if key in known}), why  # type: ignore[type-var]


def _extras(request: Request, solver: Server[Any], known: set[str]) -> dict[str, Any]:
    """What only some solvers can do; the others refuse it."""
    name = type(solver).__name__.lower()
    extras: dict[str, Any] = {}
    if request.local_steps is not None:
        steps = next((field for field in ("p", "q") if field in known), None)
        if steps is None:
            raise InputError(f"local_steps is for solver 'fedpower' and 'localpower', got {name!r}; leave it out")
        extras[steps] = request.local_steps
    if request.participation is not None:
        if not isinstance(solver, FedPower):
            raise InputError(
                f"solver {name!r} needs every client's part of each sum: the sum over a subset answers another "
                "problem; use solver='fedpower' for partial participation"
            )
        part = request.participation
        extras |= {"count": part.count, "fraction": part.fraction, "scheme": part.scheme}
    if request.prior is not None:
        if not isinstance(solver, Krylov):
            raise InputError(f"a warm start is for solver 'krylov' and 'davidson', got {name!r}; leave it out")
        extras["prior"] = request.prior
    if request.bits == "auto":
        if not isinstance(solver, Krylov):
            raise InputError(f"bits='auto' is for solver 'krylov' and 'davidson', got {name!r}; give a number of bits")
        if request.tol < 1e-14:
            raise InputError(f"need a tol above 1e-14 to choose the bits by, got {request.tol!r}; leave bits=None")
        extras["rounded"] = True
    return extras


def channel_for(solver: Server[Any], bits: int | str | None) -> Channel:
    """Both links. A number of bits is a quantiser with memories on both sides, where the solver's theory allows it."""
    if isinstance(solver, Krylov) and bits in (None, "auto"):
        return Channel(up=pack(), down=pack())  # lossless: it packs what the solver itself has rounded
    if bits is None:
        return Channel()
    if not isinstance(solver, Ssi | LocalPower | FedPower):
        hint = "use bits='auto'" if isinstance(solver, Krylov) else "leave bits=None"
        raise InputError(f"bits={bits!r} is for iterates that settle (ssi, localpower, fedpower); {hint}")
    stage = delta(quantize(bits))  # type: ignore[arg-type]
    return Channel(up=only(["Y"], stage), down=only(["Z"], stage))


def solve(
    request: Request,
    clients: Mapping[str, Any] | Sequence[Any],
    *,
    engine: Any,
    callback: Callable[[Info], None] | None,
    checkpoint: Any,
    seed: int,
    ledger: Ledger | None,
    min_clients: int | None,
) -> tuple[Result[Any], Schema]:
    """Check, choose, run."""
    data, schema = open_clients(clients, in_batches=True)
    request = checked(request, schema)
    chosen, plan, notes = None, None, []
    solver: Server[Any]
    if isinstance(request.privacy, RowDP):
        chosen = private(request, schema, len(data), min_clients)
        solver, why, plan = chosen.solver, chosen.why, chosen.plan
        notes = [forecast(chosen, request.privacy, schema, len(data), bool(request.secure))]
    else:
        solver, why = choose(request, schema, len(data))
    if isinstance(request.privacy, PaperDP):
        solver, notes = paper_noise(request.privacy, solver), [PAPER_WARNING]
        warnings.warn(PAPER_WARNING, UserWarning, stacklevel=3)
    channel = channel_for(solver, request.bits)
    ledger = ledger if ledger is not None else Ledger()
    for note in notes:
        ledger.add(Note(note))
    result = launch(
        solver, data, why=why, rounds=request.max_rounds, seed=seed, channel=channel, engine=engine, callback=callback,
        checkpoint=checkpoint, ledger=ledger, min_clients=min_clients, about={"features": schema.n_features},
        privacy=plan, secure=secure_from(request.secure),
    )  # fmt: skip
    if chosen:
        theta, clients_ = float(result.state.theta[-1]), len(data)
        ledger.add(Note(hindsight(chosen, schema.n_features, theta, clients_, bool(request.secure))))
    return result, schema
