"""The report: one file that stands by itself, says the truth, and shows names as they are."""

from __future__ import annotations

import csv
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cli_world import rows, tree, write_csv, write_jobs
from html_checker import Checker

from fedspan import FederatedClassifier, FederatedGCCA, FederatedPCA, PersonalizedPCA, RowDP
from fedspan._types import Arrays
from fedspan.algorithms.registry import ALGORITHMS
from fedspan.core.ledger import Exchange, Ledger, Note, RoundEnd, Started
from fedspan.core.protocol import Client, Server, Streams, task
from fedspan.data.tables import BatchedRows
from fedspan.jobs._scores import _sample_rows, load_scores
from fedspan.jobs.folder import RunFolder
from fedspan.reports._section import render_course
from fedspan.reports.disclosure import describe_privacy, describe_solver, describe_task
from fedspan.reports.drawing.charts import (
    draw_bar_chart,
    draw_curve_chart,
    draw_line_chart,
    draw_picture,
    to_standalone,
)
from fedspan.reports.drawing.client_charts import draw_participation
from fedspan.reports.facts import RunFacts
from fedspan.reports.format import Html, shorten_paths, to_csv
from fedspan.reports.report import render_report
from fedspan.reports.verdict import classify_protection

Fedspan = Callable[..., Any]
PCA = RunFacts("pca")


def test_the_report_of_a_run(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--set", "job.solver=ssi", "--out", "run").exit_code == 0
    page = (world / "run" / "report.html").read_text()
    checker = Checker(page)
    assert checker.open == []
    assert checker.seen.count("svg") == 5  # two courses of KKT, the scree, rows, loadings
    assert "http" not in page.replace("http-equiv", "")
    assert "2 principal components of 65 rows with 5 features at 2 clients, found in" in page
    assert "Solver: ssi (" in page
    assert "No differential privacy (ε is infinite) and no secure aggregation." in page
    assert "The server saw (of each client): its number of rows and its column sums; " in page
    assert "products of its second-moment matrix" in page
    model = FederatedPCA.load(world / "run" / "model.safetensors")
    for text in ("height", "north", "south", "Seed 7", "random_state = 7", "numpy", "converged"):
        assert text in page
    assert f"<dt>rounds</dt><dd>{model.n_rounds_}</dd>" in page
    assert page.count(f"{model.n_rounds_} of {model.n_rounds_}</td>") == 2  # both clients in every round
    assert "To repeat the run, save this as job.toml" in page
    assert "No attack has been run on these answers, because the messages were not kept." in page
    top = int(np.argmax(np.abs(model.components_[0])))
    assert f"{model.components_[0, top]:+.2f} {model.feature_names_in_[top]}" in page


def test_written_anew_it_is_the_same(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    before = tree(world)
    (world / "run" / "report.html").unlink()
    result = fedspan("report", "run")
    assert result.exit_code == 0
    assert result.stdout == "report: run/report.html\n"
    assert tree(world) == before


def test_an_unfinished_run_has_no_report(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    (world / "run" / "model.safetensors").unlink()
    result = fedspan("report", "run")
    assert result.exit_code == 2
    assert "run has no model yet; complete it with: fedspan resume run" in result.stderr


def test_names_are_text_not_markup(world: Path, fedspan: Fedspan) -> None:
    names = ["<script>alert(1)</script>", "a&b", '"quoted"', "x", "y"]
    for seed, client in enumerate(("<b>", "b&c")):
        write_csv(world / f"{seed}.csv", rows(seed, 30), [name.replace('"', "'") for name in names])
        job = f"--set=data.clients.{client}={seed}.csv"
        (world / f"set{seed}").write_text(job)
    sets = ["--set", "data.clients={}", *((world / f"set{i}").read_text() for i in range(2))]
    assert fedspan("run", "job.toml", *sets, "--out", "run").exit_code == 0
    page = (world / "run" / "report.html").read_text()
    Checker(page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b&gt;</td>" in page
    assert "b&amp;c</td>" in page


def test_the_report_of_a_run_in_which_only_sample_rows_take_part(world: Path, fedspan: Fedspan) -> None:
    for i in range(8):
        write_csv(world / f"c{i}.csv", rows(i, 20), [*"abcde"])
    files = ", ".join(f'"c{i}.csv"' for i in range(8))
    sets = [
        f"data.clients=[{files}]",
        "job.solver=auto",
        "job.task=svd",
        "job.participation={ count = 3 }",
        "job.random_state=1",
    ]
    words = [word for text in sets for word in ("--set", text)]
    result = fedspan("run", "job.toml", *words, "--out", "run")
    assert result.exit_code == 0, result.output
    page = (world / "run" / "report.html").read_text()
    Checker(page)
    ledger = Ledger.read(world / "run" / "ledger.jsonl")
    course = [row for row in ledger.history() if row["round"] > 0]
    assert sum("kkt" in row for row in course) < len(course) / 2  # so the change is drawn, in every round
    assert "Change of the estimate, by round" in page
    assert page.count('class="dot"') == 2 * len(course)
    assert f"<dt>floor of the change</dt><dd>{course[-1]['floor']:.2g}</dd>" in page
    exchanges = [e for e in ledger.events if isinstance(e, Exchange) and e.round > 0]
    part = {f"c{i}": len({e.round for e in exchanges if f"c{i}" in e.clients}) for i in range(8)}
    assert len(set(part.values())) > 1
    for client, count in part.items():
        assert re.search(rf"<td>{client}</td>.*?>{count} of {ledger.rounds}</td>", page)
    assert "of the sum of squares" in page


@pytest.mark.parametrize(("d", "pictures"), [(64, 2), (60, 0)])
def test_pictures_where_features_are_pixels(d: int, pictures: int) -> None:
    model = FederatedPCA(2, random_state=0).fit([rows(0, 100, d)])
    page = render_report(model, model.ledger_, PCA)
    assert page.count('class="picture"') == pictures
    assert "Solved in one round, so there is no convergence curve." in page  # gram
    model.feature_names_in_ = np.array([f"age {i}" for i in range(d)], dtype=object)
    assert 'class="picture"' not in render_report(model, model.ledger_, PCA)


def test_missed_exchanges_and_repeated_notes_are_shown() -> None:
    model = FederatedPCA(2, random_state=0).fit({"a": rows(0, 50), "b": rows(1, 50)})
    ledger = Ledger()
    for event in (*model.ledger_.events, Note("same"), Note("same")):
        ledger.add(event)
    ledger.add(Exchange(1, 9, "dance", ("a", "b"), (10, 10), (0, 2000), (0.1, 0.2), missing=("a",)))
    page = render_report(model, ledger, PCA)
    asked = model.ledger_.exchanges + 1
    assert f"{asked - 1} of {asked}</td>" in page
    assert f"{asked} of {asked}</td>" in page
    assert "<li>same (×2)</li>" in page
    assert "the arrays of the task 'dance'" in describe_privacy(ledger)


def test_rows_are_where_the_model_puts_them(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--set", "job.scale=true", "--out", "run").exit_code == 0
    model = FederatedPCA.load(world / "run" / "model.safetensors")
    del model.feature_names_in_
    kept = load_scores(world / "run" / "scores.safetensors")
    assert kept is not None
    for name, X in {"north": rows(0, 40), "south": rows(1, 25)}.items():
        np.testing.assert_allclose(kept.groups[name], model.transform(X), rtol=1e-5, atol=1e-5)
    page = (world / "run" / "report.html").read_text()
    svg = next(svg for svg in re.findall(r"<svg.*?</svg>", page) if "First two components: all 65 rows" in svg)
    paths = ET.fromstring(svg).findall("path")  # noqa: S314
    assert [path.find("title").text for path in paths] == ["north", "south"]  # type: ignore[union-attr]
    places = [np.array(re.findall(r"M([\d.]+) ([\d.]+)h0", path.get("d", "")), dtype=float) for path in paths]
    for name, drawn in zip(("north", "south"), places, strict=True):
        for axis, way in ((0, 1), (1, -1)):  # up is down in SVG
            assert np.corrcoef(way * drawn[:, axis], kept.groups[name][:, axis])[0, 1] > 0.9999
    assert "To share this page without them: <code>fedspan report run --without-rows</code>" in page

    assert fedspan("report", "run", "--without-rows").exit_code == 0
    without = (world / "run" / "report.html").read_text()
    assert 'class="points' not in without
    assert "Single rows were left out of this page" in without


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["secure.enabled=true"], "the job asks to protect them"),
        (["privacy.epsilon=4", "privacy.delta=1e-3", "privacy.row_norm=5"], "the job asks to protect them"),
        (["job.n_components=1"], "a scatter plot needs two components"),
    ],
)
def test_rows_that_are_not_drawn(world: Path, fedspan: Fedspan, sets: list[str], says: str) -> None:
    words = [word for text in ["job.solver=auto", *sets] for word in ("--set", text)]
    assert fedspan("run", "job.toml", *words, "--out", "run").exit_code == 0
    assert not (world / "run" / "scores.safetensors").exists()
    page = (world / "run" / "report.html").read_text()
    assert 'class="points' not in page
    assert says in page


def test_rows_that_stayed_elsewhere() -> None:
    model = FederatedPCA(2, random_state=0).fit([rows(0, 50)])
    page = render_report(model, model.ledger_, PCA)
    assert "Rows are not drawn: they stayed with the clients" in page


def test_some_of_many_rows_are_drawn_from_any_kind_of_matrix() -> None:
    class Batches(BatchedRows):
        def __init__(self) -> None:
            self.shape = (1000, 5)

        def batches(self) -> Any:
            yield from np.array_split(X, 7)

    X = rows(0, 1000)
    some = _sample_rows(X, 90)
    assert some.shape == (90, 5)
    assert (some[0] == X[0]).all()
    assert (some[-1] == X[-1]).all()
    np.testing.assert_array_equal(_sample_rows(Batches(), 90), some)
    np.testing.assert_array_equal(_sample_rows(sp.csr_array(X), 90), some)
    np.testing.assert_array_equal(_sample_rows(X[:3], 90), X[:3])


def test_what_an_audit_found_is_in_the_report(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--transcript", "--out", "run").exit_code == 0
    page = (world / "run" / "report.html").read_text()
    assert "No attack has been run on this transcript yet. To run one: <code>fedspan audit run</code>" in page
    assert fedspan("audit", "run").exit_code == 0
    page = (world / "run" / "report.html").read_text()
    Checker(page)
    assert '<a href="audit.html">' in page
    assert "<li>north, south: its second-moment matrix is known to the server" in page


def test_who_took_part_is_drawn_if_not_all_did() -> None:
    strips = {"a": [2, 2, 2], "b<": [2, 1, 0]}
    svg = ET.fromstring(draw_participation(strips, "t"))  # noqa: S314
    assert [rect.get("class") for rect in svg.iter("rect")] == ["bar", "bar", "bar", "bar", "below"]
    long = draw_participation({"a": [2] * 999 + [1]}, "t")
    assert long.count("<rect") == 120
    assert long.count("below") == 1  # one round of many is still seen


def test_like_clients_are_near_each_other_on_the_map() -> None:
    rng = np.random.default_rng(0)
    kinds = [np.linalg.qr(rng.normal(size=(9, 9)))[0] * 0.4 ** np.arange(9) for _ in range(2)]
    clients = {f"{'ab'[i % 2]}{i}": rng.normal(size=(300, 9)) @ kinds[i % 2].T for i in range(6)}
    model = PersonalizedPCA(2, shrinkage=0.01, random_state=0).fit(clients)
    page = render_report(model, model.ledger_, RunFacts("personalized"))
    svg = next(svg for svg in re.findall(r"<svg.*?</svg>", page) if "Map of the clients" in svg)
    dots = ET.fromstring(svg).findall("circle")  # noqa: S314
    at = {dot.find("title").text: np.array([float(dot.get("cx", 0)), float(dot.get("cy", 0))]) for dot in dots}  # type: ignore[union-attr]
    assert set(at) == {*clients, "shared by all"}
    near = max(np.linalg.norm(at[f"a{i}"] - at[f"a{j}"]) for i in (0, 2, 4) for j in (0, 2, 4))
    far = min(np.linalg.norm(at[f"a{i}"] - at[f"b{j}"]) for i in (0, 2, 4) for j in (1, 3, 5))
    assert far > 3 * near


def test_a_password_in_an_address_is_not_shown() -> None:
    model = FederatedPCA(2, random_state=0).fit([rows(0, 50)])
    job = '[data.clients]\nnorth = "postgresql://ann:s3cret@db.example:5432/x"\nsouth = "sqlite:///b.db"\n'
    page = render_report(model, model.ledger_, RunFacts("pca", job))
    assert "s3cret" not in page
    assert "postgresql://ann:…@db.example:5432/x" in page
    assert "sqlite:///b.db" in page


def test_a_course_that_begins_far_off_is_drawn_from_where_it_can_be_seen() -> None:
    ledger = Ledger()
    for number in range(1, 101):
        ledger.add(RoundEnd(number, 0.1, {"x": 1000.0 if number < 5 else float(number % 3)}))
    drawn = render_course(ledger, {"x": "x"}, "the x")
    assert "the x (from round 11 on; before that up to 1,000)" in drawn
    for number in range(1, 101):
        ledger.add(RoundEnd(number, 0.1, {"x": float(number)}))
    assert "from round" not in render_course(ledger, {"x": "x"}, "the x")


def test_charts_are_where_the_numbers_are() -> None:
    svg = ET.fromstring(draw_line_chart([1, 2, 3], [1e-1, 1e-2, 1e-5], "t", "round", 1e-4, in_bytes=False))  # noqa: S314
    points = [tuple(map(float, p.split(","))) for p in svg.find("polyline").get("points").split()]  # type: ignore[union-attr]
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert (y3 - y2) / (y2 - y1) == pytest.approx(3, abs=0.05)  # three decades against one
    level = next(line for line in svg.iter("line") if line.get("class") == "level")
    assert float(level.get("y1", 0)) == pytest.approx(y2 + 2 * (y2 - y1), abs=0.3)

    bars = ET.fromstring(draw_bar_chart([0.5, 0.25], "t", "component"))  # noqa: S314
    heights = [float(rect.get("height", 0)) for rect in bars.iter("rect")]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)

    cells = list(ET.fromstring(draw_picture([1.0, 0.0, -0.5, 0.25], 2, "t")))  # noqa: S314
    assert [(c.get("class"), c.get("x"), c.get("y"), c.get("opacity")) for c in cells] == [
        ("above", "0", "0", "1.00"), ("below", "0", "1", "0.50"), ("above", "1", "1", "0.25"),
    ]  # fmt: skip


def test_curves_are_where_the_numbers_are() -> None:
    curves = {"up": [-1.0, 0.0, 3.0], "flat <b>": [0.0, 0.0, 0.0]}
    svg = ET.fromstring(draw_curve_chart([1, 2, 4], curves, "t", "round", level=0.0))  # noqa: S314
    up, flat = (
        [tuple(map(float, p.split(","))) for p in line.get("points", "").split()] for line in svg.iter("polyline")
    )
    assert (up[2][0] - up[1][0]) == pytest.approx(2 * (up[1][0] - up[0][0]), abs=0.2)
    assert (up[1][1] - up[2][1]) == pytest.approx(3 * (up[0][1] - up[1][1]), abs=0.3)
    assert {y for _, y in flat} == {up[1][1]}
    level = next(line for line in svg.iter("line") if line.get("class") == "level")
    assert float(level.get("y1", 0)) == up[1][1]
    assert [text.text for text in svg.iter("text")][-2:] == ["up", "flat <b>"]  # the legend

    marked = ET.fromstring(draw_curve_chart([0, 1, 2], {"a": [1, 2, 1]}, "t", "λ", names=["0", "", "∞"], mark=1))  # noqa: S314
    line = next(line for line in marked.iter("line") if line.get("class") == "level")
    points = next(iter(marked.iter("polyline"))).get("points", "").split()
    assert line.get("x1") == points[1].split(",")[0]
    assert {"0", "∞"} <= {text.text for text in marked.iter("text")}


@pytest.mark.parametrize("count", [1, 2, 3, 30, 300])
def test_charts_of_any_length(count: int) -> None:
    ET.fromstring(draw_bar_chart([1 / (i + 1) for i in range(count)], "t", "component"))  # noqa: S314
    for level in (0.0, 1e-6):
        for bytes_ in (True, False):
            xs = [float(1000 * i) for i in range(1, count + 1)]
            text = draw_line_chart(xs, [1e-3] * count, "<t>", "x", level, in_bytes=bytes_)
            ET.fromstring(text)  # noqa: S314
            assert not re.search("nan|inf", text)
            for ys in ([1e-3] * count, [0.0] * count, [(-1) ** i * 1e9 * i for i in range(count)]):
                text = draw_curve_chart(xs, {"<a>": ys, "b": ys}, "<t>", "x", level=level or None, in_bytes=bytes_)
                ET.fromstring(text)  # noqa: S314
                assert not re.search("nan|inf", text)


def test_a_kkt_violation_that_nobody_knows_is_not_shown() -> None:
    model = FederatedPCA(2, solver="ssi", random_state=0).fit([rows(0, 50)])
    assert "<dt>KKT violation</dt>" in render_report(model, model.ledger_, PCA)
    model.ledger_.add(RoundEnd(model.n_rounds_ + 1, 0.1, {"objective": 1.0, "kkt": float("nan")}))
    page = render_report(model, model.ledger_, PCA)
    assert "KKT violation</dt>" not in page
    model.ledger_.add(RoundEnd(model.n_rounds_ + 2, 0.1, {"objective": 1.0, "kkt": float("nan"), "change": 0.5}))
    assert "<dt>change of the estimate</dt><dd>5.00e-01</dd>" in render_report(model, model.ledger_, PCA)
    assert "nan" not in page.split("<body>")[1]


def test_a_report_from_python_needs_no_job_file(tmp_path: Path) -> None:
    model = FederatedPCA(2, solver="gram", random_state=3).fit({"a": rows(0, 50), "b": rows(1, 30)})
    model.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert Checker(page).open == []
    assert "Fit the same data with random_state=3." in page
    assert "job.toml" not in page
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]


def test_an_old_ledger_does_not_say_which_solver_ran() -> None:
    model = FederatedPCA(2, random_state=0).fit([rows(0, 50)])
    old = Ledger()
    old.events = [event for event in model.ledger_.events if not isinstance(event, Started)]
    assert describe_solver(old) == ""
    assert "Solver:" not in render_report(model, old, PCA)
    assert "Solver: gram (" in render_report(model, model.ledger_, PCA)


def test_a_task_says_itself_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dancer(Client[None]):
        State = type(None)

        def init(self) -> None:
            return None

        @task(releases={"steps": None}, shows="its steps")
        def dance(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
            return state, {}

        @task(releases={}, shows="")
        def rest(self, state: None, arrays: Arrays, rng: Streams) -> tuple[None, Arrays]:
            return state, {}

    class Ball(Server[None]):
        client = Dancer

    monkeypatch.setitem(ALGORITHMS, "Ball", Ball)
    started = Started("Ball", "", {}, 0, "as requested")
    assert describe_task(started, "dance") == "its steps"
    assert describe_task(started, "rest") == ""
    assert describe_task(started, "sing") == "the arrays of the task 'sing'"
    assert describe_task(started, "describe_columns") == describe_task(None, "describe_columns") != ""


def test_a_chart_can_stand_by_itself() -> None:
    svg = ET.fromstring(to_standalone(draw_bar_chart([0.5, 0.25], "a & b", "component")))  # noqa: S314
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    style = svg.find("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert ".bar { fill: var(--blue, #2563b8); }" in (style.text or "")


def test_the_answer_comes_first_and_details_are_folded(world: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "job.toml", "--set", "job.solver=ssi", "--out", "run").exit_code == 0
    page = (world / "run" / "report.html").read_text()
    order = ['class="verdict good"', "Components</h2>", "Protection</h2>", "What was sent</h2>", "Convergence</h2>"]
    places = [page.index(part) for part in [*order, "<details><summary>All figures", "The job, to repeat"]]
    assert places == sorted(places)
    large = page.split('<dl class="figures large">')[1].split("</dl>")[0]
    assert large.count("<dt>") == 4
    assert '<span class="badge none">No protection added</span>' in page


def test_the_verdict_says_what_went_wrong(world: Path, fedspan: Fedspan) -> None:
    sets = ["--set", "job.solver=ssi", "--set", "job.max_rounds=1", "--set", "job.tol=1e-9"]
    assert fedspan("run", "job.toml", *sets, "--out", "run").exit_code == 0
    page = (world / "run" / "report.html").read_text()
    verdict = page.split('<div class="verdict ')[1].split("</div>")[0]
    assert verdict.startswith('caution"')
    assert "Stopped before reaching tol." in verdict
    assert ", where tol is 1e-09." in verdict
    assert "<li>" in verdict  # the warning that the fit gave


@pytest.mark.parametrize(
    ("events", "privacy", "level"),
    [
        ([Exchange(1, 1, "gram", ("a",), (1,), (1,), (0.1,))], None, "none"),
        ([Exchange(1, 1, "gram", ("a",), (1,), (1,), (0.1,), secure=True)], None, "partial"),
        ([Exchange(1, 1, "gram", ("a",), (1,), (1,), (0.1,), noise=20.0)], RowDP(1.0, 1e-6, 1.0), "strong"),
        (
            [Exchange(1, 1, "gram", ("a",), (1,), (1,), (0.1,), noise=20.0)],
            RowDP(1.0, 1e-6, 1.0, simulate=True),
            "none",
        ),
        ([], None, "none"),
    ],
)
def test_the_badge_says_what_was_sent_not_what_was_asked(
    events: list[Exchange], privacy: RowDP | None, level: str
) -> None:
    ledger = Ledger()
    for event in events:
        ledger.add(event)
    assert classify_protection(ledger, privacy).level == level
    without = [replace(event, noise=0.0, secure=False) for event in events]
    plain = Ledger()
    for event in without:
        plain.add(event)
    assert classify_protection(plain, privacy).level == "none"


def test_a_page_that_is_passed_on_has_no_folders_of_this_machine(world: Path, fedspan: Fedspan) -> None:
    table = str(world / "north.csv")
    sets = ["--set", f"data.clients=['{table}', '{world / 'south.csv'}']", "--transcript"]
    result = fedspan("run", "job.toml", *sets, "--out", str(world / "deep" / "run"))
    assert result.exit_code == 0, result.output
    assert fedspan("audit", str(world / "deep" / "run")).exit_code == 0
    place = RunFolder(world / "deep" / "run")
    assert str(world) in place.job.read_text()  # so there was something to leave out
    page = place.report.read_text()
    assert str(world) not in page
    assert "…/north.csv" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('north = "/data/me/my data/north.csv"', 'north = "…/north.csv"'),
        ("url = 'sqlite:////data/me/a.db?table=x'", "url = 'sqlite:///…/a.db?table=x'"),
        (r'x = "C:\\Users\\me\\x.csv"', 'x = "…/x.csv"'),
        ("warning: /srv/a/b.csv has 3 rows", "warning: …/b.csv has 3 rows"),
        (
            "and/or, 1 / n, postgresql://host/table, data/x.csv, 3/4",
            "and/or, 1 / n, postgresql://host/table, data/x.csv, 3/4",
        ),
    ],
)
def test_folders_of_absolute_paths_are_left_out(text: str, shown: str) -> None:
    assert shorten_paths(text) == shown


def test_tables_and_figures_are_saved_as_they_are_shown(world: Path, fedspan: Fedspan) -> None:
    sets = ["--set", "job.solver=ssi"]
    assert fedspan("run", "job.toml", *sets, "--out", "run").exit_code == 0
    result = fedspan("report", "run", "--figures", "figures")
    assert result.exit_code == 0, result.output
    found = {path.name: path.read_bytes() for path in (world / "figures").iterdir()}
    assert f"{len(found)} figures and tables: figures" in result.stdout
    drawings = [name for name in found if name.endswith(".svg")]
    assert len(drawings) == 5
    for name in drawings:
        assert ET.fromstring(found[name]).tag.endswith("svg")  # noqa: S314
        assert found[name.replace(".svg", ".png")].startswith(b"\x89PNG")
    model = FederatedPCA.load(world / "run" / "model.safetensors")
    head, *lines = csv.reader(found["loadings.csv"].decode().splitlines())
    assert head == ["no.", "variance", "cumulative", "largest loadings"]
    assert [line[1] for line in lines] == [f"{share:.2%}" for share in model.explained_variance_ratio_]
    clients = [line[0] for line in csv.reader(found["clients.csv"].decode().splitlines())]
    assert clients == ["client", "north", "south"]


def test_figures_without_their_extra_or_their_folder(
    world: Path, fedspan: Fedspan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fedspan("run", "job.toml", "--out", "run").exit_code == 0
    (world / "file").write_text("")
    result = fedspan("report", "run", "--figures", "file/deeper")
    assert result.exit_code == 2
    assert "choose another folder" in result.stderr
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    result = fedspan("report", "run", "--figures", "figures")
    assert result.exit_code != 0
    assert "pip install 'fedspan[figures]'" in result.stderr


def test_no_spreadsheet_takes_a_cell_for_a_formula() -> None:
    cells = ["=1+1", "+cmd|' /C calc'!A0", "@x", "-2+3", "-0.5", "+1.2e-3", "12 %", Html("<b>=A1</b> &amp; b"), "a\nb"]
    (row,) = csv.reader(to_csv([cells]).splitlines())
    assert row == ["'=1+1", "'+cmd|' /C calc'!A0", "'@x", "'-2+3", "-0.5", "+1.2e-3", "12 %", "'=A1 & b", "a\\nb"]


def test_rows_are_coloured_by_the_label_if_it_has_few_values(world: Path, fedspan: Fedspan) -> None:
    classes = np.array(["ill", "well"])
    for seed, name in enumerate(("north", "south")):
        X = rows(seed, 30)
        lines = [",".join([*map(str, row), classes[i % 2], f"p{i}"]) for i, row in enumerate(X)]
        (world / f"{name}.csv").write_text("\n".join(["a,b,c,d,e,state,person", *lines]))
    assert (
        fedspan("run", "job.toml", "--set", "data.label=state", "--set", "data.id=person", "--out", "run").exit_code
        == 0
    )
    kept = load_scores(world / "run" / "scores.safetensors")
    assert kept is not None
    assert kept.by == "state"
    assert sorted(kept.groups) == ["ill", "well"]
    model = FederatedPCA.load(world / "run" / "model.safetensors")
    del model.feature_names_in_
    expected = np.vstack([model.transform(rows(seed, 30)[1::2]) for seed in (0, 1)])
    np.testing.assert_allclose(kept.groups["well"], expected, rtol=1e-4, atol=1e-4)
    assert "coloured by state" in (world / "run" / "report.html").read_text()
    sets = ["--set", "data.label=person", "--set", 'data.columns=["a", "b", "c", "d", "e"]']
    assert fedspan("run", "job.toml", *sets, "--out", "many").exit_code == 0  # 30 values are too many to tell apart
    many = load_scores(world / "many" / "scores.safetensors")
    assert many is not None
    assert many.by == "client"


def test_a_curve_is_drawn_to_its_end() -> None:
    """What falls to nearly nothing, or to nothing, is not drawn as if it had stopped before."""
    ys = [4e11, 3.0, 1.099, 0.0]
    chart = draw_line_chart(range(1, 5), ys, "cost", "round")
    heights = [float(y) for y in re.findall(r'class="dot" cx="[\d.]+" cy="([\d.]+)"', chart)]
    assert heights == sorted(heights)
    assert len(set(heights)) == 4
    assert heights[2] - heights[1] > 2  # 3.0 and 1.099 are apart
    assert ">0</text>" in chart


@pytest.mark.parametrize("values", [[-1.23456e-5, -1.23e-5], [1.0e12, 1.1e12], [-12345678.0, 5.0]])
def test_numbers_at_an_axis_are_not_cut(values: list[float]) -> None:
    names = {"a rather long name of a curve": values, "another long name of a curve": values[::-1]}
    chart = draw_curve_chart([1, 2], names, "x", "round")
    for x, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)</text>', chart):
        assert float(x) >= 7.0 * len(text)
    for x, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="start">([^<]*)</text>', chart):
        assert float(x) + 6.5 * len(text) <= 360


def test_gcca_says_which_features_each_view_contributes(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(80, 1))
    noise = {name: 0.1 * rng.normal(size=(80, 3)) for name in ("laboratory", "pharmacy")}
    views = {
        name: pd.DataFrame(hidden * [[0, 2, 0]] + X + rng.normal(size=(80, 3)) * [1, 0, 1], columns=list("abc"))
        for name, X in noise.items()
    }
    model = FederatedGCCA(n_components=1, random_state=0).fit(views)
    model.report(tmp_path / "report.html")
    part = (tmp_path / "report.html").read_text().partition("What each view contributes")[2].partition("<h2>")[0]
    lines = re.findall(r"<tr>(.*?)</tr>", part)[1:]
    assert len(lines) == 2
    for line, (name, W) in zip(lines, zip(views, model.weights_, strict=True), strict=True):
        assert f"<td>{name}</td>" in line
        first = re.search(r'"keep">([-+.\de]+) (\w)<', line)
        assert first
        assert first[2] == "b"  # which alone has what the views share
        assert float(first[1]) == pytest.approx(W[1, 0], rel=0.05)


def test_a_classifier_says_how_it_does_at_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedspan: Fedspan
) -> None:
    write_jobs(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert fedspan("run", "classifier.toml", "--out", "open").exit_code == 0
    model = FederatedClassifier.load("open/model.safetensors")
    assert model.client_accuracy_ is not None
    page = Path("open/report.html").read_text()
    for name in ("north", "south", "west"):
        lines = [line.split(",") for line in (tmp_path / f"{name}.csv").read_text().splitlines()[1:]]
        X = np.array([line[:9] for line in lines], dtype=float)
        right = float(np.mean(model.predict(X) == [line[9] for line in lines]))
        assert model.client_accuracy_[name] == [30.0, pytest.approx(right)]
        assert f'<td>{name}</td><td class="number">30</td><td class="number">{100 * right:.1f} %</td>' in page
    assert fedspan("run", "classifier.toml", "--set", "secure.enabled=true", "--out", "secure").exit_code == 0
    assert FederatedClassifier.load("secure/model.safetensors").client_accuracy_ is None
    assert "Accuracy at each client" not in Path("secure/report.html").read_text()
