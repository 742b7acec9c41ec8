"""New tables whose rows are matched by ids: in `transform`, `predict` and `score` of every model of views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedspan import (
    FederatedGCCA,
    VerticalFederatedClassifier,
    VerticalFederatedRegressor,
    VerticalPCA,
    VerticalSVD,
)
from fedspan.errors import InputError

RNG = np.random.default_rng(5)
N = 90
HIDDEN = RNG.normal(size=(N, 2))
X = HIDDEN @ RNG.normal(size=(2, 9)) + 0.3 * RNG.normal(size=(N, 9))
COLUMNS = {"bank": ["age", "debt", "rent"], "shop": ["cars", "toys"], "lab": ["iron", "salt", "fat", "zinc"]}
PARTS = dict(zip(COLUMNS, np.split(X, [3, 5], axis=1), strict=True))
PEOPLE = np.array([f"Person {j}" for j in range(N)])
TABLES = {name: pd.DataFrame(PARTS[name], columns=own).assign(person=PEOPLE) for name, own in COLUMNS.items()}
SHUFFLED = {name: table.sample(frac=1, random_state=i) for i, (name, table) in enumerate(TABLES.items())}
ROW_OF = {person: row for row, person in enumerate(PEOPLE)}
BANK_ORDER = [ROW_OF[person] for person in SHUFFLED["bank"]["person"]]  # results are in the first view's order
Y = np.where(HIDDEN[:, 0] > 0, "yes", "no")
TARGET = X @ RNG.normal(size=9)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("kind", [VerticalPCA, VerticalSVD, FederatedGCCA])
def test_transform_takes_the_rows_in_the_first_views_order(kind: Any, secure: bool) -> None:
    model = kind(2, secure=secure, random_state=0).fit(TABLES, ids="person")
    want = model.transform(PARTS)
    np.testing.assert_allclose(model.transform(SHUFFLED, ids="person"), want[BANK_ORDER], atol=1e-9)
    lists = {name: table["person"].str.upper() for name, table in SHUFFLED.items()}
    bare = {name: table.drop(columns="person") for name, table in SHUFFLED.items()}
    np.testing.assert_allclose(model.transform(bare, ids=lists), want[BANK_ORDER], atol=1e-9)
    # without ids the same tables are matched by their order: other entities' columns are put together
    assert np.abs(model.transform(bare) - want[BANK_ORDER]).max() > 0.1 * np.abs(want).max()


@pytest.mark.parametrize("kind", [VerticalPCA, FederatedGCCA])
def test_other_people_in_some_view_are_refused_with_the_remedy(kind: Any) -> None:
    model = kind(2, random_state=0).fit(TABLES, ids="person")
    with pytest.raises(InputError, match=r"1 ids are in only one of 'bank' and 'shop'\..*match_entities"):
        model.transform({**TABLES, "shop": TABLES["shop"][1:]}, ids="person")
    with pytest.raises(InputError, match="client 'lab'"):
        model.transform({**TABLES, "lab": TABLES["lab"].assign(person="nobody")}, ids="person")


@pytest.mark.parametrize("secure", [False, True])
def test_a_model_of_views_that_lack_entities_takes_ids_that_only_some_have(secure: bool) -> None:
    few = {name: table.sample(frac=0.7, random_state=i) for i, (name, table) in enumerate(TABLES.items())}
    model = FederatedGCCA(2, secure=secure, random_state=0).fit(few, ids="person", missing="mask")
    got = model.transform(few, ids="person")
    people = list(dict.fromkeys(person for table in few.values() for person in table["person"]))
    assert people[: len(few["bank"])] == list(few["bank"]["person"])
    assert got.shape == (len(people), 2)
    said = {}
    for name, table in few.items():
        part = pd.DataFrame(model.transform_view(name, table.drop(columns="person")), index=table["person"])
        said[name] = part.reindex(people).to_numpy()
    np.testing.assert_allclose(got, np.nanmean(list(said.values()), axis=0), atol=1e-8)
    lacks = np.column_stack([np.isnan(part[:, 0]) for part in said.values()])
    np.testing.assert_array_equal(model.find_missing(few, ids="person"), lacks)
    assert model.missing_ is not None
    assert model.missing_.sum() == lacks.sum()
    np.testing.assert_array_equal(model.view_counts_, (~model.missing_).sum(axis=1))
    whole = {name: table.sort_values("person") for name, table in TABLES.items()}
    both = {**whole, "shop": whole["shop"].iloc[::-1]}
    want = model.score({name: table.drop(columns="person") for name, table in whole.items()})
    assert model.score(both, ids="person") == pytest.approx(want)
    assert want > 0.8
    assert 0.8 < model.score(few, ids="person") <= 1  # of those whom all views have


def test_score_of_nobody_who_is_in_all_views_is_refused() -> None:
    few = {name: table.sample(frac=0.7, random_state=i) for i, (name, table) in enumerate(TABLES.items())}
    model = FederatedGCCA(2, random_state=0).fit(few, ids="person", missing="mask")
    apart = dict(zip(TABLES, (TABLES[name][30 * i : 30 * i + 30] for i, name in enumerate(TABLES)), strict=True))
    with pytest.raises(InputError, match="No entity is in all of these views"):
        model.score(apart, ids="person")


def test_predict_and_score_take_ids() -> None:
    classifier = VerticalFederatedClassifier(hidden=8, batch_size=50, rounds=40, random_state=0)
    fitted: Any = classifier.fit(TABLES, Y, ids="person")
    np.testing.assert_array_equal(fitted.predict(SHUFFLED, ids="person"), fitted.predict(PARTS)[BANK_ORDER])
    right = fitted.score(SHUFFLED, Y[BANK_ORDER], ids="person")
    assert right == fitted.score(PARTS, Y) > fitted.score(SHUFFLED, Y, ids="person")
    regressor: Any = VerticalFederatedRegressor().fit(TABLES, TARGET, ids="person")
    assert regressor.score(SHUFFLED, TARGET[BANK_ORDER], ids="person") > 0.999
    assert regressor.score(SHUFFLED, TARGET, ids="person") < 0.9


def test_the_report_says_who_is_missing_where(tmp_path: Any) -> None:
    few = {**TABLES, "shop": TABLES["shop"][20:], "lab": TABLES["lab"][:80]}
    model = FederatedGCCA(2, random_state=0).fit(few, ids="person", missing="mask")
    model.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    start = page.index("Who is missing where")
    words = " ".join(page[start : start + 3000].replace("<", " <").split())
    for row in (("shop", "70", "20", "22.2%"), ("bank, shop, lab", "60"), ("bank, lab", "20"), ("bank, shop", "10")):
        cells = [words.find(f">{cell} <") for cell in row]
        assert min(cells) >= 0, row
    again = FederatedGCCA
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(again.load(tmp_path / "model").missing_, model.missing_)
