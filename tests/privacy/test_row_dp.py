"""Row-level privacy from end to end: rows are bounded, releases noised, what is not planned is refused."""

import math
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedspan import FederatedPCA, FederatedSVD, PaperDP, RowDP, run
from fedspan.algorithms import Gram, NoisyGram, NoisyPower
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.audit.attacks import mu_lower_bound
from fedspan.core.protocol import Replies, Sensitivity, declared_releases, tasks_of
from fedspan.core.rng import SERVER, Streams
from fedspan.engines import InProcess
from fedspan.errors import InputError, PrivacyError
from fedspan.numerics.operators import Rows
from fedspan.numerics.orthonormal import orthonormalize, projection_distance
from fedspan.privacy import noise
from fedspan.privacy.accountant import gaussian_mu
from fedspan.privacy.budget import Budget
from fedspan.privacy.guard import Guard, NoiseSource
from fedspan.privacy.plan import plan_for
from fedspan.privacy.release import Release

DP = RowDP(epsilon=4.0, delta=1e-5, row_norm=2.0)


def table(n: int = 400, d: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * 0.5 ** np.arange(d) + 0.3


def shortened(A: np.ndarray, mu: np.ndarray | float, C: float) -> np.ndarray:
    B = A - mu
    return B * (C / np.maximum(np.linalg.norm(B, axis=1), C))[:, None]


@pytest.mark.parametrize(
    "form", [np.asarray, sp.csr_array, lambda A: (A * 10).astype(np.int16)], ids=["dense", "sparse", "int"]
)
@pytest.mark.parametrize("shift", [False, True])
def test_rows_are_shortened_to_the_bound_and_no_more(form, shift) -> None:
    A = form(table())
    dense = np.asarray(A.toarray() if sp.issparse(A) else A, dtype=float)
    C = 1.01 * float(np.median(np.linalg.norm(dense, axis=1)))
    mu = dense.mean(axis=0) if shift else None
    rows, B = Rows(A, C), shortened(dense, dense.mean(axis=0) if shift else 0.0, C)
    V = np.random.default_rng(1).normal(size=(6, 3))
    np.testing.assert_allclose(rows.gram(mu, None), B.T @ B, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(rows.multiply(V, mu, None), B.T @ (B @ V), rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(rows.squares(mu), (B**2).sum(axis=0), rtol=1e-11)
    np.testing.assert_allclose(rows.sums(), shortened(dense, 0.0, C).sum(axis=0), rtol=1e-11, atol=1e-9)
    assert rows.count_longer() == np.sum(np.linalg.norm(dense, axis=1) > C)


@pytest.mark.parametrize("replace", [False, True])
def test_one_row_changes_each_release_by_no_more_than_is_declared(replace: bool) -> None:
    """At the bound for the worst row: a sensitivity that is too small would be seen, one that is too large too."""
    rng, C, worst = np.random.default_rng(0), 1.7, {}
    for _ in range(60):
        A, Z = table(12, 5, int(rng.integers(1 << 30))), orthonormalize(rng.normal(size=(5, 3)))
        a, b = Z[:, 0] * 9.0, Z[:, 1] * 9.0  # longer than C, in the span of Z, at right angles
        more = [np.vstack([A, a]), np.vstack([A, b]) if replace else A]
        clients = [PrivateClient(rows, row_norm=C) for rows in more]
        for name in ("census", "add_up", "energy", "triangle", "project"):
            task = tasks_of(PrivateClient)[name]
            one, two = (task.call(c, None, {"Z": Z}, None)[1] for c in clients)
            for array in task.releases:
                change = np.linalg.norm(np.asarray(one[array] - two[array], dtype=float))
                worst[name, array] = max(worst.get((name, array), 0.0), change)
    for (name, array), change in worst.items():
        bound = tasks_of(PrivateClient)[name].releases[array].bound(C, replace)
        assert change <= bound * (1 + 1e-12), (name, array)
        if array in ("G", "Y"):
            assert change >= bound * (1 - 1e-9), f"{array}: the bound is reached"
    assert Sensitivity(1).bound(C, replace) == (2 * C if replace else C)


def test_a_block_that_is_not_orthonormal_is_refused() -> None:
    client = PrivateClient(table(), row_norm=1.0)
    with pytest.raises(PrivacyError, match="orthonormal"):
        client.project(None, {"Z": 1.001 * np.eye(6)[:, :2]}, None)


def test_noise_stands_on_the_grid_and_has_the_deviation_that_was_asked_for() -> None:
    g = noise.step(4.0, 100)
    assert g == 2.0 ** round(math.log2(g))
    assert noise.widen(4.0, 100) <= 4.0 * (1 + 2**-10)
    x = np.linspace(-3, 3, 40_000)
    k = noise.to_grid_steps(x, g) + noise.draw_on_grid(noise.keyed_normal(b"secret", x.size), g, 5.0)
    assert k.dtype == np.int64
    off = k * g - x
    assert off.std() == pytest.approx(5.0, rel=0.02)
    assert abs(off.mean()) < 0.1
    assert np.mean(np.abs(off) > 10) == pytest.approx(0.0455, abs=0.006), "two deviations: a Gaussian's tail"
    fresh = noise.keyed_normal(b"one", 1000)
    assert not np.array_equal(fresh, noise.keyed_normal(b"two", 1000))
    assert np.array_equal(fresh, noise.keyed_normal(b"one", 1000))


def new_guard(plan, name="a"):
    return Guard(plan, NoiseSource("run", os.urandom(32)))


def drive(server, clients, plan, rng, system=True):
    """The run of a private server without an engine, and all that was released: (task, array, decoded sum)."""
    guards = {name: new_guard(plan) for name in clients}
    seen = []

    def answer(ask):
        task = tasks_of(server.client)[ask.task]
        total = {}
        for name, client in clients.items():
            admitted = guards[name].admit(task.name, ask.arrays)
            out = guards[name].protect(admitted, task.releases, task.call(client, None, ask.arrays, rng)[1])
            total = {k: total.get(k, 0) + v for k, v in out.items()}
        replies = Replies(tuple(clients), total=plan.to_numbers(task.name, task.releases, total))
        seen.append((ask, replies.total))
        return replies

    def finish(generator):
        try:
            ask = next(generator)
            while True:
                ask = generator.send(answer(ask))
        except StopIteration as stop:
            return stop.value

    streams = Streams(0, 0, 0, SERVER)
    state = finish(server.init(streams))
    while not server.done(state):
        state = finish(server.round(state, streams))
    return seen


SOLVERS = {
    "gram": NoisyGram(k=1, center=False),
    "gram centered": NoisyGram(k=1),
    "block": NoisyPower(k=1, d=2, width=2, rounds=2, center=False),
    "power": NoisyPower(k=1, d=1, width=1, rounds=1, center=False),  # with one feature two rounds would ask the same
}


def audit(server, plan, true_plan, runs: int) -> float:
    """A lower bound on μ, by the best test between the rows with and without one long row, over all releases."""
    d, C = getattr(server, "d", 2), true_plan.row_norm
    A, a = table(8, d), 7.0 * np.eye(d)[:1]  # few features: so every Z sees the whole of the row
    worlds = [PrivateClient(np.vstack([A, a]), row_norm=C), PrivateClient(A, row_norm=C)]
    alone = {name: tasks_of(PrivateClient)[name] for name in ("census", "add_up", "energy", "triangle")}
    known = {name: [task.call(w, None, {}, None)[1] for w in worlds] for name, task in alone.items()}
    scores = ([], [])
    for inside, client in enumerate(worlds):
        for _ in range(runs):
            score = 0.0
            for ask, total in drive(server, {"a": client}, plan, Streams(0, 0, 0, "a")):
                task = tasks_of(PrivateClient)[ask.task]
                if ask.arrays:
                    one, two = (task.call(w, None, ask.arrays, None)[1] for w in worlds)
                else:
                    one, two = known[ask.task]
                for name, x in total.items():
                    sigma = plan.noise[ask.task][name] * plan.sensitivity(task.name, name, task.releases[name])
                    change = np.asarray(one[name] - two[name], dtype=float)
                    middle = (np.asarray(one[name], dtype=float) + two[name]) / 2
                    score += float(np.sum((x - middle) * change)) / sigma**2
            scores[inside].append(score)
    return mu_lower_bound(np.array(scores[0]), np.array(scores[1]), confidence=0.9999)


@pytest.mark.parametrize("name", SOLVERS)
def test_an_audit_of_two_neighbouring_tables_passes_and_fails_for_half_the_noise(name: str) -> None:
    server, promised = SOLVERS[name], gaussian_mu(DP.epsilon, DP.delta)
    plan = plan_for(DP, declared_releases(PrivateClient), server.planned())
    halved = {task: {array: z / 2 for array, z in arrays.items()} for task, arrays in plan.noise.items()}
    weak = type(plan)(**{**vars(plan), "noise": halved})
    assert audit(server, plan, plan, 300) <= promised
    assert audit(server, weak, plan, 700) > promised


def test_a_private_pca_spends_its_budget_and_finds_the_components() -> None:
    A = table(20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pca = FederatedPCA(2, privacy=RowDP(2.0, 1e-6, 3.0), random_state=0).fit([A[:9000], A[9000:]])
    B = shortened(A, A.mean(axis=0), 3.0)
    V = np.linalg.eigh(B.T @ B)[1][:, ::-1][:, :2]
    assert projection_distance(pca.components_.T, V) < 0.02
    assert 1.99 < pca.ledger_.epsilon(1e-6) <= 2.0 + 1e-5
    assert pca.n_samples_ != 20_000, "the number of rows is noised"
    assert abs(pca.n_samples_ - 20_000) < 500
    np.testing.assert_allclose(pca.mean_, A.mean(axis=0), atol=0.05)
    assert any("Expected projection distance" in note for note in pca.ledger_.notes)
    assert any("With the variances that were found" in note for note in pca.ledger_.notes)
    assert {row["task"] for row in pca.ledger_.rows() if row["event"] == "exchange"} == {"census", "add_up", "triangle"}


def test_noise_is_fresh_in_every_run_unless_it_is_a_simulation() -> None:
    """To the bit as a simulation: keyed streams draw the same noise."""
    A = [table(500), table(300, seed=1)]

    def fit(**more):
        dp = RowDP(50.0, 1e-4, 2.0, **more)
        return FederatedPCA(2, privacy=dp, random_state=0).fit(A).components_

    assert not np.array_equal(fit(), fit())
    np.testing.assert_array_equal(fit(simulate=True), fit(simulate=True))


def test_noise_comes_from_the_operating_system() -> None:
    """In tests it is fixed (conftest.py); so this asks processes of their own."""
    code = "from fedspan.privacy.keyring import RunKey; print(RunKey.open(None).key.hex())"
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(2)]
    assert len({process.stdout for process in done}) == 2
    assert all(len(process.stdout.strip()) == 64 for process in done)


@pytest.mark.parametrize("seed", range(15))
def test_noise_that_hides_everything_is_no_mistake_in_the_data(seed: int) -> None:
    """All noised variances may be negative: that says nothing about the rows, and there are components all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dp = RowDP(0.01, 1e-6, 2.0, simulate=True)
        model = FederatedPCA(2, privacy=dp, random_state=seed).fit([table(30, 3)])
    assert model.components_.shape == (2, 3)
    assert np.isfinite(model.transform(table(5, 3))).all()
    assert (model.explained_variance_ >= 0).all()


@pytest.mark.parametrize("solver", ["gram", "ssi", "fedpower", NoisyPower(width=5, rounds=2)], ids=str)
def test_every_private_solver_finds_a_clear_direction(solver) -> None:
    A = table(30_000)
    svd = FederatedSVD(1, solver=solver, privacy=RowDP(5.0, 1e-6, 3.0), random_state=1).fit([A])
    V = np.linalg.svd(shortened(A, 0.0, 3.0), full_matrices=False)[2][:1].T
    assert projection_distance(svd.components_.T, V) < 0.05
    assert svd.ledger_.epsilon(1e-6) <= 5.0 + 1e-4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"solver": "krylov"}, "mixes their noise"),
        ({"solver": "faps"}, "no known sensitivity"),
        ({"solver": "davidson"}, "no known sensitivity"),
        ({"solver": "localpower"}, "no known sensitivity"),
        ({"solver": "uda"}, "no known sensitivity"),
        ({"solver": Gram()}, "cannot keep row-level privacy"),
        ({"scale": True}, "by public numbers instead"),
        ({"bits": 4, "solver": "ssi"}, "bits cannot be combined"),
        ({"local_steps": 4, "solver": "fedpower"}, "local_steps cannot be combined with privacy=RowDP.*leave it out"),
        ({"privacy": 1.0}, "must be a RowDP object, a PaperDP object or None"),
    ],
    ids=str,
)
def test_what_cannot_be_private_is_refused_before_anything_is_sent(options: dict, says: str) -> None:
    from fedspan import Ledger

    ledger = Ledger()
    with pytest.raises(InputError, match=says):
        FederatedPCA(2, **{"privacy": DP} | options).fit([table()], ledger=ledger)
    assert ledger.exchanges == 0


def test_a_delta_that_may_show_a_whole_row_is_refused_by_a_noised_count() -> None:
    from fedspan import Ledger

    ledger = Ledger()
    dp = RowDP(1.0, 0.01, 2.0)
    said = r"but is 0.01 for about [\d,]+ rows .*Only noised counts were released, for epsilon ([\d.e-]+) of 1\."
    with pytest.raises(InputError, match=said) as caught:
        FederatedPCA(2, privacy=dp).fit([table(4000)], ledger=ledger)
    found = re.search(said, str(caught.value))
    assert found
    assert float(found.group(1)) == pytest.approx(ledger.epsilon(0.01), rel=0.06)
    assert [row["task"] for row in ledger.rows() if row["event"] == "exchange"] == ["census"]


def test_a_delta_that_is_too_large_for_so_many_clients_is_refused_before_anything_is_sent() -> None:
    from fedspan import Ledger

    for privacy in (RowDP(1.0, 0.05, 2.0), RowDP(1.0, 0.05, "auto")):
        ledger = Ledger()
        with pytest.raises(InputError, match=r"is 0.05 for 20 clients.*Nothing was released"):
            FederatedPCA(2, privacy=privacy).fit([table(60)] * 20, ledger=ledger)
        assert ledger.exchanges == 0


def test_a_hopeless_run_warns_before_anything_is_sent() -> None:
    with pytest.warns(UserWarning, match="Above 0.3 the components say little"):
        FederatedPCA(2, privacy=RowDP(0.1, 1e-6, 2.0), random_state=0).fit([table()] * 5)


def test_a_question_that_is_not_planned_is_not_sent() -> None:
    plan = plan_for(DP, declared_releases(PrivateClient), [Release("triangle", "G", 1, 1.0)])
    with pytest.raises(PrivacyError, match="'census' is not in the privacy plan"):
        run(NoisyGram(k=1), InProcess([table()]), rounds=1, seed=0, privacy=plan)


def test_a_client_counts_for_itself() -> None:
    plan = plan_for(DP, declared_releases(PrivateClient), [Release("triangle", "G", 1, 1.0)])
    guard, task = new_guard(plan), tasks_of(PrivateClient)["triangle"]
    reply = task.call(PrivateClient(table(), row_norm=2.0), None, {}, None)[1]
    first = guard.protect(guard.admit("triangle", {}), task.releases, reply)
    again = guard.protect(guard.admit("triangle", {}), task.releases, reply)
    np.testing.assert_array_equal(first["G"], again["G"])  # the same release: the same bytes, and free
    other = {"mean": np.zeros(6)}
    with pytest.raises(PrivacyError, match="would exceed the plan, which allows 1"):
        guard.admit("triangle", other)
    changed = {"G": reply["G"] + 1.0}  # the rows have changed since: that is another release
    with pytest.raises(PrivacyError, match="would exceed the plan, which allows 1"):
        guard.protect(guard.admit("triangle", {}), task.releases, changed)
    with pytest.raises(PrivacyError, match="not in the privacy plan"):
        guard.admit("census", {})


@pytest.mark.filterwarnings("ignore:expected projection distance")
def test_clients_keep_budgets_over_runs(tmp_path) -> None:
    clients = {"north": table(), "south": table(300, seed=1)}
    dp = RowDP(1.0, 1e-6, 2.0, budgets=tmp_path)
    fit = FederatedPCA(1, privacy=dp, random_state=0).fit
    with pytest.raises(PrivacyError, match=r"There is no privacy budget north\.json"):
        fit(clients)
    for name in clients:
        Budget.grant(tmp_path / f"{name}.json", 1.2, 1e-6)
    fit(clients)
    assert Budget(tmp_path / "north.json").spent == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(PrivacyError, match=r"client 'north': The run would exceed the privacy budget"):
        fit(clients)
    assert Budget(tmp_path / "north.json").spent == pytest.approx(1.0, rel=1e-3), "nothing left before the refusal"


def test_wrong_numbers_leave_nothing_behind() -> None:
    """A row that is not finite counts as a row of zeros: a refusal would tell of it."""
    bad = table()
    bad[3, 2], bad[4, 1], bad[5] = np.nan, np.inf, 1e300
    clean = bad.copy()
    clean[3:6] = 0.0
    for form in (np.asarray, sp.csr_array):
        one, two = Rows(form(bad), 2.0), Rows(form(clean), 2.0)
        np.testing.assert_array_equal(one.gram(None, None), two.gram(None, None))
        np.testing.assert_array_equal(one.sums(), two.sums())
    FederatedPCA(1, privacy=DP).fit([table(), bad])


def test_the_papers_noise_is_labelled_as_what_it_is() -> None:
    A = table(3000)
    with pytest.warns(UserWarning, match="bounds one column where r are released"):
        svd = FederatedSVD(1, solver="fedpower", privacy=PaperDP(1.0), tol=0, max_rounds=5, random_state=0).fit([A] * 3)
    assert svd.ledger_.epsilon(1e-6) == math.inf
    V = np.linalg.svd(A, full_matrices=False)[2][:1].T
    assert 0 < projection_distance(svd.components_.T, V) < 0.1
    with pytest.raises(InputError, match="solver='fedpower'"):
        FederatedSVD(1, solver="gram", privacy=PaperDP(1.0)).fit([A])


@pytest.mark.parametrize("m", [1, 10])
def test_clients_of_a_secure_sum_share_its_noise(m: int) -> None:
    """The sum has what is needed and no more, however many clients there are."""
    plan = plan_for(DP, declared_releases(PrivateClient), [Release("project", "Y", 1, 1.0)], spread=m)
    task = tasks_of(PrivateClient)["project"]
    nothing = {"Y": np.zeros((40, 100))}
    guards = [new_guard(plan) for _ in range(m)]
    total = sum(guard.protect(guard.admit("project", {}), task.releases, nothing)["Y"] for guard in guards)
    bound = plan.sensitivity("project", "Y", task.releases["Y"])
    g = noise.step(bound, 4000)
    planned = plan.noise["project"]["Y"] * bound
    assert (total * g).std() == pytest.approx(planned, rel=0.04)


def test_a_private_secure_run_is_the_private_run_to_the_bit() -> None:
    """Noised releases are whole numbers, whose masked sum is exact."""
    from fedspan import Secure

    clients = {name: table(300, seed=i) for i, name in enumerate(["a", "b", "c"])}
    dp = RowDP(1.0, 1e-6, 2.0, simulate=True)
    server = NoisyGram(k=2)
    plan = plan_for(dp, declared_releases(PrivateClient), server.planned(), spread=3)
    plain, secure = (
        run(server, InProcess(clients), rounds=1, seed=0, privacy=plan, secure=s) for s in (None, Secure())
    )
    np.testing.assert_array_equal(secure.state.Z, plain.state.Z)
    assert secure.ledger.epsilon(1e-6) == plain.ledger.epsilon(1e-6) <= 1.00001
