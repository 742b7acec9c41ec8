"""FedPower's own noise as printed in Algorithms 2 and 3, for clients of different sizes and both schemes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedspan import FederatedSVD, PaperDP, Participation, run
from fedspan.algorithms import PaperNoise
from fedspan.algorithms.spectral.fedpower import PaperNoiseClient
from fedspan.core.rng import Streams
from fedspan.engines import InProcess
from fedspan.engines.inprocess import Faults

SIZES = {"a": 100, "b": 300, "c": 600}
DELTA, EPS1, EPS2, K = 0.01, 0.5, 2.0, 2


def c(x: float) -> float:
    return math.sqrt(2 * math.log(1.25 * x / DELTA))


@pytest.mark.parametrize(
    ("options", "client", "server"),
    [
        ({}, c(1) / (EPS1 * 100), 0.6 * c(1) / (EPS2 * 100)),
        ({"count": K, "scheme": 1}, c(0.6) / (EPS1 * 100), c(1) / (K * EPS2 * 100)),
        ({"count": K, "scheme": 2}, c(1 / 3) / (EPS1 * 100), 0.6 * c(1) / (K * EPS2 * 100)),
    ],
    ids=["full", "scheme 1", "scheme 2"],
)
def test_the_deviations_are_those_that_are_printed(options: dict, client: float, server: float) -> None:
    method = PaperNoise(epsilon1=EPS1, epsilon2=EPS2, delta=DELTA, **options)
    assert method.client_deviation(SIZES) == pytest.approx(client)
    assert method.server_deviation(SIZES, K) == pytest.approx(server)


@pytest.mark.parametrize(
    ("options", "server"),
    [({}, 0.528), ({"count": K, "scheme": 1}, 0.311), ({"count": K, "scheme": 2}, 0.264)],
    ids=["full", "scheme 1", "scheme 2"],
)
def test_the_servers_noise_for_very_unequal_clients_is_that_of_the_formulas(options: dict, server: float) -> None:
    """Worked out by hand from the three formulas; c(1)/(ε n), which was used for all, would be 0.031."""
    method = PaperNoise(epsilon1=0.1, epsilon2=0.1, delta=DELTA, **options)
    assert method.server_deviation({"a": 50, "b": 100, "c": 850}, K) == pytest.approx(server, abs=5e-4)


@pytest.mark.parametrize("scheme", [1, 2])
def test_K_counts_those_that_answered(scheme: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """S_t are the first K that respond, so the server's noise is that of as many, like the weights."""
    told, once = [], PaperNoise.server_deviation
    monkeypatch.setattr(PaperNoise, "server_deviation", lambda self, s, k: told.append(k) or once(self, s, k))
    rng = np.random.default_rng(1)
    data = {name: rng.normal(size=(n, 6)) * [5, 1, 1, 1, 1, 1] for name, n in SIZES.items()}
    server = PaperNoise(k=1, p=1, tol=0, count=3, scheme=scheme)
    run(server, InProcess(data, faults=Faults(lose_reply=0.3)), rounds=20, seed=0, min_clients=1, retries=40)
    assert set(told) <= {1, 2, 3}
    assert len(set(told)) > 1, "some answers were lost"


def test_the_noise_that_is_added_has_these_deviations() -> None:
    rng, d, r = np.random.default_rng(0), 40, 8
    Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
    method = PaperNoise(epsilon1=EPS1, epsilon2=EPS2, delta=DELTA, count=K, scheme=2)
    asked = method.ask_for_noise(SIZES, K)
    for rows in (100, 600):  # a client sends s_i times its estimate: its noise is multiplied too
        client, nothing = PaperNoiseClient(rng.normal(size=(rows, d))), np.zeros((d, r))
        drawn = [client.perturb(nothing, Z, asked, Streams(seed, 1, 0, "a")) for seed in range(40)]
        expected = rows * np.abs(Z).max() * method.client_deviation(SIZES)
        assert np.std(drawn) == pytest.approx(expected, rel=0.03)
    drawn = [method.perturb(np.zeros((d, r)), Z, SIZES, K, Streams(seed, 1, 0, "@server")) for seed in range(40)]
    assert np.std(drawn) == pytest.approx(np.abs(Z).max() * method.server_deviation(SIZES, K), rel=0.03)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("scheme", [None, 1, 2])
def test_unequal_clients_run_with_it(scheme: int | None) -> None:
    rng = np.random.default_rng(1)
    data = [rng.normal(size=(n, 6)) * [5, 1, 1, 1, 1, 1] for n in SIZES.values()]
    part = None if scheme is None else Participation(count=2, scheme=scheme)
    model = FederatedSVD(1, solver="fedpower", privacy=PaperDP(1.0), participation=part, tol=0, max_rounds=4)
    model.set_params(random_state=0).fit(data)
    assert abs(model.components_[0, 0]) > 0.95
    assert model.ledger_.epsilon(1e-6) == math.inf
