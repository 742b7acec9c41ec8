"""What the estimators do with each solver: which one, why, and what it refuses."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import ConvergenceWarning

from fedspan import Auto, FederatedPCA, FederatedSVD, InputError, Participation, RowDP
from fedspan.algorithms import FedPower, Gram, Krylov
from fedspan.engines import Faults, InProcess
from fedspan.errors import ClientError
from fedspan.estimators._options.spectral_parameters import SOLVERS
from fedspan.estimators.choice import ProblemSize
from fedspan.numerics.orthonormal import largest_angle

DIGITS = load_digits().data
PARTS = np.split(DIGITS, [100, 400, 1000])


@pytest.mark.parametrize("solver", ["gram", "krylov", "davidson", "faps", "ssi", "localpower", "fedpower"])
@pytest.mark.parametrize("estimator", [FederatedPCA, FederatedSVD])
def test_every_exact_solver_gives_the_same_components(estimator, solver):
    tol = 1e-13 if solver == "faps" else 1e-9  # faps measures the change of the objective
    model = estimator(4, solver=solver, tol=tol, max_rounds=3000, random_state=0).fit(PARTS)
    exact = estimator(4, solver="gram", random_state=0).fit(PARTS)
    assert model.converged_
    assert largest_angle(model.components_.T, exact.components_.T) < 1e-5
    np.testing.assert_allclose(model.singular_values_, exact.singular_values_, rtol=1e-8)


@pytest.mark.parametrize("solver", ["uda", "wda", "drsvd"])
def test_inexact_solvers_come_near_and_say_that_it_is_all(solver):
    with pytest.warns(ConvergenceWarning, match="This solver gets no further: use krylov or gram"):
        model = FederatedPCA(4, solver=solver, random_state=0).fit(PARTS)
    exact = FederatedPCA(4, solver="gram").fit(PARTS)
    assert not model.converged_
    assert model.explained_variance_.sum() > 0.9 * exact.explained_variance_.sum()


def test_svd_is_that_of_the_rows_as_they_are():
    model = FederatedSVD(3, random_state=0).fit(PARTS)
    pooled = TruncatedSVD(3, algorithm="arpack").fit(DIGITS)
    np.testing.assert_allclose(model.singular_values_, pooled.singular_values_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(model.transform(DIGITS)), np.abs(pooled.transform(DIGITS)), atol=1e-6)
    assert not model.mean_.any()
    assert "center" not in model.get_params()


def test_svd_saves_and_loads_as_svd(tmp_path):
    FederatedSVD(3, random_state=0).fit(PARTS).save(tmp_path / "m")
    assert FederatedSVD.load(tmp_path / "m").components_.shape == (3, 64)
    with pytest.raises(InputError, match="holds a FederatedSVD, not a FederatedPCA"):
        FederatedPCA.load(tmp_path / "m")


@pytest.mark.parametrize("solver", ["krylov", "davidson"])
@pytest.mark.parametrize("tol", [1e-4, 1e-8])
def test_auto_bits_reach_the_accuracy_asked_for_with_fewer_bytes(solver, tol):
    """The violation is computed here from the pooled rows; what the solver says of itself must not be below it."""
    M = (DIGITS - DIGITS.mean(axis=0)).T @ (DIGITS - DIGITS.mean(axis=0))
    models = [FederatedPCA(6, solver=solver, tol=tol, bits=b, random_state=0).fit(PARTS) for b in (None, "auto")]
    for model in models:
        Z = model.components_.T
        true = np.linalg.norm(M @ Z - Z @ (Z.T @ M @ Z)) / np.trace(M)
        assert model.converged_
        assert true <= tol
        assert model.history_[-1]["kkt"] >= 0.9 * true
    plain, packed = (m.ledger_.bytes_up + m.ledger_.bytes_down for m in models)
    assert packed < (0.75 if tol == 1e-8 else 0.6) * plain


def test_a_warm_start_takes_at_most_half_of_the_rounds_or_bytes(shared_data):
    X = shared_data("mnist")["X"][:6000].astype(float)
    cold = FederatedPCA(10, solver="krylov", random_state=0).fit(np.array_split(X[:5000], 5))
    X[:50] = X[5000:5050]  # 1 % of the rows
    again = FederatedPCA(10, solver="krylov", random_state=1).fit(np.array_split(X[:5000], 5))
    narrow = FederatedPCA(10, solver="krylov", width=None, random_state=1).fit(np.array_split(X[:5000], 5))
    warm = FederatedPCA(10, solver="krylov", random_state=1).fit(np.array_split(X[:5000], 5), warm_start=cold)
    assert warm.n_rounds_ <= narrow.n_rounds_ / 2
    both = [model.ledger_.bytes_up + model.ledger_.bytes_down for model in (warm, again)]
    assert both[0] <= both[1] / 2  # of a wide cold start, which takes few rounds
    assert warm.converged_
    np.testing.assert_allclose(warm.explained_variance_, again.explained_variance_, rtol=1e-6)


def test_a_warm_start_must_be_a_model():
    with pytest.raises(InputError, match="warm_start must be a fitted model or None, but is of type int"):
        FederatedPCA(4).fit(PARTS, warm_start=3)


def test_a_loaded_model_is_a_warm_start_too(tmp_path):
    FederatedPCA(4, solver="krylov", random_state=0).fit(PARTS).save(tmp_path / "m")
    warm = FederatedPCA(4, solver="krylov", random_state=1).fit(PARTS, warm_start=FederatedPCA.load(tmp_path / "m"))
    assert warm.n_rounds_ <= 2


def test_auto_chooses_by_size_and_says_why():
    small, large = ProblemSize(1000, 10, 8, 50000), ProblemSize(8000, 10, 8, 20000)
    assert "one exact round" in Auto().choose(small)[1]
    assert isinstance(Auto().choose(large)[0], Krylov)
    slow_link = Auto(bandwidth=1e5, latency=0.01)
    assert isinstance(slow_link.choose(small)[0], Krylov)
    far_away = Auto(bandwidth=1e9, latency=10.0)
    assert type(far_away.choose(large)[0]).__name__ == "Gram"
    assert isinstance(Auto().choose(ProblemSize(50, 2, 8, 1000, partial=True))[0], FedPower)
    model = FederatedPCA(2, random_state=0).fit(PARTS)
    assert model.ledger_.started.algorithm == "Gram"
    assert model.ledger_.started.why.startswith("one exact round of 2,080 numbers per client should be faster (")


def test_auto_sees_many_components_wide_rows_and_sparsity():
    def choose(*size, **more):
        return type(Auto().choose(ProblemSize(*size, **more))[0])

    assert choose(2000, 50, 8, 50_000) is Gram  # Lanczos, where all of the decomposition was counted before
    assert choose(3000, 10, 8, 5000) is Krylov
    assert choose(100_000, 10, 8, 2000) is Krylov
    assert choose(5910, 20, 4, 29_000, density=0.002) is Krylov
    assert choose(300, 10, 4, 200_000, density=0.01) is Gram
    X = sp.random(300, 2000, density=0.01, random_state=0, format="csr")
    model = FederatedPCA(2, random_state=0, max_rounds=50).fit([X[:100], X[100:]])
    assert model.ledger_.started.algorithm == "Krylov"


def test_partial_participation_reaches_a_floor_and_says_what_it_is():
    parts = np.array_split(DIGITS, 40)
    with pytest.warns(ConvergenceWarning, match=r"at kkt .*, floor .* This solver gets no further"):
        model = FederatedSVD(3, participation=Participation(fraction=0.2), max_rounds=300, random_state=0).fit(parts)
    exact = FederatedSVD(3, random_state=0).fit(parts)
    assert largest_angle(model.components_.T, exact.components_.T) < 0.3
    assert 0 < model.history_[-1]["floor"] < 0.5
    assert {len(e["clients"]) for e in model.ledger_.rows() if e["event"] == "exchange" and e["round"] == 2} <= {1, 8}


def test_krylov_catches_up_with_the_few_that_did_not_answer():
    def lossy(data):
        return InProcess(data, faults=Faults(lose_request=0.05, lose_reply=0.05))

    model = FederatedPCA(4, solver="krylov", tol=1e-8, engine=lossy, random_state=0).fit(
        np.array_split(DIGITS, 30), min_clients=20
    )
    exact = FederatedPCA(4, solver="gram").fit(PARTS)
    assert largest_angle(model.components_.T, exact.components_.T) < 1e-5
    assert any(row.get("missing") for row in model.ledger_.rows())


def test_when_all_clients_drop_out_the_checkpoint_is_kept(tmp_path):
    calls = []

    def gone(data):
        calls.append(1)
        return InProcess(data, faults=Faults(lose_reply=0.0 if len(calls) == 1 else 1.0))

    options = {"solver": "ssi", "tol": 0, "checkpoint": tmp_path, "random_state": 0, "engine": gone}
    FederatedPCA(2, max_rounds=3, **options).fit(PARTS)
    kept = (tmp_path / "round.safetensors").read_bytes()
    with pytest.raises(ClientError, match="from 4 clients, but none answered in round 4 in 4 tries"):
        FederatedPCA(2, max_rounds=9, **options).fit(PARTS)
    assert (tmp_path / "round.safetensors").read_bytes() == kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"solver": "krylov", "participation": Participation(count=2)},
            "the sum over some clients answers another problem",
        ),
        ({"solver": "gram", "local_steps": 3}, "local_steps is for solver 'fedpower' and 'localpower', not for 'gram'"),
        ({"solver": "gram", "bits": 4}, "bits=4 is for solvers whose iterates settle"),
        ({"solver": "krylov", "bits": 4}, "use bits='auto'"),
        ({"solver": "ssi", "bits": "auto"}, "bits='auto' is for solver 'krylov' and 'davidson', not for 'ssi'"),
        ({"solver": "krylov", "bits": "auto", "tol": 0}, "tol must be above 1e-14 to choose the bits by it"),
        ({"participation": 0.1}, "participation must be a Participation object or None, but is 0.1"),
        ({"privacy": object()}, "privacy must be a RowDP object, a PaperDP object or None, but is <object"),
        ({"secure": "yes"}, "secure must be True, False or a Secure object, but is 'yes'"),
        ({"local_steps": 0}, "local_steps must be an integer of at least 1 or None, but is 0"),
        ({"participation": Participation(count=9)}, "count must be from 1 to the 4 clients, but is 9"),
    ],
)
def test_what_a_solver_cannot_do_is_refused_with_the_reason(options, message):
    with pytest.raises(InputError, match=message):
        FederatedPCA(2, random_state=0, **options).fit(PARTS)


def test_bad_participation_and_bandwidth():
    with pytest.raises(InputError, match="Give either fraction or count"):
        Participation()
    with pytest.raises(InputError, match="scheme must be 1"):
        Participation(count=3, scheme=3)
    with pytest.raises(InputError, match="bandwidth must be above 0"):
        Auto(bandwidth=0)


def test_sparse_rows_are_never_made_dense(monkeypatch):
    X = sp.random(400, 300, density=0.02, random_state=0, format="csr")

    def refuse(*args, **kwargs):
        raise AssertionError("a sparse matrix was made dense")

    for kind in (sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.csc_array):
        monkeypatch.setattr(kind, "toarray", refuse)
        monkeypatch.setattr(kind, "todense", refuse)
    model = FederatedPCA(3, solver=Krylov(), max_rounds=500, random_state=0).fit([X[:100], X[100:]])
    assert model.transform(X).shape == (400, 3)


@pytest.mark.parametrize("solver", ["davidson", "fedpower", "localpower", "drsvd", "uda", "wda"])
def test_rank_deficient_data_give_what_exists_with_every_solver(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 12))
    with pytest.warns(UserWarning, match="rank 3, so there are only 3 components, not 5"):
        model = FederatedPCA(5, solver=solver, tol=1e-9, random_state=0).fit(np.array_split(X, 4))
    exact = FederatedPCA(3, solver="gram").fit([X])
    assert largest_angle(model.components_.T, exact.components_.T) < 1e-9


@pytest.mark.parametrize("solver", ["krylov", "davidson"])
@pytest.mark.parametrize("bits", [None, "auto"])
@pytest.mark.parametrize("d", [1, 4])
def test_all_components_of_very_few_features(solver, bits, d):
    A = np.random.default_rng(0).normal(size=(30, d))
    model = FederatedPCA(d, solver=solver, bits=bits, random_state=0).fit([A[:10], A[10:]])
    assert model.converged_
    np.testing.assert_allclose(model.explained_variance_, FederatedPCA(d).fit([A]).explained_variance_, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "solver"),
    [({"bits": "auto"}, "krylov"), ({"bits": 4}, "ssi"), ({"bits": 4, "local_steps": 2}, "fedpower"), ({}, "gram")],
)
def test_auto_takes_a_solver_that_can_do_what_is_asked(options, solver):
    model = FederatedPCA(2, tol=1e-4, random_state=0, **options).fit(PARTS)
    assert model.ledger_.started.algorithm.lower() == solver
    assert model.ledger_.started.why
    assert model.converged_


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [FederatedPCA, FederatedSVD])
def test_the_history_has_the_same_keys_for_every_solver(kind: type[FederatedPCA]) -> None:
    draw = np.random.default_rng(0)
    clients = [draw.normal(size=(60, 8)) * [5, 4, 3, 2, 1, 1, 1, 1] for _ in range(3)]
    keys = ["round", "objective", "kkt", "change", "gap", "angle", "residual", "bytes_up", "bytes_down", "seconds"]
    for solver in SOLVERS:
        model = kind(2, solver=solver, max_rounds=3, random_state=0).fit(clients)
        assert all(list(row) == keys for row in model.history_), solver
        assert np.isfinite(model.history_[-1]["objective"])
    private = kind(2, privacy=RowDP(10.0, 1e-6, 5.0), random_state=0).fit(clients)
    assert all(list(row) == keys for row in private.history_)
