"""Categories and gaps, agreed on in the federation: against pandas and scikit-learn on the pooled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer

from fedspan import FederatedClassifier, FederatedPCA, Ledger, Secure, prepare
from fedspan.algorithms.agree_columns import AgreeOnColumns, Columns, SurveyColumns, agree_on_columns
from fedspan.core.ledger import Exchange
from fedspan.core.run import run
from fedspan.data.preparation import Preparation
from fedspan.data.survey import TableSurvey
from fedspan.engines import InProcess
from fedspan.errors import InputError
from fedspan.estimators.prepare import agree

Fedspan = Callable[..., Any]


def frame(seed: int, n: int, words: list[str], gaps: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "person": [f"{seed}-{i}" for i in range(n)],
            "age": rng.normal(50, 10, n),
            "ward": rng.choice(words, n),
            "dose": rng.normal(size=n),
            "y": rng.integers(0, 2, n),
        }
    )
    for at in rng.choice(n, gaps, replace=False):
        table.loc[at, "age"] = np.nan
    for at in rng.choice(n, gaps, replace=False):
        table.loc[at, "ward"] = None
    return table


CLIENTS = {
    "north": frame(0, 40, ["east", "west"], 5),
    "south": frame(1, 25, ["west", "zoo"], 3),
    "tiny": frame(2, 9, ["zoo"]),
}
POOLED = pd.concat(CLIENTS.values())
WORDS = ("east", "west", "zoo")
ROLES = {"id": "person", "label": "y"}
NAMES = ["age", *(f"ward={word}" for word in WORDS), "dose"]


def one_hot(rows: Any) -> Any:
    """By pandas; a missing word is a missing row of indicators."""
    hot = pd.get_dummies(rows["ward"]).reindex(columns=list(WORDS), fill_value=False).astype(float)
    hot[rows["ward"].isna()] = np.nan
    return np.column_stack([rows["age"], hot, rows["dose"]])


def same_components(model: Any, rows: Any) -> None:
    want = PCA(2, svd_solver="full").fit(rows)
    np.testing.assert_allclose(np.abs(model.components_ @ want.components_.T), np.eye(2), atol=1e-7)
    np.testing.assert_allclose(model.mean_, want.mean_, atol=1e-9)


def fitted(clients: Any, **options: Any) -> Any:
    return FederatedPCA(2, solver="gram", random_state=0, **options).fit(clients)


def test_the_federation_agrees_on_words_and_means() -> None:
    ledger = Ledger()
    ready = prepare(CLIENTS, **ROLES, categories=["ward"], missing="mean", ledger=ledger)
    how = ready["north"].preparation
    assert how.categories == {"ward": WORDS}
    rows = SimpleImputer().fit_transform(one_hot(POOLED))
    np.testing.assert_allclose([how.fill[name] for name in NAMES], rows.mean(axis=0), rtol=1e-12)
    assert [e.task for e in ledger.events if isinstance(e, Exchange)] == [
        "describe_columns", "list_categories", "add_up_columns",
    ]  # fmt: skip
    assert ledger.bytes_up > 0
    assert ledger.rounds == 0
    assert ledger.notes == [
        "The clients agreed on the categories of ward: east, west, zoo.",
        "Missing values were filled with the mean over all clients.",
    ]
    for name, source in ready.items():
        table = source()
        assert list(table.names or ()) == NAMES
        assert table.ids is not None
        assert table.ids.tolist() == CLIENTS[name]["person"].tolist()
        assert table.labels is not None
        assert table.labels.tolist() == CLIENTS[name]["y"].tolist()
    np.testing.assert_allclose(np.vstack([s().X for s in ready.values()]), rows, rtol=1e-12)
    same_components(fitted(ready), rows)


def test_rows_with_gaps_are_dropped_with_their_ids_and_labels() -> None:
    ready = prepare(CLIENTS, **ROLES, categories={"ward": WORDS}, missing="drop")
    whole = POOLED.dropna()
    assert len(whole) < len(POOLED)
    np.testing.assert_array_equal(np.vstack([s().X for s in ready.values()]), one_hot(whole))
    ids, labels = ([getattr(s(), name) for s in ready.values()] for name in ("ids", "labels"))
    assert np.concatenate(ids).tolist() == whole["person"].tolist()
    assert np.concatenate(labels).tolist() == whole["y"].tolist()
    same_components(fitted(ready), one_hot(whole))


def test_gaps_are_refused_unless_asked_for() -> None:
    ready = prepare(CLIENTS, **ROLES, categories=["ward"])
    with pytest.raises(
        InputError, match=r"client 'north': Column 'age' must have a value in every row, but 5 of 40 are missing"
    ):
        fitted(ready)
    only = prepare(CLIENTS, columns=["ward"], categories=["ward"])
    with pytest.raises(InputError, match=r"client 'north': Column 'ward' .* 5 of 40 are missing"):
        fitted(only)


def test_gaps_in_arrays() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(30, 4)), rng.normal(size=(20, 4))]
    parts[0][3, 1] = parts[1][4, 2] = parts[1][5, 2] = np.nan
    pooled = np.vstack(parts)
    same_components(fitted(prepare(parts, missing="mean")), SimpleImputer().fit_transform(pooled))
    same_components(fitted(prepare(parts, missing="drop")), pooled[~np.isnan(pooled).any(axis=1)])


def test_secure_sums_give_the_same_means_and_words_must_be_given() -> None:
    draft = Preparation(id="person", label="y", categories={"ward": WORDS}, missing="mean")
    plain = agree(CLIENTS, draft)
    ledger = Ledger()
    secure = agree(CLIENTS, draft, secure=Secure(), ledger=ledger)
    for name in NAMES:
        assert secure.fill[name] == pytest.approx(plain.fill[name], rel=1e-12)
    sent = [e for e in ledger.events if isinstance(e, Exchange) and e.task == "add_up_columns"]
    assert sent
    assert all(e.secure for e in sent)
    with pytest.raises(
        InputError, match=r"categories of 'ward' .* secure sums, because that would show each client's own; give them"
    ):
        agree(CLIENTS, Preparation(categories={"ward": ()}), secure=Secure())


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (Preparation(categories={"ward": ()}), r"the categories of 'ward' .* give data.categories = { ward = "),
        (
            Preparation(missing="mean"),
            r"cannot agree on means in a run with privacy, .* about single rows; give data.fill",
        ),
    ],
)
def test_nothing_is_agreed_on_where_rows_are_private(draft: Preparation, words: str) -> None:
    with pytest.raises(InputError, match=words):
        agree(CLIENTS, draft, private=True)


def test_a_word_that_is_not_in_the_vocabulary_is_counted_and_not_said() -> None:
    ready = prepare(CLIENTS, **ROLES, categories={"ward": ["east", "west"]}, missing="drop")
    with pytest.raises(InputError) as refused:
        fitted(ready)
    count = int((CLIENTS["south"]["ward"] == "zoo").sum())
    said = str(refused.value)
    assert f"client 'south': Column 'ward' must contain only the categories east, west, but {count} of 25" in said
    assert "zoo" not in said


def test_an_id_is_no_category() -> None:
    many = {"a": pd.DataFrame({"who": [str(i) for i in range(1200)], "x": np.arange(1200.0)})}
    with pytest.raises(InputError, match=r"client 'a': Column 'who' has more than 1000 categories"):
        prepare(many, categories=["who"])


def test_a_column_that_is_empty_everywhere() -> None:
    bare = {name: table.assign(age=np.nan) for name, table in CLIENTS.items()}
    with pytest.raises(InputError, match=r"Column 'age' has no values at any client, so it has no mean"):
        prepare(bare, **ROLES, categories={"ward": WORDS}, missing="mean")


def test_a_model_knows_how_its_rows_were_prepared(tmp_path: Path) -> None:
    """`transform` of a table with the original columns: the same as of the rows made by hand."""
    ready = prepare(CLIENTS, **ROLES, categories=["ward"], missing="mean")
    model = fitted(ready)
    model.save(tmp_path / "m")
    again = FederatedPCA.load(tmp_path / "m")
    assert again.preparation_ == model.preparation_ == ready["north"].preparation
    new = frame(9, 12, list(WORDS), 4)
    rows = one_hot(new)
    gaps = np.isnan(rows)
    rows[gaps] = np.broadcast_to([model.preparation_.fill[name] for name in NAMES], rows.shape)[gaps]
    want = (rows - model.mean_) @ model.components_.T
    for table in (new, new.drop(columns=["person", "y"])):
        np.testing.assert_allclose(again.transform(table), want, atol=1e-12)
    assert list(again.set_output(transform="pandas").transform(new).index) == list(new.index)
    with pytest.raises(InputError, match="12 of 12 values are others"):
        again.transform(new.assign(ward="moon"))

    labels = {name: source().labels for name, source in ready.items()}
    classifier = FederatedClassifier(hidden=3, batch_size=9, rounds=5, random_state=0).fit(ready, labels)
    assert classifier.predict(new).shape == (12,)


JOB = """
[job]
task = "{task}"
{keys}
random_state = 0
[data]
clients = ["north.csv", "south.parquet", "tiny.csv"]
id = "person"
label = "y"
{data}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("north", "tiny"):
        CLIENTS[name].to_csv(tmp_path / f"{name}.csv", index=False)
    CLIENTS["south"].to_parquet(tmp_path / "south.parquet", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(world: Path, data: str, task: str = "pca", keys: str = 'n_components = 2\nsolver = "gram"') -> Path:
    path = world / "job.toml"
    path.write_text(JOB.format(task=task, keys=keys, data=data))
    return path


def test_a_job_with_categories_and_gaps(world: Path, fedspan: Fedspan) -> None:
    result = fedspan("run", job(world, 'categories = ["ward"]\nmissing = "mean"'), "--out", "run", "--transcript")
    assert result.exit_code == 0, result.output
    model = FederatedPCA.load(world / "run" / "model.safetensors")
    same_components(model, SimpleImputer().fit_transform(one_hot(POOLED)))
    assert list(model.feature_names_in_) == NAMES
    page = (world / "run" / "report.html").read_text()
    assert "the categories that it has seen in the columns of categories" in page
    assert "the arrays of the task" not in page
    assert fedspan("report", "run").exit_code == 0
    result = fedspan("audit", "run")  # which has to prepare the rows to compare with
    assert result.exit_code == 0, result.output
    assert "cannot be read here" not in (world / "run" / "audit.html").read_text()


def test_a_private_job_has_its_words_and_fill_in_the_file(world: Path, fedspan: Fedspan) -> None:
    private = "[privacy]\nepsilon = 50.0\ndelta = 1e-6\nrow_norm = 100.0\nsimulate = true\n"
    keys = "n_components = 2"
    result = fedspan("run", job(world, f'categories = ["ward"]\nmissing = "mean"\n{private}', keys=keys))
    assert result.exit_code == 2
    assert "cannot agree on the categories of 'ward' in a run with privacy" in result.stderr
    given = 'categories = { ward = ["east", "west", "zoo"] }\nmissing = "mean"\n'
    result = fedspan("run", job(world, given + private, keys=keys))
    assert result.exit_code == 2
    assert (
        "cannot agree on means in a run with privacy, because that would tell about single rows; give data.fill"
        in result.stderr
    )
    assert not (world / "runs").exists()
    fill = 'fill = { age = 50.0, "ward=east" = 0.4, "ward=west" = 0.3, "ward=zoo" = 0.3, dose = 0.0 }\n'
    result = fedspan("run", job(world, given + fill + private, keys=keys), "--out", "run")
    assert result.exit_code == 0, result.output
    assert "epsilon is infinite" not in (world / "run" / "report.html").read_text()


def test_a_resumed_run_agrees_again(world: Path, fedspan: Fedspan) -> None:
    path = job(world, 'categories = ["ward"]\nmissing = "drop"', keys='n_components = 2\nsolver = "ssi"\ntol = 1e-6')
    assert fedspan("run", path, "--out", "run").exit_code == 0
    model = (world / "run" / "model.safetensors").read_bytes()
    (world / "run" / "model.safetensors").unlink()
    result = fedspan("resume", "run")
    assert result.exit_code == 0, result.output
    assert (world / "run" / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('missing = "men"', "missing must be one of refuse, drop, mean, mask, but it is 'men'. Did you mean 'mean'?"),
        ("fill = { age = 1 }", "fill is used only with missing = \"mean\", but missing is 'refuse'"),
        ('fill = { age = "x" }', "data.fill must be a table such as { age = 50.0 }, but is"),
        ('categories = "ward"', "data.categories must be a list of columns, or a table such as"),
        ("categories = { ward = 3 }", "data.categories must be a list of columns, or a table such as"),
        ('categories = { ward = ["a", "a"] }', "The categories of column 'ward' must differ, but one is given twice"),
        ('categories = ["y"]', "Column 'y' is the id, the label or the weight, so it cannot be a category"),
        ('categories = ["wrad"]', "There is no column 'wrad'. Did you mean 'ward'? The table has person, age, ward"),
        (
            'columns = ["age"]\ncategories = ["ward"]',
            "'ward' is a category, but it is not among the chosen columns",
        ),
        (
            'categories = { ward = ["east", "west", "zoo"] }\nmissing = "mean"\nfill = { age = 1.0 }',
            "fill has no value",
        ),
        ("n_features = 0", "data.n_features must be at least 1, but is 0"),
    ],
)
def test_a_preparation_that_makes_no_sense(world: Path, fedspan: Fedspan, data: str, words: str) -> None:
    before = sorted(p.name for p in world.iterdir())
    result = fedspan("run", job(world, data), "--out", "run")
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(p.name for p in world.iterdir() if p.name != "job.toml") == before


def test_views_settle_their_own_columns(world: Path, fedspan: Fedspan) -> None:
    """A column that only one client has needs no agreement: nothing of it is sent."""
    rows = CLIENTS["north"]
    rows[["person", "age", "ward"]].to_csv(world / "a.csv", index=False)
    rows[["person", "dose", "y"]].to_csv(world / "b.csv", index=False)
    (world / "job.toml").write_text(
        '[job]\ntask = "gcca"\nn_components = 1\nridge = 0.1\nrandom_state = 0\n[data]\nviews = ["a.csv", "b.csv"]\n'
        'id = "person"\nlabel = "y"\ncategories = ["ward"]\nmissing = "mean"\n'
    )
    result = fedspan("run", "job.toml", "--out", "run")
    assert result.exit_code == 0, result.output
    assert "list_categories" not in (world / "run" / "ledger.jsonl").read_text()
    result = fedspan("run", "job.toml", "--set", "data.missing=drop", "--out", "no")
    assert result.exit_code == 2
    assert "An entity that a view lacks has a row of NaN only, but 8 rows have NaN in some features" in result.stderr
    (world / "learn.toml").write_text(
        '[job]\ntask = "vertical-classifier"\n[data]\nviews = ["a.csv", "b.csv"]\nlabel = "y"\nmissing = "drop"\n'
    )
    result = fedspan("run", "learn.toml", "--out", "no")
    assert result.exit_code == 2
    assert 'data.missing = "drop" is not for views' in result.stderr


def test_the_agreement_is_the_same_over_the_wire() -> None:
    draft = Preparation(id="person", label="y", categories={"ward": ()}, missing="mean")
    surveys = {name: TableSurvey(table, draft) for name, table in CLIENTS.items()}
    plain = run(SurveyColumns(("ward",)), InProcess(surveys), rounds=0, seed=0)
    wired = run(SurveyColumns(("ward",)), InProcess(surveys, wire=True), rounds=0, seed=0)
    assert plain.state.vocabulary == wired.state.vocabulary == {"ward": list(WORDS)}
    assert plain.ledger.bytes_up == wired.ledger.bytes_up
    settled = {name: TableSurvey(table, replace(draft, categories={"ward": WORDS})) for name, table in CLIENTS.items()}
    algorithm = AgreeOnColumns(plain.state.features, plain.state.names, (("ward", WORDS),))
    here = run(algorithm, InProcess(settled), rounds=0, seed=0)
    there = run(algorithm, InProcess(settled, wire=True), rounds=0, seed=0)
    np.testing.assert_array_equal(here.state.means, there.state.means)
    assert here.ledger.bytes_up == there.ledger.bytes_up


def test_a_site_tells_of_no_column_that_it_did_not_name() -> None:
    survey = TableSurvey(CLIENTS["north"], Preparation(categories={"ward": ()}))
    with pytest.raises(InputError, match="Nothing was sent"):
        survey.words(["person"])


def test_widths_of_files_that_do_not_say_them() -> None:
    sparse = [("a", Columns(5, at_least=True)), ("b", Columns(7, at_least=True))]
    assert agree_on_columns(sparse).features == agree_on_columns(sparse[::-1]).features == 7
    assert agree_on_columns([*sparse, ("c", Columns(9))]).features == 9
    assert agree_on_columns([("c", Columns(9)), *sparse]).features == 9
    for order in (1, -1):
        with pytest.raises(InputError, match=r"has [67] features and client"):
            agree_on_columns([*sparse, ("c", Columns(6))][::order])
