"""Mini-batch SSCA against finite differences, momentum SGD, a centralised optimiser, torch, and bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

from fedspan.algorithms import Limit, Ssca, SscaMomentum, Steps
from fedspan.algorithms.learning._labelled_rows import LabelledRows
from fedspan.algorithms.learning._samples import SampleClient
from fedspan.core.protocol import Sensitivity, Sum, tasks_of
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import Info, Result, run
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish, softmax, swish

NET = Swish(hidden=5, classes=3)


def samples(n: int = 240, seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds in six features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return rng.normal(size=(3, 6))[y] * 1.5 + spread * rng.normal(size=(n, 6)), y


def dealt(X: np.ndarray, y: np.ndarray, sizes: tuple[int, ...] = (100, 40, 100)) -> dict[str, Any]:
    cuts = np.cumsum(sizes)[:-1]
    return {f"c{i}": pair for i, pair in enumerate(zip(np.split(X, cuts), np.split(y, cuts), strict=True))}


def solve(method: Ssca, clients: Any, seed: int = 1, **more: Any) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=method.rounds, seed=seed, **more)


def mean_loss(net: Swish, omega: np.ndarray, X: Any, y: np.ndarray) -> float:
    """(28) as it is written."""
    Q = net.proba(omega, X)
    return float(-np.log(Q[np.arange(len(y)), y]).mean())


# --- the network


def test_swish_and_softmax_are_what_the_paper_says() -> None:
    z = np.array([[-800.0, -2.0, 0.0, 0.5, 800.0]])
    S, dS = swish(z)
    inner = z[:, 1:4]
    sigma = 1 / (1 + np.exp(-inner))
    np.testing.assert_allclose(S[:, 1:4], inner * sigma, rtol=1e-12)
    np.testing.assert_allclose(dS[:, 1:4], sigma * (1 + inner * np.exp(-inner) * sigma), rtol=1e-12)
    np.testing.assert_allclose(S[:, [0, 4]], [[0.0, 800.0]], atol=1e-12)
    np.testing.assert_allclose(softmax(z).sum(), 1.0)


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted", "parts"])
def test_gradients_agree_with_finite_differences(kind: str) -> None:
    rng = np.random.default_rng(3)
    X, y = samples(30)
    X[np.abs(X) < 0.5] = 0.0
    weight = rng.uniform(0.2, 3.0, size=30) if kind == "weighted" else None
    part = rng.integers(2, size=30) if kind == "parts" else None
    rows = LabelledRows(
        sp.csr_array(X) if kind == "sparse" else X, y, weight, part, 2 if kind == "parts" else 1, Swish(5, 3)
    )
    omega, at = NET.start(6, rng), np.arange(5, 30)
    loss, grad = rows.sums(omega, at)
    np.testing.assert_allclose(rows.losses(omega, at), loss, rtol=1e-12)
    for g in range(len(loss)):
        numeric = scipy.optimize.approx_fprime(omega, lambda w, g=g: rows.losses(w, at)[g], 1e-6)
        np.testing.assert_allclose(grad[g], numeric, atol=2e-4)
    by_hand = -np.log(NET.proba(omega, X)[np.arange(30), y])[at] * (1.0 if weight is None else weight[at])
    assert loss.sum() == pytest.approx(by_hand.sum())


def test_float32_rows_give_nearly_the_same_numbers() -> None:
    X, y = samples(50)
    omega = NET.start(6, np.random.default_rng(0))
    wide, narrow = (LabelledRows(rows, y, None, None, 1, Swish(5, 3)) for rows in (X, X.astype(np.float32)))
    np.testing.assert_allclose(narrow.sums(omega, np.arange(50))[1], wide.sums(omega, np.arange(50))[1], atol=1e-4)


def test_clipped_gradients_are_clipped_row_by_row() -> None:
    X, y = samples(40)
    rows, omega = LabelledRows(X, y, None, None, 1, Swish(5, 3)), NET.start(6, np.random.default_rng(0))
    each = np.stack([rows.sums(omega, np.array([i]))[1][0] for i in range(40)])
    norms = np.linalg.norm(each, axis=1)
    clip = float(np.median(norms))
    want = (each * np.minimum(1.0, clip / norms)[:, None]).sum(axis=0)
    np.testing.assert_allclose(rows.clipped(omega, np.arange(40), clip), want, atol=1e-12)


def test_one_row_changes_the_clipped_release_by_at_most_the_bound_that_it_declares() -> None:
    X, y = samples(40)
    X[7] *= 1e6  # an outlier
    omega = NET.start(6, np.random.default_rng(0))
    rows = LabelledRows(X, y, None, None, 1, Swish(5, 3))
    everyone, others = np.arange(40), np.delete(np.arange(40), 7)
    change = rows.clipped(omega, everyone, 0.3) - rows.clipped(omega, others, 0.3)
    assert np.linalg.norm(change) <= 0.3 * (1 + 1e-9)
    assert tasks_of(SampleClient)["clipped"].releases == {"n": Sensitivity(0), "grad": Sensitivity(1)}


def test_a_clipped_run_draws_batches_of_fixed_size_in_proportion_to_the_rows() -> None:
    X, y = samples()
    method = Ssca(NET, batch=20, rounds=4, clip=0.5)
    state = solve(replace(method, rounds=1), dealt(X, y)).state
    ask = next(method.round(state, Streams(1, 2, 0, SERVER)))
    assert ask.task == "clipped"
    assert ask.want == Sum("n", "grad")
    drawn = []
    for n in (100, 40, 100):
        client = SampleClient((X[:n], y[:n]), 5, 3, 20, 0.5)
        drawn.append(int(client.clipped(client.init(), ask.arrays, Streams(1, 2, 0, "a"))[1]["n"]))
    assert drawn == [25, 10, 25]
    assert solve(method, dealt(X, y)).converged


# --- the algorithm


def test_remark_2_it_is_momentum_sgd() -> None:
    """Step by step, to 1e-10, with the paper's settings."""
    X, y = samples()
    clients = dealt(X, y)
    settings: dict[str, Any] = {"rho": Steps(0.9, 0.3), "gamma": Steps(0.5, 0.6), "tau": 0.2, "batch": 20, "rounds": 60}
    seen: dict[str, list[np.ndarray]] = {"ssca": [], "momentum": []}
    solve(Ssca(NET, **settings), clients, callback=lambda info: seen["ssca"].append(info.estimate))
    solve(SscaMomentum(NET, **settings), clients, callback=lambda info: seen["momentum"].append(info.estimate))  # type: ignore[arg-type]
    assert len(seen["ssca"]) == 60
    for a, b in zip(seen["ssca"], seen["momentum"], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_one_round_by_hand() -> None:
    """Algorithm 2 with (41), Lemma 1 and the sums of (29) to (31), written out."""
    X, y = samples()
    clients = dealt(X, y)
    U, tau = 0.6, 0.05
    method = Ssca(NET, batch=0, rounds=2, objective="norm", limits=(Limit(U),), tau=tau, paper=True)
    seen: list[np.ndarray] = []
    start = run(method, InProcess(clients), rounds=0, seed=1).state.omega
    solve(method, clients, callback=lambda info: seen.append(info.estimate))

    def numbers(w: np.ndarray) -> tuple[float, np.ndarray]:
        loss, grad = LabelledRows(X, y, None, None, 1, Swish(5, 3)).sums(w, np.arange(len(y)))
        return float(loss[0]) / len(y), grad[0] / len(y)

    omega, A, C = start, np.zeros_like(start), 0.0
    for t in (1, 2):
        rho, gamma = 1.0 if t == 1 else 0.3 / t**0.1, 0.3 / t**0.1
        F, g = numbers(omega)
        A = (1 - rho) * A + rho * (g - 2 * tau * omega)  # (36), (37)
        C = (1 - rho) * C + rho * (F + tau * omega @ omega - g @ omega)  # (42)
        b = A @ A
        room = b + 4 * tau * (U - C)
        nu = min(max((np.sqrt(b / room) - 1) / tau, 0.0), 1e5) if room > 0 else 1e5  # (45)
        omega = (1 - gamma) * omega - gamma * nu * A / (2 * (1 + nu * tau))  # (43), (44), (5)
        np.testing.assert_allclose(seen[t - 1], omega, rtol=1e-9, atol=1e-9)


def test_full_batches_reach_what_a_centralised_optimiser_reaches() -> None:
    X, y = samples()
    held = Steps(0.6, 0.0)  # without noise, steps need not fall
    method = Ssca(NET, batch=0, rounds=400, l2=0.05, tau=0.3, rho=held, gamma=held, paper=True)
    omega = method.estimate(solve(method, dealt(X, y)).state)
    rows = LabelledRows(X, y, None, None, 1, Swish(5, 3))

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        loss, grad = rows.sums(w, np.arange(len(y)))
        return float(loss[0]) / len(y) + 0.05 * w @ w, grad[0] / len(y) + 0.1 * w

    best = scipy.optimize.minimize(objective, omega + 0.01, jac=True, method="L-BFGS-B", tol=1e-14)
    assert np.linalg.norm(objective(omega)[1]) < 1e-4
    assert objective(omega)[0] == pytest.approx(best.fun, rel=1e-6)


def test_clients_weigh_by_their_samples() -> None:
    """With full batches it does not matter how the rows are dealt."""
    X, y = samples()
    method = Ssca(NET, batch=0, rounds=10)
    omegas = [
        method.estimate(solve(method, dealt(X, y, sizes)).state) for sizes in ((240,), (200, 39, 1), (80, 80, 80))
    ]
    for omega in omegas[1:]:
        np.testing.assert_allclose(omega, omegas[0], atol=1e-10)


def limited(**more: Any) -> Ssca:
    settings: dict[str, Any] = {"batch": 20, "rounds": 260, "objective": "norm", "limits": (Limit(0.35),)}
    return Ssca(NET, **settings | more)


def test_a_limit_holds_over_all_rows_and_the_norm_is_small() -> None:
    """Against SLSQP on the pooled rows: no larger than 5 % above its local optimum from the same model."""
    X, y = samples()
    result = solve(limited(), dealt(X, y))
    omega = limited().estimate(result.state)
    assert mean_loss(NET, omega, X, y) <= 0.35
    assert result.state.verified[1] == pytest.approx(mean_loss(NET, omega, X, y) - 0.35, abs=1e-12)
    rule = {"type": "ineq", "fun": lambda w: 0.35 - mean_loss(NET, w, X, y)}
    best = scipy.optimize.minimize(lambda w: w @ w, omega, jac=lambda w: 2 * w, constraints=[rule], method="SLSQP")
    assert omega @ omega <= 1.05 * best.fun


def test_closing_rounds_never_lose_feasibility_and_the_objective_falls() -> None:
    X, y = samples()
    method, rows = limited(rounds=60), list[tuple[float, float]]()

    def look(info: Info) -> None:
        if info.round > method.stochastic:
            rows.append((mean_loss(NET, info.estimate, X, y), float(info.estimate @ info.estimate)))

    solve(method, dealt(X, y), callback=look)
    costs, norms = np.array(rows).T
    first = int(np.argmax(costs <= 0.35))
    assert len(rows) >= 3
    assert (costs[first:] <= 0.35).all()
    assert (np.diff(norms[first:]) <= 1e-9).all()


def test_as_printed_there_is_no_control_and_no_closing_round() -> None:
    X, y = samples()
    state = solve(limited(paper=True, rounds=80), dealt(X, y)).state
    assert state.t == 80
    assert (state.control.lowered == 0).all()
    assert state.control.batch == limited().batch
    assert state.c == 1e5
    assert len(state.best) == 0


def test_three_limits_at_once() -> None:
    """Bounds on each of two groups and on their gap; all are verified from the pooled rows."""
    X, y = samples(spread=1.4)
    X = np.hstack([X, np.ones((len(y), 1))])
    part = (X[:, 0] > 0).astype(int)
    data = {name: (x, labels, None, (x[:, 0] > 0).astype(int), 2) for name, (x, labels) in dealt(X, y).items()}
    limits = (Limit(0.7, (1.0, 0.0)), Limit(0.7, (0.0, 1.0)), Limit(0.01, (1.0, -1.0)))
    method = Ssca(NET, batch=30, rounds=300, limits=limits)
    result = solve(method, data)
    omega = method.estimate(result.state)
    groups = [mean_loss(NET, omega, X[part == g], y[part == g]) for g in (0, 1)]
    assert max(groups) <= 0.7
    assert groups[0] - groups[1] <= 0.01
    assert set(method.metrics(result.state)) >= {
        f"{k}_{m}" for m in (1, 2, 3) for k in ("constraint", "slack", "multiplier")
    }


def test_an_infeasible_limit_keeps_the_model_of_least_violation_and_raises_the_price() -> None:
    X, y = samples(spread=3.0)
    method = limited(limits=(Limit(1e-4),), rounds=200)
    seen: list[float] = []
    result = solve(method, dealt(X, y), callback=lambda info: seen.append(info.metrics["penalty"]))
    assert max(seen) > 1e5
    assert result.state.verified[1] > 0
    assert mean_loss(NET, method.estimate(result.state), X, y) - 1e-4 == pytest.approx(result.state.verified[1])
    assert method.metrics(result.state)["slack_1"] > 0


def test_the_server_asks_for_sums_only() -> None:
    X, y = samples()
    asks: list[Any] = []

    class Listening(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange
            session.exchange = lambda ask, *more: asks.append(ask) or exchange(ask, *more)  # type: ignore[method-assign,func-returns-value]
            return session

    run(limited(rounds=20), Listening(dealt(X, y)), rounds=20, seed=0)
    assert {ask.task for ask in asks} == {"open", "gradient", "losses"}
    assert all(isinstance(ask.want, Sum) for ask in asks)


def test_a_client_that_is_missing_is_left_out_of_the_mean() -> None:
    X, y = samples()

    class Dead:
        n, features, counts = 40, 6, np.array([40])

        def check(self) -> None: ...

        def sums(self, *_: Any) -> Any:
            raise RuntimeError("dead")

    data = dealt(X, y)
    method = Ssca(NET, batch=0, rounds=3)
    left = solve(method, data | {"c1": Dead()}, min_clients=2)
    np.testing.assert_allclose(
        left.state.omega, solve(method, {k: data[k] for k in ("c0", "c2")}).state.omega, atol=1e-12
    )


# --- bad input


@pytest.mark.parametrize(
    ("rho", "gamma", "why"),
    [
        (Steps(1.2, 0.6), Steps(0.3, 0.9), "rho must be above 0 and at most 1"),
        (Steps(0.3, 0.6), Steps(0.0, 0.9), "gamma must be above 0 and at most 1"),
        (Steps(0.3, 0.0), Steps(0.3, 0.9), "(4)"),
        (Steps(0.3, 1.1), Steps(0.3, 0.9), "(4)"),
        (Steps(0.3, 0.1), Steps(0.3, 0.1), "(6)"),
        (Steps(0.3, 0.7), Steps(0.3, 0.6), "(6)"),
        (Steps(0.3, 0.1), Steps(0.3, 1.2), "(6)"),
    ],
)
def test_step_sizes_that_break_the_theory_are_refused(rho: Steps, gamma: Steps, why: str) -> None:
    with pytest.raises(InputError) as error:
        Ssca(rho=rho, gamma=gamma)
    assert why in str(error.value)


def test_the_papers_own_step_sizes_need_its_switch() -> None:
    own = {"rho": Steps(0.3, 0.1), "gamma": Steps(0.3, 0.1)}
    with pytest.raises(InputError, match="paper=True"):
        Ssca(**own)
    assert Ssca(**own, paper=True).gamma(32) == pytest.approx(0.3 / 32**0.1)


def test_a_client_with_fewer_rows_than_the_batch_takes_all_of_them_with_its_own_weight() -> None:
    """The first round's gradient is Σ N_i/N times the mean over B_i = min(B, N_i) rows: with B beyond all, the mean."""
    X, y = samples()
    whole, capped = (solve(Ssca(NET, batch=batch, rounds=3), dealt(X, y)) for batch in (0, 10_000))
    np.testing.assert_array_equal(whole.state.omega, capped.state.omega)
    few = {"many": (X[:100], y[:100]), "few": (X[100:107], y[100:107])}
    assert not solve(Ssca(NET, batch=50, rounds=3), few).state.failed


def test_rows_that_are_not_finite_are_refused_before_anything_is_learned() -> None:
    X, y = samples()
    X[120, 2] = np.nan
    with pytest.raises(InputError, match="client 'c1': Rows must be finite numbers"):
        solve(Ssca(NET, batch=20, rounds=3), dealt(X, y))


@pytest.mark.parametrize("limits", [(), (Limit(0.35),)])
def test_a_loss_that_is_not_finite_stops_the_run_and_the_last_good_parameters_are_kept(limits: Any) -> None:
    X, y = samples()
    seen: list[np.ndarray] = []

    class Breaking(LabelledRows):
        def sums(self, omega: np.ndarray, at: np.ndarray) -> Any:
            loss, grad = super().sums(omega, at)
            seen.append(omega)
            return (loss * np.nan, grad) if len(seen) == 6 else (loss, grad)

    data = {"a": Breaking(X[:120], y[:120], None, None, 1, Swish(5, 3)), "b": (X[120:], y[120:])}
    result = solve(Ssca(NET, batch=20, rounds=50, limits=limits), data)
    assert result.rounds == 6
    assert result.state.failed
    np.testing.assert_array_equal(result.state.omega, seen[4])  # that of round 5, whose losses were finite


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"objective": "norm"}, {"tau": 0.0}, {"rounds": 0}, {"clip": 1.0, "limits": (Limit(1.0),)},
    ):  # fmt: skip
        with pytest.raises(InputError):
            Ssca(**wrong)  # type: ignore[arg-type]
    X, y = samples()
    with pytest.raises(InputError, match="coefficient for each of the 1 parts"):
        solve(Ssca(NET, batch=20, rounds=3, limits=(Limit(1.0, (1.0, 2.0)),)), dealt(X, y))
