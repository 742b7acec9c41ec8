"""How many components: what `n_components` asks for, before the run and once the variances are known."""

from __future__ import annotations

import numpy as np

from fedspan._types import Array
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.spectral_parameters import SpectralParameters
from fedspan.estimators._options.spectral_solvers import check_components
from fedspan.estimators.parameters import is_whole
from fedspan.numerics.pca_model.minka import count_for_share, infer_dimension
from fedspan.privacy.request import RowDP


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
    if given == "mle" and not asked.center:
        raise InputError("n_components='mle' needs variances around the mean, which is not subtracted; give a number.")
    if given == "mle" and schema.dtype is not None:
        _check_enough_rows(schema.rows, d)
    return d if schema.dtype is None else min(schema.rows, d)


def choose_count(given: int | float | str | None, theta: Array, total: float, rows: int, features: int) -> int:
    """How many of the components that were found to keep; θ (k,) are their sums of squares, `total` that of all."""
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
