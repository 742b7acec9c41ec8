"""The baselines, each against its definition written out, and a torch problem against the built-in network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedspan.algorithms import FedAdam, FedAvg, FedSgd, Limit, Sampling, Scaffold, Ssca, Steps
from fedspan.algorithms.learning._labelled_rows import LabelledRows
from fedspan.algorithms.learning.torch import Problem, TorchModel, TorchRows, cross_entropy
from fedspan.core.run import Result, run
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish

NET = Swish(hidden=4, classes=2)


def samples(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    return X, (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)


def dealt() -> dict[str, Any]:
    X, y = samples()
    return {"a": (X[:50], y[:50]), "b": (X[50:80], y[50:80]), "c": (X[80:], y[80:])}


def solve(method: Any, clients: Any, **more: Any) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=method.rounds, seed=2, **more)


def start_of(method: Any) -> np.ndarray:
    return run(method, InProcess(dealt()), rounds=0, seed=2).state.omega


def gradient(omega: np.ndarray, X: np.ndarray, y: np.ndarray, l2: float) -> np.ndarray:
    rows = LabelledRows(X, y, None, None, 1, Swish(4, 2))
    return rows.sums(omega, np.arange(len(y)))[1][0] / len(y) + 2 * l2 * omega


@pytest.mark.parametrize("momentum", [0.0, 0.4])
def test_fedsgd_is_gradient_descent_on_the_pooled_rows(momentum: float) -> None:
    X, y = samples()
    method = FedSgd(NET, batch=0, rounds=12, l2=0.01, rate=Steps(0.3, 0.3), momentum=momentum)
    omega, v = start_of(method), 0.0
    for t in range(1, 13):
        v = momentum * v + gradient(omega, X, y, 0.01)
        omega = omega - 0.3 / t**0.3 * v
    np.testing.assert_allclose(solve(method, dealt()).state.omega, omega, atol=1e-12)


def test_fedavg_is_the_weighted_mean_of_local_descents() -> None:
    method = FedAvg(NET, batch=0, rounds=4, l2=0.01, rate=Steps(0.3, 0.3), momentum=0.2, steps=3)
    omega, v = start_of(method), np.zeros(NET.size(5))
    for t in range(1, 5):
        ends = []
        for X, y in dealt().values():
            w, u = omega, v
            for _ in range(3):
                u = 0.2 * u + gradient(w, X, y, 0.01)
                w = w - 0.3 / t**0.3 * u
            ends.append((len(y) * w, len(y) * u))
        omega, v = (np.sum(part, axis=0) / 90 for part in zip(*ends, strict=True))
    result = solve(method, dealt())
    np.testing.assert_allclose(result.state.omega, omega, atol=1e-12)
    np.testing.assert_allclose(result.state.v, v, atol=1e-12)


def test_scaffold_is_its_listing() -> None:
    """Algorithm 1 of the paper with option II, clients weighed by their rows."""
    method = Scaffold(NET, batch=0, rounds=4, l2=0.01, rate=Steps(0.2, 0.0), steps=3, server=0.7)
    omega = start_of(method)
    c, own = np.zeros_like(omega), {name: np.zeros_like(omega) for name in dealt()}
    for _ in range(4):
        moved, changed = np.zeros_like(omega), np.zeros_like(omega)
        for name, (X, y) in dealt().items():
            w = omega
            for _ in range(3):
                w = w - 0.2 * (gradient(w, X, y, 0.01) - own[name] + c)
            after = own[name] - c + (omega - w) / (3 * 0.2)
            moved += len(y) / 90 * (w - omega)
            changed += len(y) / 90 * (after - own[name])
            own[name] = after
        omega, c = omega + 0.7 * moved, c + changed
    result = solve(method, dealt())
    np.testing.assert_allclose(result.state.omega, omega, atol=1e-12)
    np.testing.assert_allclose(result.state.v, c, atol=1e-12)


def test_fedadam_is_its_listing() -> None:
    method = FedAdam(NET, batch=0, rounds=4, l2=0.01, rate=Steps(0.2, 0.0), steps=3, server=0.05, tau=0.01)
    omega = start_of(method)
    m, v = np.zeros_like(omega), np.zeros_like(omega)
    for _ in range(4):
        change = np.zeros_like(omega)
        for X, y in dealt().values():
            w = omega
            for _ in range(3):
                w = w - 0.2 * gradient(w, X, y, 0.01)
            change += len(y) / 90 * (w - omega)
        m, v = 0.9 * m + 0.1 * change, 0.99 * v + 0.01 * change**2
        omega = omega + 0.05 * m / (np.sqrt(v) + 0.01)
    np.testing.assert_allclose(solve(method, dealt()).state.omega, omega, atol=1e-12)


def test_one_local_step_with_full_batches_is_fedsgd() -> None:
    one, other = FedAvg(NET, batch=0, rounds=5, steps=1), FedSgd(NET, batch=0, rounds=5)
    np.testing.assert_allclose(solve(one, dealt()).state.omega, solve(other, dealt()).state.omega, atol=1e-12)


def test_local_steps_see_every_row_once_before_any_comes_again() -> None:
    X, y = samples(60)
    seen: list[np.ndarray] = []

    class Watched(LabelledRows):
        def sums(self, omega: np.ndarray, at: np.ndarray) -> Any:
            seen.append(at)
            return super().sums(omega, at)

    solve(FedAvg(NET, batch=10, rounds=1, steps=6), [Watched(X, y, None, None, 1, Swish(4, 2))])
    assert sorted(np.concatenate(seen)) == list(range(60))


def test_more_local_steps_learn_more_in_a_round() -> None:
    costs = [solve(FedAvg(NET, batch=10, rounds=15, steps=E), dealt()).ledger.history()[-1]["cost"] for E in (1, 8)]
    assert costs[1] < costs[0]


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (FedSgd, {"momentum": 1.0}, "momentum must be from 0 to below 1"),
        (FedSgd, {"rate": Steps(0.0, 0.1)}, "learning rate must be above 0"),
        (FedSgd, {"rounds": 0}, "rounds must be at least 1"),
        (FedAvg, {"steps": 0}, "local steps, must be at least 1"),
        (Scaffold, {"momentum": 0.5}, "SCAFFOLD has no momentum"),
        (Scaffold, {"server": 0.0}, "the server's step, must be above 0"),
        (FedAdam, {"tau": 0.0}, "FedAdam needs server and tau above 0"),
        (FedAdam, {"momentum": 0.5}, "a momentum of its own, beta1"),
        (FedAvg, {"clip": 1.0}, "FedAvg cannot be combined with clip or private"),
        (FedAvg, {"private": Sampling(90, 5, 0.1)}, "FedAvg cannot be combined with clip or private"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind: Any, options: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        kind(**options)


# --- torch


def torch_twin() -> Any:
    """The built-in network as a torch module, with its start in it."""
    torch = pytest.importorskip("torch")
    omega = NET.start(5, np.random.default_rng(3))
    W0, W1 = NET.split(omega)
    module = torch.nn.Sequential(
        torch.nn.Linear(5, 4, bias=False), torch.nn.SiLU(), torch.nn.Linear(4, 2, bias=False)
    ).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.as_tensor(W1.T.copy()))
        module[2].weight.copy_(torch.as_tensor(W0.T.copy()))
    return module, omega


def in_torchs_order(omega: np.ndarray) -> np.ndarray:
    W0, W1 = NET.split(omega)
    return np.concatenate([W1.T.ravel(), W0.T.ravel()])


def test_a_torch_module_agrees_with_the_built_in_network() -> None:
    """Losses, gradients, clipped gradients and probabilities."""
    (X, y), (module, omega) = samples(), torch_twin()
    model = TorchModel(module)
    mine, other = LabelledRows(X, y, None, None, 1, Swish(4, 2)), TorchRows(model, X, y)
    w, at = in_torchs_order(omega), np.arange(10, 70)
    np.testing.assert_array_equal(model.start(5, None), w)  # copied, not computed
    loss, grad = mine.sums(omega, at)
    got, slope = other.sums(w, at)
    np.testing.assert_allclose(got, loss, rtol=1e-12)
    np.testing.assert_allclose(slope[0], in_torchs_order(grad[0]), atol=1e-12)
    np.testing.assert_allclose(other.losses(w, at), loss, rtol=1e-12)
    np.testing.assert_allclose(other.clipped(w, at, 0.2), in_torchs_order(mine.clipped(omega, at, 0.2)), atol=1e-12)
    np.testing.assert_allclose(model.proba(w, X), NET.proba(omega, X), atol=1e-12)


@pytest.mark.parametrize("options", [{"rounds": 30, "paper": True}, {"rounds": 10}])
def test_a_constrained_torch_run_equals_the_built_in_one(options: dict[str, Any]) -> None:
    """(40) as a Problem: no objective but the norm, and loss - U as the constraint.

    The limit control does not see U in such a constraint, so it acts otherwise once batches keep it: after round 5.
    """
    module, omega = torch_twin()
    model = TorchModel(module, Problem(None, (lambda out, y: cross_entropy(out, y) - 0.4,)))

    class Started(Swish):
        def start(self, features: int, rng: Any) -> np.ndarray:
            return omega

    common: dict[str, Any] = {"batch": 8, **options}
    built_in = Ssca(Started(4, 2), objective="norm", limits=(Limit(0.4),), **common)
    in_torch = Ssca(model, **model.problem.options(), **common)
    want = solve(built_in, dealt()).state
    got = solve(in_torch, {name: TorchRows(model, *pair) for name, pair in dealt().items()}).state
    np.testing.assert_allclose(got.omega, in_torchs_order(want.omega), atol=1e-7)
    np.testing.assert_allclose(got.verified, want.verified, atol=1e-7)


def test_torch_models_that_cannot_be_learned_are_refused() -> None:
    torch = pytest.importorskip("torch")
    X, y = samples()
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        TorchModel("net")
    with pytest.raises(InputError, match="has buffers"):
        TorchModel(torch.nn.Sequential(torch.nn.Linear(5, 2), torch.nn.BatchNorm1d(2)))
    with pytest.raises(InputError, match="has no parameters"):
        TorchModel(torch.nn.SiLU())
    with pytest.raises(InputError, match="neither"):
        Problem(None).options()
    model = TorchModel(torch.nn.Linear(5, 2).double(), Problem(lambda out, y: out.sum()))
    with pytest.raises(InputError, match="a number for each of the 3 rows"):
        TorchRows(model, X, y).sums(model.start(5, None), np.arange(3))
