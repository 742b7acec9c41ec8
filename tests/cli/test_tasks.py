"""Every task from files to model and report: run, resume, report, and what is refused."""

from __future__ import annotations

import inspect
import os
import re
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_world import IDS, check_refused, spawn, table, tree, write_jobs
from html_checker import Checker
from test_resume import wait_for_rounds

import fedspan as library
from fedspan.algorithms.gcca.network_files import find_maker
from fedspan.core.ledger import Ledger, Started
from fedspan.core.protocol import tasks_of
from fedspan.data.ids_and_labels import to_labels
from fedspan.errors import InputError
from fedspan.jobs.model import Job, parameters
from fedspan.jobs.tasks import TASKS, choices, estimator
from fedspan.reports.disclosure import describe_task

Fedspan = Callable[..., Any]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one job for each task, and its data; the working directory."""
    write_jobs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def features(path: Path) -> Any:
    """The numbers of such a file, read by other means."""
    head = path.read_text().split("\n")[0].split(",")
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=[i for i, name in enumerate(head) if name[0] == "x"])


def by_hand(task: str, folder: Path) -> Any:
    """The same fit without the command line."""
    people = {name: features(folder / f"{name}.csv") for name in ("north", "south", "west")}
    views = {f"view-{name}": features(folder / f"view-{name}.csv") for name in people}
    ill = {name: np.where(X[:, 0] > 0, "ill", "well") for name, X in people.items()}
    y = (np.random.default_rng(9).normal(size=(60, 2))[:, 0] > 0).astype(int)
    return {
        "pca": lambda: library.FederatedPCA(2, random_state=3).fit(people),
        "svd": lambda: library.FederatedSVD(2, random_state=3).fit(people),
        "personalized": lambda: library.PersonalizedPCA(2, random_state=3).fit(people),
        "gcca": lambda: library.FederatedGCCA(2, random_state=3).fit(views),
        "classifier": lambda: library.FederatedClassifier(
            hidden=6, batch_size=10, rounds=40, cost_limit=0.4, random_state=3
        ).fit(people, ill),
        "vertical-classifier": lambda: library.VerticalFederatedClassifier(
            hidden=6, batch_size=20, rounds=30, random_state=3
        ).fit(views, y),
        "regressor": lambda: library.FederatedRegressor(l2=0.001).fit(
            {name: X[:, :8] for name, X in people.items()}, {name: X[:, 8] for name, X in people.items()}
        ),
        "vertical-regressor": lambda: library.VerticalFederatedRegressor(l2=0.001).fit(views, y),
        "deep-gcca": lambda: library.DeepFederatedGCCA(
            dict.fromkeys(views, find_maker(f"{folder / 'networks.py'}:small", 2)), 2, rounds=5, random_state=3
        ).fit(views),
        "vertical-pca": lambda: library.VerticalPCA(2, random_state=3).fit(views),
        "vertical-svd": lambda: library.VerticalSVD(2, random_state=3).fit(views),
    }[task]()


ANSWER = {
    "pca": "components_", "svd": "components_", "personalized": "components_", "gcca": "common_", "classifier": "coef_",
    "deep-gcca": "common_", "vertical-regressor": "coef_",
    "vertical-classifier": "coef_", "regressor": "coef_", "vertical-pca": "scores_", "vertical-svd": "scores_",
}  # fmt: skip
SAYS = {
    "pca": ["2 principal components of 90 rows with 9 features at 3 clients", "Explained variance of each component"],
    "svd": ["2 right singular vectors", "Share of the sum of squares of each component", "<th class=\"number\">sum of"],
    "personalized": [
        "2 components for each of 3 clients, from 90 rows with 9 features in all, found in 3 rounds", "Solver: auto (",
        "Reconstruction error on held-out rows",
        "Distance of each client to the shared components", "What was sent",
        "its reconstruction error on held-out rows, for each λ", "its own components, its mean",
    ],
    "vertical-pca": ["2 principal components of 60 rows", "Where the components come from", "First two components"],
    "vertical-svd": ["2 singular vectors of 60 rows", "how much of each component", "First two components"],
    "gcca": [
        "2 common components of 60 entities. 3 clients hold one view each", "How well the views agree",
        "one digest of their ids", "<dt>cost</dt>", "Cost, by round",
    ],
    "vertical-regressor": ["A linear model by least squares with an L2 penalty of 0.001"],
    "deep-gcca": [
        "2 common components of 60 entities. 3 clients hold one view each", "How well the views agree", "Deep GCCA",
        "for each entity the output of its network", "Cost, by round",
    ],
    "classifier": [
        "A classifier of 2 classes (ill, well), learned in ", "from 90 rows with 9 features at 3 clients",
        "Solver: ssca (", "subject to 1 limit", "multiplier, by round", "cost ≤ 0.4", "<dt>slack</dt>", "‖ω‖²",
        "summed over a batch",
    ],
    "vertical-classifier": [
        "A classifier of 2 classes (0, 1), learned in 30 rounds",
        "from 60 rows whose 15 features are spread over 3 clients",
        "what its features contribute to the hidden cells",
    ],
    "regressor": [
        "A linear model by least squares with an L2 penalty of 0.001, found in 1 round from 90 rows with 8 features",
        "Solver: newton (9 parameters: the Hessian can be sent)", "Coefficients", "std. error", "(intercept)",
        "Standard errors are model-based", "the sums of its columns", "a weighted second-moment matrix",
    ],
}  # fmt: skip
METRIC = {
    "vertical-pca": "objective", "vertical-svd": "objective",
    "pca": "objective", "svd": "objective", "personalized": "λ", "gcca": "cost", "classifier": "constraint",
    "vertical-classifier": "cost", "regressor": "cost", "deep-gcca": "cost", "vertical-regressor": "cost",
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_a_task_from_files_to_report(jobs: Path, fedspan: Fedspan, task: str) -> None:
    result = fedspan("run", f"{task}.toml", "--out", "run")
    assert result.exit_code == 0, result.output
    assert re.search(rf"^round .*{METRIC[task]} [-\d]", result.stdout, re.MULTILINE), result.stdout
    model = estimator(task).load(jobs / "run" / "model.safetensors")
    np.testing.assert_array_equal(getattr(model, ANSWER[task]), getattr(by_hand(task, jobs), ANSWER[task]))

    page = (jobs / "run" / "report.html").read_text()
    assert Checker(page).open == []
    for text in SAYS[task]:
        assert text.replace("<", "&lt;") in page or text in page, text
    assert "the arrays of the task" not in page  # everything that left has words
    assert not re.search(r"\b(nan|inf|None)\b", page.split("<body>")[1].split("The job, to repeat")[0])
    if task == "svd":
        assert "variance" not in page.split("<body>")[1]

    before = tree(jobs)
    (jobs / "run" / "report.html").unlink()
    assert fedspan("report", "run").exit_code == 0
    assert tree(jobs) == before
    assert "nothing to do" in fedspan("resume", "run").stdout


@pytest.mark.parametrize(
    ("task", "choice"),
    [(t, c) for t in TASKS for c in choices(t) if t not in ("pca", "svd") and c not in ("auto", "ssca")],
)
def test_every_solver_and_method_has_its_report(jobs: Path, fedspan: Fedspan, task: str, choice: str) -> None:
    """Nothing that left is without words, and no number is missing."""
    path = jobs / f"{task}.toml"
    path.write_text(path.read_text().replace("cost_limit = 0.4\n", ""))
    result = fedspan("run", path, "--set", f"job.{TASKS[task].choice}={choice}", "--out", "run")
    assert result.exit_code == 0, result.output
    body = (jobs / "run" / "report.html").read_text().split("<body>")[1].split("The job, to repeat")[0]
    assert "the arrays of the task" not in body
    assert not re.search(r"\b(nan|inf|None)\b", body)
    assert f"Solver: {choice} (" in body or f"Solver: {choice[:-1]} (" in body  # fedsgdm


def test_every_task_of_every_algorithm_has_words() -> None:
    """The report can say of everything that a client can be asked what it shows."""
    servers = [getattr(library.algorithms, name) for name in library.algorithms.__all__]
    for server in servers:
        kind = getattr(server, "client", None)
        if isinstance(kind, type):
            started = Started(server.__name__, "", {}, 0, "as requested")
            for name in tasks_of(kind):
                assert not describe_task(started, name).startswith("the arrays of"), f"{server.__name__}: {name}"


@pytest.mark.parametrize("task", TASKS)
def test_a_resolved_job_says_all_and_is_read_back(jobs: Path, task: str) -> None:
    job = Job.load(jobs / f"{task}.toml").resolve()
    assert set(job.parameters) == set(parameters(task))
    (jobs / "again.toml").write_text(job.to_toml())
    assert Job.load(jobs / "again.toml").resolve() == job


def test_parameters_of_every_task_are_decided_on() -> None:
    """A parameter that an estimator gains must be decided on: in the job file, or for Python only."""
    only = {"engine", "callback", "checkpoint", "privacy", "secure", "limits", "model", "verbose"}
    only |= {"networks", "optimizer"}
    for task in TASKS:
        assert set(inspect.signature(estimator(task)).parameters) - set(parameters(task)) <= only, task


@pytest.mark.parametrize("task", ["classifier"])
def test_killed_and_resumed_it_is_the_same_to_the_byte(jobs: Path, fedspan: Fedspan, task: str) -> None:
    """The rounds before the kill are in the checkpoint to the bit; those after it are the same operations."""
    long = ["--set", "job.rounds=100"]  # a run whose output nobody reads waits in its first 50
    process = spawn("run", f"{task}.toml", *long, "--out", "killed", cwd=jobs)
    wait_for_rounds(process, jobs / "killed", 5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (jobs / "killed" / "model.safetensors").exists()
    result = fedspan("resume", "killed")
    assert result.exit_code == 0, result.output
    assert "round 1/100" not in result.stdout
    assert fedspan("run", f"{task}.toml", *long, "--out", "whole").exit_code == 0
    models = [(jobs / name / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert models[0] == models[1]


@pytest.mark.parametrize("task", ["personalized", "gcca", "vertical-classifier"])
def test_a_run_without_its_model_goes_on_to_the_same(jobs: Path, fedspan: Fedspan, task: str) -> None:
    assert fedspan("run", f"{task}.toml", "--out", "run").exit_code == 0
    model = (jobs / "run" / "model.safetensors").read_bytes()
    (jobs / "run" / "model.safetensors").unlink()
    result = fedspan("resume", "run")
    assert result.exit_code == 0, result.output
    assert (jobs / "run" / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize(
    ("task", "sets", "words"),
    [
        ("gcca", ["data.views=[]"], "There are no clients"),
        ("gcca", ['data.views=["view-north.csv"]'], "must be at least two views"),
        ("gcca", ['data.clients=["north.csv"]'], "data.clients is for pca and svd and personalized and classifier"),
        ("gcca", ["job.solver=krilov"], "job.solver must be a known name, but is 'krilov'. Did you mean 'krylov'?"),
        ("gcca", ["job.hidden=3"], "job.hidden is not for task 'gcca'; leave it out (it is for classifier, vertical"),
        ("gcca", ['data.columns=["x0"]'], "data.columns is for clients with the same columns"),
        ("gcca", ["data.id=passport"], "client 'view-north': There is no column 'passport'. The table has x0"),
        ("gcca", ["job.patience=3"], "job.patience needs data.held_out"),
        ("gcca", ['data.views=["view-north.csv", "gone.csv"]'], "gone.csv does not exist"),
        ("pca", ['data.views=["view-north.csv"]'], "data.views is for gcca and deep-gcca and vertical-classifier"),
        ("pca", ['data.held_out=["north.csv"]'], "data.held_out is for gcca"),
        ("classifier", ["job.method=sscaa"], "job.method must be a known name, but is 'sscaa'. Did you mean 'ssca'?"),
        ("classifier", ["job.solver=gram"], "job.solver is not for task 'classifier'"),
        ("classifier", ["data.label=z"], "client 'north': There is no column 'z'. The table has x0"),
        ("classifier", ["job.rounds=0"], "job.rounds must be an integer of at least 1, but is 0."),
        ("classifier", ["job.method=fedavg"], "method 'fedavg' cannot do cost_limit"),
        ("classifier", ["job.cost_limits=3"], "[job] has no key 'cost_limits'. Did you mean 'cost_limit'?"),
        ("classifier", ["job.limits=3"], "job.limits must be a list of tables such as { on ="),
        ("vertical-classifier", ["data.label=z"], "None of the views has the column 'z' (data.label)"),
        ("vertical-classifier", ["run.min_clients=2"], "run.min_clients is not for task 'vertical-classifier'"),
        (
            "vertical-classifier", ["job.method=fedavg"],
            "job.method must be a known name, but is 'fedavg'. Known: auto, sgd, sgdm, ssca.\n",
        ),
        ("personalized", ["job.method=eign"], "job.method must be a known name, but is 'eign'. Did you mean 'eigen'?"),
        ("personalized", ["job.n_components=10"], "n_components must be at most the 9 features, but is 10."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_leaves_nothing(
    jobs: Path, fedspan: Fedspan, task: str, sets: list[str], words: str
) -> None:
    before = tree(jobs)
    result = fedspan("run", f"{task}.toml", *(word for text in sets for word in ("--set", text)), "--out", "run")
    check_refused(result, words)
    assert tree(jobs) == before


@pytest.mark.parametrize(("task", "key"), [("gcca", "views"), ("classifier", "label"), ("personalized", "clients")])
def test_what_is_missing_is_named(jobs: Path, fedspan: Fedspan, task: str, key: str) -> None:
    path = jobs / f"{task}.toml"
    path.write_text("\n".join(line for line in path.read_text().split("\n") if not line.startswith(key)))
    result = fedspan("run", path, "--out", "run")
    assert result.exit_code == 2
    assert f"data.{key} is missing" in result.stderr


def test_views_in_another_order_are_refused(jobs: Path, fedspan: Fedspan) -> None:
    """The views of gcca sent digests of their ids before that was known, so their ledger stays."""
    path = jobs / "view-west.csv"
    head, first, second, *rest = path.read_text().split("\n")
    path.write_text("\n".join([head, second, first, *rest]))
    for task, words in {
        "gcca": "2 of 60",
        "vertical-classifier": "row 1 is 'p00' at 'view-north' and 'p01' at 'view-west'",
    }.items():
        result = fedspan("run", f"{task}.toml", "--out", task)
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert not (jobs / task / "model.safetensors").exists()
    assert not (jobs / "vertical-classifier").exists()
    assert Ledger.read(jobs / "gcca" / "ledger.jsonl").exchanges > 0


def test_views_that_disagree_on_the_label_are_refused(jobs: Path, fedspan: Fedspan) -> None:
    table(jobs / "view-west.csv", features(jobs / "view-west.csv"), person=IDS, y=[1] * 60)
    result = fedspan("run", "vertical-classifier.toml", "--out", "run")
    assert result.exit_code == 2
    assert "The views disagree about the label of a row: row" in result.stderr


def test_labels_beside_the_rows_of_an_npz_file(jobs: Path, fedspan: Fedspan) -> None:
    rng = np.random.default_rng(1)
    for name in "ab":
        X = rng.normal(size=(20, 3))
        np.savez(jobs / f"{name}.npz", X=X, digit=(X[:, 0] > 0).astype(np.uint8))
    words = ["--set", 'data.clients=["a.npz", "b.npz"]', "--set", "data.label=digit"]
    (jobs / "npz.toml").write_text((jobs / "classifier.toml").read_text().replace('id = "person"\n', ""))
    assert fedspan("run", "npz.toml", *words, "--out", "run").exit_code == 0
    assert library.FederatedClassifier.load(jobs / "run" / "model.safetensors").labels_ == [0, 1]
    result = fedspan("run", "npz.toml", *words[:2], "--out", "other")
    assert result.exit_code == 2
    assert "client 'a': There is no array 'y' in a.npz. It has X, digit" in result.stderr


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_labels_and_ids_in_arrow_files(jobs: Path, kind: str) -> None:
    frame = pytest.importorskip("pandas").read_csv(jobs / "north.csv", float_precision="round_trip")
    pytest.importorskip("pyarrow")
    getattr(frame, f"to_{kind}")(jobs / f"north.{kind}")
    opened = {
        end: Job.load(jobs / "classifier.toml", [f'data.clients=["north.{end}"]']).open("north")
        for end in (kind, "csv")
    }
    table_, as_csv = opened[kind], opened["csv"]
    np.testing.assert_array_equal(table_.X, as_csv.X)
    assert table_.names == as_csv.names
    np.testing.assert_array_equal(table_.ids, frame["person"])
    np.testing.assert_array_equal(table_.ids, as_csv.ids)
    np.testing.assert_array_equal(table_.labels, frame["y"])
    np.testing.assert_array_equal(table_.labels, as_csv.labels)


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (np.array([" 1", "0 "]), [1, 0]), (np.array([1.0, 0.0]), [1, 0]), (np.array(["1.5", "2"]), [1.5, 2.0]),
        (np.array(["1", "b"]), ["1", "b"]), (np.array([3, 4], dtype=np.uint8), [3, 4]),
    ],
)  # fmt: skip
def test_labels_are_numbers_where_they_can_be(column: Any, labels: list[Any]) -> None:
    assert to_labels(column).tolist() == labels


def test_an_empty_label_is_refused(jobs: Path, fedspan: Fedspan) -> None:
    path = jobs / "west.csv"
    path.write_text(path.read_text().replace(",ill,", ",,", 1))
    result = fedspan("run", "classifier.toml", "--out", "run")
    assert result.exit_code == 2
    assert "client 'west': Every row must have a label, but 1 of 30 are missing. Remove" in result.stderr


def test_rows_held_out_show_how_well_views_align(jobs: Path, fedspan: Fedspan) -> None:
    held = '"view-north.csv", "view-south.csv", "view-west.csv"'
    result = fedspan(
        "run", "gcca.toml", "--set", f"data.held_out=[{held}]", "--set", "job.patience=3", "--out", "run"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.stdout
    page = (jobs / "run" / "report.html").read_text()
    assert "<dt>alignment accuracy</dt>" in page
    assert "Alignment accuracy on held-out rows, by round" in page
    (jobs / "run" / "model.safetensors").unlink()
    assert fedspan("resume", "run").exit_code == 0


def test_components_that_stay_with_the_clients(jobs: Path, fedspan: Fedspan) -> None:
    assert fedspan("run", "personalized.toml", "--set", "job.collect=false", "--out", "run").exit_code == 0
    page = (jobs / "run" / "report.html").read_text()
    assert "The clients kept their components" in page
    assert "its own components, its mean" not in page


def test_a_label_cannot_break_the_page(jobs: Path, fedspan: Fedspan) -> None:
    for name in ("north", "south", "west"):
        path = jobs / f"{name}.csv"
        path.write_text(path.read_text().replace(",ill,", ",<b>{x}</b>,"))
    assert fedspan("run", "classifier.toml", "--out", "run").exit_code == 0
    page = (jobs / "run" / "report.html").read_text()
    assert Checker(page).open == []
    assert "&lt;b&gt;{x}&lt;/b&gt;" in page


def test_a_private_classifier(jobs: Path, fedspan: Fedspan) -> None:
    path = jobs / "classifier.toml"
    path.write_text(path.read_text().replace("cost_limit = 0.4\n", "standardize = false\n"))
    noise = ["epsilon=4", "delta=1e-3", "row_norm=1", "simulate=true"]
    words = [word for text in noise for word in ("--set", f"privacy.{text}")]
    result = fedspan("run", path, *words, "--set", "secure.enabled=true", "--out", "run")
    assert result.exit_code == 0, result.output
    page = (jobs / "run" / "report.html").read_text()
    assert "Differential privacy of single rows with ε = " in page
    assert (
        "The server saw (summed over all clients, with noise; no single client&#x27;s values): its number of rows; "
        "gradients of rows" in page
    )
    assert not re.search(r"\b(nan|inf|None)\b", page.split("<body>")[1].split("The job, to repeat")[0])


def test_secure_sums_of_features(jobs: Path, fedspan: Fedspan) -> None:
    plain = fedspan("run", "vertical-classifier.toml", "--out", "plain")
    secure = fedspan("run", "vertical-classifier.toml", "--set", "secure.enabled=true", "--out", "run")
    assert (plain.exit_code, secure.exit_code) == (0, 0), secure.output
    assert "; secure aggregation. The rows stayed" in (jobs / "run" / "report.html").read_text()


@pytest.mark.parametrize("task", TASKS)
def test_a_new_job_file_needs_only_its_files(jobs: Path, fedspan: Fedspan, task: str) -> None:
    result = fedspan("new", task, "fresh.toml")
    assert result.exit_code == 0, result.output
    assert "fedspan run fresh.toml" in result.stdout
    text = (jobs / "fresh.toml").read_text()
    job = Job.load(jobs / "fresh.toml")
    assert job.task == task
    assert list(job.clients) == ["a", "b"]
    for key in parameters(task):  # each stands there, with words, and every line that is taken in is understood
        line = re.search(rf"^(?:# )?({key} = [^#]*)# (\S.*)$", text, re.MULTILINE)
        assert line, key
        value = tomllib.loads(line[1])[key]
        if key != "patience":
            Job.load(jobs / "fresh.toml", [f"job.{key}={line[1].partition('=')[2].strip()}"])
        default = inspect.signature(estimator(task)).parameters[key].default
        assert key == "n_components" or default is None or value == default
    offered = re.findall(r"^# \[(\w+)\]", text, re.MULTILINE)
    assert tuple(offered) == TASKS[task].protected_by
    (jobs / "full.toml").write_text(re.sub(r"^# (\[|epsilon|delta|row_norm|enabled)", r"\1", text, flags=re.MULTILINE))
    full = Job.load(jobs / "full.toml")
    assert (bool(full.privacy), bool(full.secure)) == ("privacy" in offered, "secure" in offered)
    again = fedspan("new", task, "fresh.toml")
    assert again.exit_code == 2
    assert "fresh.toml already exists; choose another path." in again.stderr
    assert (jobs / "fresh.toml").read_text() == text


def test_a_new_job_of_an_unknown_task(jobs: Path, fedspan: Fedspan) -> None:
    before = tree(jobs)
    result = fedspan("new", "pac")
    assert result.exit_code == 2
    assert "'pac' is not a task. Did you mean 'pca'?" in result.stderr
    assert tree(jobs) == before
    assert fedspan("new", "svd", "no/such/folder.toml").exit_code == 2


def test_a_table_is_still_a_table_of_numbers(jobs: Path) -> None:
    """Text that is no id and no label is not silently dropped."""
    job = Job.load(jobs / "pca.toml", ["data.label=x1", 'data.clients=["north.csv"]'])
    with pytest.raises(
        InputError, match=r"client 'north': Column 'y' must be numeric, but row 1 .*north.csv contains '"
    ):
        job.open("north")
