"""Learning with privacy for every row, and with secure sums, across samples and across features."""

import numpy as np
import pytest

from fedspan import FederatedClassifier, InputError, RowDP, VerticalFederatedClassifier
from fedspan.algorithms import Sampling, Ssca
from fedspan.algorithms.learning._samples import SampleClient
from fedspan.core.protocol import tasks_of
from fedspan.core.rng import Streams
from fedspan.numerics.swish import Swish
from fedspan.privacy.accountant import epsilon, noise_multiplier


def world(n: int = 3000, clients: int = 3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6))
    y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    return X, y, np.array_split(X, clients), np.array_split(y, clients)


DP = RowDP(epsilon=4.0, delta=1e-5, row_norm=1.0)


@pytest.mark.parametrize(("method", "standardize"), [("ssca", False), ("fedsgd", False), ("ssca", (-4.0, 4.0))])
def test_a_private_classifier_learns_and_spends_its_budget(method: str, standardize: object) -> None:
    X, y, Xs, ys = world()
    model = FederatedClassifier(
        method=method,
        hidden=8,
        batch_size=100,
        rounds=60,
        standardize=standardize,
        privacy=DP,
        secure=True,
        random_state=0,
    ).fit(Xs, ys)
    assert model.score(X, y) > 0.85
    assert model.ledger_.epsilon(1e-5) == pytest.approx(4.0, rel=2e-2)
    assert model.ledger_.epsilon(1e-5) <= 4.0
    assert {row["task"] for row in model.ledger_.rows() if row["event"] == "exchange"} == {"tally", "sampled"}


def test_the_noise_counts_on_secret_sampling_and_on_no_more() -> None:
    z, whole = noise_multiplier(4.0, 1e-5, 60, 0.1), noise_multiplier(4.0, 1e-5, 60)
    assert z < whole / 2
    assert epsilon({(z, 0.1): 60}, 1e-5) <= 4.0
    client = SampleClient((np.ones((2000, 3)), np.zeros(2000, dtype=int)), hidden=2, classes=2, rate=0.1, row_norm=1.0)
    omega, seen = Swish(2, 2).start(3, np.random.default_rng(0)), []
    for _ in range(20):  # the same place of the same run: keyed streams would draw the same rows
        grad = client.sampled(client.init(), {"omega": omega}, Streams(0, 1, 0, "a"))[1]["grad"]
        seen.append(float(np.linalg.norm(grad)))
    assert len(set(seen)) > 10, "the draw cannot be repeated"
    one = float(np.linalg.norm(client.rows.clipped(omega, np.array([0]), 1.0)))
    assert np.mean(seen) / one == pytest.approx(200, abs=15), "every row is in it with probability 0.1"


def test_one_row_says_no_more_than_its_bound() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(50, 4)) * 30, rng.integers(0, 3, 50)
    omega = Swish(5, 3).start(4, rng) * 5
    options = {"hidden": 5, "classes": 3, "rate": 1.0, "simulate": True, "row_norm": 0.7}
    with_, without = SampleClient((X, y), **options), SampleClient((X[1:], y[1:]), **options)
    a, b = (c.sampled(c.init(), {"omega": omega}, Streams(0, 1, 0, "a"))[1]["grad"] for c in (with_, without))
    declared = tasks_of(SampleClient)["sampled"].releases["grad"]
    assert np.linalg.norm(a - b) == pytest.approx(declared.bound(0.7), rel=1e-6)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18, 1e60, 1e150, 1e200, 1e300])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_no_parameters_make_a_row_say_more_than_its_bound(kind: type, scale: float) -> None:
    """A server may send any ω: a gradient that overflows must not be seen, whatever the rows are."""
    rng = np.random.default_rng(2)
    X, y, weight = rng.normal(size=(40, 4)).astype(kind), rng.integers(0, 3, 40), rng.choice([1e-9, 1.0, 1e90], 40)
    X[1], X[2], X[3] = 1e30, 1e-30, 0.0
    omega, bound = Swish(5, 3).start(4, rng) * scale, 0.7
    options = {"hidden": 5, "classes": 3, "rate": 1.0, "simulate": True, "row_norm": bound}

    def answer(rows: np.ndarray) -> np.ndarray:
        client = SampleClient((rows, y[-len(rows) :], weight[-len(rows) :]), **options)
        return client.sampled(client.init(), {"omega": omega}, Streams(0, 1, 0, "a"))[1]["grad"]

    whole = answer(X)
    for first in range(1, 6):
        rest = answer(X[first:])
        assert np.linalg.norm(whole - rest) <= bound * first * (1 + 1e-6)
    broken = X.copy()
    broken[:3] = [[np.nan], [np.inf], [1e38]]
    assert np.linalg.norm(answer(broken) - answer(X[3:])) <= bound * (1 + 1e-6), "only the third may have a gradient"


def count_noised(class_weight: object, **more: object) -> tuple[FederatedClassifier, float]:
    """A fit on a table of which one in ten rows is a yes, and the share of yes among its predictions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9000, 4))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=9000) > 1.45, "yes", "no")
    dp = RowDP(8.0, 1e-6, 6.0, simulate=True)  # of weighted gradients
    model = FederatedClassifier(hidden=4, batch_size=150, rounds=40, privacy=dp, secure=True, random_state=0, **more)
    model.set_params(class_weight=class_weight, standardize=False).fit(np.array_split(X, 3), np.array_split(y, 3))
    return model, float(np.mean(model.predict(X) == "yes"))


def test_weights_of_classes_come_from_a_noised_histogram_and_are_charged() -> None:
    model, balanced = count_noised("balanced")
    assert balanced > 1.5 * count_noised(None)[1], "rare ones count as much as frequent ones"
    tasks = [row["task"] for row in model.ledger_.rows() if row["event"] == "exchange"]
    assert tasks[:3] == ["tally", "count_classes", "sampled"]
    assert model.ledger_.epsilon(1e-6) == pytest.approx(8.0, rel=2e-2)
    assert model.ledger_.epsilon(1e-6) <= 8.0
    z = {row["task"]: row["noise"] for row in model.ledger_.rows() if row["event"] == "exchange"}
    alone = epsilon({(z["tally"], 1.0): 1, (z["count_classes"], 1.0): 1}, 1e-6)
    assert 0.2 < alone < 2.0, "the counts have their part in it"


def test_given_weights_need_no_counts() -> None:
    model, weighed = count_noised({"no": 0.2, "yes": 5.0})
    assert weighed > 1.5 * count_noised(None)[1]
    assert "count_classes" not in {row["task"] for row in model.ledger_.rows() if row["event"] == "exchange"}


def test_a_class_that_is_no_more_than_noise_has_a_bounded_weight() -> None:
    """Its noised count may be 0 or negative: it is taken for as large as noise can be."""
    from fedspan.estimators import classifier

    seen, weigh = [], classifier.weigh_rows

    def keep(class_weight, labels, codes, counts=None):
        seen.extend([] if counts is None else [counts])  # without counts: the loss of guessing, kept to oneself
        return weigh(class_weight, labels, codes, counts)

    _, _, Xs, ys = world(600)
    ys[0] = ys[0].astype("U5")
    ys[0][0] = "maybe"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "weigh_rows", keep)
        dp = RowDP(1.0, 1e-5, 1.0, simulate=True)
        model = FederatedClassifier(hidden=2, batch_size=40, rounds=2, class_weight="balanced", privacy=dp)
        model.set_params(random_state=0, standardize=False).fit(Xs, ys)
    z = {row["task"]: row["noise"] for row in model.ledger_.rows() if row["event"] == "exchange"}["count_classes"]
    assert (seen[-1] >= 3 * z * np.sqrt(3)).all(), "three clients add their noise each"
    assert np.isfinite(model.coef_).all()


def test_a_private_run_repeats_only_as_a_simulation() -> None:
    """To the bit as a simulation: keyed streams draw the same rows and the same noise."""
    _, _, Xs, ys = world(600)

    def fit(**more):
        dp = RowDP(4.0, 1e-4, 1.0, **more)
        model = FederatedClassifier(hidden=4, batch_size=40, rounds=5, standardize=(-3, 3), privacy=dp, random_state=0)
        return model.fit(Xs, ys).coef_

    assert not np.array_equal(fit(), fit())
    np.testing.assert_array_equal(fit(simulate=True), fit(simulate=True))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "fedavg"}, "'ssca' and 'fedsgd'"),
        ({"cost_limit": 0.3}, "without limits"),
        ({"batch_size": None}, "needs a batch_size"),
        ({"standardize": True}, r"Give public bounds of the columns, standardize=\(lower, upper\)"),
        ({"standardize": (0, [1, 2])}, r"one for each of the 6 columns, but is \(0, \[1, 2\]\)"),
        ({"standardize": (2, 1)}, "each lower one at most the upper one"),
        ({"privacy": RowDP(4.0, 1e-5, 1.0, neighbours="replace-one")}, "need neighbours='add-remove'"),
        (
            {"privacy": RowDP(1.0, 0.09, 1.0)},
            r"but is 0.09 for about .* Only noised counts were released, for epsilon [\d.e-]+ of 1\.",
        ),
        ({"privacy": "yes"}, "privacy must be a RowDP object or None, but is 'yes'"),
    ],
    ids=str,
)
def test_what_cannot_be_private_is_refused(options: dict, says: str) -> None:
    _, _, Xs, ys = world(600)
    given = {"hidden": 4, "batch_size": 40, "rounds": 5, "standardize": False, "privacy": DP}
    with pytest.raises(InputError, match=says):
        FederatedClassifier(**given | options).fit(Xs, ys)


def test_limits_and_secret_samples_do_not_go_together() -> None:
    from fedspan.algorithms import Limit

    with pytest.raises(InputError, match="without limits"):
        Ssca(limits=(Limit(0.5),), private=Sampling(10, 3, 0.1))


@pytest.mark.parametrize("options", [{}, {"cost_limit": 0.45}], ids=["free", "limited"])
def test_a_secure_run_across_samples_learns_what_a_plain_one_does(options: dict) -> None:
    _, _, Xs, ys = world(300)
    plain, secure = (
        FederatedClassifier(hidden=4, batch_size=30, rounds=20, secure=s, random_state=0, **options).fit(Xs, ys)
        for s in (False, True)
    )
    np.testing.assert_allclose(secure.coef_, plain.coef_, atol=1e-9)


def test_a_secure_run_across_features_learns_what_a_plain_one_does() -> None:
    X, y, _, _ = world(200)
    views = {"bank": X[:, :2], "shop": X[:, 2:3], "town": X[:, 3:]}
    plain, secure = (
        VerticalFederatedClassifier(hidden=4, batch_size=50, rounds=15, secure=s, random_state=0).fit(views, y)
        for s in (False, True)
    )
    np.testing.assert_allclose(secure.coef_, plain.coef_, atol=1e-9)
    assert all(row["secure"] for row in secure.ledger_.rows() if row["event"] == "exchange")
    assert plain.score(views, y) > 0.7
    with pytest.raises(InputError, match="no known sensitivity"):
        VerticalFederatedClassifier(privacy=DP).fit(views, y)
