"""How many components: what `n_components` asks for, before the run and once the variances are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedspan._types import Array
from fedspan.algorithms.spectral.parallel_analysis import NullState
from fedspan.data.clients import Schema
from fedspan.data.remote_tables import RemoteTable
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_parameters import SpectralParameters
from fedspan.estimators._options.spectral_solvers import check_components
from fedspan.estimators.parameters import is_whole
from fedspan.numerics.pca_model.minka import count_for_share, infer_dimension
from fedspan.privacy.request import RowDP

_LOOKED_FOR_FIRST = 16  # components that are looked for first, if their number depends on which are above the noise
_QUANTILE = 0.95  # of what flipped tables have: of pure noise, so often no component is above it


@dataclass(frozen=True)
class NoiseLevel:
    """What parallel analysis found: the sums of squares that tables without anything in common have at most."""

    largest: Array  # (T,) of each flipped table

    @property
    def quantile(self) -> float:
        """What a component must exceed to be more than noise."""
        return float(np.quantile(self.largest, _QUANTILE))


def read_noise_level(state: NullState) -> NoiseLevel:
    return NoiseLevel(state.largest)


def check_parallel(data: Mapping[str, object], privacy: object) -> None:
    """Refuse n_components='auto' where flipped tables cannot be asked for."""
    if privacy is not None:
        raise InputError(
            "n_components='auto' cannot be combined with privacy: what flipped tables release has no known "
            "sensitivity. Give a number of components."
        )
    if any(isinstance(source, RemoteTable) for source in data.values()):
        raise InputError(
            "n_components='auto' is for runs in one process: the sites of a federation do not flip signs yet. Give a "
            "number of components, or a share of the variance."
        )


def count_to_solve(asked: SpectralParameters, schema: Schema, privacy: object) -> int:
    """How many components the solver must find: all that there can be, if how many to keep depends on them."""
    given, d = asked.n_components, schema.n_features
    if is_whole(given):
        check_components(int(given), d)
        return int(given)
    if isinstance(privacy, RowDP):
        raise InputError(
            f"n_components must be an integer with privacy=RowDP(…), but is {given!r}: most of the small variances "
            "are then noise, and would be counted."
        )
    most = d if schema.dtype is None else min(schema.rows, d)
    if given == "auto":
        return min(_LOOKED_FOR_FIRST, most)
    if given == "mle" and not asked.center:
        raise InputError("n_components='mle' needs variances around the mean, which is not subtracted; give a number.")
    if given == "mle" and schema.dtype is not None:
        _check_enough_rows(schema.rows, d)
    return most


def choose_count(
    given: int | float | str | None,
    theta: Array,
    total: float,
    rows: int,
    features: int,
    noise: NoiseLevel | None = None,
) -> int:
    """How many of the components that were found to keep; θ (k,) are their sums of squares, `total` that of all."""
    if noise is not None:
        return max(int(np.sum(theta > noise.quantile)), 1)
    if given == "mle":
        _check_enough_rows(rows, features)
        spectrum = np.pad(theta / (rows - 1), (0, features - len(theta)))
        return min(infer_dimension(spectrum, rows), len(theta))
    if given is None or is_whole(given) or isinstance(given, str):
        return len(theta)
    return count_for_share(theta / total, float(given))


def _check_enough_rows(rows: int, features: int) -> None:
    if rows < features:
        raise InputError(
            f"n_components='mle' is only supported if n_samples >= n_features, but there are {rows} rows and "
            f"{features} features; give a number, or a share of the variance."
        )
