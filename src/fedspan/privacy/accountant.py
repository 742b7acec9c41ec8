"""How much was spent, and how much noise is needed.

A release is named by its noise multiplier z, the standard deviation of its Gaussian noise over its sensitivity, and by
q, the probability with which a row is in it (1: all rows are). Releases without sub-sampling compose to one Gaussian
with μ² = 1/z² = Σ 1/z_j², exactly, and its (ε, δ) is a closed form (Balle and Wang 2018, Theorem 8):

    δ(ε) = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)

Releases of sampled rows are composed as privacy-loss distributions by package dp-accounting, which gives an upper bound
on ε and never an estimate (connect the dots, Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380). What it starts
from is worked out here, because its own loop over single points takes most of the time and loses digits where z is
large: δ(ε) of one release, with h = 1/z, a = z·log(1 + (exp(ε) - 1)/q) + h/2 and S = 1 - Φ, is

    q (S(a - h) - S(a)) - (exp(ε) - 1) S(a)       for a row that is taken away, and the like for one that is added

A distribution is kept on a grid of bounded size, and a search for z takes a bounded number of them, so every answer
comes in well under a second. Sampling never costs more than no sampling, which is where a search ends that finds
nothing better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError, MissingExtraError

Releases = Mapping[tuple[float, float], int]  # (z, q) → how many of them
LEAST, MOST = 1e-6, 50.0  # the ε for which noise is planned: less is beyond float64, more protects nobody

_STEPS_OF_SEARCH = 6  # of each half of a search for z, before it falls back to that of all rows
_BEYOND = 1e-4  # of δ: what is beyond the grid counts as revealed, and may cost so much
_HOPELESS = 500.0  # a privacy loss of one release that is far above any ε, and whose exponential is near overflow
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(7)  # for the difference of two values of Φ that are close together
_CLOSE = 0.5  # such as these


class _Grid(NamedTuple):
    """Of a privacy-loss distribution: the step in deviations of one loss, and the most points of one release."""

    step: float
    points: int


_FINAL = _Grid(0.05, 5_000)
_ROUGH = _Grid(0.3, 500)  # while a search is far from its end


def _loss_library() -> tuple[Any, Any]:
    try:
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    except ImportError:
        raise MissingExtraError("Differential privacy", "privacy") from None
    return pld_pmf, privacy_loss_distribution


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


def _sampled_epsilon(whole: float, sampled: Releases, delta: float) -> float:
    """ε by privacy-loss distributions; `whole` is the μ² of the releases of all rows."""
    composed = _compose_losses(whole, sampled, delta, _FINAL)
    return math.inf if composed is None else float(composed.get_epsilon_for_delta(delta))


def _sampled_delta(whole: float, sampled: Releases, eps: float, delta: float, grid: _Grid) -> float:
    """δ at that ε, which is worked out quicker; `delta` is about what it will be. A finer grid: a closer bound."""
    composed = _compose_losses(whole, sampled, delta, grid)
    return 1.0 if composed is None else float(composed.get_delta_for_epsilon(eps))


def _compose_losses(whole: float, sampled: Releases, delta: float, grid: _Grid) -> Any:
    """The privacy-loss distribution of all releases together; None if there is hardly any privacy."""
    parts = [(z, q, times) for (z, q), times in sampled.items()]
    if whole:
        parts.append((1 / math.sqrt(whole), 1.0, 1))
    count = sum(times for _, _, times in parts)
    beyond = _BEYOND * delta / count
    bounds = [_bound_loss(z, q, beyond) for z, q, _ in parts]
    if max(bounds) > _HOPELESS:
        return None
    # Rounding a loss to steps of h adds at most h²/4 to its variance: h is small beside the losses' deviation.
    square = sum(
        times * min(q * math.sqrt(math.expm1(min(1 / z**2, 50.0))), bound) ** 2
        for (z, q, times), bound in zip(parts, bounds, strict=True)
    )
    step = max(grid.step * math.sqrt(square / count), max(bounds) / grid.points)
    composed: Any = None
    for z, q, times in parts:
        loss = _one_loss(z, q, step, beyond)
        loss = loss.self_compose(times) if times > 1 else loss
        composed = loss if composed is None else composed.compose(loss)
    return composed


def _one_loss(z: float, q: float, step: float, beyond: float) -> Any:
    """The privacy-loss distribution of one release, on a grid of that step."""
    make, library = _loss_library()
    distributions = []
    for added in (False, True):
        low = -math.ceil(_bound_loss(z, q, beyond, not added) / step)
        high = math.ceil(_bound_loss(z, q, beyond, added) / step)
        deltas = np.clip(_one_delta(z, q, np.arange(low, high + 1) * step, added), 0.0, 1.0)
        deltas = np.minimum.accumulate(deltas)
        distributions.append(make.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas))
    return library.PrivacyLossDistribution(*distributions)


def _one_delta(z: float, q: float, eps: Array, added: bool) -> Array:
    """δ(ε) of one release in which a row is with probability q, if that row is added or taken away."""
    from scipy.special import ndtr

    h, grown = 1 / z, np.expm1(-eps if added else eps)
    with np.errstate(divide="ignore", invalid="ignore"):
        a = np.log1p(np.maximum(grown / q, -1.0)) * z + h / 2  # the loss is above ε on one side of a·z
    if h < _CLOSE:
        middle = a - h / 2
        densities = np.exp(-0.5 * np.add.outer(middle, _NODES * h / 2) ** 2)
        gap = densities @ _WEIGHTS * (h / 2 / math.sqrt(2 * math.pi))
    else:
        gap = ndtr(a) - ndtr(a - h) if added else ndtr(h - a) - ndtr(-a)
    if added:
        return np.asarray(q * gap - np.expm1(eps) * ((1 - q) * ndtr(a) + q * ndtr(a - h)))
    return np.asarray(q * gap - grown * ndtr(-a))


def _bound_loss(z: float, q: float, beyond: float, added: bool = False) -> float:
    """The privacy loss of one release that is exceeded with probability `beyond` at most."""
    from scipy.special import ndtri

    tail = -float(ndtri(min(beyond if added else beyond / q, 0.1)))  # in deviations
    exponent = (2 * tail * z + 1) / (2 * z**2)
    if added:
        return -math.log1p(q * math.expm1(-exponent)) if q < 1 else exponent
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

    def suffices(z: float, grid: _Grid) -> bool:
        return _sampled_delta(beside, {(z, q): times}, eps, delta, grid) <= delta

    most = math.sqrt(times / left) * (1 + 1e-9)  # enough without any sampling
    z = min(max(1 / math.sqrt(math.log1p(left / (times * q**2))), 0.1), most)  # a guess by the central limit theorem
    for grid, factor, close in ((_ROUGH, 1.5, 1.05), (_FINAL, 1.03, 1.005)):
        low, high = _bracket(partial(suffices, grid=grid), z, factor)
        while high / low > close and low < most:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if suffices(middle, grid) else (middle, high)
        z = min(high, most)
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
