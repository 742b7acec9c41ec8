"""Personalized PCA under differential privacy: what is refused, and the noised Gram matrix that clients share.

The only release besides counts is one noised second-moment matrix of all rows. Each client works out its own components
from that and its rows, and how far to lean on it, at home (algorithms/personalized/at_home.py).
"""

from __future__ import annotations

import math

import numpy as np

from fedspan._types import Array
from fedspan.algorithms import NoisyGram
from fedspan.algorithms.spectral.noisy import NoisyState
from fedspan.core.protocol import declared_releases
from fedspan.data.clients import Schema
from fedspan.errors import InputError
from fedspan.estimators._options.personalized_methods import CENTER, PersonalParameters
from fedspan.estimators._options.private_solvers import Measured
from fedspan.estimators._options.spectral_solvers import check_components
from fedspan.privacy.plan import Plan, plan_for
from fedspan.privacy.request import RowDP

_PAIRS = 6  # eigenpairs of the shared part for each component


def check_private_personal(asked: PersonalParameters, dp: RowDP, schema: Schema) -> None:
    """Refuse what cannot be private before anything is sent."""
    check_components(int(asked.n_components), schema.n_features)
    if asked.collect:
        raise InputError(
            "privacy=RowDP(…) needs collect=False: a client's own components have no known sensitivity, so they stay "
            "there. Call personalize(X) at the clients."
        )
    if dp.row_norm == "unit":
        raise InputError(
            "row_norm='unit' is for FederatedPCA and FederatedSVD: clients compare the shared part with their own "
            "rows, which keep their lengths. Give a number or 'auto'."
        )
    if asked.method != "auto" or asked.shrinkage != "auto":
        raise InputError("privacy=RowDP(…) is for method='auto' and shrinkage='auto', which each client finds at home.")
    for name, value in (("scale", asked.scale), ("clip", asked.clip), ("participation", asked.participation)):
        if value:
            raise InputError(f"{name} cannot be combined with privacy=RowDP(…); leave it out.")


def build_private_prior(
    asked: PersonalParameters, measured: Measured, schema: Schema, sharers: int
) -> tuple[NoisyGram, Plan]:
    """The algorithm that finds the shared part, and the plan of its noise."""
    known = measured.known
    algorithm = NoisyGram(
        k=min(_PAIRS * int(asked.n_components), schema.n_features),
        center=CENTER[asked.center] != "none",
        counted=True,
        located=known.mean is not None,
        spent=measured.spent,
        prior=known,
    )
    declared = declared_releases(algorithm.client)
    return algorithm, plan_for(measured.dp, declared, algorithm.planned(), spread=sharers)


def describe_private_prior(state: NoisyState, clients: int) -> dict[str, Array]:
    """What a client must know to work out its own components; ω is not a number: it is found at home."""
    trace, n = max(state.moments.trace, 1e-300), state.n
    return {
        "Q": state.Z,
        "w": np.maximum(state.theta, 0.0) / trace,
        "v": np.array(trace / n),
        "rows": np.array(n / clients),
        "kind": np.array(0),
        "omega": np.array(math.nan),
        "r": np.array(state.Z.shape[1]),
    }
