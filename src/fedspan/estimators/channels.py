"""The channel of a run, from its algorithm and the job's bits: what a transcript was encoded with."""

from __future__ import annotations

from typing import Any

from fedspan.algorithms import AltMaxVar, CuteMaxVar, MaxVarKrylov, Mvlsa
from fedspan.channel import Channel
from fedspan.core.protocol import Server
from fedspan.estimators._options import maxvar_solvers, spectral_solvers


def channel_of(algorithm: Server[Any], bits: int | str | None = None, first_bits: int | None = None) -> Channel:
    """The channel that the estimators take for that algorithm and those bits."""
    if isinstance(algorithm, AltMaxVar | CuteMaxVar | MaxVarKrylov | Mvlsa):
        default_bits = 3 if isinstance(algorithm, CuteMaxVar) else None
        return maxvar_solvers.maxvar_channel(algorithm, default_bits if bits is None else bits, first_bits)
    return spectral_solvers.spectral_channel(algorithm, bits)
