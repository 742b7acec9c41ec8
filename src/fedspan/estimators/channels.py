"""The channel of a run, from its algorithm and the job's bits: an audit decodes a transcript with it."""

from __future__ import annotations

from typing import Any

from fedspan.algorithms import AltMaxVar, CuteMaxVar, MaxVarKrylov, Mvlsa
from fedspan.channel import Channel
from fedspan.core.protocol import Server
from fedspan.estimators._options import maxvar_solvers, spectral_solvers


def channel_of(algorithm: Server[Any], bits: int | str | None = None, first_bits: int | None = None) -> Channel:
    """The channel that the estimators use with that algorithm and those bits."""
    if isinstance(algorithm, AltMaxVar | CuteMaxVar | MaxVarKrylov | Mvlsa):
        return maxvar_solvers.build_maxvar_channel(algorithm, maxvar_solvers.fill_in_bits(algorithm, bits), first_bits)
    return spectral_solvers.build_spectral_channel(algorithm, bits)
