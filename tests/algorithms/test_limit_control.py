"""The control of limits: it does not wind up, and batches grow to what tells whether a limit holds."""

from __future__ import annotations

import numpy as np

from fedspan.algorithms.learning.constraints.limit_control import LOOK, LimitControl, follow_limits
from fedspan.algorithms.learning.constraints.limits import Limit


def begin(U: float = 0.2, batch: int = 10, largest: int = 1000) -> LimitControl:
    return LimitControl.begin(np.array([U]), np.array([True]), batch, largest)


def follow(control: LimitControl, losses: list[float], nu: float, c: float = 1e5) -> LimitControl:
    for loss in losses:
        control = follow_limits(control, np.array([loss]) - control.bound, np.array([nu]), c)
    return control


def test_the_bound_is_lowered_while_batches_are_above_it_and_not_while_the_price_is_paid_in_full() -> None:
    near = follow(begin(), [0.22] * 3 * LOOK, nu=1.0)
    assert 0.005 < near.lowered[0] < 0.3
    assert follow(near, [0.22] * 500, nu=1e5).lowered[0] == near.lowered[0], "ν = c: it would wind up"
    assert follow(near, [0.1] * 10, nu=1e5).lowered[0] < near.lowered[0], "but it may always go back"


def test_it_does_not_begin_before_the_limit_is_in_sight() -> None:
    assert follow(begin(), [2.0] * 10 * LOOK, nu=1.0).lowered[0] == 0


def test_batches_grow_where_their_losses_scatter_and_only_there() -> None:
    rng = np.random.default_rng(0)
    rough = follow(begin(), list(0.2 + 0.1 * rng.normal(size=LOOK)), nu=1.0)
    assert rough.batch == 40, "four times at most"
    smooth = follow(begin(), list(0.2 + 0.01 * rng.normal(size=LOOK)), nu=1.0)
    assert smooth.batch == 10
    high = follow(begin(), list(2.0 + 0.1 * rng.normal(size=LOOK)), nu=1.0)
    assert high.batch == 10, "relative to the loss that there is"
    assert follow(begin(largest=30), list(0.2 + 0.1 * rng.normal(size=9 * LOOK)), nu=1.0).batch == 30


def test_a_limit_on_sets_of_parts_weighs_them_by_their_rows() -> None:
    n = np.array([10, 30, 0, 60])
    row = Limit(0.1, (1.0, -2.0), ((0, 1), (2, 3))).row(n)
    np.testing.assert_allclose(row, [0.25, 0.75, 0.0, -2.0])
    np.testing.assert_allclose(Limit(0.1).row(n), n / 100)
