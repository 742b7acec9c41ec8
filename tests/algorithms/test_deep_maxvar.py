"""DeepMaxVar against transcriptions in numpy of the paper's listing, and what a node may not do to its surroundings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn, optim

from fedspan.algorithms.gcca.deep import DeepMaxVar, DeepNode, DeepView
from fedspan.algorithms.gcca.networks import compute_outputs, load_parameters, make_network
from fedspan.channel import IDENTITY, Channel, delta, only, quantize
from fedspan.core.checkpoint import flatten
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import Array, Each, tasks_of
from fedspan.core.rng import SERVER, Streams
from fedspan.core.run import Result, run
from fedspan.engines.inprocess import Faults, InProcess
from fedspan.errors import ClientError, InputError

pytestmark = pytest.mark.xdist_group("torch")  # whose parts for optimisers take seconds to import

J, K, N, T = 60, 2, 3, 4
RNG = np.random.default_rng(3)
SHARED = RNG.uniform(-1, 1, size=(J, K))
XS = {name: np.tanh(2 * SHARED @ RNG.normal(size=(K, N))) + 0.1 * RNG.normal(size=(J, N)) for name in "abc"}


class Kept(InProcess):
    """An engine whose sites can be looked at after the run."""

    def start(self, *args: Any) -> Any:
        self.session = super().start(*args)
        return self.session

    def theta(self, name: str) -> dict[str, Array]:
        return self.session.sites[name].state.theta


def linear(seed: int) -> nn.Module:
    net = nn.Linear(N, K, bias=False, dtype=torch.float64)
    W = np.random.default_rng(seed).normal(size=(K, N))
    return load_parameters(net, {"weight": W})


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(N, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, K))


def fixed(seed: int) -> nn.Module:
    """A module, not a function: its parameters are the start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return deep()


def nets(network: Any = None, optimizer: Any = None, **more: Any) -> dict[str, DeepView]:
    return {n: DeepView(X, network or fixed(i), optimizer, **more) for i, (n, X) in enumerate(XS.items())}


def solve(views: Any, rounds: int = 3, engine: Any = None, server: Any = None, **more: Any) -> Result[Any]:
    server = server or DeepMaxVar(K, T, batch_size=16, lr=0.01)
    return run(server, engine or InProcess(views, threads=1), **{"rounds": rounds, "seed": 5} | more)


def bits(result: Result[Any]) -> Any:
    skeleton, arrays = flatten(result.state)
    return repr(skeleton), [a.tobytes() for a in arrays.values()]


def coded(stage: Any) -> Channel:
    return Channel(up=only(["M"], stage), down=only(["G"], stage))


def common(M: Array, G: Array | None = None, alpha: float = np.inf) -> Array:
    """(15) and (16) as they stand in the paper."""
    Y = (np.eye(J) - np.ones((J, J)) / J) @ M + (0 if G is None else G / alpha)
    U, _, Vt = np.linalg.svd(Y, full_matrices=False)
    return U @ Vt


# --- against the listing


@pytest.mark.parametrize("alpha", [np.inf, 0.7])
def test_plain_gradient_steps_of_a_linear_network_by_hand(alpha: float) -> None:
    lr = 0.3
    server = DeepMaxVar(K, T, lr=lr, alpha=alpha)
    views = {name: DeepView(X, linear(i), optim.SGD) for i, (name, X) in enumerate(XS.items())}
    result = solve(views, rounds=5, server=server)

    Q = {name: np.random.default_rng(i).normal(size=(K, N)).T for i, name in enumerate(XS)}
    G = common(sum(X @ Q[name] for name, X in XS.items()) / np.sqrt(J))
    for _ in range(5):
        targets = np.sqrt(J) * G
        for name, X in XS.items():
            for _ in range(T):
                Q[name] = Q[name] - lr * X.T @ (X @ Q[name] - targets) / J
        cost = sum(0.5 * np.linalg.norm(X @ Q[name] - targets) ** 2 / J for name, X in XS.items())
        M = sum(X @ Q[name] for name, X in XS.items())
        G = common(M / np.sqrt(J), G, alpha)
    np.testing.assert_allclose(result.state.G, G, atol=1e-5)  # float32 on the wire
    assert result.state.cost == pytest.approx(cost, rel=1e-5)
    np.testing.assert_allclose(result.state.mean, M.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(result.state.gram, np.cov(M.T, bias=True), atol=1e-5)


def test_adam_goes_on_over_the_rounds_by_hand() -> None:
    lr, rounds, (b1, b2, eps) = 0.02, 4, (0.9, 0.999, 1e-8)
    views = {name: DeepView(X, linear(i)) for i, (name, X) in enumerate(XS.items())}
    G_seen = solve(views, rounds=rounds, server=DeepMaxVar(K, T, lr=lr)).state.G

    Q = {name: np.random.default_rng(i).normal(size=(K, N)).T for i, name in enumerate(XS)}
    m, v = ({name: np.zeros((N, K)) for name in XS} for _ in range(2))
    G = common(sum(X @ Q[name] for name, X in XS.items()))
    for r in range(rounds):
        for name, X in XS.items():
            for t in range(1 + r * T, 1 + (r + 1) * T):
                g = X.T @ (X @ Q[name] - np.sqrt(J) * G) / J
                m[name], v[name] = b1 * m[name] + (1 - b1) * g, b2 * v[name] + (1 - b2) * g**2
                Q[name] = Q[name] - lr * (m[name] / (1 - b1**t)) / (np.sqrt(v[name] / (1 - b2**t)) + eps)
        G = common(sum(X @ Q[name] for name, X in XS.items()))
    np.testing.assert_allclose(G_seen, G, atol=1e-5)


def test_the_common_representation_is_orthonormal_and_centred() -> None:
    for rounds in (0, 1, 6):
        G = solve(nets(), rounds, channel=coded(delta(quantize(3)))).state.G
        np.testing.assert_allclose(G.T @ G, np.eye(K), atol=1e-12)
        np.testing.assert_allclose(G.sum(axis=0), 0, atol=1e-12)


def test_cost_and_correlations_are_those_of_the_trained_networks() -> None:
    targets = np.sqrt(J) * solve(nets(), rounds=3).state.G
    engine = Kept(nets(), threads=1)
    state = solve(None, rounds=4, engine=engine).state
    Ms = [compute_outputs(load_parameters(deep(), engine.theta(name)), X) for name, X in XS.items()]
    assert state.cost == pytest.approx(sum(0.5 * np.linalg.norm(M - targets) ** 2 / J for M in Ms), rel=1e-5)
    wanted = np.mean([[np.corrcoef(M[:, c], targets[:, c])[0, 1] for c in range(K)] for M in Ms], axis=0)
    np.testing.assert_allclose(state.correlations, wanted, atol=1e-5)
    np.testing.assert_allclose(state.mean, np.sum(Ms, axis=0).mean(axis=0), atol=1e-5)


def test_batches_run_through_all_rows_before_they_come_again() -> None:
    node = DeepNode(DeepView(XS["a"], deep), K, T, batch_size=16)
    batches = node._batches(np.random.default_rng(0))
    first, second = ([next(batches) for _ in range(J // 16)] for _ in range(2))
    for shuffle in (first, second):
        rows = np.concatenate(shuffle)
        assert len(rows) == len(set(rows.tolist())) == 48
    assert [b.tolist() for b in first] != [b.tolist() for b in second]
    assert DeepNode(DeepView(XS["a"], deep), K, T, batch_size=1000).batch_size == J


def test_three_bits_lose_next_to_nothing_and_save_most_bytes() -> None:
    server = DeepMaxVar(K, 10, lr=0.01)

    def smooth() -> nn.Module:  # so that both runs come close to the optimum
        return nn.Sequential(nn.Linear(N, 16), nn.Tanh(), nn.Linear(16, K))

    views = {name: DeepView(np.repeat(X, 10, axis=0), smooth) for name, X in XS.items()}
    alt = solve(views, 20, server=server)
    cute = solve(views, 20, server=server, channel=coded(delta(quantize(3))))
    assert cute.state.cost == pytest.approx(alt.state.cost, rel=0.05)
    sent = [r.ledger.bytes_up + r.ledger.bytes_down for r in (cute, alt)]
    assert sent[0] < 0.2 * sent[1]  # messages of 1200 numbers: headers are a good part of them


# --- channels


def test_updates_that_are_all_zero_pass_the_quantiser() -> None:
    """With a step of zero nothing moves: every difference after a first exchange at full precision is exactly zero."""
    views = nets(nn.Sequential(nn.Linear(N, K)), lambda p: optim.SGD(p, lr=0.0))
    views = {name: replace(view, network=make_network(view.network)) for name, view in views.items()}
    want = solve(views, rounds=0).state
    got = solve(views, rounds=3, channel=coded(delta(quantize(3), first=IDENTITY))).state
    np.testing.assert_allclose(got.G, want.G, atol=1e-6)
    assert np.isfinite(got.cost)
    assert got.change <= 1e-6


# --- what a node remembers is all that it needs


@pytest.mark.parametrize(
    "optimizer",
    [
        None, optim.AdamW, optim.Adagrad, optim.Adadelta, optim.NAdam, optim.RMSprop,
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        lambda p: optim.Adam(p, lr=0.01, amsgrad=True, betas=(0.8, 0.9)),
        lambda p: optim.LBFGS(p, lr=0.1, max_iter=3),
    ],
    ids=["adam", "adamw", "adagrad", "adadelta", "nadam", "rmsprop", "sgd", "amsgrad", "lbfgs"],
)  # fmt: skip
def test_a_client_closed_after_every_task_goes_on_to_the_bit(optimizer: Any) -> None:
    views = nets(optimizer=optimizer)
    want = solve(views)
    assert bits(solve(views, engine=InProcess(views, threads=1, max_open=1))) == bits(want)


def test_batch_norm_learns_its_statistics_and_keeps_them() -> None:
    engine = Kept(nets(), threads=1)
    solve(None, engine=engine)
    theta = engine.theta("a")
    assert int(theta["1.num_batches_tracked"]) == 3 * T
    assert not np.allclose(theta["1.running_mean"], 0)


def test_engines_threads_and_torchs_own_do_not_matter() -> None:
    views = nets(deep)
    want = bits(solve(views))
    assert bits(solve(views, engine=InProcess(views, threads=3))) == want
    assert bits(solve(views, engine=InProcess(views, threads=2, wire=True))) == want
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert bits(solve(views)) == want
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_leaves_torch_and_the_given_networks_as_they_were() -> None:
    views = nets()
    weights = [p.detach().clone() for view in views.values() for p in view.network.parameters()]
    stream = torch.get_rng_state()
    one = bits(solve(views))
    assert torch.equal(torch.get_rng_state(), stream)
    torch.rand(7)
    assert bits(solve(views)) == one
    after = [p for view in views.values() for p in view.network.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, weights, strict=True))


def test_networks_from_functions_follow_the_seed() -> None:
    views = nets(deep)
    assert bits(solve(views)) == bits(solve(views))
    assert bits(solve(views)) != bits(solve(views, seed=6))


def test_a_reply_that_was_lost_is_sent_again_without_training_again() -> None:
    """To the bit: a client's own steps do not depend on which replies arrive."""
    views, whole = nets(), Kept(nets(), threads=1)
    engine = Kept(views, threads=1, faults=Faults(lose_reply=0.3))
    result = solve(views, rounds=1, engine=engine, min_clients=1)
    assert next(e.missing for e in result.ledger.events if isinstance(e, Exchange) and e.task == "train") == ("b",)
    np.testing.assert_allclose(result.state.G, solve(None, rounds=1, engine=whole).state.G, atol=1e-6)  # another order
    for name in views:
        for key, array in whole.theta(name).items():
            np.testing.assert_array_equal(engine.theta(name)[key], array)
    solve(views, rounds=6, engine=engine, min_clients=1)
    assert {int(engine.theta(name)["1.num_batches_tracked"]) for name in views} == {6 * T}


def test_sparse_and_mapped_rows_give_what_dense_ones_give(tmp_path: Path) -> None:
    rows = {name: np.where(np.abs(X) < 0.3, 0.0, X) for name, X in XS.items()}
    views = {name: DeepView(X, fixed(i)) for i, (name, X) in enumerate(rows.items())}
    want = bits(solve(views))
    np.save(tmp_path / "a.npy", rows["a"])
    others = {
        "a": np.load(tmp_path / "a.npy", mmap_mode="r"), "b": sp.csc_array(rows["b"]), "c": np.asfortranarray(rows["c"])
    }  # fmt: skip
    assert bits(solve({name: replace(view, X=others[name]) for name, view in views.items()})) == want


def test_double_precision_networks_stay_so() -> None:
    engine = Kept(nets(linear(0)), threads=1)
    solve(None, engine=engine)
    assert engine.theta("b")["weight"].dtype == np.float64


# --- what the server sees, and what it needs


def test_only_sums_of_outputs_and_two_numbers_leave_a_node() -> None:
    assert {name: set(task.releases) for name, task in tasks_of(DeepNode).items()} == {
        "identify": {"n", "nn", "named", "d", "dd"},
        "identify_rows": {"n", "digests"},
        "start": {"M"},
        "train": {"M", "cost", "correlation"},
    }
    state = solve(nets(), rounds=1).state
    ask = next(DeepMaxVar(K).round(state, Streams(0, 2, 0, SERVER)))
    assert not isinstance(ask.want, Each)
    assert ask.arrays["G"].dtype == np.float32


def test_the_server_needs_no_torch_and_a_node_says_what_to_install() -> None:
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
import numpy as np
from fedspan.algorithms.gcca.deep import DeepMaxVar, DeepNode, DeepView
from fedspan.errors import MissingExtraError
from fedspan.core.protocol import Replies
from fedspan.core.rng import Streams
rng, J = np.random.default_rng(0), 20
server, names = DeepMaxVar({K}), ("a", "b")
def drive(generator):
    ask = next(generator)
    while True:
        M = {{"M": rng.normal(size=(J, {K})), "cost": np.array(1.0), "correlation": np.zeros({K})}}
        none = np.zeros(16, int)
        same = {{"n": np.array(2 * J), "nn": np.array(2 * J * J), "named": np.array(0), "d": none, "dd": none}}
        try:
            ask = generator.send(Replies(names, total=same if ask.task == "identify" else M))
        except StopIteration as stop:
            return stop.value
state = drive(server.init(Streams(0, 0, 0, "@server")))
state = drive(server.round(state, Streams(0, 1, 0, "@server")))
assert state.G.shape == (J, {K})
node = DeepNode(DeepView(np.ones((J, 3)), None), {K}, 1)
try:
    node.start(node.init(), {{}}, Streams(0, 0, 0, "a"))
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "a network needs an optional dependency. Install it with: pip install 'fedspan[deep]'"


# --- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": nn.Linear(N, K + 1)}, r"client 'b': .* output for each of the n_components = 2.*60, 3"),
        ({"network": nn.Sequential(nn.Linear(N, K), nn.Flatten(0))}, "client 'b': .* an output for each"),
        ({"network": nn.Linear(N + 1, K)}, r"client 'b': The network fails on rows of 3 features"),
        ({"network": nn.ReLU()}, r"client 'b': A network must be a torch.nn.Module with parameters"),
        ({"network": 7}, r"client 'b': A network must be a torch.nn.Module with parameters"),
        ({"X": XS["b"][:-1]}, r"client 'a' has 60 rows and client 'b' has 59"),
        ({"X": np.where(np.arange(J)[:, None] == 5, np.nan, XS["b"])}, "client 'b': .* 1 of 60 rows .*affected: 3"),
        ({"X": XS["b"] * 1e300}, r"client 'b': The outputs of the network before training are not finite"),
        ({"ids": np.arange(J)}, r"Either every client gives ids or none does, but client 'a' has none"),
    ],
    ids=["width", "flat", "features", "no parameters", "no module", "rows", "nan", "huge", "ids"],
)  # fmt: skip
def test_bad_input_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    views = nets()
    views["b"] = replace(views["b"], **change)
    with pytest.raises(InputError, match=message):
        solve(views)


def test_entities_in_another_order_are_refused() -> None:
    views = nets(ids=np.arange(J))
    solve(views, rounds=1)
    views["b"] = replace(views["b"], ids=np.roll(np.arange(J), 1))
    with pytest.raises(InputError, match=r"60 of 60 rows differ between clients 'a' and 'b'.*another order"):
        solve(views)


def test_a_run_that_diverges_says_so() -> None:
    views = nets(nn.Sequential(nn.Linear(N, 8), nn.Linear(8, K)), lambda p: optim.SGD(p, lr=1e6))
    with pytest.raises((InputError, ClientError), match=r"Lower lr|NaN or infinity"):
        solve(views, rounds=30)


def test_networks_that_say_nothing_are_refused() -> None:
    dead = nn.Linear(N, K)
    nn.init.zeros_(dead.weight)
    with pytest.raises(InputError, match="must vary in 2 directions, but their sum varies in 0"):
        solve(nets(dead))
    thin = nn.Sequential(nn.Linear(N, 1), nn.Linear(1, K))
    with pytest.raises(InputError, match="must vary in 2 directions, but their sum varies in 1"):
        solve({"a": DeepView(XS["a"], thin), "b": DeepView(XS["a"], thin)})


def test_more_components_than_entities_are_refused() -> None:
    views = {name: DeepView(X[:K], deep) for name, X in XS.items()}
    with pytest.raises(InputError, match="more entities than the 2 components, but there are 2"):
        solve(views)
