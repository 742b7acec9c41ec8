"""PersonalizedPCA: its attributes, clients that join later, and what it refuses."""

from __future__ import annotations

import warnings
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from fedspan import InputError, Participation, PersonalizedPCA
from fedspan.numerics.orthonormal import largest_angle


@pytest.fixture
def clients(hospitals):
    rng = np.random.default_rng(3)
    return {name: X + 0.3 * rng.normal(size=X.shape) + 5 * i for i, (name, X) in enumerate(hospitals.items())}


METHODS = [("auto", {}), ("eigen", {}), ("paper", {"tol": 1e-5})]


@pytest.mark.parametrize(("method", "more"), METHODS)
def test_what_is_learned(clients, method, more):
    model = PersonalizedPCA(3, method=method, random_state=0, **more).fit(clients)
    m = len(clients)
    assert model.client_names_ == sorted(clients)
    assert model.components_.shape == (m, 3, 12)
    assert model.shared_components_.shape == (3, 12)
    assert (model.n_samples_, model.n_clients_, model.n_features_in_) == (116, 5, 12)
    assert model.converged_
    assert model.distances_.shape == (m,)
    assert model.shrinkage_in_words_ in (
        "local", "mostly local", "half local, half shared", "mostly shared", "shared",
    )  # fmt: skip
    assert model.cv_shrinkages_.shape == (14,)
    assert model.cv_losses_.shape == ((2, 14) if method == "auto" else (1, 14))
    if method == "auto":
        assert model.ledger_.exchanges == 3
        assert model.shrinkage_ in model.cv_shrinkages_
    for i, name in enumerate(model.client_names_):
        U, V = model.components_[i], model.shared_components_
        np.testing.assert_allclose(U @ U.T, np.eye(3), atol=1e-10)
        np.testing.assert_allclose(model.means_[i], clients[name].mean(axis=0))
        rest = U - U @ V.T @ V
        np.testing.assert_allclose(model.distances_[i], np.linalg.norm(rest) / np.sqrt(3), atol=1e-9)
        if method != "paper":  # turned towards the shared ones: the two are compared coordinate by coordinate
            A = U @ V.T
            np.testing.assert_allclose(A, A.T, atol=1e-8)
            assert np.linalg.eigvalsh((A + A.T) / 2).min() >= -1e-12


def test_transform_and_back(clients):
    model = PersonalizedPCA(12, random_state=0, scale=True, shrinkage=1.0).fit(clients)
    for i, (name, X) in enumerate(sorted(clients.items())):
        Z = model.transform(X, client=name)
        np.testing.assert_allclose(model.inverse_transform(Z, client=name), X, atol=1e-9)
        np.testing.assert_allclose(model.transform(X, client=i), Z)
    few = PersonalizedPCA(2, random_state=0).fit(clients)
    lost = {c: X - few.inverse_transform(few.transform(X, client=c), client=c) for c, X in clients.items()}
    want = sum((R**2).sum() for R in lost.values()) / 116
    np.testing.assert_allclose(few.reconstruction_error(clients), want, rtol=1e-10)


def test_no_shrinkage_is_scikit_learns_pca_of_each_client(clients):
    model = PersonalizedPCA(3, shrinkage=0.0, random_state=0).fit(clients)
    assert model.shrinkage_in_words_ == "local"
    assert model.ledger_.exchanges == 2
    assert model.cv_losses_.size == model.cv_shrinkages_.size == 0
    for i, name in enumerate(model.client_names_):
        want = PCA(3, svd_solver="full").fit(clients[name]).components_
        assert largest_angle(model.components_[i].T, want.T) < 1e-6


def test_full_shrinkage_is_pooled_pca_around_each_mean(clients):
    model = PersonalizedPCA(4, shrinkage=np.inf, random_state=0).fit(clients)  # d < 4k: sums, nothing is sketched
    pooled = np.vstack([X - X.mean(axis=0) for X in clients.values()])
    want = PCA(4, svd_solver="full").fit(pooled).components_
    assert model.shrinkage_in_words_ == "shared"
    for U in [model.shared_components_, *model.components_]:
        assert largest_angle(U.T, want.T) < 1e-6
    assert model.distances_.max() < 1e-6


@pytest.mark.parametrize("center", ["global", False])
def test_other_ways_to_center(clients, center):
    model = PersonalizedPCA(4, shrinkage=np.inf, center=center, random_state=0).fit(clients)
    pooled = np.vstack(list(clients.values()))
    mean = pooled.mean(axis=0) if center else np.zeros(12)
    _, _, Vt = np.linalg.svd(pooled - mean)
    assert largest_angle(model.shared_components_.T, Vt[:4].T) < 1e-6
    np.testing.assert_allclose(model.means_, np.broadcast_to(mean, (5, 12)), atol=1e-9)


def test_a_client_that_joins_later_gets_what_it_would_have_got(clients):
    model = PersonalizedPCA(3, random_state=0, scale=True, clip=4.0).fit(clients)
    for i, name in enumerate(model.client_names_):  # from the same rows, the same components
        U = model.personalize(clients[name])
        np.testing.assert_allclose(U, model.components_[i], atol=1e-8)
    late = clients["eve"][:3] + 1.0
    U = model.personalize(late, client="zoe")
    assert model.client_names_[-1] == "zoe"
    np.testing.assert_allclose(model.components_[-1], U)
    assert model.transform(late, client="zoe").shape == (3, 3)
    assert len(model.distances_) == len(model.bounds_) == len(model.means_) == 6
    with pytest.raises(InputError, match="already"):
        model.personalize(late, client="zoe")
    alone = PersonalizedPCA(3, random_state=0, method="eigen").fit(clients)
    for i, name in enumerate(alone.client_names_):
        assert largest_angle(alone.personalize(clients[name]).T, alone.components_[i].T) < 1e-6


def test_components_can_stay_at_the_sites(clients):
    there = PersonalizedPCA(3, random_state=0, collect=False).fit(clients)
    here = PersonalizedPCA(3, random_state=0).fit(clients)
    assert there.components_ is None
    assert there.distances_ is None
    assert "collect" not in {row["task"] for row in there.ledger_.rows() if row["event"] == "exchange"}
    np.testing.assert_allclose(there.mean_distance_, here.distances_.mean(), rtol=1e-12)
    np.testing.assert_allclose(there.personalize(clients["bo"]), here.components_[1], atol=1e-10)
    for call in (lambda: there.transform(clients["bo"], client="bo"), there.plot_distances):
        with pytest.raises(InputError, match="collect=False"):
            call()


def test_saved_and_loaded(clients, tmp_path):
    """To the bit: the loaded arrays are the saved ones and lie in memory as they did."""
    for more in ({}, {"collect": False}, {"clip": 3.0, "shrinkage": np.inf}):
        model = PersonalizedPCA(3, random_state=0, **more).fit(clients)
        model.save(tmp_path / "model")
        model.save(tmp_path / "again")
        assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
        back = PersonalizedPCA.load(tmp_path / "model")
        np.testing.assert_array_equal(back.personalize(clients["cy"]), model.personalize(clients["cy"]))
        assert back.shrinkage_ == model.shrinkage_
        if model.components_ is not None:
            assert back.client_names_ == model.client_names_
            np.testing.assert_array_equal(
                back.transform(clients["cy"], client="cy"), model.transform(clients["cy"], client="cy")
            )


def test_sparse_rows_and_files_and_lists(clients, tmp_path):
    want = PersonalizedPCA(3, random_state=0).fit(clients)
    sparse = PersonalizedPCA(3, random_state=0).fit({c: sp.csr_array(X) for c, X in clients.items()})
    np.testing.assert_allclose(sparse.components_, want.components_, atol=1e-8)
    np.testing.assert_allclose(
        sparse.transform(sp.csr_array(clients["bo"]), client="bo"),
        want.transform(clients["bo"], client="bo"),
        atol=1e-7,
    )
    files = {}
    for c, X in clients.items():
        files[c] = tmp_path / f"{c}.npy"
        np.save(files[c], X)
    # To the bit: the same rows, which lie in memory alike.
    np.testing.assert_array_equal(PersonalizedPCA(3, random_state=0).fit(files).components_, want.components_)
    listed = PersonalizedPCA(3, random_state=0).fit(list(clients.values()))
    assert listed.client_names_ == ["0", "1", "2", "3", "4"]
    assert clone(listed).get_params()["n_components"] == 3


def test_clipping_keeps_one_wild_row_from_deciding(clients):
    wild = {name: X.copy() for name, X in clients.items()}
    wild["ada"][0] = 1e6 * np.random.default_rng(0).normal(size=12)
    plain = PersonalizedPCA(3, random_state=0, shrinkage=1.0).fit(clients)
    robust = PersonalizedPCA(3, random_state=0, shrinkage=1.0, clip=5.0).fit(wild)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spoilt = PersonalizedPCA(3, random_state=0, shrinkage=1.0).fit(wild)

    def off(model):
        return largest_angle(model.shared_components_.T, plain.shared_components_.T)

    assert off(robust) < 0.5
    assert off(spoilt) > 1.0


@pytest.mark.parametrize("method", ["auto", "paper"])
def test_participation(clients, method):
    more = {"max_rounds": 20, "tol": 0} if method == "paper" else {}
    model = PersonalizedPCA(
        3, method=method, random_state=0, participation=Participation(count=2), shrinkage=2.0, **more
    ).fit(clients)
    assert model.components_.shape == (5, 3, 12)
    cohorts = {row["task"]: len(row["clients"]) for row in model.ledger_.rows() if row["event"] == "exchange"}
    assert cohorts.pop("scan") == cohorts.pop("collect") == 5
    assert set(cohorts.values()) == {2}


# --- data that are hardly there


def test_few_rows_one_row_and_no_variance(clients):
    odd = {**clients, "few": clients["ada"][:2], "one": clients["ada"][:1], "same": np.ones((6, 12))}
    for method in ("auto", "eigen"):
        model = PersonalizedPCA(4, method=method, random_state=0).fit(odd)
        assert np.isfinite(model.components_).all()
        for name in ("one", "same"):  # nothing of their own: the shared components
            i = model.client_names_.index(name)
            assert model.distances_[i] < 1e-4
            np.testing.assert_allclose(model.components_[i] @ model.components_[i].T, np.eye(4), atol=1e-9)
    local = PersonalizedPCA(4, shrinkage=0.0, random_state=0).fit(odd)
    few = local.components_[local.client_names_.index("few")]
    own = odd["few"][0] - odd["few"][1]
    np.testing.assert_allclose(few.T @ (few @ own), own, atol=1e-6)  # its one direction is among them
    paper = PersonalizedPCA(4, method="paper", random_state=0, max_rounds=30, tol=0).fit(odd)
    assert np.isfinite(paper.components_).all()


def test_very_unequal_sizes_weigh_by_rows(clients):
    """A client of many rows decides the pooled part; one of few rows does not draw it to itself."""
    rng = np.random.default_rng(1)
    big = rng.normal(size=(5000, 12)) * 0.9 ** np.arange(12)
    tiny = {f"t{i}": 3 * rng.normal(size=(2, 12)) for i in range(3)}
    model = PersonalizedPCA(2, random_state=0, shrinkage=np.inf, center=False).fit({"big": big, **tiny})
    assert largest_angle(model.shared_components_.T, PCA(2).fit(big).components_.T) < 0.3


def test_nan_is_refused_with_its_count(shared_data):
    z = shared_data("wisdm_v1_users")
    users = {str(u): z["X"][z["client"] == u] for u in np.unique(z["client"])}
    with pytest.raises(
        InputError, match=r"client '\d+': Rows must be finite numbers, but NaN or infinity was found in \d+ of"
    ) as e:
        PersonalizedPCA(5).fit(users)
    assert "Drop those rows" in str(e.value)
    assert "SimpleImputer" in str(e.value)
    name = str(e.value).split("'")[1]
    assert f"values affected: {np.isnan(users[name]).sum()};" in str(e.value)


def test_features_of_different_scales_are_noticed(clients):
    units = {name: X * np.r_[1e4, np.ones(11)] for name, X in clients.items()}
    with pytest.warns(UserWarning, match="1 of the 12 features hold 100% of the variance.*scale=True"):
        PersonalizedPCA(1, random_state=0).fit(units)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = PersonalizedPCA(1, random_state=0, scale=True).fit(units)
        PersonalizedPCA(2, random_state=0).fit(clients)
    within = np.vstack([X - X.mean(axis=0) for X in units.values()])
    np.testing.assert_allclose(scaled.scale_, within.std(axis=0))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1, but is 0"),
        ({"n_components": 13}, "at most the 12 features"),
        ({"method": "eigne"}, "Did you mean 'eigen'"),
        ({"shrinkage": -2}, "shrinkage must be a number of at least 0 or 'auto', but is -2"),
        ({"center": "mean"}, "center must be .*, but is 'mean'"),
        ({"clip": 0}, "clip must be a number above 0 .*, but is 0"),
        ({"local_steps": 3}, "local_steps is for method='paper'"),
        ({"step": "safe", "method": "eigen"}, "step is for method='paper'"),
        ({"method": "eigen", "participation": Participation(count=2)}, "needs every client"),
        ({"participation": Participation(count=2, scheme=1)}, "scheme 2"),
        ({"privacy": 1}, "privacy must be a RowDP object or None, but is 1"),
        ({"secure": True}, "Give collect=False"),
        ({"tol": -1}, "tol must be a number from 0 to below 1, but is -1"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(clients, more, message):
    with pytest.raises(InputError, match=message):
        PersonalizedPCA(**{"n_components": 2, **more}).fit(clients)


def test_data_that_make_no_sense_are_refused(clients):
    with pytest.raises(InputError, match="All rows are equal"):
        PersonalizedPCA(2).fit({"a": np.ones((4, 5)), "b": np.ones((3, 5))})
    with pytest.raises(InputError, match="rank 1, so there are no 3 components"):
        PersonalizedPCA(3).fit({"a": np.outer(np.arange(4.0), np.ones(20))})
    with pytest.raises(InputError, match="one entry per client"):
        PersonalizedPCA(2).fit(np.ones((4, 5)))
    model = PersonalizedPCA(2, random_state=0).fit(clients)
    with pytest.raises(InputError, match=r"whose rows these are, but is None. Known: ada, bo"):
        model.transform(clients["bo"])
    with pytest.raises(InputError, match="Did you mean 'ada'"):
        model.transform(clients["bo"], client="adda")
    with pytest.raises(InputError, match="fitted on 12 features, but the rows have 5"):
        model.transform(np.ones((3, 5)), client="bo")
    with pytest.raises(InputError, match="Rows must have 2 coordinates"):
        model.inverse_transform(np.ones((3, 5)), client="bo")
    with pytest.raises(InputError, match="NaN"):
        model.personalize(np.full((3, 12), np.nan))
    with pytest.raises(NotFittedError):
        PersonalizedPCA().personalize(clients["bo"])


def test_too_few_rounds_are_told(clients):
    with pytest.warns(ConvergenceWarning, match="raise max_rounds"):
        PersonalizedPCA(3, method="eigen", shrinkage=10.0, max_rounds=2, tol=1e-15, random_state=0).fit(clients)


def test_the_picture_shows_every_client(clients):
    model = PersonalizedPCA(3, random_state=0).fit({f"<{name}>": X for name, X in clients.items()})
    picture = ET.fromstring(model.plot_distances())  # noqa: S314 - our own text
    titles = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 5
    order = np.argsort(model.distances_, kind="stable")
    assert titles == [f"{model.client_names_[i]}: {model.distances_[i]:.3f}" for i in order]


@pytest.mark.parametrize("method", ["auto", "eigen", "paper"])
def test_under_secure_aggregation_only_sums_are_seen_and_the_shared_part_is_the_same(method) -> None:
    rng = np.random.default_rng(4)
    clients = {name: rng.normal(size=(40, 6)) * [3, 2, 1, 1, 0.5, 0.5] for name in "abc"}
    options = {"method": method, "max_rounds": 20, "tol": 0, "random_state": 0, "collect": False}
    options |= {} if method == "auto" else {"shrinkage": 20.0}
    plain, secure = (PersonalizedPCA(2, secure=s, **options).fit(clients) for s in (False, True))
    assert largest_angle(plain.shared_components_.T, secure.shared_components_.T) < 1e-6
    assert all(row["secure"] for row in secure.ledger_.rows() if row["event"] == "exchange")
    np.testing.assert_allclose(secure.personalize(clients["a"]), plain.personalize(clients["a"]), atol=1e-6)
