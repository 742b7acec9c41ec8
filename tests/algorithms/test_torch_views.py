"""Torch modules of views: against the built-in network, against all columns in one place, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import VerticalFederatedClassifier
from fedspan.algorithms import Limit, Ssca, Steps, VerticalGuarded, VerticalSgd, VerticalSsca
from fedspan.algorithms.learning.torch import Problem, TorchModel, TorchRows, cross_entropy
from fedspan.algorithms.learning.views.torch_views import TorchViewRows, TorchViews
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import Result, run
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.numerics.swish import Swish

torch = pytest.importorskip("torch")
nn = torch.nn

SEED = 4
WIDTHS = {"bank": 3, "clinic": 2, "shop": 4}
NET = Swish(hidden=6, classes=3)


def views(n: int = 120) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Columns in three places, three classes, and two groups."""
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=n)
    X = rng.normal(size=(3, 9))[y] + rng.normal(size=(n, 9))
    cuts = np.split(X, np.cumsum(list(WIDTHS.values()))[:-1], axis=1)
    return dict(zip(WIDTHS, cuts, strict=True)), y, rng.integers(2, size=n)


def solve(method: Any, clients: Any) -> Result[Any]:
    return run(method, InProcess(clients, threads=1), rounds=method.rounds, seed=SEED)


def rows_of(model: TorchViews, X: dict[str, np.ndarray], y: np.ndarray, groups: Any = None) -> dict[str, Any]:
    return {name: TorchViewRows(model, name, own, y, groups) for name, own in X.items()}


def swish_twin(problem: Problem | None = None) -> TorchViews:
    """The built-in network as a linear module for each view and a head, from the same start."""
    W0, W1 = NET.split(NET.start(9, Streams(SEED, 0, 0, SERVER)("start")))
    modules, first = {}, 0
    head = nn.Sequential(nn.SiLU(), nn.Linear(6, 3, bias=False)).double()
    with torch.no_grad():
        head[1].weight.copy_(torch.as_tensor(W0.T.copy()))
        for name, P in WIDTHS.items():
            modules[name] = nn.Linear(P, 6, bias=False).double()
            modules[name].weight.copy_(torch.as_tensor(W1[first : first + P].T.copy()))
            first += P
    return TorchViews(modules, head, problem)


def in_torchs_order(omega: np.ndarray) -> np.ndarray:
    W0, W1 = NET.split(omega)
    blocks = np.split(W1, np.cumsum(list(WIDTHS.values()))[:-1])
    return np.concatenate([W0.T.ravel(), *(block.T.ravel() for block in blocks)])


@pytest.mark.parametrize("exchange", ["each", "sum"])
def test_algorithm_4_with_torch_modules_equals_the_built_in_network(exchange: Any) -> None:
    """(40) as a Problem: no objective but the norm, and loss - U as the constraint; with the paper's steps."""
    X, y, _ = views()
    model = swish_twin(Problem(None, (lambda out, y: cross_entropy(out, y) - 0.4,)))
    common: dict[str, Any] = {"batch": 30, "rounds": 25, "paper": True, "exchange": exchange}
    built_in = VerticalSsca(NET, objective="norm", limits=(Limit(0.4),), **common)
    want = solve(built_in, {name: (own, y) for name, own in X.items()}).state
    got = solve(VerticalSsca(model, **model.problem.options(), **common), rows_of(model, X, y)).state
    np.testing.assert_allclose(got.omega, in_torchs_order(want.omega), atol=1e-7)
    np.testing.assert_allclose(got.values, want.values, atol=1e-7)


def test_closing_rounds_verify_torch_constraints_over_all_rows() -> None:
    X, y, _ = views()
    model = swish_twin(Problem(None, (lambda out, y: cross_entropy(out, y) - 0.4,)))
    result = solve(VerticalSsca(model, **model.problem.options(), batch=40, rounds=120), rows_of(model, X, y))
    Q = model.proba(result.state.best, X)
    cost = -np.log(Q[np.arange(len(y)), y]).mean()
    assert cost <= 0.4
    assert result.state.verified[1] == pytest.approx(cost - 0.4, abs=1e-9)


def deep_modules() -> tuple[dict[str, Any], Callable[[int], Any]]:
    torch.manual_seed(0)
    modules = {
        "bank": nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5)).double(),
        "clinic": nn.Linear(2, 5).double(),
        "shop": nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.LayerNorm(6), nn.Linear(6, 5)).double(),
    }
    return modules, lambda width: nn.Sequential(nn.Tanh(), nn.Linear(width, 7), nn.SiLU(), nn.Linear(7, 3)).double()


def fair(out: Any, y: Any, group: Any) -> Any:
    """How much more group 1 loses than group 0: rows weigh by their group."""
    return cross_entropy(out, y) * (2.0 * group - 1.0)


@pytest.mark.parametrize("exchange", ["each", "sum"])
@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_any_head_and_modules_equal_one_module_of_all_columns(combine: Any, exchange: Any) -> None:
    """Momentum SGD with the same batches, by autograd on pooled columns: an oracle that knows no clients."""
    X, y, groups = views()
    modules, make_head = deep_modules()
    head = make_head(5 if combine == "sum" else 15)
    model = TorchViews(modules, head, combine=combine)
    model.check_widths(WIDTHS, 3)
    steps = {"rate": Steps(0.2, 0.3), "l2": 0.01}
    method = VerticalSgd(model, batch=20, rounds=12, momentum=0.5, exchange=exchange, **steps)
    got = solve(method, rows_of(model, X, y, groups)).state.omega

    parts = [head, *(modules[name] for name in sorted(modules))]
    own = [p for part in parts for p in part.parameters()]
    velocity = [torch.zeros_like(p) for p in own]
    for t in range(1, 13):
        at = np.sort(Streams(SEED, t, 0, SERVER)("batch").choice(len(y), 20, replace=False))
        h = [modules[name](torch.as_tensor(X[name][at])) for name in sorted(X)]
        H = sum(h) if combine == "sum" else torch.cat(h, dim=1)
        loss = nn.functional.cross_entropy(head(H), torch.as_tensor(y[at]))
        slopes = torch.autograd.grad(loss, own)
        with torch.no_grad():
            for p, v, slope in zip(own, velocity, slopes, strict=True):
                v.mul_(0.5).add_(slope + 0.02 * p)
                p.sub_(0.2 / t**0.3 * v)
    want = np.concatenate([p.detach().numpy().ravel() for p in own])
    np.testing.assert_allclose(got, want, atol=1e-10)


def test_several_constraints_with_groups_equal_the_run_on_rows() -> None:
    """Algorithm 4 with M = 2 over views, and Algorithm 2 with one client that has all columns, in exact rounds."""
    X, y, groups = views()
    modules, make_head = deep_modules()
    problem = Problem(cross_entropy, (lambda out, *_: (out**2).sum(dim=1) - 5.0, lambda *args: fair(*args) - 0.05))
    head = make_head(5)
    model = TorchViews(modules, head, problem)

    class Joined(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.head, self.bank, self.clinic, self.shop = head, *(modules[name] for name in sorted(modules))

        def forward(self, rows: Any) -> Any:
            bank, clinic, shop = torch.split(rows, list(WIDTHS.values()), dim=1)
            return self.head(self.bank(bank) + self.clinic(clinic) + self.shop(shop))

    whole = TorchModel(Joined(), problem)
    options: dict[str, Any] = {**problem.options(), "paper": True, "batch": 0, "rounds": 12}
    of_views = solve(VerticalSsca(model, **options), rows_of(model, X, y, groups)).state
    steps = VerticalSsca()
    method = Ssca(whole, tau=steps.tau, rho=steps.rho, gamma=steps.gamma, **options)
    of_rows = solve(method, {"all": TorchRows(whole, np.hstack([*X.values()]), y, groups)}).state
    np.testing.assert_allclose(of_views.values, of_rows.values, atol=1e-8)
    np.testing.assert_allclose(of_views.omega, of_rows.omega, atol=1e-8)


def test_constraints_on_groups_hold_in_the_end() -> None:
    X, y, groups = views()
    modules, make_head = deep_modules()
    problem = Problem(cross_entropy, (lambda out, *_: (out**2).sum(dim=1) - 20.0, lambda *args: fair(*args) - 0.05))
    model = TorchViews(modules, make_head(5), problem)
    fitted = VerticalFederatedClassifier(model=model, rounds=60, batch_size=60, random_state=0)
    fitted.fit(X, y, groups=np.array(["b", "a"])[1 - groups])  # 0 is "a"
    assert fitted.converged_
    assert list(fitted.verified_) == ["constraint 1 ≤ 0", "constraint 2 ≤ 0"]
    assert all(value <= 0 for value in fitted.verified_.values())
    loss = -np.log(fitted.predict_proba(X)[np.arange(len(y)), y])
    excess = (loss * (2 * groups - 1)).mean()
    assert fitted.verified_["constraint 2 ≤ 0"] == pytest.approx(excess - 0.05, abs=1e-9)


def test_the_estimator_learns_saves_and_goes_on(tmp_path: Path) -> None:
    X, y, _ = views(300)
    modules, make_head = deep_modules()
    model = TorchViews(modules, make_head(15), combine="concat")
    fitted = VerticalFederatedClassifier(model=model, rounds=80, random_state=0).fit(X, y)
    assert fitted.score(X, y) > 0.85
    fitted.save(tmp_path / "m.safetensors")
    back = VerticalFederatedClassifier.load(tmp_path / "m.safetensors", model=model)
    np.testing.assert_array_equal(back.predict_proba(X), fitted.predict_proba(X))
    before = fitted.coef_.copy()
    fitted.set_params(rounds=2).partial_fit(X, y)
    assert 0 < np.abs(fitted.coef_ - before).max() < 0.5
    with pytest.raises(InputError, match="Only the built-in network can be exported"):
        fitted.to_onnx(tmp_path / "m.onnx")


def test_a_client_is_told_its_own_weights_only() -> None:
    X, y, _ = views()
    modules, make_head = deep_modules()
    model, seen = TorchViews(modules, make_head(5)), {}

    class Listening(InProcess):
        def start(self, *args: Any) -> Any:
            session = super().start(*args)
            exchange = session.exchange

            def listen(ask: Any, to: Any, *more: Any) -> Any:
                if "omega" in ask.arrays:
                    seen.setdefault(to, ask.arrays["omega"])
                return exchange(ask, to, *more)

            session.exchange = listen  # type: ignore[method-assign]
            return session

    run(VerticalSsca(model, batch=30, rounds=1), Listening(rows_of(model, X, y)), rounds=1, seed=SEED)
    want = {(name,): sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    assert {to: omega.size for to, omega in seen.items()} == want


def test_widths_that_do_not_fit_are_told_with_both_numbers() -> None:
    X, y, _ = views()
    modules, make_head = deep_modules()

    def fit(modules: dict[str, Any], head: Any, **more: Any) -> None:
        VerticalFederatedClassifier(model=TorchViews(modules, head, **more), rounds=2).fit(X, y)

    wrong = nn.Linear(7, 5).double()
    with pytest.raises(InputError, match=r"view 'clinic' takes 7 numbers, but is given 2: the view has 2 col"):
        fit(modules | {"clinic": wrong}, make_head(5))
    inner = nn.Sequential(nn.Linear(2, 9), nn.Linear(8, 5)).double()
    with pytest.raises(InputError, match=r"Layer '1' of the module of view 'clinic' takes 8 numbers, but is given 9"):
        fit(modules | {"clinic": inner}, make_head(5))
    with pytest.raises(InputError, match=r"view 'bank' puts out 5 numbers and that of view 'clinic' 6"):
        fit(modules | {"clinic": nn.Linear(2, 6).double()}, make_head(5))
    with pytest.raises(InputError, match=r"Layer '1' of the head takes 9 numbers, but is given 5: that is what the vi"):
        fit(modules, make_head(9))
    with pytest.raises(InputError, match=r"Layer '1' of the head takes 5 numbers, but is given 15: .* together"):
        fit(modules, make_head(5), combine="concat")
    with pytest.raises(InputError, match=r"The head puts out 2 numbers for each row, but the labels have 3 classes"):
        fit(modules, nn.Linear(5, 2).double())
    with pytest.raises(
        InputError, match=r"each of the views 'bank', 'clinic', 'shop', but there are modules for 'bank'"
    ):
        fit({"bank": modules["bank"]}, make_head(5))


def test_what_torch_modules_of_views_cannot_do_is_refused() -> None:
    X, y, _ = views()
    modules, make_head = deep_modules()
    model = TorchViews(modules, make_head(5))
    with pytest.raises(InputError, match="mapping from the name of each view"):
        TorchViews([nn.Linear(2, 2)], nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="combine must be 'sum' or 'concat'"):
        TorchViews(modules, make_head(5), combine="mean")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="view 'bank' has no parameters"):
        TorchViews(modules | {"bank": nn.Tanh()}, make_head(5))
    with pytest.raises(InputError, match="same dtype"):
        TorchViews(modules, make_head(5).float())
    with pytest.raises(InputError, match="There is no module for view 'bakery'"):
        TorchViewRows(model, "bakery", X["bank"], y)
    with pytest.raises(InputError, match="built-in network; use 'ssca'"):
        VerticalFederatedClassifier(model=model, method=VerticalGuarded()).fit(X, y)
    with pytest.raises(InputError, match="weigh the loss in the Problem"):
        VerticalFederatedClassifier(model=model, rounds=2).fit(X, y, sample_weight=np.ones(len(y)))
    with pytest.raises(InputError, match="but is a Sequential"):
        VerticalFederatedClassifier(model=make_head(5), rounds=2).fit(X, y)
    flat = TorchViews(modules | {"bank": nn.Sequential(nn.Linear(3, 5), nn.Flatten(0)).double()}, make_head(5))
    with pytest.raises(InputError, match=r"view 'bank' must put out a row of numbers for each of the 30 rows"):
        VerticalFederatedClassifier(model=flat, rounds=2, batch_size=30).fit(X, y)
