"""Attacks that are in no list: what a second reading of the sites' side tried."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "deployment"))

from orders import order_for_estimator, write_site
from verified_world import AT, Refused, World

from fedspan.algorithms import FedSgd, VerticalSgd
from fedspan.core.rng import Streams
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.site_rules import rosters as rosters_module
from fedspan.deployment.site_rules.rosters import Rosters
from fedspan.deployment.site_service import SiteService
from fedspan.deployment.site_tables import site_data
from fedspan.engines.start import check_run_name
from fedspan.errors import InputError, PrivacyError, ProtocolError
from fedspan.numerics.swish import Swish

defences = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence off"])


# ---------------------------------------------------------------------------------------- batches of one row


def test_the_gradient_of_a_batch_of_one_is_that_row() -> None:
    """What a vertical job with batch_size = 1 shows of each site: its rows, one by one, up to their lengths."""
    X = np.random.default_rng(0).normal(size=(6, 4))
    net, rng = Swish(3, 2), Streams(0, 1, 0, "a")
    server = VerticalSgd(net, batch=1)
    client: Any = server.client((X, np.arange(6) % 2), **server.client_options())  # type: ignore[call-arg]
    state = client.init()
    weights, W0 = np.random.default_rng(1).normal(size=(4, 3)), np.random.default_rng(2).normal(size=(3, 2))
    state, _ = client.take(state, {"omega": weights, "first": np.array(0), "features": np.array(4)}, rng)
    asked = {"rows": np.array([2]), "H": X[2:3] @ weights, "W0": W0}
    leading = np.linalg.svd(client.backward(state, asked, rng)[1]["block"][0])[0][:, 0]  # of the only part
    assert abs(leading @ X[2]) / np.linalg.norm(X[2]) > 1 - 1e-9


def open_federation(folder: Path, least: int) -> LoopbackFederation:
    """Three sites of 20 rows, or views of 20 entities, each of which sums over at least so many."""
    rng, sites = np.random.default_rng(0), {}
    for name in ("ada", "ben", "cia"):
        (folder / name).mkdir(parents=True)
        rows = rng.normal(size=(20, 3)).tolist()
        lines = [f"{x},{y},{z},{i % 2}\n" for i, (x, y, z) in enumerate(rows)]
        (folder / name / "rows.csv").write_text("x,y,z,ill\n" + "".join(lines), encoding="utf-8")
        own = {"path": str(folder / name / "rows.csv"), "columns": ["x", "y", "z"], "label": "ill", "classes": [0, 1]}
        own |= {"min_rows": least}
        sites[name] = write_site(folder / name, {"labelled": own, "labelled_views": own}, secure=False)
    return LoopbackFederation(folder / "server", sites)


def learn(federation: LoopbackFederation, task: str, **parameters: Any) -> dict[str, Any]:
    order = order_for_estimator(task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two rounds are few
        return federation.carry_out(replace(order, parameters={**order.parameters, "rounds": 2, **parameters}))


@defences
@pytest.mark.parametrize("method", ["auto", "ssca"])
@pytest.mark.parametrize("task", ["classifier", "vertical-classifier"])
def test_a_job_cannot_ask_for_batches_of_fewer_rows_than_a_site_sums(
    tmp_path: Path, task: str, method: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not defended:
        monkeypatch.setattr("fedspan.algorithms.learning._samples.SampleBased.batch_rows", lambda self: 0)
        monkeypatch.setattr("fedspan.algorithms.learning.vertical.FeatureBased.batch_rows", lambda self: 0)
        for module in ("_samples", "vertical"):  # the client's own look at each question, see test_few_rows.py
            monkeypatch.setattr(f"fedspan.algorithms.learning.{module}.require_rows", lambda client, rows: None)
    federation = open_federation(tmp_path, 2)
    outcome = learn(federation, task, method=method, batch_size=1, validation=0.3)
    if not defended:
        assert outcome == {"done": True}
        return
    assert "sums over batches of 1 rows, but sums at this site are over at least 2 (min_rows" in outcome["error"]
    assert learn(federation, task, method=method, batch_size=2, validation=0.3) == {"done": True}


@defences
@pytest.mark.parametrize("task", ["classifier", "vertical-classifier"])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_job_cannot_hold_out_or_leave_fewer_rows_than_a_site_sums(
    tmp_path: Path, task: str, share: float, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the guard of method "auto" sums over held-out rows is about these alone."""
    if not defended:
        monkeypatch.setattr(site_data, "_check_enough_held_out", lambda *given: None)
        # the client's own look at each question, see test_few_rows.py
        monkeypatch.setattr("fedspan.algorithms.learning.vertical.require_rows", lambda client, rows: None)
    federation = open_federation(tmp_path, 6)
    outcome = learn(federation, task, batch_size=6, validation=share)
    if not defended:
        assert outcome == {"done": True}
        return
    assert re.search(r"refused \[[0-9a-f]{8}\]", outcome["error"])
    assert "rows" not in outcome["error"]
    assert learn(federation, task, batch_size=6, validation=0.5) == {"done": True}
    assert learn(federation, task, batch_size=6, validation=0.0) == {"done": True}


def test_newton_sums_over_no_fewer_rows_than_a_site_sums(tmp_path: Path) -> None:
    """hidden=0 has neither batches nor held-out rows: its sums are over all rows of a site, which must be enough."""
    assert learn(open_federation(tmp_path / "enough", 20), "classifier, linear") == {"done": True}
    outcome = learn(open_federation(tmp_path / "few", 21), "classifier, linear")
    assert re.search(r"refused \[[0-9a-f]{8}\]", outcome["error"])


def test_batches_with_noise_are_the_noises_business() -> None:
    assert FedSgd(Swish(3, 2), batch=0).batch_rows() == 0
    assert FedSgd(Swish(3, 2), batch=7).batch_rows() == 7


# ---------------------------------------------------------------------------------------- the site's file, in a run


@defences
def test_a_rule_that_is_written_during_a_run_holds_at_once(
    tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The administrator takes the algorithm out of the file; the process of a run may live for days."""
    world = World(tmp_path)
    if not defended:
        monkeypatch.setattr(SiteService, "_read_file", lambda self: b"")
    server = world.server()

    def forbid(place: tuple[int, int]) -> None:
        if place == AT:
            path = tmp_path / "ada" / "local" / "fedspan.toml"
            path.write_text(path.read_text().replace('"krylov", ', ""), encoding="utf-8")

    if not defended:
        assert (3, 0) in server.drive(before=forbid)
        return
    with pytest.raises(Refused, match="own file has changed since the run was opened"):
        server.drive(before=forbid)
    with pytest.raises(Refused, match="'krylov' is not allowed at this site"):
        world.server(run=server.run).drive()


# ---------------------------------------------------------------------------------------- the table that is the same


@defences
@pytest.mark.parametrize("way", ["link", "dots", "password", "moved"])
def test_another_way_to_the_same_table_brings_no_other_groups(
    tmp_path: Path, way: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not defended:
        monkeypatch.setattr(rosters_module.os.path, "realpath", lambda path: path)
        monkeypatch.setattr(
            rosters_module,
            "_find_entries",
            lambda tree, table, place: {
                key: entry for key, entry in tree["tables"].items() if key == rosters_module._digest_address(place)
            },
        )
    (tmp_path / "data").mkdir()
    table, link = tmp_path / "data" / "a.csv", tmp_path / "latest.csv"
    table.write_text("x\n1\n")
    link.symlink_to(table)
    first, name = str(table), "again"
    second = {
        "link": str(link),
        "dots": str(tmp_path / "data" / ".." / "data" / "a.csv"),
        "password": "postgresql://me:new@host/base?query=select",
        "moved": str(tmp_path / "elsewhere" / "a.csv"),
    }[way]
    if way in ("password", "moved"):  # another place, the same name
        first, name = (first if way == "moved" else second.replace("new", "old")), "default"
    held = Rosters(tmp_path / "rosters.json")
    held.record("default", first, (("a", "b", "c"),), "a")
    if defended:
        with pytest.raises(PrivacyError, match="was summed with these groups"):
            held.record(name, second, (("a", "b"),), "a")
        held.record(name, second, (("a", "b", "c"),), "a")
        assert held.forget(name, second) == (("a", "b", "c"),)
    held.record(name, second, (("a", "b"),), "a")


@pytest.mark.parametrize("value", ["nan", "inf", "-1.0", "0.0"])
@pytest.mark.parametrize("key", ["row_norm", "epsilon", "delta"])
def test_a_rule_that_nothing_can_break_is_none(tmp_path: Path, key: str, value: str) -> None:
    """TOML knows nan and inf: a bound of that size would look like one, and hold nobody."""
    rules = {"row_norm": "1.0", "epsilon": "1.0", "delta": "1e-6", key: value}
    (tmp_path / "local").mkdir()
    lines = ['[tables.default]\npath = "a.csv"\ncolumns = ["a"]\n[require]', *(f"{k} = {v}" for k, v in rules.items())]
    (tmp_path / "local" / "fedspan.toml").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=f"{key} in .* must be above 0 and finite"):
        Policy.read(tmp_path)


# ---------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name", ["../../../etc", "ａｂｃｄｅｆｇｈ", "abcdefg\u0131", "a" * 65, "short", "abcdefg/", "abcdefg\n"]
)
def test_a_run_is_not_named_like_a_path_or_like_another_run(name: str) -> None:
    """Some file systems take letters for each other that are not the same."""
    with pytest.raises(ProtocolError, match="A run must be named by 8 to 64 letters and digits"):
        check_run_name(name)
