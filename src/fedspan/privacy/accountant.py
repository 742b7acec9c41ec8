"""How much was spent, and how much noise is needed: privacy-loss distributions (package dp-accounting).

A release is named by its noise multiplier z, the standard deviation of its Gaussian noise over its sensitivity, and by
q, the probability with which a row is in it (1: all rows are). Releases without sub-sampling compose to one Gaussian
with 1/z² = Σ 1/z_j², exactly; the rest is left to the library, which gives an upper bound on ε and never an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fedspan.errors import InputError, MissingExtraError

Releases = Mapping[tuple[float, float], int]  # (z, q) → how many of them


def _dp_library() -> Any:
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        raise MissingExtraError("Differential privacy", "privacy") from None
    return dp_accounting, pld


def _event(z: float, q: float) -> Any:
    dp, _ = _dp_library()
    return dp.GaussianDpEvent(z) if q == 1 else dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))


def epsilon(releases: Releases, delta: float) -> float:
    """An upper bound on the ε of all these releases together, at that δ: 0 for none, infinite without noise."""
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, but is {delta!r}.")
    if any(z <= 0 for z, _ in releases):
        return math.inf
    whole = sum(times / z**2 for (z, q), times in releases.items() if q == 1)
    sampled = {key: times for key, times in releases.items() if key[1] != 1 and times}
    if whole == 0 and not sampled:
        return 0.0
    if whole > 100**2:
        return math.inf  # ε above 5000 is no protection, and the tables of such a loss would not fit into memory
    _, pld = _dp_library()
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3 * max(1.0, whole))
    if whole:
        accountant.compose(_event(1 / math.sqrt(whole), 1.0))
    for (z, q), times in sampled.items():
        accountant.compose(_event(z, q), times)
    return float(accountant.get_epsilon(delta))


def gaussian_mu(eps: float, delta: float) -> float:
    """μ = 1/z of the one Gaussian release that is just (ε, δ)-private, by its closed form (Balle and Wang 2018)."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def excess(mu: float) -> float:
        return float(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu)) - delta)

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(brentq(excess, 1e-9, high, xtol=1e-14, rtol=1e-13))


@lru_cache(maxsize=256)
def noise_multiplier(eps: float, delta: float, times: int = 1, q: float = 1.0) -> float:
    """The least z with which `times` releases are (ε, δ)-private together, as the library certifies it."""
    if q == 1:
        z = math.sqrt(times) / gaussian_mu(eps, delta) * (1 + 1e-6)
        while epsilon({(z, q): times}, delta) > eps * (1 + 1e-6):  # the tables of losses are rounded upwards
            z *= 1 + 1e-5
        return z
    low, high = 0.2, 2.0
    while epsilon({(high, q): times}, delta) > eps:
        low, high = high, 2 * high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon({(middle, q): times}, delta) <= eps else (middle, high)
    return high


def paper_multiplier(eps: float, delta: float, times: int) -> float:
    """The multiplier of the classic formula with linear composition (Guo et al., Algorithm 2), for comparison."""
    return times / eps * math.sqrt(2 * math.log(1.25 * times / delta))
