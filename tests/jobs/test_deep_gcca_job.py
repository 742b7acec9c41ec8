"""Deep GCCA from a job file: the networks are named by a Python file beside it, at sites by their own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedspan import DeepFederatedGCCA, Job
from fedspan.algorithms.gcca.network_files import find_maker, locate_network
from fedspan.errors import InputError
from fedspan.jobs import resume

pytest.importorskip("torch", reason="needs fedspan[deep]")

NETWORKS = """
from torch import nn

def small(outputs):
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))

def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 1))

def plain():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

wrong = 3
"""
JOB = """
[job]
task = "deep-gcca"
n_components = 1
bits = 3
rounds = 4
lr = 0.01
random_state = 0

[data]
views = { bank = "bank.csv", shop = "shop.csv" }
id = "person"
match = "psi"
network = "networks.py:plain"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    mood = rng.uniform(-1, 1, size=60)
    people = [f"p{j:03d}" for j in range(60)]
    bank = pd.DataFrame({"a": np.cos(3 * mood), "b": rng.normal(size=60), "person": people})
    shop = pd.DataFrame({"c": mood**2, "d": rng.normal(size=60), "person": people})
    bank.to_csv(tmp_path / "bank.csv", index=False, float_format="%.17g")
    shop[5:].sample(frac=1, random_state=1).to_csv(tmp_path / "shop.csv", index=False, float_format="%.17g")
    (tmp_path / "networks.py").write_text(NETWORKS)
    (tmp_path / "deep.toml").write_text(JOB)
    return tmp_path


def test_a_job_learns_what_python_does(place: Path) -> None:
    run = Job.load(place / "deep.toml").run(place / "out")
    views = {name: pd.read_csv(place / f"{name}.csv") for name in ("bank", "shop")}
    networks = dict.fromkeys(views, find_maker(f"{place / 'networks.py'}:plain", 1))
    options = {"n_components": 1, "bits": 3, "rounds": 4, "lr": 0.01, "random_state": 0}
    want = DeepFederatedGCCA(networks, **options).fit(views, ids="person", match="psi")
    np.testing.assert_array_equal(run.model.common_, want.common_)
    assert run.model.matched_.entities == 55
    page = run.report.read_text(encoding="utf-8")
    assert "Deep GCCA" in page
    again = DeepFederatedGCCA.load(run.folder.model)
    np.testing.assert_array_equal(again.correlations_, want.correlations_)
    with pytest.raises(InputError, match="networks are missing"):
        again.transform(views, ids="person")
    known = DeepFederatedGCCA.load(run.folder.model, networks)
    bank = views["bank"][views["bank"]["person"].isin(views["shop"]["person"])]
    new = {"bank": bank, "shop": views["shop"]}
    np.testing.assert_array_equal(known.transform(new, ids="person"), want.transform(new, ids="person"))


def test_a_job_that_ran_out_of_rounds_is_not_a_resume(place: Path) -> None:
    Job.load(place / "deep.toml").run(place / "out")
    written = Job.load(place / "out" / "job.toml")
    assert written.networks == dict.fromkeys(("bank", "shop"), f"{place / 'networks.py'}:plain")
    assert resume(place / "out").model.n_rounds_ == 4  # what is complete stays as it is


def test_each_view_may_have_a_network_of_its_own_and_k_outputs(place: Path) -> None:
    each = 'data.network={ bank = "networks.py:small", shop = "networks.py:small" }'
    run = Job.load(place / "deep.toml", [each, "job.n_components=2"]).run(place / "out")
    assert run.model.common_.shape == (55, 2)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.network='networks.py'", "named by its file and the function"),
        ("data.network='networks.py:sm all'", "named by its file and the function"),
        ("data.network={ bank = 'networks.py:plain' }", "must be for the views bank, shop, but is for bank"),
        ("data.network=3", "the maker of a network such as"),
        ("job.networks=['x']", r"\[job\] has no key 'networks'|not for task"),
        ("job.task='gcca'", "data.network is for deep-gcca|is not for task 'gcca'"),
    ],
)
def test_what_names_no_network_is_refused_before_the_run(place: Path, override: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Job.load(place / "deep.toml", [override])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other.py:plain", "There is no file .*other.py"),
        ("networks.py:other", "has no function 'other'"),
        ("networks.py:wrong", "has no function 'wrong'"),
        ("networks.py:lazy", "must say how many features it takes"),
        ("no_such_module_anywhere:plain", "cannot be imported"),
    ],
)
def test_a_network_that_is_not_there_leaves_nothing_behind(place: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Job.load(place / "deep.toml", [f"data.network='{name}'"]).run(place / "out")
    assert not (place / "out").exists()


def test_without_networks_the_job_says_how_to_name_them(place: Path) -> None:
    (place / "deep.toml").write_text(JOB.replace('network = "networks.py:plain"\n', ""))
    with pytest.raises(InputError, match=r'data.network is missing; .* "networks.py:small"'):
        Job.load(place / "deep.toml")


def test_a_job_for_sites_names_no_network(place: Path) -> None:
    text = JOB.replace('views = { bank = "bank.csv", shop = "shop.csv" }\n', "")
    (place / "deep.toml").write_text(text)
    with pytest.raises(InputError, match="The sites' own files name their networks"):
        Job.load_for(place / "deep.toml", lambda: ["bank", "shop"])
    (place / "deep.toml").write_text(text.replace('network = "networks.py:plain"\n', "").replace('id = "person"\n', ""))
    request = Job.load_for(place / "deep.toml", lambda: ["bank", "shop"]).to_request()
    assert request.estimator == "DeepFederatedGCCA"
    assert "networks" not in request.parameters


def test_paths_are_beside_the_file_that_names_them(tmp_path: Path) -> None:
    assert locate_network("nets.py:f", tmp_path) == f"{tmp_path / 'nets.py'}:f"
    assert locate_network("package.nets:f", tmp_path) == "package.nets:f"
