"""How much was spent, and how much noise is needed.

A release is named by its noise multiplier z, the standard deviation of its Gaussian noise over its sensitivity, and by
q, the probability with which a row is in it (1: all rows are). Releases without sub-sampling compose to one Gaussian
with μ² = 1/z² = Σ 1/z_j², exactly, and its (ε, δ) is a closed form (Balle and Wang 2018, Theorem 8):

    δ(ε) = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)

Releases of sampled rows are left to privacy-loss distributions (package dp-accounting), which give an upper bound on ε
and never an estimate. A distribution is kept on a grid of bounded size, and a search for z takes a bounded number of
them, so every answer comes within about a second. Sampling never costs more than no sampling, which is where a search
ends that finds nothing better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from fedspan.errors import InputError, MissingExtraError

Releases = Mapping[tuple[float, float], int]  # (z, q) → how many of them
LEAST, MOST = 1e-6, 50.0  # the ε for which noise is planned: less is beyond float64, more protects nobody

_FINE_GRID = 5_000  # of the privacy-loss distribution of one release
_ROUGH_GRID = 500  # the same, while a search is far from its end
_STEPS_OF_SEARCH = 6  # of each half of a search for z, before it falls back to that of all rows
_TAIL = 9.0  # deviations beyond which a Gaussian's mass is below 1e-18


def _loss_library() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise MissingExtraError("Differential privacy", "privacy") from None
    return privacy_loss_distribution


def epsilon(releases: Releases, delta: float) -> float:
    """An upper bound on the ε of all these releases together, at that δ: 0 for none, infinite without noise."""
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, but is {delta!r}.")
    counted = {key: times for key, times in releases.items() if times}
    if any(z <= 0 for z, _ in counted):
        return math.inf
    whole = sum(times / z**2 for (z, q), times in counted.items() if q == 1)
    sampled = {key: times for key, times in counted.items() if key[1] != 1}
    if not sampled:
        return gaussian_epsilon(math.sqrt(whole), delta)
    unsampled = whole + sum(times / z**2 for (z, _), times in sampled.items())  # sampling never costs more
    return min(_sampled_epsilon(whole, sampled, delta), gaussian_epsilon(math.sqrt(unsampled), delta))


def _excess_delta(mu: float, eps: float, delta: float) -> float:
    """δ(ε) of a Gaussian release, minus δ."""
    from scipy.special import log_ndtr, ndtr

    return float(ndtr(mu / 2 - eps / mu) - math.exp(min(eps + log_ndtr(-mu / 2 - eps / mu), 0.0)) - delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε with which one Gaussian release of that μ = 1/z is (ε, δ)-private, by its closed form."""
    from scipy.optimize import brentq

    if mu == 0 or _excess_delta(mu, 0.0, delta) <= 0:
        return 0.0
    high = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # the classic bound is never too small
    found = brentq(lambda eps: _excess_delta(mu, eps, delta), 0.0, high, xtol=1e-18, rtol=1e-13)
    return float(found) * (1 + 1e-9)


def gaussian_mu(eps: float, delta: float) -> float:
    """μ = 1/z of the one Gaussian release that is just (ε, δ)-private, by its closed form."""
    from scipy.optimize import brentq

    high = 1.0
    while _excess_delta(high, eps, delta) < 0:
        high *= 2
    low = high
    while _excess_delta(low, eps, delta) > 0:
        low /= 2
    return float(brentq(lambda mu: _excess_delta(mu, eps, delta), low, high, xtol=1e-18, rtol=1e-13))


def _sampled_epsilon(whole: float, sampled: Releases, delta: float, points: int = _FINE_GRID) -> float:
    """ε by privacy-loss distributions; `whole` is the μ² of the releases of all rows. More points: a closer bound."""
    library = _loss_library()
    parts = [(z, q, times) for (z, q), times in sampled.items()]
    if whole:
        parts.append((1 / math.sqrt(whole), 1.0, 1))
    # By the central limit theorem the whole is about one Gaussian of this μ: fine steps for what matters of it.
    square = sum(times * q**2 * math.expm1(min(1 / z**2, 50.0)) for z, q, times in parts)
    about = gaussian_epsilon(min(math.sqrt(square), 1e3), delta)
    longest = max(_bound_loss(z, q) for z, q, _ in parts)
    step = max(about / 1000, longest / points, 1e-10)
    composed = None
    for z, q, times in parts:
        loss = library.from_gaussian_mechanism(z, value_discretization_interval=step, sampling_prob=q)
        loss = loss.self_compose(times) if times > 1 else loss
        composed = loss if composed is None else composed.compose(loss)
    assert composed is not None  # noqa: S101 - there is at least one part
    return float(composed.get_epsilon_for_delta(delta))


def _bound_loss(z: float, q: float) -> float:
    """The largest privacy loss of one release that matters."""
    exponent = (2 * _TAIL * z + 1) / (2 * z**2)
    return math.log1p(q * math.expm1(exponent)) if exponent < 700 else exponent + math.log(q)


@lru_cache(maxsize=256)
def noise_multiplier(eps: float, delta: float, times: int = 1, q: float = 1.0, beside: float = 0.0) -> float:
    """The least z with which `times` releases are (ε, δ)-private together, and with others of μ² = `beside`."""
    if not LEAST <= eps <= MOST:
        raise InputError(f"epsilon must be from {LEAST:g} to {MOST:g}, but is {eps!r}: noise cannot be planned for it.")
    if not 0 < q <= 1:
        raise InputError(f"The sampling rate must be above 0 and at most 1, but is {q!r}.")
    left = gaussian_mu(eps, delta) ** 2 - beside
    if left <= 0:
        raise InputError(f"epsilon {eps:g} is spent by the other releases alone: raise it.")
    if q == 1:
        return math.sqrt(times / left) * (1 + 1e-9)
    return _search_multiplier(eps, delta, times, q, beside, left)


def _search_multiplier(eps: float, delta: float, times: int, q: float, beside: float, left: float) -> float:
    """z of sampled releases, between one that is too small and one that is enough: roughly first, then finely."""

    def suffices(z: float, points: int) -> bool:
        return _sampled_epsilon(beside, {(z, q): times}, delta, points) <= eps

    most = math.sqrt(times / left) * (1 + 1e-9)  # enough without any sampling
    z = min(max(1 / math.sqrt(math.log1p(left / (times * q**2))), 0.1), most)  # a guess by the central limit theorem
    for points, factor, close in ((_ROUGH_GRID, 1.5, 1.05), (_FINE_GRID, 1.03, 1.005)):
        low, high = _bracket(partial(suffices, points=points), z, factor)
        if high >= most:
            return most
        while high / low > close:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if suffices(middle, points) else (middle, high)
        z = high
    return z


def _bracket(suffices: Callable[[float], bool], z: float, factor: float) -> tuple[float, float]:
    """Two z, of which only the larger suffices (both, if hardly any noise does; infinite, if none was found)."""
    down = suffices(z)
    for _ in range(_STEPS_OF_SEARCH):
        other = z / factor if down else z * factor
        if suffices(other) != down:
            return (other, z) if down else (z, other)
        z = other
        if down and z < 0.1:
            return z, z
    return (z, z) if down else (math.inf, math.inf)


def paper_multiplier(eps: float, delta: float, times: int) -> float:
    """The multiplier of the classic formula with linear composition (Guo et al., Algorithm 2), for comparison."""
    return times / eps * math.sqrt(2 * math.log(1.25 * times / delta))
