"""How a run on batches comes to its limits and stays there: a bound that is lowered, and batches that grow.

Notation: F_m = L_m - U_m ≤ 0 the limits, L_m what is limited, U_m its bound, m = 1..M; ν_m the multiplier, c the price
of a slack. While a limit is out of reach, ν_m = c and a round minimises hardly anything but F̄_m: that is phase I.

Bound     Mini-batch noise leaves F_m above 0, so the bound that is asked of the surrogate is lowered by an integral
          controller until the batches are at their bounds. While ν_m stands at c, the surrogate cannot be had any
          lower: then the controller goes no further (it would take long to come back: anti-windup), but it may go back.
          Nor does it begin before a limit on a loss is in sight: before the batches are within a quarter of U_m.
Batches   grow, to four times as many rows at a look, until one of them tells whether a limit on a loss holds: until the
          deviation of L_m from batch to batch is at most a tenth of U_m, or of the mean of L_m where that is larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspan._types import Array

LOOK = 20  # rounds between two looks at what the batches say
_ROUGH, _GROWTH = 0.1, 4.0  # the relative deviation of batches that is accepted, and how much they grow at most
_SIGHT = 1.25  # of U_m
_GAIN, _MARGIN, _REACH = 0.01, 0.002, 0.3  # of the controller, in units of the loss (nats)


@dataclass(frozen=True)
class LimitControl:
    """What is known of the limits while batches are drawn."""

    bound: Array  # (M,) U_m
    on_loss: Array  # (M,) bool: whether lower losses can only help to keep it
    lowered: Array  # (M,) by how much the bound is lowered for the surrogate
    mean: Array  # (M,) of the batches' L_m at the last look
    total: Array  # (M,) of those since then,
    rough: Array  # (M,) and of the squares of their differences from one to the next
    last: Array  # (M,) L_m of the last batch
    batch: int  # rows of a batch; 0: all
    largest: int  # that a batch may grow to
    seen: int = 0  # rounds since the last look

    @classmethod
    def begin(cls, bound: Array, on_loss: Array, batch: int, largest: int) -> LimitControl:
        """Before the first round."""
        zero, unknown = np.zeros(len(bound)), np.full(len(bound), np.inf)
        return cls(bound, on_loss & (bound > 0), zero, unknown, zero, zero, unknown, batch, max(batch, largest))


def follow_limits(control: LimitControl, values: Array, nu: Array, c: float) -> LimitControl:
    """After a round whose batch had F_1 .. F_M = `values`, and whose problem had the multipliers ν."""
    reached = values + control.bound
    change = np.where(np.isfinite(control.last), reached - control.last, 0.0)
    move = _GAIN * (values + _MARGIN)
    halted = (nu >= c) | (control.on_loss & (control.mean > _SIGHT * control.bound))
    move = np.where(halted & (move > 0), 0.0, move)
    control = replace(
        control,
        lowered=np.clip(control.lowered + move, 0.0, _REACH),
        total=control.total + reached,
        rough=control.rough + change**2,
        last=reached,
        seen=control.seen + 1,
    )
    return control if control.seen < LOOK else _look(control)


def _look(control: LimitControl) -> LimitControl:
    """Every `LOOK` rounds: as many rows in the next batches as their differences ask for."""
    mean, zero = control.total / control.seen, np.zeros_like(control.total)
    variance, level = control.rough / (2 * control.seen), np.maximum(control.bound, mean)
    wanted = np.where(control.on_loss, variance / np.square(_ROUGH * np.where(control.on_loss, level, 1.0)), 0.0)
    growth = min(max(float(wanted.max(initial=1.0)), 1.0), _GROWTH)
    batch = min(int(growth * control.batch), control.largest)
    return replace(control, mean=mean, total=zero, rough=zero, seen=0, batch=batch)
