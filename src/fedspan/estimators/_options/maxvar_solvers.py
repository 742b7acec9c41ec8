"""The parameters of FederatedGCCA, and what they come to: which solver, which channel."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import Any

from fedspan.algorithms import AltMaxVar, CuteMaxVar, MaxVarDavidson, MaxVarKrylov, Mvlsa
from fedspan.channel import IDENTITY, Channel, delta, only, pack, quantize
from fedspan.core.protocol import Server
from fedspan.errors import InputError
from fedspan.estimators._options.common_parameters import BITS_ON_LINKS, MAX_ROUNDS, N_COMPONENTS
from fedspan.estimators.launch import set_options, warn_caller
from fedspan.estimators.parameters import about, is_whole
from fedspan.secure.masking import Secure

MAXVAR_SOLVERS: dict[str, type[Server[Any]]] = {
    "krylov": MaxVarKrylov,
    "davidson": MaxVarDavidson,
    "altmaxvar": AltMaxVar,
    "cutemaxvar": CuteMaxVar,
    "mvlsa": Mvlsa,
}
_BITS = 3  # of cutemaxvar


@dataclass(eq=False, repr=False)
class MaxVarParameters:
    """What can be asked of a solver of MAX-VAR GCCA."""

    n_components: int = field(default=2, metadata=N_COMPONENTS)
    _: KW_ONLY
    solver: str | Server[Any] = field(
        default="auto",
        metadata=about('The method; "auto" is krylov unless other options decide.', choices=("auto", *MAXVAR_SOLVERS)),
    )
    local_solver: str = field(
        default="exact",
        metadata=about(
            "How a client's weights follow the common representation (altmaxvar, cutemaxvar).",
            choices=("exact", "gradient", "sgd"),
        ),
    )
    local_steps: int = field(
        default=10, metadata=about("Steps of the gradient and sgd local solvers in each round.", least=1)
    )
    batch_size: int | None = field(
        default=None, metadata=about("Entities in a batch of the sgd local solver.", least=1, example=100)
    )
    bits: int | str | None = field(default=None, metadata=BITS_ON_LINKS)
    first_bits: int | None = field(
        default=8, metadata=about("Bits of the first exchange of cutemaxvar.", least=2, most=16, example=8)
    )
    ridge: float = field(
        default=0.0, metadata=about("Added to the squared singular values of every view.", least=0, below=inf)
    )
    center: bool = field(
        default=True, metadata=about("Whether each client subtracts its features' means, which it does not show.")
    )
    scale: bool = field(
        default=False,
        metadata=about("Whether each client divides its features by their deviations, which it does not show."),
    )
    tol: float = field(
        default=1e-6,
        metadata=about("Stop when the scaled violation is at most this; 0 runs all rounds.", least=0, below=1),
    )
    max_rounds: int = field(default=200, metadata=MAX_ROUNDS)
    patience: int | None = field(
        default=None,
        metadata=about(
            "Stop after this many rounds without a better alignment of the rows held out.", least=1, example=10
        ),
    )


def check_not_secure(secure: bool | Secure) -> None:
    """Refuse secure aggregation, which would hide what the model consists of."""
    if secure:
        raise InputError(
            "secure cannot be used here: weights_ belong to single views, and secure aggregation would hide them. "
            "Leave it out, or use DeepFederatedGCCA, whose networks stay at their clients."
        )


def choose_maxvar_solver(asked: MaxVarParameters) -> tuple[Server[Any], int | str | None, str]:
    """The solver with all its options, its bits, and why it was chosen."""
    solver, why = _pick_maxvar(asked)
    bits = fill_in_bits(solver, asked.bits)
    _check_bits(solver, bits, asked.tol)
    options: dict[str, object] = {
        "k": int(asked.n_components),
        "tol": asked.tol,
        "center": asked.center,
        "scale": asked.scale,
        "ridge": float(asked.ridge),
        "patience": asked.patience or 0,
        "last": int(asked.max_rounds),
    }
    if isinstance(asked.solver, str):  # else the object has its own
        options["local"] = asked.local_solver
        options["steps"] = int(asked.local_steps)
        options["batch"] = int(asked.batch_size or 0)
    if isinstance(solver, MaxVarKrylov):
        options["rounded"] = bits == "auto"
    return set_options(solver, options), bits, why


def _pick_maxvar(asked: MaxVarParameters) -> tuple[Server[Any], str]:
    if not isinstance(asked.solver, str):
        if not isinstance(asked.solver, tuple(MAXVAR_SOLVERS.values())):
            raise InputError(
                f"solver must be one of {', '.join(MAXVAR_SOLVERS)} or an object of their classes, but is a "
                f"{type(asked.solver).__name__}."
            )
        return asked.solver, "as requested"
    if asked.solver != "auto":
        return MAXVAR_SOLVERS[asked.solver](), "as requested"
    if is_whole(asked.bits):
        return CuteMaxVar(), "a number of bits was requested"
    if asked.local_solver != "exact":
        return AltMaxVar(), f"local_solver={asked.local_solver!r} was requested"
    return MaxVarKrylov(), "it is exact and needs few rounds"


def fill_in_bits(solver: Server[Any], bits: int | str | None) -> int | str | None:
    """The bits that were asked for, or those that the solver takes by default."""
    return _BITS if bits is None and isinstance(solver, CuteMaxVar) else bits


def _check_bits(solver: Server[Any], bits: int | str | None, tol: float) -> None:
    """Refuse bits that a solver cannot use; warn of too few."""
    krylov = isinstance(solver, MaxVarKrylov)
    names = (name for name, kind in MAXVAR_SOLVERS.items() if type(solver) is kind)
    name = next(names, type(solver).__name__)
    if bits == "auto":
        if not krylov or tol < 1e-14:
            raise InputError(
                f"bits='auto' is for solver 'krylov' or 'davidson' with tol above 1e-14, not for {name!r} with "
                f"tol={tol:g}; give a number of bits."
            )
    elif bits is not None and not isinstance(solver, CuteMaxVar):
        hint = "use bits='auto' and the tol that is enough" if krylov else "use solver='cutemaxvar'"
        raise InputError(f"bits={bits!r} is for solver 'cutemaxvar', not for {name!r}; {hint}.")
    if bits == 2:
        warn_caller("2 bits leave one level on each side of zero, and the run may diverge; use 3.")


def build_maxvar_channel(solver: Server[Any], bits: int | str | None, first_bits: int | None) -> Channel:
    """Both links: quantised against memories on both sides for cutemaxvar, else lossless."""
    if not isinstance(solver, CuteMaxVar) or not isinstance(bits, int):
        return Channel(up=pack(), down=pack())  # lossless
    return quantize_both_links(bits, first_bits)


def quantize_both_links(bits: int, first_bits: int | None) -> Channel:
    """A quantiser with memories on both sides, for the common representation and what the views say of it."""
    first = IDENTITY if first_bits is None else quantize(first_bits)
    stage = delta(quantize(bits), first=first)
    return Channel(up=only(["M"], stage), down=only(["G"], stage))
