"""A guard over training: it looks at held-out rows, keeps the best parameters, halves the step, and knows when to stop.

Notation: h the mean loss of the held-out rows at ω, η the step. After a round with a better h, ω is kept as the best.
If h is much worse or not finite, or has not become better for some rounds (`patience`), training goes back to the best
ω with half the step. It stops after `HALVINGS` halvings for want of a gain: one because h was much worse says that the
step was too long, not that there is no more to gain, and only `EXPLOSIONS` of these end it. So what is returned is
never worse on held-out rows than where it started, whatever the step was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array

HALVINGS = 6  # halvings of the step without a gain, then training stops
EXPLOSIONS = 12  # halvings because the loss rose sharply, then it stops, too
_ROUGH_ROWS = 2000  # below this the loss of the held-out rows is so rough that more rounds must agree
_PATIENCE, _LONGER = 3, 5
_WORSE, _MARGIN = 1.15, 0.01  # h above this part of the best, and a margin, is much worse
_GAIN = 1e-4  # a relative fall of h that counts
SPREAD = np.exp(np.linspace(0.0, 2.5, 51))  # the temperatures that are tried
_STAY = 1.0  # what a temperature costs, times its squared logarithm: few rows must not move it much
_WRONG = 0.5  # rows that count as wrong besides the held-out ones: few rows without a mistake prove little


@dataclass(frozen=True)
class HeldOutGuard:
    """What is known of held-out rows: the best ω, its loss, and how often the step was halved."""

    best: Array  # (d,)
    loss: float  # of the best
    prior: float  # the loss of the class shares alone, without any feature
    rate: float  # η
    since: int = 0  # rounds without a gain
    cuts: int = 0
    explosions: int = 0

    @property
    def closed(self) -> bool:
        """Whether there is no more to gain."""
        return self.cuts >= HALVINGS or self.explosions >= EXPLOSIONS

    @property
    def better_than_prior(self) -> bool:
        """Whether the features helped at all."""
        return self.loss < self.prior


def judge(
    guard: HeldOutGuard, omega: Array, loss: float, rows: float, *, rough: bool = False
) -> tuple[HeldOutGuard, bool]:
    """The guard after ω was found to have this loss, and whether training goes back to the best.

    `rough`: the losses go up and down by more than a little while they fall, as where clients are unlike each other;
    then only a loss above that of the class shares alone is much worse.
    """
    if loss < guard.loss - _GAIN * abs(guard.loss) or (not np.isfinite(guard.loss) and np.isfinite(loss)):
        return replace(guard, best=omega, loss=loss, since=0), False
    since, patience = guard.since + 1, _PATIENCE if rows >= _ROUGH_ROWS else _LONGER
    bound = _WORSE * guard.loss + _MARGIN
    if not (np.isfinite(loss) and loss <= (max(bound, guard.prior) if rough else bound)):
        return shorten(guard), True
    if since < patience:
        return replace(guard, since=since), False
    return replace(guard, rate=guard.rate / 2, since=0, cuts=guard.cuts + 1), True


def shorten(guard: HeldOutGuard) -> HeldOutGuard:
    """Half the step, because it led far off."""
    return replace(guard, rate=guard.rate / 2, explosions=guard.explosions + 1)


def prior_loss(held: Array, shares: Array) -> float:
    """The mean loss of held-out rows, by their weight in each class, if only the shares of the classes are known."""
    p = (shares + 0.5) / (shares.sum() + 0.5 * len(shares))
    return float(-(held @ np.log(p)) / max(held.sum(), 1e-300))


def choose_temperature(losses: Array, wrong: Array, n: float) -> float:
    """The one of `SPREAD` with the least loss of n held-out rows, and of half a row more that is predicted wrongly.

    At each temperature: `losses` the sum of the rows' losses, `wrong` that of what they would be if another class were
    theirs. Without the half row, a few dozen rows without a mistake would make a model certain of everything.
    """
    return float(SPREAD[int(np.argmin(losses + _WRONG * wrong / n + _STAY * np.log(SPREAD) ** 2))])
