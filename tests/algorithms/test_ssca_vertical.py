"""Feature-based learning against the centralised run with the same batches, and what is seen by whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedspan.algorithms import Limit, Sampling, Steps, VerticalSgd, VerticalSsca
from fedspan.algorithms.learning._labelled_rows import LabelledRows
from fedspan.channel import Channel, Stage
from fedspan.core.protocol import Each, Sum
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import Result, run
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.numerics.surrogate import blend_surrogate, minimise, zero_surrogate
from fedspan.numerics.swish import Swish

NET = Swish(hidden=6, classes=3)
SEED = 4


def quarters(n: int = 120) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Small images in three classes, and one client for each quarter of the image."""
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=n)
    images = rng.normal(size=(3, 8, 8))[y] + rng.normal(size=(n, 8, 8))
    names = ("north-east", "north-west", "south-east", "south-west")
    cuts = [images[:, a : a + 4, b : b + 4].reshape(n, 16) for a in (0, 4) for b in (4, 0)]
    return np.hstack(cuts), y, {name: (part, y) for name, part in zip(names, cuts, strict=True)}


def solve(method: Any, clients: Any, **more: Any) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=method.rounds, seed=SEED, **more)


def batches(n: int, size: int, t: int) -> np.ndarray:
    return np.sort(Streams(SEED, t, 0, SERVER)("batch").choice(n, size, replace=False))


@pytest.mark.parametrize("exchange", ["each", "sum"])
def test_a_quarter_of_the_image_per_client_equals_the_centralised_run(exchange: Any) -> None:
    """Algorithm 4, one constraint, the same batches, the same problem on pooled columns: to 1e-8 in every round."""
    X, y, clients = quarters()
    method = VerticalSsca(
        NET, batch=30, rounds=40, objective="norm", limits=(Limit(0.5),), paper=True, exchange=exchange
    )
    seen: list[np.ndarray] = []
    solve(method, clients, callback=lambda info: seen.append(info.estimate))
    rows = LabelledRows(X, y, None, None, 1, Swish(6, 3))
    omega, F = NET.start(64, Streams(SEED, 0, 0, SERVER)("start")), zero_surrogate(1, NET.size(64))
    for t in range(1, 41):
        loss, grad = (part / 30 for part in rows.sums(omega, batches(len(y), 30, t)))
        values, slopes = np.array([omega @ omega, loss[0] - 0.5]), np.stack([2 * omega, grad[0]])
        F = blend_surrogate(F, 1.0 if t == 1 else method.rho(t), values, slopes, omega, np.array([1.0, method.tau]))
        omega = (1 - method.gamma(t)) * omega + method.gamma(t) * minimise(F, 1e5).omega
        np.testing.assert_allclose(seen[t - 1], omega, atol=1e-8)


def test_vertical_sgd_equals_the_centralised_one() -> None:
    X, y, clients = quarters()
    method = VerticalSgd(NET, batch=20, rounds=25, rate=Steps(0.3, 0.3), momentum=0.1, l2=0.01)
    rows, omega, v = (
        LabelledRows(X, y, None, None, 1, Swish(6, 3)),
        NET.start(64, Streams(SEED, 0, 0, SERVER)("start")),
        0.0,
    )
    for t in range(1, 26):
        v = 0.1 * v + rows.sums(omega, batches(len(y), 20, t))[1][0] / 20 + 0.02 * omega
        omega = omega - 0.3 / t**0.3 * v
    np.testing.assert_allclose(solve(method, clients).state.omega, omega, atol=1e-8)


def fixed_point(step: float) -> Stage:
    """What secure aggregation does to numbers: whole multiples of a step."""
    rounded = lambda arrays: {k: np.rint(a / step) * step if a.dtype.kind == "f" else a for k, a in arrays.items()}  # noqa: E731
    return Stage("fixed", ("quantize",), lambda: ((), ()), lambda a, s, _: (rounded(a), s), lambda a, s: (a, s))


def test_the_secure_sum_form_equals_the_plain_one_to_the_fixed_point_step() -> None:
    """To the bit without rounding: whoever adds the parts up, it is in the order of client ids."""
    _, _, clients = quarters()
    plain = VerticalSsca(NET, batch=30, rounds=15, exchange="each")
    summed = VerticalSsca(NET, batch=30, rounds=15, exchange="sum")
    want = solve(plain, clients).state.omega
    np.testing.assert_array_equal(solve(summed, clients).state.omega, want)
    for step in (2.0**-20, 2.0**-30):
        got = solve(summed, clients, channel=Channel(up=fixed_point(step))).state.omega
        assert 0 < np.abs(got - want).max() < 100 * step


def asks_of(method: Any, clients: Any) -> list[tuple[Any, tuple[str, ...]]]:
    asks: list[tuple[Any, tuple[str, ...]]] = []

    class Listening(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange
            session.exchange = lambda ask, to, *more: asks.append((ask, to)) or exchange(ask, to, *more)  # type: ignore[method-assign,func-returns-value]
            return session

    run(method, Listening(clients), rounds=method.rounds, seed=SEED)
    return asks


def test_who_is_told_what() -> None:
    _, _, clients = quarters()
    asks = asks_of(VerticalSsca(NET, batch=30, rounds=3, limits=(Limit(0.5),), exchange="sum"), clients)
    for ask, to in asks:
        if "omega" in ask.arrays:  # weights go to their own client only
            assert len(to) == 1
            assert ask.arrays["omega"].shape == (16, 6)
        if ask.task in ("forward", "backward_in_place"):
            assert isinstance(ask.want, Sum)
    heads = [(ask, to) for ask, to in asks if ask.task == "head"]
    assert all(isinstance(ask.want, Sum) and len(to) == 4 for ask, to in heads), "in a sum with zeros of the others"
    paper = asks_of(VerticalSsca(NET, batch=30, rounds=1, exchange="each"), clients)
    assert [ask.task for ask, _ in paper] == ["open", *["take"] * 4, "forward", "head", "backward"]
    relayed = next(ask for ask, _ in paper if ask.task == "backward").arrays["H"]
    assert relayed.shape == (4, 30, 6)  # every h_i, as in line 4
    assert all(isinstance(ask.want, Each) for ask, _ in paper)


def test_a_limit_holds_over_all_rows() -> None:
    X, y, clients = quarters()
    method = VerticalSsca(NET, batch=40, rounds=150, objective="norm", limits=(Limit(0.4),))
    result = solve(method, clients)
    Q = NET.proba(method.estimate(result.state), X)
    cost = -np.log(Q[np.arange(len(y)), y]).mean()
    assert cost <= 0.4
    assert result.state.verified[1] == pytest.approx(cost - 0.4, abs=1e-12)


def test_views_with_different_rows_are_refused() -> None:
    _, y, clients = quarters()
    part, _ = clients["south-east"]
    with pytest.raises(InputError, match=r"client 'south-east'.*one label for each of the 100 rows, but there are 120"):
        solve(VerticalSsca(NET, batch=30, rounds=2), clients | {"south-east": (part[:100], y)})
    with pytest.raises(InputError, match=r"'north-east' has 120 and client 'south-east' has 100"):
        solve(VerticalSsca(NET, batch=30, rounds=2), clients | {"south-east": (part[:100], y[:100])})


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    _, y, clients = quarters()
    huge = {name: (part * 1e200, y) for name, (part, _) in clients.items()}
    result = solve(VerticalSsca(NET, batch=30, rounds=30), huge)
    assert result.state.failed
    assert result.rounds < 30
    assert np.isfinite(result.state.omega).all()


def test_options_that_make_no_sense_are_refused() -> None:
    _, _, clients = quarters()
    with pytest.raises(InputError, match="exchange"):
        VerticalSsca(exchange="all")  # type: ignore[arg-type]
    for wrong in ({"clip": 1.0}, {"private": Sampling(120, 64, 0.1)}):
        for kind in (VerticalSgd, VerticalSsca):
            with pytest.raises(InputError, match="clip and private work for sample-based learning only"):
                kind(**wrong)
    whole, capped = (solve(VerticalSsca(NET, batch=batch, rounds=2), clients) for batch in (0, 500))
    np.testing.assert_array_equal(whole.state.omega, capped.state.omega)
