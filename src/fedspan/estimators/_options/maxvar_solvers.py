"""The parameters of FederatedGCCA, and what they come to: which solver, which channel."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import Any

from fedspan.algorithms import AltMaxVar, CuteMaxVar, KeptMaxVar, MaxVarDavidson, MaxVarKrylov, Mvlsa
from fedspan.algorithms.gcca.kept_maxvar import Missing
from fedspan.channel import IDENTITY, Channel, delta, only, pack, quantize
from fedspan.core.protocol import Server
from fedspan.errors import InputError
from fedspan.estimators._options.common_parameters import BITS_ON_LINKS, MAX_ROUNDS
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
_LEAST_ROUNDED = 1e-14  # a tol below that leaves nothing to round


@dataclass(eq=False, repr=False)
class MaxVarParameters:
    """What can be asked of a solver of MAX-VAR GCCA."""

    n_components: int | str = field(
        default=2, metadata=about("How many components to compute.", least=1, choices=("auto",))
    )
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
    start: str | None = field(
        default=None,
        metadata=about(
            "Where altmaxvar and cutemaxvar begin: random weights, or the paper's start by mvlsa.",
            choices=("random", "mvlsa"),
            example="mvlsa",
        ),
    )
    ridge: float | str = field(
        default=0.0,
        metadata=about(
            "Added to the squared singular values of every view.",
            least=0,
            below=inf,
            choices=("auto",),
        ),
    )
    folds: int | None = field(
        default=None,
        metadata=about(
            "Parts of the entities that are held out in turn, to see how well views agree.", least=2, example=5
        ),
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


@dataclass(frozen=True)
class Settled:
    """What is known before the solver runs: K and the ridge (in units of each view's mean eigenvalue if `relative`).

    `kept`: the weights stay at the clients, because sums are secure or views lack entities. `missing` says what
    becomes of entities that some views lack.
    """

    k: int
    ridge: float
    relative: bool = False
    kept: bool = False
    missing: Missing = "none"


def check_kept_options(asked: MaxVarParameters, secure: bool | Secure, missing: Missing) -> bool:
    """Whether the weights stay at the clients; refuse options that then cannot be."""
    if not secure and missing == "none":
        return False
    what = "With secure" if secure else f"With missing={missing!r}"
    if asked.solver not in ("auto", "krylov") or asked.local_solver != "exact" or asked.start is not None:
        raise InputError(
            f"{what} only solver='krylov' can run, because the others show what single views say; leave solver, "
            "local_solver and start out."
        )
    if asked.patience is not None:
        raise InputError(
            f"{what} patience cannot be used, because it looks at what single views say of rows held out; leave it out."
        )
    return True


def choose_maxvar_solver(asked: MaxVarParameters, known: Settled) -> tuple[Server[Any], int | str | None, str]:
    """The solver with all its options, its bits, and why it was chosen."""
    solver, why = _pick_maxvar(asked)
    if known.kept:
        solver, why = KeptMaxVar(missing=known.missing), "it is exact, and leaves the weights at the clients"
    bits = fill_in_bits(solver, asked.bits)
    _check_bits(solver, bits, asked)
    _check_start(solver, asked)
    options: dict[str, object] = {
        "k": known.k,
        "tol": asked.tol,
        "center": asked.center,
        "scale": asked.scale,
        "ridge": float(known.ridge),
        "relative": known.relative,
        "patience": asked.patience or 0,
        "last": int(asked.max_rounds),
    }
    if isinstance(asked.solver, str):  # else the object has its own
        options["local"] = asked.local_solver
        options["steps"] = int(asked.local_steps)
        options["batch"] = int(asked.batch_size or 0)
        options["start"] = asked.start or "random"
    if isinstance(solver, MaxVarKrylov):
        options["rounded"] = bits is not None
        if is_whole(bits):
            options["grid"] = int(bits)
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
    if asked.local_solver != "exact":
        kind = CuteMaxVar if is_whole(asked.bits) else AltMaxVar
        return kind(), f"local_solver={asked.local_solver!r} was requested"
    if is_whole(asked.bits) and asked.tol < _LEAST_ROUNDED:
        return CuteMaxVar(), "krylov rounds by tol, and all rounds were requested"
    return MaxVarKrylov(), "it is exact and needs few rounds"


def fill_in_bits(solver: Server[Any], bits: int | str | None) -> int | str | None:
    """The bits that were asked for, or those that the solver takes by default."""
    return _BITS if bits is None and isinstance(solver, CuteMaxVar) else bits


def _check_start(solver: Server[Any], asked: MaxVarParameters) -> None:
    """Refuse a start that a solver does not have."""
    if asked.start is not None and not (isinstance(asked.solver, str) and isinstance(solver, AltMaxVar)):
        raise InputError(
            f"start={asked.start!r} is for solver='altmaxvar' or 'cutemaxvar', given by name; leave it out."
        )


def _check_bits(solver: Server[Any], bits: int | str | None, asked: MaxVarParameters) -> None:
    """Refuse bits that a solver cannot use; warn of too few."""
    krylov, tol = isinstance(solver, MaxVarKrylov), asked.tol
    names = (name for name, kind in MAXVAR_SOLVERS.items() if type(solver) is kind)
    name = next(names, type(solver).__name__)
    if (bits == "auto" and not krylov) or (bits is not None and krylov and tol < _LEAST_ROUNDED):
        raise InputError(
            f"bits={bits!r} is for solver 'krylov' or 'davidson' with tol above 1e-14, not for {name!r} with tol="
            f"{tol:g}; raise tol, or use solver='cutemaxvar' with a number of bits."
        )
    if bits is not None and not krylov and not isinstance(solver, CuteMaxVar):
        raise InputError(
            f"bits={bits!r} is for solver 'krylov', 'davidson' or 'cutemaxvar', not for {name!r}; leave bits out, or "
            "use solver='cutemaxvar'."
        )
    if bits == 2 and isinstance(solver, CuteMaxVar):
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
