"""How much noise, how much spent: against closed forms and against the paper's formula."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedspan import Ledger, RowDP
from fedspan.algorithms import NoisyGram
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import declared_releases
from fedspan.errors import InputError
from fedspan.privacy import accountant
from fedspan.privacy.accountant import epsilon, gaussian_epsilon, gaussian_mu, noise_multiplier, paper_multiplier
from fedspan.privacy.plan import plan_for
from fedspan.privacy.release import Release


def delta_of(mu: float, eps: float) -> float:
    """The δ of a Gaussian release with μ = sensitivity over deviation (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (1.0, 1e-9), (4.0, 1e-5)])
@pytest.mark.parametrize("times", [1, 10, 40])
def test_the_noise_is_what_the_closed_form_asks_for(eps: float, delta: float, times: int) -> None:
    z = noise_multiplier(eps, delta, times)
    mu = math.sqrt(times) / z
    assert delta_of(mu, eps) <= delta * (1 + 1e-6), "not too little"
    assert delta_of(mu * 1.0005, eps) > delta, "and hardly more than needed"
    assert epsilon({(z, 1.0): times}, delta) == pytest.approx(eps, rel=2e-3)


def test_releases_of_different_noise_add_up_as_one_gaussian() -> None:
    mixed = {(5.0, 1.0): 3, (20.0, 1.0): 8, (50.0, 1.0): 1}
    mu = math.sqrt(3 / 25 + 8 / 400 + 1 / 2500)
    eps = epsilon(mixed, 1e-6)
    assert delta_of(mu, eps) <= 1e-6 < delta_of(mu, eps - 1e-3)


def test_nothing_costs_nothing_and_no_noise_costs_all() -> None:
    assert epsilon({}, 1e-6) == 0
    assert epsilon({(0.0, 1.0): 1}, 1e-6) == math.inf
    with pytest.raises(InputError, match="delta must be between 0 and 1"):
        epsilon({}, 1.0)


def test_the_papers_formula_asks_for_at_least_eight_times_as_much_over_forty_rounds() -> None:
    ratio = paper_multiplier(1.0, 1e-6, 40) / noise_multiplier(1.0, 1e-6, 40)
    assert ratio >= 8
    assert paper_multiplier(10.0, 1e-6, 1) < noise_multiplier(10.0, 1e-6, 1), "and for one round at ε = 10 too little"


@pytest.mark.parametrize("eps", [1e-6, 5e-4, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.01])
def test_the_closed_form_and_its_inverse_agree_from_the_smallest_to_the_largest_epsilon(eps, delta) -> None:
    mu = gaussian_mu(eps, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(eps, rel=1e-6)
    assert delta_of(mu, eps) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("eps", [1e-6, 5e-4, 0.3, 50.0])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.9])
@pytest.mark.parametrize("times", [1, 60, 3000])
def test_noise_for_sampled_rows_is_enough_and_never_more_than_without_sampling(eps, q, times, monkeypatch) -> None:
    """A bounded number of distributions: the work does not depend on what is asked."""
    calls, once = [], accountant._compose_losses
    monkeypatch.setattr(accountant, "_compose_losses", lambda *given: calls.append(1) or once(*given))
    noise_multiplier.cache_clear()
    z = noise_multiplier(eps, 1e-6, times, q)
    assert len(calls) <= 40
    assert 0 < z <= noise_multiplier(eps, 1e-6, times) * (1 + 1e-9)
    assert epsilon({(z, q): times}, 1e-6) <= eps


def integrate_delta(eps: float, z: float, q: float, times: int, added: bool) -> float:
    """δ(ε) of sampled releases without any grid of losses: the inverse Laplace transform of their moments.

    δ(ε) = 1/2πi ∫ E[exp(sL)]^times exp(-sε) / (s (s + 1)) ds on a line through the saddle point; L is the loss of one.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    x = z * 16 * nodes + 0.5
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * z**2)))
    mass = np.exp(-0.5 * (x / z) ** 2) * weights * 16 / math.sqrt(2 * math.pi)
    loss, mass = (-loss, mass) if added else (loss, mass * np.exp(loss))

    def exponent(s):
        with np.errstate(over="ignore", invalid="ignore"):  # far from the saddle point
            moments = np.log1p(np.expm1(np.multiply.outer(s, loss)) @ mass)
        return times * moments - s * eps - np.log(s) - np.log1p(s)

    line = np.exp(np.linspace(-5, 20, 120))
    heights = exponent(line)
    c = line[np.nanargmin(heights)]
    top, near = exponent(np.array([c]))[0], exponent(np.array([0.999 * c, 1.001 * c]))
    t = np.linspace(0, 14 * 0.001 * c / math.sqrt(max(near.sum() - 2 * top, 1e-12)), 500)
    values = np.exp(exponent(c + 1j * t) - top).real
    assert abs(values[-1]) < 1e-6, "the integral has an end"
    return float(np.trapezoid(values, t) / math.pi * math.exp(top))


@pytest.mark.parametrize(
    ("eps", "delta", "q", "times"),
    [
        (1e-6, 1e-6, 0.03, 700),  # losses of 1e-8: what a difference of like numbers loses
        (2e-6, 3e-5, 2e-4, 4000),  # ε far below δ
        (7e-4, 1e-8, 0.006, 900),
        (0.05, 5e-6, 0.04, 15000),
        (4.0, 1e-7, 0.85, 90),
    ],
)
def test_noise_for_sampled_rows_is_that_of_an_integral_without_a_grid(eps, delta, q, times) -> None:
    def true(z: float) -> float:
        return max(integrate_delta(eps, z, q, times, added) for added in (False, True))

    z = noise_multiplier(eps, delta, times, q)
    assert true(z) <= delta < true(0.98 * z), "enough, and hardly more than needed"


def test_the_integral_is_right_where_there_is_a_closed_form() -> None:
    assert integrate_delta(0.8, 20.0, 1.0, 30, False) == pytest.approx(delta_of(math.sqrt(30) / 20, 0.8), rel=1e-6)


@pytest.mark.parametrize(
    ("eps", "delta", "q", "times"), [(0.9, 1e-6, 0.01, 50), (6.0, 1e-7, 1e-3, 20), (0.5, 1e-4, 0.01, 2)]
)
def test_rare_and_large_losses_are_those_of_dp_accountings_own_distributions(eps, delta, q, times) -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    z = noise_multiplier(eps, delta, times, q)

    def at_least(z: float, pessimistic: bool) -> float:
        one = library.from_gaussian_mechanism(
            z,
            sampling_prob=q,
            value_discretization_interval=eps / 400,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return float(one.self_compose(times).get_delta_for_epsilon(eps))

    assert at_least(z, False) <= delta < at_least(0.97 * z, True)


@pytest.mark.parametrize("eps", [0.0, 1e-7, 51.0, math.nan])
def test_an_epsilon_that_no_noise_fits_is_refused(eps: float) -> None:
    with pytest.raises(InputError, match="epsilon must be from 1e-06 to 50"):
        noise_multiplier(eps, 1e-6)


def test_releases_of_all_rows_and_of_samples_add_up() -> None:
    alone = noise_multiplier(1.0, 1e-6, 60, 0.05)
    beside = 0.05 * gaussian_mu(1.0, 1e-6) ** 2
    z = noise_multiplier(1.0, 1e-6, 60, 0.05, beside)
    together = {(z, 0.05): 60, (1 / math.sqrt(beside), 1.0): 1}
    assert alone < z < 1.1 * alone
    assert epsilon(together, 1e-6) <= 1.0 < epsilon({**together, (alone / 1.02, 0.05): 60, (z, 0.05): 0}, 1e-6)


def test_secret_sampling_of_rows_needs_less_noise() -> None:
    z = noise_multiplier(1.0, 1e-6, times=50, q=0.05)
    assert z < noise_multiplier(1.0, 1e-6, times=50) / 5
    assert epsilon({(z, 0.05): 50}, 1e-6) <= 1.0 < epsilon({(z * 0.98, 0.05): 50}, 1e-6)


def exchange(task: str, clients: tuple[str, ...], noise: float, sent: tuple[int, ...] | None = None) -> Exchange:
    n = len(clients)
    return Exchange(1, 0, task, clients, (10,) * n, sent or (10,) * n, (0.0,) * n, noise=noise)


def test_the_ledger_counts_what_left_the_client_that_released_most(tmp_path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.epsilon(1e-6) == 0
    ledger.add(exchange("a", ("x", "y"), 5.0))
    ledger.add(exchange("a", ("x",), 5.0))
    ledger.add(exchange("a", ("x", "y"), 5.0, sent=(10, 0)))  # y was asked and sent nothing
    assert ledger.epsilon(1e-6) == pytest.approx(epsilon({(5.0, 1.0): 3}, 1e-6))
    assert Ledger.read(tmp_path / "ledger.jsonl").epsilon(1e-6) == ledger.epsilon(1e-6)
    ledger.add(exchange("b", ("y",), 0.0))
    assert ledger.epsilon(1e-6) == math.inf


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": -1.0}, "epsilon must be above 0"),
        ({"epsilon": float("nan")}, "epsilon must be above 0"),
        ({"delta": 0.0}, "delta must be above 0"),
        ({"delta": 1.0}, "delta must be above 0"),
        ({"delta": 0.1}, "delta must be below 1 / number of rows, but is 0.1"),
        ({"row_norm": None}, "Reading it from the data would leak"),
        ({"row_norm": 0.0}, "row_norm must be above 0"),
        ({"row_norm": math.inf}, "row_norm must be above 0"),
        ({"row_norm": 1e-200}, "row_norm must be from 1e-100 to 1e.100, but is 1e-200"),
        ({"row_norm": 1e200}, "row_norm must be from 1e-100 to 1e.100, but is 1e.200"),
        ({"epsilon": 1e-7}, "epsilon must be from 1e-06 to 50"),
        ({"neighbours": "both"}, "'add-remove' or 'replace-one'"),
        ({"expect": 0.0}, "expect must be above 0"),
    ],
    ids=str,
)
def test_a_wish_that_makes_no_sense_is_refused(bad: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        RowDP(**{"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0} | bad)


def test_a_plan_spends_all_of_the_budget_and_no_more() -> None:
    planned = NoisyGram(k=2).planned()
    plan = plan_for(RowDP(1.0, 1e-6, 2.0), declared_releases(PrivateClient), planned)
    spent = {(plan.multiplier(task), 1.0): times for task, times in plan.limits.items()}
    assert epsilon(spent, 1e-6) == pytest.approx(1.0, rel=1e-3)
    assert epsilon(spent, 1e-6) <= 1.0 + 1e-5


def test_what_has_no_sensitivity_has_no_plan() -> None:
    with pytest.raises(InputError, match="without a known sensitivity"):
        plan_for(RowDP(1.0, 1e-6, 1.0), declared_releases(PrivateClient), [Release("multiply_on_grid", "Y", 1, 1.0)])
    with pytest.raises(InputError, match="plans no releases, so it cannot be combined with differential privacy"):
        plan_for(RowDP(1.0, 1e-6, 1.0), declared_releases(PrivateClient), [])
    with pytest.raises(InputError, match="also releases 'longer'"):
        plan_for(RowDP(1.0, 1e-6, 1.0), declared_releases(PrivateClient), [Release("census", "n", 1, 1.0)])


def test_the_noise_multiplier_of_a_task_is_that_of_its_arrays_together() -> None:
    releases = [Release("census", "n", 1, 0.5), Release("census", "longer", 1, 0.5)]
    plan = plan_for(RowDP(1.0, 1e-6, 1.0), declared_releases(PrivateClient), releases)
    z = plan.noise["census"]["n"]
    np.testing.assert_allclose(plan.multiplier("census"), z / math.sqrt(2))
