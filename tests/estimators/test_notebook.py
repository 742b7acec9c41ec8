"""Models and ledgers in a notebook: tables without scripts, frames, plots, progress, and folds over clients."""

from __future__ import annotations

import io
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.model_selection import GridSearchCV, cross_val_score

from fedspan import (
    ClientKFold,
    FederatedClassifier,
    FederatedPCA,
    FederatedRegressor,
    FederatedSVD,
    FedspanError,
    InputError,
    Ledger,
    PersonalizedPCA,
    score_clients,
)
from fedspan.core.ledger import Exchange
from fedspan.core.run import Info
from fedspan.estimators.notebook.fit_progress import FitProgress

rng = np.random.default_rng(3)
CLIENTS = {name: rng.normal(size=(n, 6)) * [5, 4, 2, 1, 1, 1] for name, n in [("a", 40), ("b", 70), ("c", 30)]}
HOSTILE = '<script>alert(1)</script>\u202e"'


@pytest.fixture
def model() -> FederatedPCA:
    return FederatedPCA(3, solver="krylov", width=None, tol=1e-9, random_state=0).fit(CLIENTS)


@pytest.fixture
def axes() -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    return Figure().subplots()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def read_html(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.seen <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    return tags


def test_a_model_is_a_table_without_scripts(model: FederatedPCA) -> None:
    text = read_html(model._repr_html_()).text
    assert "tol=1e-09" in text
    assert "(3, 6)" in text
    assert f"{model.ledger_.bytes_up:,} bytes up" in text
    assert "not fitted" in read_html(FederatedPCA(2)._repr_html_()).text
    assert model._repr_mimebundle_()["text/html"] == model._repr_html_()


def test_every_kind_of_model_has_one() -> None:
    X = [*CLIENTS.values()]
    y = [(A[:, 0] > 0).astype(int) for A in X]
    fitted: list[Any] = [
        FederatedSVD(2, random_state=0).fit(X),
        PersonalizedPCA(2, random_state=0).fit(X),
        FederatedClassifier(rounds=2, random_state=0).fit(X, y),
        FederatedRegressor(random_state=0).fit(X, [A[:, 0] for A in X]),
    ]
    for one in fitted:
        assert type(one).__name__ in read_html(one._repr_html_()).text


def test_hostile_values_are_shown_and_not_obeyed(model: FederatedPCA) -> None:
    model.solver, model.seed_ = HOSTILE, HOSTILE  # type: ignore[assignment]
    tags = read_html(model._repr_html_())
    assert "alert(1)" in tags.text
    assert "\u202e" not in tags.text
    ledger = Ledger()
    ledger.add(Exchange(1, 0, HOSTILE, ("a",), (1,), (2,), (0.1,)))
    assert "\u202e" not in read_html(ledger._repr_html_()).text


def test_the_ledger_as_a_frame(model: FederatedPCA, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = model.ledger_.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["bytes_up"].sum() == model.ledger_.bytes_up
    assert frame["bytes_down"].sum() == model.ledger_.bytes_down
    assert set(frame["client"]) == set(CLIENTS)
    assert len(frame) == model.ledger_.exchanges * 3
    assert list(Ledger().to_frame().columns) == list(frame.columns)
    assert "multiply" in read_html(model.ledger_._repr_html_()).text
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedspanError, match="needs pandas"):
        model.ledger_.to_frame()


def test_plots_follow_the_display_convention(model: FederatedPCA, axes: Any) -> None:
    X = np.concatenate([*CLIENTS.values()])
    sites = np.repeat([*CLIENTS], [len(A) for A in CLIENTS.values()])
    for display in (
        model.plot_components(ax=axes),
        model.plot_scree(ax=axes),
        model.plot_convergence(ax=axes),
        model.plot_scores(X, labels=sites, ax=axes),
    ):
        assert display.ax_ is axes
        assert display.figure_ is axes.figure
        axes.clear()
        assert display.plot(ax=axes) is display  # again, from its numbers alone
        axes.clear()
    np.testing.assert_allclose(display.groups["b"], model.transform(CLIENTS["b"])[:, :2], atol=1e-12)
    assert model.plot_convergence(ax=axes).values == [row["kkt"] for row in model.history_ if row["round"] > 0]


def test_what_cannot_be_drawn_is_said(model: FederatedPCA, axes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="the run took 1 round"):
        FederatedPCA(2, solver="gram").fit(CLIENTS).plot_convergence(ax=axes)
    with pytest.raises(InputError, match="two components"):
        FederatedPCA(1, solver="gram").fit(CLIENTS).plot_scores(CLIENTS["a"], ax=axes)
    with pytest.raises(InputError, match="each of the 40 rows"):
        model.plot_scores(CLIENTS["a"], labels=[1, 2], ax=axes)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(FedspanError, match=r"fedspan\[plots\]"):
        model.plot_components()


def test_a_grid_search_over_clients() -> None:
    """Six clients with two strong directions: held-out clients are likeliest under two components."""
    draw = np.random.default_rng(0)
    clients = [draw.normal(size=(n, 5)) * [4, 3, 1, 1, 1] for n in (40, 30, 60, 20, 50, 40)]
    grid = {"n_components": [1, 2, 3]}
    search = GridSearchCV(FederatedPCA(random_state=0), grid, cv=ClientKFold(3), scoring=score_clients).fit(clients)
    assert search.best_params_ == {"n_components": 2}
    left_out = [list(test) for _, test in ClientKFold(3).split(clients)]
    assert sorted(i for fold in left_out for i in fold) == list(range(6))
    rows = [sum(len(clients[i]) for i in fold) for fold in left_out]
    assert max(rows) - min(rows) <= 20
    by_hand = FederatedPCA(1, random_state=0).fit([clients[i] for i in range(6) if i not in left_out[0]])
    pooled = by_hand.score(np.concatenate([clients[i] for i in left_out[0]]))
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(pooled)


def test_classifiers_too() -> None:
    X = [rng.normal(size=(30, 3)) for _ in range(4)]
    y = [(A[:, 0] > 0).astype(int) for A in X]
    found = cross_val_score(
        FederatedClassifier(rounds=3, random_state=0), X, y, cv=ClientKFold(2), scoring=score_clients
    )
    assert found.shape == (2,)
    assert np.all((found >= 0) & (found <= 1))


@pytest.mark.parametrize("splits", [1, 2.0, True, "3"])
def test_folds_that_make_no_sense(splits: Any) -> None:
    with pytest.raises(InputError, match="n_splits"):
        ClientKFold(splits)


def test_other_things_than_clients_are_not_split() -> None:
    with pytest.raises(InputError, match="list with one entry for each client"):
        next(ClientKFold(2).split(np.zeros((5, 2))))
    with pytest.raises(InputError, match="at most the 3 clients"):
        next(ClientKFold(4).split([*CLIENTS.values()]))
    with pytest.raises(InputError, match="table in memory"):
        next(ClientKFold(2).split(["a.csv", "b.csv"]))


def follow(console: Console, rounds: int) -> None:
    with FitProgress(rounds, console) as progress:
        for r in range(1, rounds + 1):
            progress(Info(r, np.zeros(0), {"kkt": 0.1**r}, Ledger()))


def test_progress_in_a_pipe_is_a_line_each_second_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(np.arange(0, 100, 0.3))
    monkeypatch.setattr("fedspan.estimators.notebook.fit_progress.time.monotonic", lambda: next(now))
    out = io.StringIO()
    follow(Console(file=out), 20)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("round 1,")
    assert lines[-1].startswith("round 20, kkt 1e-20")
    assert len(lines) < 9


def test_progress_in_a_terminal_is_a_bar() -> None:
    out = io.StringIO()
    follow(Console(file=out, force_terminal=True, width=60), 5)
    assert "round 5, kkt 1e-05" in out.getvalue()
    assert "━" in out.getvalue()


def test_verbose_shows_rounds_and_silence_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = FederatedPCA(2, solver="krylov", random_state=0).fit(CLIENTS)
    assert capsys.readouterr().err == ""
    rounds: list[int] = []
    watch = lambda info: rounds.append(info.round)  # noqa: E731
    loud = FederatedPCA(2, solver="krylov", random_state=0, verbose=True, callback=watch).fit(CLIENTS)
    assert f"round {loud.n_rounds_}, kkt" in capsys.readouterr().err
    assert rounds == [*range(1, loud.n_rounds_ + 1)]
    np.testing.assert_array_equal(quiet.components_, loud.components_)


def test_a_model_can_be_saved_with_its_run(model: FederatedPCA, axes: Any, tmp_path: Path) -> None:
    model.save(tmp_path / "alone")
    model.save(tmp_path / "whole", with_run=True)
    assert not hasattr(FederatedPCA.load(tmp_path / "alone"), "ledger_")
    loaded = FederatedPCA.load(tmp_path / "whole")
    assert loaded.ledger_.rows() == model.ledger_.rows()
    assert loaded.history_ == model.history_
    loaded.plot_convergence(ax=axes)
    loaded.report(tmp_path / "report.html")
    model.report(tmp_path / "before.html")
    assert (tmp_path / "report.html").read_text() == (tmp_path / "before.html").read_text()
    with pytest.raises(InputError, match="without its run"):
        FederatedPCA.load(tmp_path / "alone").save(tmp_path / "again", with_run=True)


def test_a_mapping_of_clients_is_no_table(model: FederatedPCA) -> None:
    for call in (model.transform, model.score, model.spe, model.hotelling_t2):
        with pytest.raises(InputError, match="Rows must be one table, but they are a mapping"):
            call(CLIENTS)
    classifier = FederatedClassifier(rounds=2, random_state=0)
    classifier.fit([*CLIENTS.values()], [(A[:, 0] > 0).astype(int) for A in CLIENTS.values()])
    with pytest.raises(InputError, match="one table"):
        classifier.predict(CLIENTS)
