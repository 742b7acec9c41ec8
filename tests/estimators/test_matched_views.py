"""Views whose rows are in other orders, of other people, or with other spellings; and columns in another order."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from fedspan import (
    DeepFederatedGCCA,
    FederatedGCCA,
    Job,
    VerticalFederatedClassifier,
    VerticalFederatedRegressor,
    match_entities,
)
from fedspan.core.ledger import Exchange, Ledger
from fedspan.engines import InProcess
from fedspan.errors import InputError, PolicyRefusal

N = 240
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 6))
Y = np.where(X[:, 0] + X[:, 4] > 0, "ill", "well")
PEOPLE = np.array([f"Person {j}" for j in range(N)])
ORDER = RNG.permutation(N)
VIEWS = {"bank": X[:, :3], "shop": X[:, 3:]}
PERMUTED = {"bank": X[:, :3], "shop": X[ORDER][:, 3:]}
IDS = {"bank": PEOPLE, "shop": np.char.upper(PEOPLE[ORDER])}
BANK, SHOP = ["age", "debt", "rent"], ["cars", "toys", "food"]


def classifier(rounds: int = 4, **more: Any) -> VerticalFederatedClassifier:
    return VerticalFederatedClassifier(hidden=8, batch_size=100, rounds=rounds, random_state=0, **more)


def frames(views: dict[str, Any], ids: dict[str, Any] | None = None) -> dict[str, pd.DataFrame]:
    made = {name: pd.DataFrame(own, columns=BANK if name == "bank" else SHOP) for name, own in views.items()}
    return made if ids is None else {name: frame.assign(person=ids[name]) for name, frame in made.items()}


@pytest.mark.parametrize("match", ["psi", "digest", None])
def test_a_permuted_view_with_ids_gives_what_the_unpermuted_one_gives(match: Any) -> None:
    """To the bit: entities are in the order of the first view's rows, and the same operations are done on them."""
    if match == "psi":
        pytest.importorskip("cryptography", reason="needs fedspan[privacy]")
    want, got = classifier().fit(VIEWS, Y), classifier().fit(PERMUTED, Y, ids=IDS, match=match)
    np.testing.assert_array_equal(got.coef_, want.coef_)
    assert got.matched_ is not None
    np.testing.assert_array_equal(ORDER[got.matched_["shop"]], np.arange(N))
    np.testing.assert_array_equal(got.predict(PERMUTED, ids=IDS), want.predict(VIEWS))
    assert want.matched_ is None


def test_without_ids_the_same_views_are_learned_badly() -> None:
    """What matching is for: the attack, as it were, of a table that is sorted in another way."""
    good, bad = classifier(rounds=60).fit(VIEWS, Y), classifier(rounds=60).fit(PERMUTED, Y)
    assert good.score(VIEWS, Y) > 0.95
    assert np.mean(bad.predict(VIEWS) == Y) < 0.9


def test_gcca_of_permuted_views_is_that_of_the_views() -> None:
    want = FederatedGCCA(2, random_state=0).fit(VIEWS)
    got = FederatedGCCA(2, random_state=0).fit(PERMUTED, ids=IDS)
    np.testing.assert_array_equal(got.common_, want.common_)
    np.testing.assert_array_equal(got.transform(PERMUTED, ids=IDS), want.transform(VIEWS))
    some = got.transform({"bank": None, "shop": PERMUTED["shop"]}, ids=IDS)
    np.testing.assert_array_equal(some, want.transform({"bank": None, "shop": PERMUTED["shop"]}))


def test_deep_gcca_of_permuted_views_is_that_of_the_views() -> None:
    nn = pytest.importorskip("torch.nn", reason="needs fedspan[deep]")

    def deep() -> DeepFederatedGCCA:
        return DeepFederatedGCCA([lambda: nn.Linear(3, 1)] * 2, 1, rounds=3, random_state=0)

    want, got = deep().fit(VIEWS), deep().fit(PERMUTED, ids=IDS)
    np.testing.assert_array_equal(got.common_, want.common_)


def test_rows_that_not_all_have_are_left_out_and_it_is_said() -> None:
    """To the bit as a fit on the common rows alone."""
    ids = {"bank": PEOPLE[:200], "shop": PEOPLE[ORDER][ORDER >= 30]}
    views = {"bank": VIEWS["bank"][:200], "shop": PERMUTED["shop"][ORDER >= 30]}
    with pytest.warns(UserWarning, match="170 entities. Left out, .* 30 of 200 rows of 'bank', 40 of 210 rows of"):
        got = classifier().fit(views, Y[:200], ids=ids)
    want = classifier().fit({name: own[30:200] for name, own in VIEWS.items()}, Y[30:200])
    np.testing.assert_array_equal(got.coef_, want.coef_)
    with warnings.catch_warnings():  # who asks for matching expects it; the ledger says it all the same
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)  # four rounds are few
        again = classifier().fit(views, Y[:200], ids=ids, match="digest")
    assert any("40 of 210 rows of 'shop'" in note for note in again.ledger_.notes)


def test_labels_may_come_from_any_view() -> None:
    want = classifier().fit(VIEWS, Y)
    for y in ({"shop": Y[ORDER]}, {"bank": Y, "shop": Y[ORDER]}):
        np.testing.assert_array_equal(classifier().fit(PERMUTED, y, ids=IDS).coef_, want.coef_)
    with pytest.raises(InputError, match="disagree about y of a row"):
        classifier().fit(PERMUTED, {"bank": Y, "shop": Y}, ids=IDS)
    with pytest.raises(InputError, match="y must have one value for each of the 240 rows of view 'bank', but has 100"):
        classifier().fit(PERMUTED, Y[:100], ids=IDS)
    with pytest.raises(InputError, match="y must be of rows of some of the views"):
        classifier().fit(PERMUTED, {"clinic": Y}, ids=IDS)


@pytest.mark.parametrize("model", [classifier(), FederatedGCCA(2, random_state=0)], ids=["classifier", "gcca"])
def test_an_order_may_only_be_compared(model: Any) -> None:
    given = (PERMUTED, Y) if isinstance(model, VerticalFederatedClassifier) else (PERMUTED,)
    with pytest.raises(InputError, match=r"rows differ between clients .* in another order"):
        model.fit(*given, ids=IDS, match="order")


def test_ids_that_are_none_are_refused() -> None:
    fit = classifier().fit
    with pytest.raises(InputError, match=r"client 'shop': Every row must have an id .* no id in row 2"):
        fit(VIEWS, Y, ids={"bank": PEOPLE, "shop": ["a", None, *PEOPLE[2:]]})
    with pytest.raises(InputError, match=r"client 'shop': .*a fraction in row"):
        fit(VIEWS, Y, ids={"bank": range(N), "shop": np.arange(N) + 0.5})
    fit(VIEWS, Y, ids={"bank": range(N), "shop": np.arange(N) + 0.0})
    with pytest.raises(InputError, match="differ only in upper and lower case"):
        fit(VIEWS, Y, ids={"bank": PEOPLE, "shop": ["PERSON 1", *PEOPLE[1:]]})
    with pytest.raises(InputError, match="no entity in common"):
        fit(VIEWS, Y, ids={"bank": PEOPLE, "shop": np.arange(N)})
    with pytest.raises(InputError, match="one id for each of the 240 rows, but there are 3"):
        fit(VIEWS, Y, ids={"bank": PEOPLE, "shop": [1, 2, 3]})
    with pytest.raises(InputError, match="Either every client gives ids or none does, but client 'shop' has none"):
        fit(VIEWS, Y, ids={"bank": PEOPLE, "shop": None})
    with pytest.raises(InputError, match="needs ids"):
        fit(VIEWS, Y, match="psi")
    with pytest.raises(InputError, match="match must be one of"):
        fit(VIEWS, Y, ids=IDS, match="magic")
    with pytest.raises(InputError, match="an engine that has its own data"):
        classifier(engine=InProcess(VIEWS)).fit(PERMUTED, Y, ids=IDS)


def test_columns_are_matched_by_name_in_new_tables() -> None:
    fitted = classifier().fit(frames(VIEWS), Y)
    want = fitted.predict_proba(frames(VIEWS))
    other = {
        "bank": frames(VIEWS)["bank"][BANK[::-1]],
        "shop": pl.DataFrame(frames(VIEWS)["shop"][SHOP[1:] + SHOP[:1]]),
    }
    np.testing.assert_array_equal(fitted.predict_proba(other), want)
    np.testing.assert_array_equal(fitted.predict_proba(VIEWS), want)  # arrays have no names: their order counts
    gcca = FederatedGCCA(2, random_state=0).fit(frames(VIEWS))
    np.testing.assert_array_equal(gcca.transform(other), gcca.transform(VIEWS))
    np.testing.assert_array_equal(gcca.transform_view("shop", other["shop"]), gcca.transform_view(1, VIEWS["shop"]))


@pytest.mark.parametrize("loaded", [False, True])
def test_missing_and_further_columns_are_named(loaded: bool, tmp_path: Path) -> None:
    gcca: Any = FederatedGCCA(2, random_state=0).fit(frames(VIEWS))
    fitted: Any = classifier().fit(frames(VIEWS), Y)
    if loaded:
        gcca.save(tmp_path / "gcca")
        fitted.save(tmp_path / "classifier")
        gcca = FederatedGCCA.load(tmp_path / "gcca")
        fitted = VerticalFederatedClassifier.load(tmp_path / "classifier")
    odd = {"bank": frames(VIEWS)["bank"].rename(columns={"rent": "loan"}), "shop": frames(VIEWS)["shop"]}
    says = "View 'bank' must have the columns of the fit, but the table lacks 'rent' and has also 'loan'"
    for use in (gcca.transform, fitted.predict):
        with pytest.raises(InputError, match=says):
            use(odd)
        with pytest.raises(InputError, match=r"View 'shop' .* has also 'person'"):
            use({**frames(VIEWS), "shop": frames(VIEWS, IDS)["shop"]})
    both = frames(PERMUTED, IDS)
    np.testing.assert_array_equal(fitted.predict(both, ids="person"), fitted.predict(frames(VIEWS)))


def test_a_column_of_ids_is_no_feature() -> None:
    fitted = classifier().fit(frames(PERMUTED, IDS), Y, ids="person")
    assert fitted.column_names_ == [BANK, SHOP]
    np.testing.assert_array_equal(fitted.coef_, classifier().fit(VIEWS, Y).coef_)


def test_new_rows_must_be_of_the_same_people_in_every_view() -> None:
    fitted = classifier().fit(VIEWS, Y)
    with pytest.raises(InputError, match="2 ids are in only one of 'bank' and 'shop'"):
        fitted.predict(VIEWS, ids={"bank": PEOPLE, "shop": [*PEOPLE[:-1], "Person 999"]})


def test_sparse_views_are_matched_too() -> None:
    sparse = {name: sp.csr_array(own) for name, own in PERMUTED.items()}
    got = FederatedGCCA(2, random_state=0).fit(sparse, ids=IDS)
    want = FederatedGCCA(2, random_state=0).fit(VIEWS)
    np.testing.assert_allclose(got.correlations_, want.correlations_, atol=1e-6)


def test_frames_whose_indexes_are_the_same_in_another_order_are_refused() -> None:
    """Pandas users expect rows to be matched by their index, as in pandas itself."""
    made = {name: frame.set_index(IDS[name]) for name, frame in frames(PERMUTED).items()}
    made["shop"].index = PEOPLE[ORDER]
    with pytest.raises(InputError, match="indexes of the frames of 'bank' and 'shop' have the same labels in another"):
        classifier().fit(made, Y)
    got = classifier().fit(made, Y, ids={name: frame.index for name, frame in made.items()})
    np.testing.assert_array_equal(got.coef_, classifier().fit(VIEWS, Y).coef_)
    made["shop"].index = range(N)
    with pytest.warns(UserWarning, match="indexes of the frames of 'bank' and 'shop' differ"):
        FederatedGCCA(2).fit(made)


def test_a_warning_is_given_for_files_without_ids_only(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Views of these sizes")  # they share nothing, which is said, too
        FederatedGCCA(2).fit(VIEWS)
        FederatedGCCA(2).fit(frames(VIEWS))
        FederatedGCCA(2).fit(frames(VIEWS, dict.fromkeys(VIEWS, PEOPLE)), ids="person")
    for name, frame in frames(VIEWS).items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.warns(UserWarning, match="matched by their order only, because no ids are named"):
        FederatedGCCA(2).fit({name: tmp_path / f"{name}.csv" for name in VIEWS})


JOB = """
[job]
task = "{task}"
random_state = 0
{options}
[data]
views = {{ bank = "bank.csv", shop = "shop.csv" }}
id = "person"
{more}
"""


@pytest.mark.parametrize("match", ["psi", "digest"])
@pytest.mark.parametrize("task", ["gcca", "vertical-classifier"])
def test_a_job_matches_rows(task: str, match: str, tmp_path: Path) -> None:
    """To the bit as a fit on views that were matched before."""
    if match == "psi":
        pytest.importorskip("cryptography", reason="needs fedspan[privacy]")
    for name, frame in frames(PERMUTED, IDS).items():
        order = ORDER if name == "shop" else np.arange(N)
        labelled = frame.assign(state=Y[order]) if task != "gcca" else frame
        labelled.to_csv(tmp_path / f"{name}.csv", index=False, float_format="%.17g")
    options = "n_components = 2" if task == "gcca" else "hidden = 8\nbatch_size = 100\nrounds = 4"
    more = f'match = "{match}"\n' + ('label = "state"' if task != "gcca" else "")
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(task=task, options=options, more=more))
    run = Job.load(path).run(tmp_path / "run")
    want: Any = FederatedGCCA(2, random_state=0).fit(VIEWS) if task == "gcca" else classifier().fit(VIEWS, Y)
    learned = "common_" if task == "gcca" else "coef_"
    np.testing.assert_array_equal(getattr(run.model, learned), getattr(want, learned))
    assert f'match = "{match}"' in (tmp_path / "run" / "job.toml").read_text()
    tasks = [e.task for e in Ledger.read(tmp_path / "run" / "ledger.jsonl").events if isinstance(e, Exchange)]
    assert ("blind_ids" if match == "psi" else "digest_rows") in tasks
    path.write_text(path.read_text().replace(f'match = "{match}"\n', ""))
    with pytest.raises(InputError, match="order"):
        Job.load(path).run(tmp_path / "other")


@pytest.mark.parametrize(
    ("task", "more", "says"),
    [
        ("gcca", 'match = "magic"', "data.match must be one of psi, digest, order"),
        ("gcca", "match = 1", "data.match must be a string"),
        ("pca", 'match = "psi"', "data.match is for views of the same rows"),
    ],
)
def test_a_job_says_what_is_wrong_with_match(task: str, more: str, says: str, tmp_path: Path) -> None:
    text = JOB.format(task=task, options="", more=more)
    path = tmp_path / "job.toml"
    path.write_text(text.replace("views =", "clients =") if task == "pca" else text)
    with pytest.raises(InputError, match=says):
        Job.load(path)
    path.write_text(JOB.format(task="gcca", options="", more='match = "psi"').replace('id = "person"', ""))
    with pytest.raises(InputError, match=r"data\.match needs data\.id"):
        Job.load(path)


def test_a_job_that_matches_rows_keeps_weights_and_groups_with_them(tmp_path: Path) -> None:
    """Columns of weights and of groups are put in order as the rows are; before, weights were silently left out."""
    weight, group = np.arange(1, N + 1) % 7 + 1.0, np.where(np.arange(N) % 3, "old", "new")
    made = frames(PERMUTED, IDS)
    made["shop"] = made["shop"].assign(state=Y[ORDER], weight=weight[ORDER], group=group[ORDER])
    for name, frame in made.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False, float_format="%.17g")
    path = tmp_path / "job.toml"
    more = 'match = "digest"\nlabel = "state"\nweight = "weight"'
    limits = '[{ on = "group", column = "group", gap = 0.5 }]'
    for asked, how in (
        ("rounds = 4", {"sample_weight": weight}),
        (f'rounds = 4\nmethod = "ssca"\nlimits = {limits}', {"sample_weight": weight, "groups": group}),
    ):
        data = more if "groups" in how else more + '\ncategories = ["group"]'
        path.write_text(
            JOB.format(task="vertical-classifier", options=f"hidden = 8\nbatch_size = 100\n{asked}", more=data)
        )
        got = Job.load(path).run(tmp_path / f"run-{len(how)}").model
        if "groups" not in how:
            dummies = np.column_stack([VIEWS["shop"], group == "new", group == "old"])
            want = classifier().fit({"bank": VIEWS["bank"], "shop": dummies}, Y, **how)
        else:
            limit = {"on": "group", "column": "group", "gap": 0.5}
            want = classifier(method="ssca", limits=[limit]).fit(VIEWS, Y, **how)
        np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-9, atol=1e-12)


def test_a_regression_matches_rows_and_columns() -> None:
    """Targets and weights are those of the first view's rows, or of any view's by its name."""
    target, weight = X @ np.arange(1.0, 7.0) + 3, np.arange(N) % 5 + 1.0
    want = VerticalFederatedRegressor().fit(VIEWS, target, sample_weight=weight)
    got = VerticalFederatedRegressor().fit(PERMUTED, target, ids=IDS, sample_weight=weight)
    np.testing.assert_array_equal(got.coef_, want.coef_)
    named = frames(PERMUTED, IDS)
    kept = np.arange(10, N)
    short = {"bank": named["bank"].iloc[kept], "shop": named["shop"]}
    few = VerticalFederatedRegressor().fit(
        short, {"shop": target[ORDER]}, ids="person", match="digest", sample_weight={"shop": weight[ORDER]}
    )
    assert few.n_samples_ == N - 10
    np.testing.assert_allclose(few.coef_, want.coef_, rtol=1e-6)
    mixed = {"shop": named["shop"][["food", "person", "cars", "toys"]], "bank": named["bank"]}
    np.testing.assert_allclose(few.predict(mixed, ids="person"), target[ORDER], rtol=1e-8)
    with pytest.raises(InputError, match="lacks 'rent'"):
        few.predict({**mixed, "bank": named["bank"].rename(columns={"rent": "loan"})}, ids="person")
    with pytest.raises(InputError, match="y must have one value for each of the 230 rows of view 'bank', but has 240"):
        VerticalFederatedRegressor().fit(short, target, ids="person", match="digest")


def test_the_public_function_returns_positions_by_name_and_number() -> None:
    found = match_entities([["Ann", "Bo", "Cy"], [" CY ", "ann", "Dee"]], method="digest")
    assert found[0].tolist() == found["0"].tolist() == [0, 2]
    assert found[1].tolist() == [1, 0]
    assert (list(found), len(found), found.entities) == (["0", "1"], 2, 2)
    assert found.describe_left_out() == "1 of 3 rows of '0', 1 of 3 rows of '1'"
    union = match_entities({"a": ["x", "y"], "b": ["z", "X"]}, method="digest", how="union")
    assert union["a"].tolist() == [0, 1, -1]
    assert union["b"].tolist() == [1, -1, 0]


def test_the_public_function_says_how_far_it_is() -> None:
    pytest.importorskip("cryptography", reason="needs fedspan[privacy]")
    told: list[tuple[int, int]] = []
    match_entities([range(100), range(50, 150)], progress=lambda done, total: told.append((done, total)), workers=1)
    assert told[-1][0] == told[-1][1] == 4 * 104, "each set is padded from 100 to 104"
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_public_function_refuses_bad_input() -> None:
    with pytest.raises(InputError, match="method must be"):
        match_entities([[1], [1]], method="magic")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="client 'b': Ids must be a list"):
        match_entities({"a": ["x"], "b": "x"}, method="digest")
    with pytest.raises(InputError, match="From 2 to 10 clients"):
        match_entities([[1]], method="digest")
    with pytest.raises(PolicyRefusal, match="at least 3 entities"):
        match_entities([[1, 2], [2, 1]], method="digest", min_common=3)
