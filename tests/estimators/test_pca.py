"""FederatedPCA against scikit-learn on pooled rows, and what it refuses."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedspan
from fedspan import FederatedPCA, InputError, RowDP
from fedspan.algorithms import Krylov
from fedspan.numerics.orthonormal import largest_angle

SOLVERS = ["gram", "krylov", "ssi"]


def uneven(X, clients, seed=0):
    cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, X.shape[0]), clients - 1, replace=False))
    return [X[a:b] for a, b in zip([0, *cuts], [*cuts, X.shape[0]], strict=True)]


@pytest.fixture(scope="module")
def digits():
    return load_digits().data


@pytest.mark.parametrize("solver", ["gram", "krylov"])
def test_mnist_in_twenty_uneven_clients_equals_the_pooled_answer(shared_data, solver):
    X = shared_data("mnist")["X"][::3]
    pooled = PCA(10, svd_solver="full").fit(X.astype(float))
    ours = FederatedPCA(10, solver=solver, tol=1e-9, random_state=0).fit(uneven(X, 20))
    assert largest_angle(ours.components_.T, pooled.components_.T) <= 1e-6
    np.testing.assert_allclose(ours.explained_variance_, pooled.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(ours.components_, pooled.components_, atol=1e-6)  # so the signs agree too


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [False, True])
def test_learned_attributes_are_those_of_scikit_learn(digits, solver, scale):
    ours = FederatedPCA(4, solver=solver, scale=scale, tol=1e-10, max_rounds=2000, random_state=1).fit(
        uneven(digits, 5)
    )
    X = StandardScaler().fit_transform(digits) if scale else digits
    pooled = PCA(4, svd_solver="full").fit(X)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(pooled, name), rtol=1e-8)
    np.testing.assert_allclose(ours.noise_variance_, pooled.noise_variance_, rtol=1e-8)
    np.testing.assert_allclose(ours.components_, pooled.components_, atol=1e-6)
    np.testing.assert_allclose(ours.mean_, digits.mean(axis=0))
    np.testing.assert_allclose(ours.transform(digits[:9]), pooled.transform(X[:9]), atol=1e-4)
    assert (ours.n_samples_, ours.n_clients_, ours.n_features_in_) == (1797, 5, 64)
    assert ours.converged_
    assert ours.n_rounds_ == ours.ledger_.rounds == len(ours.history_) - 1
    if not scale:
        np.testing.assert_allclose(ours.score(digits), pooled.score(digits), rtol=1e-6)


def test_score_of_scaled_data_is_a_density_of_the_rows_as_given(digits):
    model = FederatedPCA(4, scale=True, random_state=0).fit(uneven(digits, 3))
    scaler = StandardScaler().fit(digits)
    pooled = PCA(4, svd_solver="full").fit(scaler.transform(digits))
    jacobian = np.log(scaler.scale_).sum()
    np.testing.assert_allclose(model.score(digits), pooled.score(scaler.transform(digits)) - jacobian, rtol=1e-8)


def test_inverse_transform_undoes_transform_with_all_components(digits):
    X = digits[:, 20:24]
    model = FederatedPCA(4, scale=True, random_state=0).fit(uneven(X, 3))
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), X, atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [False, True])
def test_sparse_rows_give_the_answer_of_dense_ones(solver, scale):
    X = sp.random(300, 40, density=0.1, random_state=0, format="csr")
    options = {"solver": solver, "scale": scale, "tol": 1e-9, "max_rounds": 5000, "random_state": 0}
    dense = FederatedPCA(3, **options).fit(uneven(X.toarray(), 3))
    sparse = FederatedPCA(3, **options).fit(uneven(X, 3))
    np.testing.assert_allclose(sparse.components_, dense.components_, atol=1e-9)
    np.testing.assert_allclose(sparse.transform(X), dense.transform(X.toarray()), atol=1e-9)
    np.testing.assert_allclose(sparse.score(X), dense.score(X.toarray()), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "float32", "bool"])
def test_any_numeric_dtype_is_the_same_data(digits, dtype):
    X = (digits > 7).astype(dtype) if dtype == "bool" else digits.astype(dtype)
    ours = FederatedPCA(3, random_state=0).fit(uneven(X, 4))
    close = 2e-6 if dtype == "float32" else 1e-9  # products of float32 rows are float32
    np.testing.assert_allclose(ours.components_, PCA(3, svd_solver="full").fit(X.astype(float)).components_, atol=close)


def test_large_offsets_do_not_cancel():
    X = np.random.default_rng(0).normal(size=(400, 6)) * [3, 2, 1, 1, 1, 1] + 1e7
    ours = FederatedPCA(2, random_state=0).fit(uneven(X, 4))
    np.testing.assert_allclose(
        ours.explained_variance_, PCA(2, svd_solver="full").fit(X).explained_variance_, rtol=1e-7
    )


def test_constant_columns_stay_as_they_are_when_scaled(digits):
    model = FederatedPCA(3, scale=True, random_state=0).fit(uneven(digits, 4))
    constant = digits.std(axis=0) == 0
    assert constant.any()
    assert (model.scale_[constant] == 1).all()
    assert np.isfinite(model.components_).all()


def test_a_run_is_repeated_to_the_bit_by_its_seed(digits):
    fits = [FederatedPCA(3, solver="krylov", random_state=s).fit(uneven(digits, 4)).components_ for s in (5, 5, 6)]
    assert np.array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])


def test_the_order_of_a_mapping_does_not_matter(digits):
    parts = dict(zip("abcd", uneven(digits, 4), strict=True))
    there = FederatedPCA(3, solver="krylov", random_state=0).fit(parts)
    back = FederatedPCA(3, solver="krylov", random_state=0).fit(dict(reversed(parts.items())))
    assert np.array_equal(there.components_, back.components_)


def test_three_bits_cost_a_tenth_of_the_bytes_per_round_and_reach_the_answer(digits):
    plain = FederatedPCA(3, solver="ssi", tol=1e-5, random_state=0).fit(uneven(digits, 4))
    packed = FederatedPCA(3, solver="ssi", tol=1e-5, bits=3, random_state=0).fit(uneven(digits, 4))
    assert largest_angle(packed.components_.T, plain.components_.T) < 1e-3

    def per_round(m):
        return (m.ledger_.bytes_up + m.ledger_.bytes_down) / m.n_rounds_

    assert per_round(packed) < 0.3 * per_round(plain)  # headers weigh on so small a problem


def test_a_callback_sees_every_round(digits):
    seen = []
    model = FederatedPCA(3, solver="krylov", callback=seen.append, random_state=0).fit(uneven(digits, 4))
    assert [info.round for info in seen] == list(range(1, model.n_rounds_ + 1))
    assert all(info.estimate.shape == (3, 64) for info in seen)
    assert seen[-1].metrics["kkt"] <= 1e-6 < seen[0].metrics["kkt"]


def test_a_solver_object_carries_its_own_options(digits):
    model = FederatedPCA(3, solver=Krylov(keep=4), random_state=0).fit(uneven(digits, 4))
    assert model.converged_
    assert model.components_.shape == (3, 64)


def test_saved_models_transform_alike_and_equal_models_are_equal_files(digits, tmp_path):
    for name in "ab":
        model = FederatedPCA(3, random_state=0).fit(uneven(digits, 4))
        model.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = FederatedPCA.load(tmp_path / "a")
    assert again.components_.strides == model.components_.strides  # the same arrays in the same order, so the same bits
    assert np.array_equal(again.transform(digits), model.transform(digits))
    assert again.get_params()["n_components"] == 3
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a", "b"]


def test_feature_names_and_output_containers(digits):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(digits, columns=[f"pixel{i}" for i in range(64)])
    model = FederatedPCA(2, random_state=0).fit({"a": frame[:700], "b": frame[700:]}).set_output(transform="pandas")
    assert list(model.feature_names_in_[:2]) == ["pixel0", "pixel1"]
    out = model.transform(frame)
    assert list(out.columns) == list(model.get_feature_names_out()) == ["federatedpca0", "federatedpca1"]
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[frame.columns[::-1]])


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_tables_of_all_kinds(digits, kind):
    columns = {f"c{i}": digits[:, i] for i in range(10, 16)}
    module = pytest.importorskip(kind)
    table = module.table(columns) if kind == "pyarrow" else module.DataFrame(columns)
    model = FederatedPCA(2, random_state=0).fit([table, table])
    assert list(model.feature_names_in_) == list(columns)


def test_files_are_read_where_they_are(digits, tmp_path):
    np.save(tmp_path / "a.npy", digits[:900])
    np.savetxt(
        tmp_path / "b.csv", digits[900:], delimiter=",", header=",".join(f"p{i}" for i in range(64)), comments=""
    )
    model = FederatedPCA(3, random_state=0).fit([tmp_path / "a.npy", str(tmp_path / "b.csv")])
    np.testing.assert_allclose(model.components_, PCA(3, svd_solver="full").fit(digits).components_, atol=1e-9)


def test_a_fitted_model_works_in_a_pipeline(digits):
    model = FederatedPCA(3, random_state=0).fit(uneven(digits, 4))
    np.testing.assert_array_equal(make_pipeline(model).transform(digits), model.transform(digits))
    assert clone(model).get_params() == model.get_params()


def test_a_checkpoint_continues_and_is_not_mistaken(digits, tmp_path):
    parts = uneven(digits, 4)
    whole = FederatedPCA(3, solver="ssi", tol=1e-8, random_state=0).fit(parts)
    with pytest.warns(ConvergenceWarning, match="Raise max_rounds"):
        FederatedPCA(3, solver="ssi", tol=1e-8, max_rounds=7, checkpoint=tmp_path, random_state=0).fit(parts)
    resumed = FederatedPCA(3, solver="ssi", tol=1e-8, checkpoint=tmp_path, random_state=0).fit(parts)
    assert np.array_equal(resumed.components_, whole.components_)
    assert "resumed after round 7" in resumed.ledger_.notes
    with pytest.raises(InputError, match="belongs to another run: seed is 1 here, but 0 in the checkpoint"):
        FederatedPCA(3, solver="ssi", tol=1e-8, checkpoint=tmp_path, random_state=1).fit(parts)


def test_not_converged_says_what_to_raise(digits):
    with pytest.warns(ConvergenceWarning, match=r"after 2 rounds at kkt .*, above tol=1e-06\. Raise max_rounds"):
        model = FederatedPCA(3, solver="ssi", max_rounds=2, random_state=0).fit(uneven(digits, 3))
    assert not model.converged_


def test_tol_zero_runs_all_rounds_without_a_warning(digits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = FederatedPCA(3, solver="ssi", tol=0, max_rounds=12, random_state=0).fit(uneven(digits, 3))
    assert model.n_rounds_ == 12


@pytest.mark.parametrize("solver", SOLVERS)
def test_rank_deficient_data_give_what_exists(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 12))
    with pytest.warns(UserWarning, match="rank 3, so there are only 3 components, not 5; lower n_components to 3"):
        model = FederatedPCA(5, solver=solver, tol=1e-9, max_rounds=3000, random_state=0).fit(uneven(X, 4))
    assert model.components_.shape == (3, 12)
    np.testing.assert_allclose(model.components_, PCA(3, svd_solver="full").fit(X).components_, atol=1e-7)


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_features_than_samples(solver):
    X = np.random.default_rng(0).normal(size=(20, 50))
    model = FederatedPCA(3, solver=solver, tol=1e-9, max_rounds=5000, random_state=0).fit(uneven(X, 4))
    np.testing.assert_allclose(model.components_, PCA(3, svd_solver="full").fit(X).components_, atol=1e-5)


def bad(part):
    X = np.arange(12.0).reshape(4, 3)
    X[1, 2] = part
    return X


GOOD = np.arange(12.0).reshape(4, 3) ** 2


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"a": GOOD, "b": bad(np.nan)}, r"client 'b': Rows must be finite numbers, .* was found in 1 of 4 rows"),
        ({"a": GOOD, "b": bad(np.inf)}, r"client 'b': Rows must be finite numbers"),
        ({"a": GOOD, "b": np.empty((0, 3))}, r"client 'b': A table must have at least one row .* \(0, 3\)"),
        ({"a": GOOD, "b": GOOD[:, :2]}, "client 'a' has 3 features and client 'b' has 2"),
        ({"a": GOOD, "b": GOOD[0]}, r"client 'b': A table must have rows and columns, but the shape .* \(3,\)"),
        ({"a": GOOD, "b": GOOD.astype(str)}, r"client 'b': A table must be numeric, but the dtype .* <U"),
        ({"a": GOOD, "b": GOOD.astype(complex)}, r"client 'b': A table must be numeric, but the dtype .* complex"),
        ({"a": GOOD, "b": "nowhere.csv"}, r"client 'b': nowhere.csv does not exist"),
        ({"a": GOOD, "b": object()}, r"client 'b': A table must be an array, .* or a database, but this is object"),
        ([], "There are no clients"),
        (GOOD, r"must be a list or a mapping .* one ndarray. For a single client write fit\(\[X\]\)"),
        ({"@a": GOOD}, "must not begin with '@'"),
        ([np.ones((4, 3))], "All rows are equal"),
        ([np.ones((1, 3))], "All rows are equal"),
    ],
)  # fmt: skip
def test_bad_clients_get_one_clear_sentence(clients, message):
    with pytest.raises(InputError, match=message):
        FederatedPCA(1, random_state=0).fit(clients)


def test_names_must_agree_whatever_their_order():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(GOOD, columns=["age", "dose", "size"])
    turned = FederatedPCA(1, random_state=0).fit({"a": frame, "b": frame[["size", "dose", "age"]]})
    same = FederatedPCA(1, random_state=0).fit({"a": frame, "b": frame})
    np.testing.assert_array_equal(turned.components_, same.components_)
    with pytest.raises(InputError, match="client 'b' lacks 'dose' and has 'doze', unlike client 'a'"):
        FederatedPCA(1).fit({"a": frame, "b": frame.rename(columns={"dose": "doze"})})
    with pytest.raises(InputError, match="Column 'age' must be numeric, but it contains text"):
        FederatedPCA(1).fit({"a": frame.astype({"age": str})})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 4}, "n_components must be at most the 3 features, but is 4"),
        ({"n_components": 0}, "n_components must be an integer of at least 1, a share .* or None, but is 0"),
        ({"n_components": 1.5}, "n_components must be an integer of at least 1, a share .* or None, but is 1.5"),
        ({"solver": "krilov"}, "solver must be a known name, but is 'krilov'. Did you mean 'krylov'"),
        ({"tol": -1}, "tol must be a number from 0 to below 1, but is -1"),
        ({"max_rounds": 0}, "max_rounds must be an integer of at least 1, but is 0"),
        ({"bits": 1, "solver": "ssi"}, "bits must be an integer from 2 to 16, 'auto' or None, but is 1"),
        ({"random_state": "x"}, "random_state must be an integer of at least 0, a numpy Generator, .* but is 'x'"),
    ],
)
def test_bad_parameters_get_one_clear_sentence(options, message):
    with pytest.raises(InputError, match=message):
        FederatedPCA(**{"n_components": 1, **options}).fit([GOOD, GOOD])


def test_before_fit_nothing_is_transformed(digits):
    with pytest.raises(NotFittedError):
        FederatedPCA().transform(digits)
    with pytest.raises(InputError, match="A federation has no pooled rows"):
        FederatedPCA().fit_transform([digits])


def test_a_foreign_or_damaged_model_file_is_refused(digits, tmp_path):
    path = tmp_path / "model"
    FederatedPCA(2, random_state=0).fit([digits]).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(InputError, match="Cannot read the model in"):
        FederatedPCA.load(path)
    path.write_bytes(whole[:-3] + b"abc")
    with pytest.raises(InputError, match="is damaged"):
        FederatedPCA.load(path)


def test_the_package_says_its_version():
    assert fedspan.__version__


def test_shares_of_a_noised_variance_are_shares(hospitals):
    """The noised total may be below the noised components, or below 0: shares stay between 0 and 1, and finite."""
    for seed in range(12):
        privacy = RowDP(5.0, 1e-4, 30.0, simulate=True)  # keyed noise, larger than the data
        model = FederatedPCA(2, solver="gram", privacy=privacy, random_state=seed)
        with np.errstate(over="raise"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model.fit(hospitals)
        assert 0 <= model.explained_variance_ratio_.sum() <= 1 + 1e-12
