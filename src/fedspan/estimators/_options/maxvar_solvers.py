"""From the parameters of FederatedGCCA to a run: are they sound, which solver, which channel."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedspan.algorithms import AltMaxVar, CuteMaxVar, MaxVarDavidson, MaxVarKrylov, Mvlsa
from fedspan.channel import IDENTITY, Channel, delta, only, pack, quantize
from fedspan.core.protocol import Server
from fedspan.errors import InputError, nearest
from fedspan.estimators.launch import whole

_SOLVERS: dict[str, type[Any]] = {
    "krylov": MaxVarKrylov, "davidson": MaxVarDavidson, "altmaxvar": AltMaxVar, "cutemaxvar": CuteMaxVar,
    "mvlsa": Mvlsa,
}  # fmt: skip


def check(model: Any) -> None:
    """The parameters, before any client is asked."""
    for name, least in (("n_components", 1), ("max_rounds", 1), ("local_steps", 1)):
        value = getattr(model, name)
        if not whole(value) or value < least:
            raise InputError(f"need {name} to be an integer of at least {least}, got {value!r}")
    for name in ("batch_size", "patience"):
        value = getattr(model, name)
        if value is not None and (not whole(value) or value < 1):
            raise InputError(f"need {name} to be None or an integer of at least 1, got {value!r}")
    if not isinstance(model.tol, int | float | np.floating) or not 0 <= model.tol < 1:
        raise InputError(f"need tol from 0 (run all rounds) to below 1, got {model.tol!r}")
    if not isinstance(model.ridge, int | float | np.floating) or not 0 <= model.ridge < np.inf:
        raise InputError(f"need ridge to be a number of at least 0, got {model.ridge!r}")
    if model.privacy is not None:
        raise InputError("what leaves a view has no known sensitivity; leave privacy out")
    if model.secure:
        raise InputError(
            "weights_ are those of single views, which secure aggregation would hide; leave secure out, or use "
            "DeepFederatedGCCA, whose networks stay where they are"
        )


def choose(model: Any) -> tuple[Server[Any], int | str | None, str]:
    """The solver with the estimator's numbers in it, its bits, and why it was taken."""
    solver, bits, why = model.solver, model.bits, "it was asked for"
    if isinstance(solver, str) and solver == "auto":
        inexact = model.local_solver != "exact"
        solver = "cutemaxvar" if whole(bits) else "altmaxvar" if inexact else "krylov"
        why = "a number of bits is asked for" if whole(bits) else "of the local solver" if inexact else "it is exact"
    if isinstance(solver, str):
        if solver not in _SOLVERS:
            raise InputError(f"need a known solver, got {solver!r}; {nearest(solver, ['auto', *_SOLVERS])}")
        solver = _SOLVERS[solver]()
    if not isinstance(solver, tuple(_SOLVERS.values())):
        raise InputError(f"need a solver of {', '.join(_SOLVERS)}, got {type(solver).__name__}")
    krylov = isinstance(solver, MaxVarKrylov)
    name = next((name for name, kind in _SOLVERS.items() if type(solver) is kind), type(solver).__name__)
    if bits == "auto":
        if not krylov or model.tol < 1e-14:
            raise InputError(
                f"bits='auto' is for solver 'krylov' or 'davidson' and tol above 1e-14, got {name!r}; give a number"
            )
    elif bits is not None and not isinstance(solver, CuteMaxVar):
        hint = "use bits='auto' and the tol that is enough" if krylov else "use solver='cutemaxvar'"
        raise InputError(f"bits={bits!r} is for solver 'cutemaxvar', got {name!r}; {hint}")
    elif bits is None and isinstance(solver, CuteMaxVar):
        bits = 3
    if bits == 2:
        warnings.warn("2 bits leave one level on each side of zero and may diverge; use 3", UserWarning, stacklevel=3)
    asked: dict[str, Any] = {
        "k": int(model.n_components), "tol": model.tol, "center": model.center, "scale": model.scale,
        "ridge": float(model.ridge), "patience": model.patience or 0, "last": int(model.max_rounds),
    }  # fmt: skip
    if isinstance(model.solver, str):
        asked |= {"local": model.local_solver, "steps": int(model.local_steps), "batch": int(model.batch_size or 0)}
    asked |= {"rounded": bits == "auto"} if krylov else {}
    known = {field.name for field in fields(solver)}
    return replace(solver, **{key: value for key, value in asked.items() if key in known}), bits, why


def channel_for(solver: Server[Any], bits: int | str | None, first_bits: int | None) -> Channel:
    """Both links: quantised against memories on both sides for cutemaxvar, else lossless."""
    if not isinstance(solver, CuteMaxVar):
        return Channel(up=pack(), down=pack())  # lossless
    first = IDENTITY if first_bits is None else quantize(first_bits)
    stage = delta(quantize(bits), first=first)  # type: ignore[arg-type]
    return Channel(up=only(["M"], stage), down=only(["G"], stage))
