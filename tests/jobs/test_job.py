"""The job file: what is understood, what is refused, and that it is written back as it was understood."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan import FederatedPCA, Participation, RowDP, Secure
from fedspan.data.preparation import Preparation
from fedspan.errors import InputError
from fedspan.jobs.model import Job, parameters, parse

HERE = Path("/here")
JOB: dict[str, Any] = {"job": {"task": "pca"}, "data": {"clients": ["a.csv", "b.npy"]}}


def with_(**tables: dict[str, Any]) -> dict[str, Any]:
    return {name: {**JOB.get(name, {}), **tables.get(name, {})} for name in {**JOB, **tables}}


def test_parameters_are_the_estimators_own() -> None:
    """A parameter that the estimator gains must be decided on here: in the job file, or in a table of its own."""
    for_python_only = {"engine", "callback", "verbose", "checkpoint", "privacy", "secure"}
    assert set(parameters()) == set(inspect.signature(FederatedPCA).parameters) - for_python_only
    assert parameters()["tol"] == (float,)
    assert set(parameters()["bits"]) == {int, str, type(None)}


def test_paths_are_beside_the_job_file_and_files_name_the_clients() -> None:
    assert parse(with_(), HERE).clients == {"a": "/here/a.csv", "b": "/here/b.npy"}
    same = parse(with_(data={"clients": ["x/rows.csv", "y/rows.csv", "/z/rows.csv"]}), HERE)
    assert same.clients == {"0": "/here/x/rows.csv", "1": "/here/y/rows.csv", "2": "/z/rows.csv"}
    table = parse(with_(data={"clients": {"north": "n.csv", "south": "s.csv"}}), HERE)
    assert table.clients == {"north": "/here/n.csv", "south": "/here/s.csv"}


def test_an_integer_will_do_for_a_number() -> None:
    tol = parse(with_(job={"tol": 0}), HERE).parameters["tol"]
    assert tol == 0.0
    assert type(tol) is float


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"jbo": {}}, "The job file has an unknown table 'jbo'. Did you mean 'job'?"),
        ({"job": {"n_componets": 3}}, r"\[job\] has no key 'n_componets'. Did you mean 'n_components'\?$"),
        ({"data": {"colums": []}}, r"\[data\] has no key 'colums'. Did you mean 'columns'\?$"),
        ({"run": {"checkpoint_evry": 2}}, r"\[run\] has no key 'checkpoint_evry'. Did you mean 'checkpoint_every'\?$"),
        ({"job": {"engine": "flare"}}, r"\[job\] has no key 'engine'"),
        ({"job": {"task": "pac"}}, r"job.task must name a task, but is 'pac'. Did you mean 'pca'\?"),
        ({"job": {"task": "gcca"}}, "data.clients is for pca and svd"),
        ({"job": {"n_components": "ten"}}, "job.n_components must be an integer .* 'mle' or 'auto', but is 'ten'"),
        ({"job": {"n_components": 2.5}}, "job.n_components must be an integer .* 'mle' or 'auto', but is 2.5"),
        ({"job": {"n_components": True}}, "job.n_components must be an integer or a number or a string, but is True"),
        ({"job": {"center": 1}}, "job.center must be true or false, but is 1"),
        ({"job": {"tol": "small"}}, "job.tol must be a number, but is 'small'"),
        ({"job": {"bits": 2.0}}, "job.bits must be an integer or a string, but is 2.0"),
        ({"job": {"random_state": -1}}, r"^job.random_state must be an integer of at least 0, but is -1\.$"),
        ({"job": {"max_rounds": 0}}, "job.max_rounds must be an integer of at least 1, but is 0"),
        ({"job": {"solver": "krilov"}}, r"job.solver must be a known name, but is 'krilov'. Did you mean 'krylov'\?"),
        ({"data": {"clients": []}}, "There are no clients. Give a list or a mapping"),
        (
            {"data": {"clients": [1, 2]}},
            r"data.clients must be a list of strings or a table name = path, but is \[1, 2\]",
        ),
        (
            {"data": {"clients": {"a": 1}}},
            "data.clients must be a list of strings or a table name = path, but is {'a': 1}",
        ),
        (
            {"data": {"clients": "a.csv"}},
            "data.clients must be a list of strings or a table name = path, but is 'a.csv'",
        ),
        ({"data": {"clients": {"@a": "a.csv"}}}, "must not begin with '@'"),
        ({"data": {"views": ["a.csv"]}}, "data.views is for gcca"),
        ({"run": {"checkpoint_every": 0}}, "run.checkpoint_every must be at least 1, but is 0"),
        ({"run": {"min_clients": 0}}, "run.min_clients must be at least 1, but is 0"),
        ({"job": {"secure": True}}, r"\[job\] has no key 'secure'"),
        ({"privacy": {"epsilon": 1.0}}, "privacy.delta is missing"),
        ({"privacy": {}}, "privacy.epsilon is missing"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-6}}, r".privacy.: RowDP needs row_norm, .* would leak"),
        ({"privacy": {"epsilon": 0.0, "delta": 1e-6, "row_norm": 1.0}}, "epsilon must be above 0"),
        ({"privacy": {"epsilon": "1", "delta": 1e-6, "row_norm": 1.0}}, "privacy.epsilon must be a number, but is '1'"),
        ({"privacy": {"row_nrom": 1.0}}, r"\[privacy\] has no key 'row_nrom'. Did you mean 'row_norm'\?$"),
        ({"secure": {"threshold": 2}}, "needs secure.enabled = true"),
        ({"secure": {"enabled": 1}}, "secure.enabled must be true or false, but is 1"),
    ],
)
def test_what_is_wrong_is_named(tables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        parse(with_(**tables), HERE)


def test_nothing_is_guessed() -> None:
    with pytest.raises(InputError, match=r"job.task must name a task, but is None. For example, write task"):
        parse({"data": JOB["data"]}, HERE)
    with pytest.raises(InputError, match=r"data.clients is missing"):
        parse({"job": JOB["job"]}, HERE)
    with pytest.raises(InputError, match=r"\[job\] must be a table, but is 3"):
        parse({"job": 3}, HERE)


def test_protection_reaches_the_estimator_and_survives_the_file(tmp_path: Path) -> None:
    tables = {
        "privacy": {"epsilon": 1, "delta": 1e-6, "row_norm": 2.5, "budgets": "b"},
        "secure": {"enabled": True, "threshold": 2},
    }
    job = parse(with_(**tables), HERE)
    assert job.options()["privacy"] == RowDP(1.0, 1e-6, 2.5, budgets=str(HERE / "b"))
    assert job.options()["secure"] == Secure(2)
    path = tmp_path / "job.toml"
    path.write_text(job.to_toml())
    assert Job.load(path) == job


def test_secure_off_says_how_it_is() -> None:
    off = parse(with_(secure={"enabled": False}), HERE)
    assert off.options() == parse(with_(), HERE).options()
    assert off.secure == {"enabled": False}  # which in a federation is not the default


def test_overrides(world: Path) -> None:
    path = world / "job.toml"
    job = Job.load(path, ["job.tol=1e-3", "job.solver=gram", 'data.clients=["south.csv"]', "run.checkpoint_every = 5"])
    assert job.parameters["tol"] == 1e-3
    assert job.parameters["solver"] == "gram"
    assert job.clients == {"south": str(world / "south.csv")}
    assert job.checkpoint_every == 5
    assert Job.load(path, ["data.clients={}", "data.clients.x=south.csv"]).clients == {"x": str(world / "south.csv")}
    assert Job.load(path, ["data.label=a=b"]).label == "a=b"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("job.tol", "--set needs table.key=value"),
        ("tol=1", "--set needs table.key=value"),
        ("job.=1", "--set needs table.key=value"),
        ("jop.tol=1", r"'jop'. Did you mean 'job'\?"),
        ("job.tool=1", r"\[job\] has no key 'tool'. Did you mean 'tol'\?$"),
        ("job.tol=x\ny=2", "job.tol must be a number, but is"),
        ("data.clients.north=a.csv", "'clients' is not a table"),
    ],
)
def test_wrong_overrides(world: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Job.load(world / "job.toml", [text])


def test_files_that_are_no_jobs(world: Path) -> None:
    with pytest.raises(InputError, match=r"Cannot read the job file .*nothing.toml: No such file"):
        Job.load(world / "nothing.toml")
    with pytest.raises(InputError, match="Cannot read the job file"):
        Job.load(world)
    (world / "broken.toml").write_text("[job\n")
    with pytest.raises(InputError, match=r"The job file .*broken.toml is not valid TOML: .*line 1"):
        Job.load(world / "broken.toml")
    (world / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not valid TOML"):
        Job.load(world / "binary.toml")


def test_a_resolved_job_leaves_nothing_to_chance() -> None:
    one, two = parse(with_(), HERE).resolve(), parse(with_(), HERE).resolve()
    assert set(one.parameters) == set(parameters())
    assert one.parameters["random_state"] != two.parameters["random_state"]
    assert parse(with_(job={"random_state": 3}), HERE).resolve().parameters["random_state"] == 3


_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda s: "://" not in s)
_names = _text.filter(lambda s: not s.startswith("@"))


@given(
    clients=st.dictionaries(_names, _text, min_size=1),
    columns=st.none() | st.lists(_text).map(tuple),
    label=st.none() | _text,
    words=st.dictionaries(_text, st.lists(_text, unique=True).map(tuple), max_size=2),
    fill=st.dictionaries(_text, st.floats(allow_nan=False, allow_infinity=False), max_size=2),
    tol=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**63 - 1),
)
def test_written_and_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    clients: dict[str, str],
    columns: tuple[str, ...] | None,
    label: str | None,
    words: dict[str, tuple[str, ...]],
    fill: dict[str, float],
    tol: float,
    seed: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.toml"
    given = {"tol": tol, "random_state": seed, "center": False, "solver": "ssi", "bits": 4}
    words.pop(str(label), None)
    how = Preparation(columns, None, label, words, "mean" if fill else "drop", fill, 7 if words else None)
    job = Job("pca", given, {name: f"/data/{file}" for name, file in clients.items()}, how, 3, 2)
    path.write_bytes(job.to_toml().encode())
    assert _plain(Job.load(path)) == _plain(job)


def _plain(job: Job) -> Job:
    """Paths as pathlib spells them: '/data//x' is '/data/x'."""
    clients = {name: str(Path(path)) for name, path in job.clients.items()}
    return Job(job.task, job.parameters, clients, job.preparation, job.checkpoint_every, job.min_clients)


def test_svd_is_a_task_without_centering(tmp_path: Path) -> None:
    job = parse({"job": {"task": "svd", "n_components": 3}, "data": {"clients": ["a.csv"]}}, tmp_path)
    assert job.task == "svd"
    assert "center" not in job.resolve().parameters
    with pytest.raises(InputError, match=r"job.center is not for task 'svd'; leave it out"):
        parse({"job": {"task": "svd", "center": True}, "data": {"clients": ["a.csv"]}}, tmp_path)


def test_participation_is_a_table_that_is_written_back(tmp_path: Path) -> None:
    tree = {"job": {"task": "svd", "participation": {"fraction": 0.1, "scheme": 1}}, "data": {"clients": ["a.csv"]}}
    job = parse(tree, tmp_path).resolve()
    assert job.options()["participation"] == Participation(fraction=0.1, scheme=1)
    (tmp_path / "job.toml").write_text(job.to_toml())
    assert Job.load(tmp_path / "job.toml").resolve() == job


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"fractoin": 0.1}, "job.participation has an unknown key 'fractoin'. Did you mean 'fraction'"),
        ({"count": 0.5}, "job.participation.count must be an integer, but is 0.5"),
        ({"fraction": 2}, "fraction must be above 0 and at most 1, but is 2"),
        ({}, "Give either fraction or count"),
        (0.1, r"job.participation must be a table such as { fraction = 0.1 }, but is 0.1"),
    ],
)
def test_participation_that_makes_no_sense_is_refused(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse({"job": {"task": "pca", "participation": value}, "data": {"clients": ["a.csv"]}}, tmp_path)
