"""What a site refuses, whatever carries the messages: its end by itself, with a real kit's folder and real data."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fedspan
from fedspan.algorithms import Davidson, Faps, Krylov, NoisyGram, PersonalAuto, Sampling, Ssca, Ssi
from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.channel import Channel, wire
from fedspan.data.preparation import Preparation
from fedspan.deployment.kit import policy_file
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_service import SiteService
from fedspan.deployment.site_tables.site_data import open_client_data
from fedspan.engines.questions import QuestionCheck
from fedspan.engines.start import StartMessage
from fedspan.errors import InputError, ProtocolError
from fedspan.numerics.swish import Swish
from fedspan.privacy.budget import Budget
from fedspan.privacy.request import RowDP

SITES = ("east", "north", "south")
BUDGET = {"epsilon": 9.0, "delta": 1e-6}
RUN = "0123456789abcdef"


def make_site(folder: Path, tables: dict[str, Any] | None = None, **rules: Any) -> SiteService:
    (folder / "local").mkdir(parents=True)
    np.save(folder / "rows.npy", np.random.default_rng(0).normal(size=(30, 4)))
    given = tables or {"default": {"path": str(folder / "rows.npy"), "features": 4}}
    if "epsilon" in rules:  # noise is shared in verified runs only; these sites add all of theirs
        rules = {"secure": False, **rules}
    (folder / "local" / "fedspan.toml").write_text(policy_file(given, **rules))
    if "epsilon" in rules:
        (folder / "fedspan").mkdir()
        Budget.grant(folder / "fedspan" / "budget.json", rules["epsilon"], rules["delta"])
    return SiteService("north", folder)


def start_message(algorithm: Any = None, **changes: Any) -> StartMessage:
    made = StartMessage(RUN, 0, algorithm or Ssi(k=2), Channel(), 1, SITES)
    changes = {"threshold": None if "privacy" in changes else 3, **changes}
    return replace(made, **changes)


def refusal(answer: Any) -> str:
    assert isinstance(answer, str)
    return str(json.loads(answer)["error"])


def open_run(site: SiteService, **changes: Any) -> Any:
    return json.loads(site.open(start_message(**changes).to_json()))


def wish(epsilon: float, row_norm: float = 2.0, **more: Any) -> RowDP:
    return RowDP(epsilon, 1e-6, row_norm, **more)


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
        ({**BUDGET, "row_norm": 1.0}, {}, "does not accept runs without noise"),
        ({**BUDGET, "row_norm": 1.0}, {"algorithm": NoisyGram(k=2), "privacy": wish(1.0)}, "norm must be at most 1.0"),
        ({"secure": False}, {"algorithm": NoisyGram(k=2), "privacy": wish(1.0, simulate=True)}, "remove simulated"),
        ({"secure": False}, {"privacy": wish(1.0)}, "plans no releases"),
        ({"epsilon": 0.5, "delta": 1e-6}, {"algorithm": NoisyGram(k=2), "privacy": wish(1.0)}, "exceed the privacy"),
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


def test_a_delta_that_its_own_rule_shows_to_be_too_large_is_refused(tmp_path: Path) -> None:
    """Before anything is counted, and so at no cost: the least number of rows is in the site's own file."""
    table = {"path": str(tmp_path / "rows.npy"), "features": 4, "min_rows": 25}
    site = make_site(tmp_path, {"default": table}, **BUDGET)
    privacy = RowDP(1.0, 0.05, 2.0)
    answer = refusal(site.open(start_message(NoisyGram(k=2), privacy=privacy).to_json()))
    assert "delta must be below 1 / number of rows, but is 0.05, and this site expects 25 rows or more" in answer
    assert Budget(tmp_path / "fedspan" / "budget.json").spent == 0
    assert open_run(site, algorithm=NoisyGram(k=2), privacy=replace(privacy, delta=1e-6)) == {"opened": RUN}


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("rare", [0, 1])
def test_one_row_of_a_rare_class_is_not_seen_by_a_refusal(tmp_path: Path, private: bool, rare: int) -> None:
    """Without noise such a row is refused, and so is a small table: sums would show it. With noise the sums do not."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [14, 15, rare])
    np.savez(tmp_path / "t.npz", X=rng.normal(size=(len(y), 4)), y=y)
    table = {"path": str(tmp_path / "t.npz"), "features": 4, "label": "y", "classes": [0, 1, 2]}
    make_site(tmp_path / "kit", {"default": {**table, "min_rows_per_class": 5, "min_rows": 20}}, secure=False)
    method = Ssca(Swish(2, 3), batch=4, rounds=5, private=Sampling(90, 4, 0.1) if private else None)
    privacy = RowDP(1.0, 1e-4, 1.0) if private else None
    message = start_message(method, privacy=privacy, threshold=None, told={"labels": [0, 1, 2]})
    opened = partial(open_client_data, Policy.read(tmp_path / "kit").find_table({"name": "default"}), message)
    if rare and not private:
        with pytest.raises(InputError, match="Class '2' has fewer than 5 rows"):
            opened()
    else:
        assert len(opened()[1]) == 29 + rare


def test_secret_draws_that_the_server_could_repeat_are_refused(tmp_path: Path) -> None:
    labelled = {"path": "rows.npz", "features": 4, "label": "y", "classes": [0, 1]}
    site = make_site(tmp_path, {"default": labelled}, secure=False)
    algorithm = Ssca(Swish(3, 2), batch=4, rounds=5, private=Sampling(90, 4, 0.1, simulate=True))
    message = start_message(algorithm, privacy=wish(1.0), threshold=None, told={"labels": [0, 1]})
    assert "simulated" in refusal(site.open(message.to_json()))


def test_a_budget_that_is_not_the_sites_is_refused(tmp_path: Path) -> None:
    """The administrator has lowered epsilon in the file, and not yet granted it anew."""
    site = make_site(tmp_path, epsilon=9.0, delta=1e-6)
    path = tmp_path / "local" / "fedspan.toml"
    path.write_text(path.read_text().replace("epsilon = 9.0", "epsilon = 2.0"))
    answer = refusal(site.open(start_message(NoisyGram(k=2), privacy=wish(1.0)).to_json()))
    assert "grant the budget again" in answer


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b/c/d/e/f", "", "short"])
def test_an_order_cannot_name_a_folder_elsewhere(name: str) -> None:
    with pytest.raises(ProtocolError, match="8 to 64 letters"):
        RunRequest.from_json({"run": name, "estimator": "FederatedPCA"})


@pytest.mark.parametrize("secure", [True, False])
def test_a_site_tells_the_classes_of_its_file_and_no_counts(tmp_path: Path, secure: bool) -> None:
    np.savez(tmp_path / "t.npz", X=np.eye(4), y=[0, 0, 0, 1])
    table = {"default": {"path": str(tmp_path / "t.npz"), "features": 4, "label": "y", "classes": [0, 1, 2]}}
    asked = json.dumps({"fedspan": fedspan.__version__, "table": {}, "labels": True})
    told = json.loads(make_site(tmp_path / "kit", table, secure=secure).describe(asked))
    assert told["labels"] == [0, 1, 2]
    assert told["rows"] == 0
    assert "counts" not in told


def test_a_budget_is_kept_over_runs(tmp_path: Path) -> None:
    site = make_site(tmp_path, epsilon=1.2, delta=1e-6)
    first = start_message(NoisyGram(k=2), privacy=wish(1.0), run="a" * 16)
    assert json.loads(site.open(first.to_json())) == {"opened": "a" * 16}
    assert json.loads(site.open(first.to_json())) == {"opened": "a" * 16}, "the same run again costs nothing"
    second = replace(first, run="b" * 16)
    other = SiteService("north", tmp_path)  # another job at the same time
    assert "spent or reserved by runs that are not over" in refusal(other.open(second.to_json()))
    name = StartMessage.from_json(first.to_json()).name_noise()
    Budget(tmp_path / "fedspan" / "budget.json").settle(name)  # nothing was sent
    assert json.loads(other.open(second.to_json())) == {"opened": "b" * 16}


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
    table = {"path": str(tmp_path / "t.csv"), "columns": ["age", "height"], "rows": 3}
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
        assert f"which column is the {role}, and it is not 'name_code'" in refusal(answer)


def test_a_site_tells_neither_sizes_nor_names_if_it_does_not_want_to(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,height\n1,2\n4,5\n7,8\n")
    table = {"path": str(tmp_path / "t.csv"), "columns": ["age", "height"], "rows": 3}
    site = make_site(tmp_path / "kit", {"default": table}, rows=False, names=False)
    told = json.loads(site.describe(json.dumps({"fedspan": fedspan.__version__, "table": {}})))
    assert (told["rows"], told["names"], told["columns"], told["n_features"]) == (0, None, None, 2)


def test_another_version_is_refused(tmp_path: Path) -> None:
    answer = make_site(tmp_path).describe(json.dumps({"fedspan": "0.0.1", "table": {}}))
    assert "The server has fedspan 0.0.1, but this site has" in refusal(answer)


@pytest.mark.parametrize(("names", "said"), [(True, "missing for 'height'."), (False, "one is missing.")])
def test_what_fills_gaps_is_given_for_every_feature(tmp_path: Path, names: bool, said: str) -> None:
    """Else it would depend on the data whether a run is refused. The name is told only where names are."""
    (tmp_path / "t.csv").write_text("age,height\n1,2\n4,5\n7,8\n")
    table = {"path": str(tmp_path / "t.csv"), "columns": ["age", "height"]}
    site = make_site(tmp_path / "kit", {"default": table}, names=names)
    wanted = asdict(Preparation(missing="mean", fill={"age": 1.0}))
    assert refusal(site.open(start_message(table={"preparation": wanted}).to_json())).endswith(said)


@pytest.mark.parametrize(
    "algorithm",
    [
        AgreeOnColumns(2, ("age", "height")),
        AgreeOnColumns(2, ("age", "sex"), (("sex", ("m", "f")),)),
        AgreeOnColumns(2, ("age", "sex"), (("sex", ("f",)),)),
        AgreeOnColumns(2, ("sex", "age"), (("sex", ("f", "m")),)),
        AgreeOnColumns(3, ("age", "sex"), (("sex", ("f", "m")),)),
        AgreeOnColumns(2, None),
    ],
)
def test_means_are_of_the_columns_and_words_of_the_sites_file(tmp_path: Path, algorithm: Any) -> None:
    (tmp_path / "t.csv").write_text("age,sex\n1,f\n4,m\n7,f\n")
    table = {"path": str(tmp_path / "t.csv"), "columns": ["age", "sex"], "categories": {"sex": ["f", "m"]}}
    site = make_site(tmp_path / "kit", {"default": table})
    good = AgreeOnColumns(2, ("age", "sex"), (("sex", ("f", "m")),))
    assert "other columns or categories" in (told := refusal(site.open(start_message(algorithm).to_json()))) or (
        "does not tell them" in told
    )
    assert open_run(site, algorithm=good) == {"opened": RUN}
    for task in ("describe_columns", "list_categories"):
        assert f"does not ask for {task!r}" in refusal(ask(site, task))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[tables.default]\npath = 1", "path"),
        ("[requires]\nsecure = false", "Did you mean 'require'?"),
        ("[tables.default]\npath='x'\nfeatures=1\n[require]\nsecur = true", "Did you mean 'secure'?"),
        ("[tables.default]\npath='x'\nfeatures=1\n[allow]\nalgorithms = ['krilov']", "Did you mean 'krylov'?"),
        ("[tables.default]\npath='x'\nfeatures=1\n[require]\nepsilon = 1.0", "must have both epsilon and delta"),
        ("[tables.default]\npath='x'\nfeatures=1\n[require]\nrow_norm = 1.0", "row_norm .* needs epsilon and delta"),
        ("[allow]\nrows = true", "names no table of data"),
        ("[tables.default]\npath='x'", "must say which columns are open to jobs.* --all-columns"),
        ("[tables.default]\npath='x'\nfeatures=1\ncolumns=['a']", "must say which columns are open"),
        ("[tables.default]\npath='x'\ncolumns=[]", "must have at least one word"),
        ("[tables.default]\npath='x'\ncolumns=['a', 'a']", "each word once"),
        ("[tables.default]\npath='x'\ncolumns=[1]", "must be a list of words"),
        ("[tables.default]\npath='x'\ncolumns=['a']\nlabel='y'", "both label and classes, or neither"),
        ("[tables.default]\npath='x'\ncolumns=['a']\nlabel='y'\nclasses=[1, '1.0']", "each word once"),
        ("[tables.default]\npath='x'\ncolumns=['a']\nlabel='y'\nclasses=[1, 'x']", "all words or all numbers"),
        ("[tables.default]\npath='x'\ncolumns=['a']\ncategories={b=['w']}", "'b' .* is not one of its columns"),
        ("[tables.default]\npath='x'\ncolumns=['a']\nmin_rows=0", "min_rows .* must be at least 1"),
        ("[tables.default]\npath='x'\ncolumns=['a']\nsecret='word'", "no longer read.*`fedspan federation secret"),
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


def test_a_site_that_cannot_go_back_that_far_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client would begin anew in the middle of a run, and nobody would notice."""
    monkeypatch.setattr(QuestionCheck, "check", lambda *_: None)  # the task that leaves a memory is one of round 0
    site = make_site(tmp_path, secure=False)
    open_run(site, threshold=None)
    mean = {"mean": np.zeros(4)}
    for number, kept in ((3, -1), (4, 3), (5, 4)):
        message = wire.Message("settle", number, 0, {name: np.asarray(value) for name, value in mean.items()})
        assert isinstance(site.exchange(wire.encode(message), kept), bytes)
    assert open_run(site, threshold=None, after=4) == {"opened": RUN}
    assert "The server goes on after round 1" in refusal(site.open(start_message(threshold=None, after=1).to_json()))
