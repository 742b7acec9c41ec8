"""What a site refuses, whatever carries the messages: its end by itself, with a real kit's folder and real data."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fedspan
from fedspan.algorithms import Davidson, Faps, Krylov, NoisyGram, PersonalAuto, Sampling, Ssca, Ssi
from fedspan.channel import Channel, wire
from fedspan.core.protocol import declared_releases
from fedspan.data.preparation import Preparation
from fedspan.deployment.kit import policy_file
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_service import SiteService
from fedspan.engines.start import StartMessage
from fedspan.errors import InputError, ProtocolError
from fedspan.numerics.swish import Swish
from fedspan.privacy.budget import Budget
from fedspan.privacy.plan import plan_for
from fedspan.privacy.request import RowDP

SITES = ("east", "north", "south")
RUN = "0123456789abcdef"


def make_site(folder: Path, tables: dict[str, Any] | None = None, **rules: Any) -> SiteService:
    (folder / "local").mkdir(parents=True)
    np.save(folder / "rows.npy", np.random.default_rng(0).normal(size=(30, 4)))
    given = tables or {"default": {"path": str(folder / "rows.npy")}}
    (folder / "local" / "fedspan.toml").write_text(policy_file(given, **rules))
    if "epsilon" in rules:
        (folder / "fedspan").mkdir()
        Budget.grant(folder / "fedspan" / "budget.json", rules["epsilon"], rules["delta"])
    return SiteService("north", folder)


def start_message(algorithm: Any = None, **changes: Any) -> StartMessage:
    made = StartMessage(RUN, 0, algorithm or Ssi(k=2), Channel(), 1, SITES, threshold=3)
    return replace(made, **changes)


def refusal(answer: Any) -> str:
    assert isinstance(answer, str)
    return str(json.loads(answer)["error"])


def open_run(site: SiteService, **changes: Any) -> Any:
    return json.loads(site.open(start_message(**changes).to_json()))


def plan(epsilon: float, row_norm: float = 2.0, **more: Any) -> Any:
    server = NoisyGram(k=2)
    releases = server.planned()
    return plan_for(RowDP(epsilon, 1e-6, row_norm, **more), declared_releases(server.client), releases, spread=3)


def ask(site: SiteService, task: str, **arrays: Any) -> Any:
    return site.exchange(wire.encode(wire.Message(task, 0, 0, {k: np.asarray(v) for k, v in arrays.items()})), -1)


def test_a_run_as_the_site_wants_it_is_opened(tmp_path: Path) -> None:
    assert open_run(make_site(tmp_path)) == {"opened": RUN}


@pytest.mark.parametrize(
    ("rules", "changes", "reason"),
    [
        ({}, {"threshold": None}, "secure sums only"),
        ({}, {"threshold": 2}, "at least 2 other sites"),
        ({"others": 1}, {"threshold": 1}, "threshold must be from 2"),
        ({"algorithms": ["krylov"]}, {}, "'ssi' is not allowed at this site. Allowed are: krylov"),
        ({}, {"clients": ("east", "south", "west")}, "not among the clients"),
        ({}, {"table": {"name": "../../etc/passwd"}}, "no table '../../etc/passwd'. A job may name one of: default"),
        ({}, {"table": {"name": "/etc/passwd"}}, "no table '/etc/passwd'"),
        ({"epsilon": 1.0, "delta": 1e-6}, {}, "does not accept runs without noise"),
        ({"row_norm": 1.0}, {}, "does not accept runs without noise"),
        ({"row_norm": 1.0}, {"algorithm": NoisyGram(k=2), "plan": plan(1.0)}, "row norm must be at most 1.0"),
        ({}, {"algorithm": NoisyGram(k=2), "plan": plan(1.0, simulate=True)}, "remove simulated noise"),
        ({"secure": False}, {"algorithm": NoisyGram(k=2), "plan": plan(1.0), "threshold": None}, "shared by 3 sites"),
        ({"epsilon": 0.5, "delta": 1e-6}, {"algorithm": NoisyGram(k=2), "plan": plan(1.0)}, "exceed this site's"),
    ],
)  # fmt: skip
def test_a_run_with_less_protection_is_refused_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rules: Any, changes: Any, reason: str
) -> None:
    site = make_site(tmp_path, **rules)
    with caplog.at_level(logging.WARNING, logger="fedspan.site"):
        assert reason in refusal(site.open(start_message(**changes).to_json()))
    assert reason in caplog.text
    assert "before a run was opened" in refusal(ask(site, "count"))  # nothing can be asked


@pytest.mark.parametrize(
    ("algorithm", "sampled"),
    [
        (Ssca(Swish(3, 2), batch=4, rounds=5, private=Sampling(90, 4, 1.0)), 0.01),  # a rate that is not drawn
        (Ssca(Swish(3, 2), batch=4, rounds=5, private=Sampling(90, 4, 0.1, simulate=True)), 0.1),  # no secret draw
        (Ssi(k=2), 1.0),
    ],
)
def test_a_plan_that_is_not_the_algorithms_is_refused(tmp_path: Path, algorithm: Any, sampled: float) -> None:
    forged = replace(plan(1.0), sampled={"sampled": sampled}, spread=1)
    site = make_site(tmp_path, secure=False)
    answer = refusal(site.open(start_message(algorithm, plan=forged, threshold=None).to_json()))
    assert "other samples of rows" in answer or "simulated" in answer


def test_a_budget_that_is_not_the_sites_is_refused(tmp_path: Path) -> None:
    """The administrator has lowered epsilon in the file, and not yet granted it anew."""
    site = make_site(tmp_path, epsilon=9.0, delta=1e-6)
    path = tmp_path / "local" / "fedspan.toml"
    path.write_text(path.read_text().replace("epsilon = 9.0", "epsilon = 2.0"))
    answer = refusal(site.open(start_message(NoisyGram(k=2), plan=plan(1.0)).to_json()))
    assert "grant the budget again" in answer


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b/c/d/e/f", "", "short"])
def test_an_order_cannot_name_a_folder_elsewhere(name: str) -> None:
    with pytest.raises(ProtocolError, match="8 to 64 letters"):
        RunRequest.from_json({"run": name, "estimator": "FederatedPCA"})


def test_a_site_that_is_protected_tells_no_counts_of_its_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.eye(4), y=[0, 0, 0, 1])
    table = {"default": {"path": str(tmp_path / "t.npz"), "label": "y"}}
    asked = json.dumps({"fedspan": fedspan.__version__, "table": {}, "labels": True})
    told = [json.loads(make_site(tmp_path / str(s), table, secure=s).describe(asked)) for s in (True, False)]
    assert [one["labels"] for one in told] == [[0, 1], [0, 1]]
    assert ["counts" in one for one in told] == [False, True]


def test_a_budget_is_kept_over_runs(tmp_path: Path) -> None:
    site = make_site(tmp_path, epsilon=1.2, delta=1e-6)
    first = start_message(NoisyGram(k=2), plan=plan(1.0), run="a" * 16)
    assert json.loads(site.open(first.to_json())) == {"opened": "a" * 16}
    Budget(tmp_path / "fedspan" / "budget.json").charge("triangle", plan(1.0).multiplier("triangle"))
    for task in ("census", "add_up"):
        Budget(tmp_path / "fedspan" / "budget.json").charge(task, plan(1.0).multiplier(task))
    assert "is spent" in refusal(site.open(replace(first, run="b" * 16).to_json()))


@pytest.mark.parametrize(
    ("algorithm", "task"),
    [
        (Ssi(k=2), "leading"),
        (Krylov(k=2), "multiply_on_grid"),
        (Faps(k=2), "multiply"),
        (Ssi(k=2), "__init__"),
        (Ssi(k=2), "gram"),
        (PersonalAuto(k=2, collect=False), "collect"),  # its components stay at the site
    ],
)
def test_only_what_the_algorithm_asks_is_answered(tmp_path: Path, algorithm: Any, task: str) -> None:
    """FAPS hides its products: a site that allows FAPS does not give plain ones."""
    site = make_site(tmp_path)
    assert open_run(site, algorithm=algorithm) == {"opened": RUN}
    assert f"does not ask for {task!r}" in refusal(ask(site, task, Z=np.eye(4)))


def test_davidson_may_ask_for_the_leading_subspace_where_it_is_allowed(tmp_path: Path) -> None:
    site = make_site(tmp_path, secure=False)
    open_run(site, algorithm=Davidson(k=2), threshold=None)
    assert wire.decode(ask(site, "count")).arrays["n"] == 30


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"run": 1}', '{"algorithm": "os.system"}', "nonsense", '{"run": "xxxxxxxx"}'],
)
def test_an_opening_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    assert refusal(make_site(tmp_path).open(text))


def test_no_class_but_the_packages_algorithms_can_be_named(tmp_path: Path) -> None:
    tree = json.loads(start_message().to_json())
    site = make_site(tmp_path)
    for name in ("os.system", "Prior", "Limit", "subprocess.Popen", "NoSuch"):
        assert "is not an algorithm of fedspan" in refusal(site.open(json.dumps({**tree, "algorithm": name})))
    assert "8 to 64 letters and digits" in refusal(site.open(json.dumps({**tree, "run": "../../x" * 3})))


@pytest.mark.parametrize("blob", [b"", b"\0" * 40, b'{"task": "count"}'])
def test_a_question_that_is_none_is_refused(tmp_path: Path, blob: bytes) -> None:
    site = make_site(tmp_path)
    open_run(site)
    assert "not a safetensors message" in refusal(site.exchange(blob, -1))


def test_columns_that_the_site_keeps_closed_stay_closed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,height,name_code\n1,2,3\n4,5,6\n7,8,10\n")
    table = {"path": str(tmp_path / "t.csv"), "columns": ["age", "height"]}
    site = make_site(tmp_path / "kit", {"default": table})
    asked = {
        "fedspan": fedspan.__version__,
        "table": {"preparation": asdict(Preparation(columns=("age", "name_code")))},
    }
    assert "'name_code' is not open" in refusal(site.describe(json.dumps(asked)))
    told = json.loads(site.describe(json.dumps({**asked, "table": {}})))
    assert told["names"] == ["age", "height"]
    assert told["rows"] == 3
    for role in ("label", "id"):  # nor by another door
        wanted = asdict(Preparation(**{role: "name_code"}))
        answer = site.describe(json.dumps({**asked, "table": {"preparation": wanted}}))
        assert "'name_code' is not open" in refusal(answer)


def test_a_site_tells_neither_sizes_nor_names_if_it_does_not_want_to(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,height\n1,2\n4,5\n7,8\n")
    site = make_site(tmp_path / "kit", {"default": {"path": str(tmp_path / "t.csv")}}, rows=False, names=False)
    told = json.loads(site.describe(json.dumps({"fedspan": fedspan.__version__, "table": {}})))
    assert (told["rows"], told["names"], told["n_features"]) == (0, None, 2)


def test_another_version_is_refused(tmp_path: Path) -> None:
    answer = make_site(tmp_path).describe(json.dumps({"fedspan": "0.0.1", "table": {}}))
    assert "The server has fedspan 0.0.1, but this site has" in refusal(answer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[tables.default]\npath = 1", "path"),
        ("[requires]\nsecure = false", "Did you mean 'require'?"),
        ("[tables.default]\npath='x'\n[require]\nsecur = true", "Did you mean 'secure'?"),
        ("[tables.default]\npath='x'\n[allow]\nalgorithms = ['krilov']", "Did you mean 'krylov'?"),
        ("[tables.default]\npath='x'\n[require]\nepsilon = 1.0", "must have both epsilon and delta"),
        ("[allow]\nrows = true", "names no table of data"),
        ("not toml", "is not valid TOML"),
    ],
)
def test_a_mistyped_policy_protects_nothing_so_it_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "fedspan.toml").write_text(text)
    with pytest.raises(InputError, match=reason):
        Policy.read(tmp_path)


def test_a_site_without_a_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fedspan site init"):
        Policy.read(tmp_path)


def test_a_site_that_cannot_go_back_that_far_says_so(tmp_path: Path) -> None:
    """Else a client would begin anew in the middle of a run, and nobody would notice."""
    site = make_site(tmp_path, secure=False)
    open_run(site, threshold=None)
    mean = {"mean": np.zeros(4)}
    for number, kept in ((3, -1), (4, 3), (5, 4)):
        message = wire.Message("settle", number, 0, {name: np.asarray(value) for name, value in mean.items()})
        assert isinstance(site.exchange(wire.encode(message), kept), bytes)
    assert open_run(site, threshold=None, after=4) == {"opened": RUN}
    assert "The server goes on after round 1" in refusal(site.open(start_message(threshold=None, after=1).to_json()))
