"""From an estimator's parameters to a run: which solver, which channel, which engine. Shared by PCA and SVD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from fedspan.algorithms import Gram, Krylov, Ssi
from fedspan.channel import Channel, delta, only, quantize
from fedspan.checkpoint import Checkpoint
from fedspan.engines.inprocess import InProcess, named
from fedspan.errors import InputError, nearest
from fedspan.federation.data import Table, open_table
from fedspan.federation.schema import Schema, agreed_schema
from fedspan.ledger import Ledger, Note
from fedspan.protocol import Server
from fedspan.run import Info, Result, run

SOLVERS: dict[str, Callable[[], Server[Any]]] = {"gram": Gram, "krylov": Krylov, "ssi": Ssi}


@dataclass(frozen=True)
class Request:
    """What is asked of a spectral solver, in the estimators' words."""

    n_components: int
    solver: str | Server[Any]
    center: bool
    scale: bool
    tol: float
    max_rounds: int
    bits: int | str | None


def checked(request: Request, schema: Schema) -> Request:
    """The request, if it makes sense for data of that schema."""
    k, d = request.n_components, schema.n_features
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= d:
        raise InputError(f"need n_components to be an integer from 1 to the {d} features, got {k!r}")
    if not isinstance(request.tol, int | float | np.floating) or not 0 <= request.tol < 1:
        raise InputError(f"need tol from 0 (run all rounds) to below 1, got {request.tol!r}")
    if isinstance(request.max_rounds, bool) or not isinstance(request.max_rounds, int) or request.max_rounds < 1:
        raise InputError(f"need max_rounds to be an integer of at least 1, got {request.max_rounds!r}")
    return replace(request, n_components=int(k))


def choose(request: Request, schema: Schema) -> tuple[Server[Any], str]:
    """The solver with the request's numbers in it, and one sentence on why it was taken."""
    solver, why = request.solver, "asked for"
    if solver == "auto":
        d, k = schema.n_features, request.n_components
        if d <= 2000:
            solver = "gram"
            why = f"d = {d} is small: one round of d(d+1)/2 = {d * (d + 1) // 2} numbers is the fastest exact way"
        else:
            solver = "krylov"
            why = f"d = {d} is large: a few rounds of d·k = {d * k} numbers instead of one of {d * (d + 1) // 2}"
    if isinstance(solver, str):
        if solver not in SOLVERS:
            raise InputError(f"need a known solver, got {solver!r}; {nearest(solver, ['auto', *SOLVERS])}")
        solver = SOLVERS[solver]()
    asked = {"k": request.n_components, "tol": request.tol, "center": request.center, "scale": request.scale}
    known = {f.name for f in fields(solver)}  # type: ignore[arg-type]
    return replace(solver, **{k: v for k, v in asked.items() if k in known}), why  # type: ignore[type-var]


def channel_for(solver: Server[Any], bits: int | str | None) -> Channel:
    """Both links with `bits` bits per number and a memory on both sides, where the solver's theory allows it."""
    if bits is None:
        return Channel()
    if not isinstance(solver, Ssi):
        raise InputError(f"bits={bits!r} is for solver='ssi', got {type(solver).__name__}; leave bits=None")
    stage = delta(quantize(bits))  # type: ignore[arg-type]
    return Channel(up=only(["Y"], stage), down=only(["Z"], stage))


def open_clients(clients: Mapping[str, Any] | Sequence[Any]) -> tuple[dict[str, Any], Schema]:
    """The clients' data by id, ready for an engine (files stay closed until they are needed), and their schema."""
    if isinstance(clients, np.ndarray) or not isinstance(clients, Mapping | Sequence) or isinstance(clients, str):
        raise InputError(
            f"need a list or mapping with one entry per client, got one {type(clients).__name__}; "
            "for a single client write fit([X])"
        )
    sources = dict(sorted(named(clients).items()))
    kept: dict[str, Any] = {}

    def tables() -> Any:
        for name, source in sources.items():
            try:
                table = open_table(source() if callable(source) else source)
            except InputError as error:
                raise type(error)(f"client {name!r}: {error}") from error
            lazy = callable(source) or isinstance(source, str) or hasattr(source, "__fspath__")
            kept[name] = partial(_reopen, source) if lazy else table.X
            yield name, table if not lazy else Table(np.empty((0, table.X.shape[1])), table.names)

    schema = agreed_schema(tables())
    return kept, schema


def _reopen(source: Any) -> Any:
    return open_table(source() if callable(source) else source).X


def seed_from(random_state: Any) -> int:
    """A seed from what scikit-learn users give as random_state; from the operating system if they give nothing."""
    if random_state is None:
        return int(np.random.SeedSequence().entropy) % 2**63  # type: ignore[arg-type]
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool) and random_state >= 0:
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    raise InputError(f"need random_state to be None, a non-negative integer or a generator, got {random_state!r}")


def solve(
    request: Request,
    clients: Mapping[str, Any] | Sequence[Any],
    *,
    engine: Any,
    callback: Callable[[Info], None] | None,
    checkpoint: Any,
    seed: int,
    ledger: Ledger | None,
    min_clients: int | None = None,
) -> tuple[Result[Any], Schema]:
    """Check, choose, run."""
    data, schema = open_clients(clients)
    request = checked(request, schema)
    solver, why = choose(request, schema)
    channel = channel_for(solver, request.bits)
    ledger = ledger if ledger is not None else Ledger()
    ledger.add(Note(f"solver {type(solver).__name__.lower()}: {why}; seed {seed}"))
    kept = checkpoint if checkpoint is None or isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    result = run(
        solver,
        engine(data) if engine is not None else InProcess(data),
        rounds=request.max_rounds,
        seed=seed,
        channel=channel,
        min_clients=min_clients,
        checkpoint=kept,
        ledger=ledger,
        callback=callback,
        about={"features": schema.n_features},
    )
    return result, schema
