"""Sites match the rows of views by their ids, over loopback: each by the rules of its own file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from orders import new_run, write_site

from fedspan import DeepFederatedGCCA, FederatedGCCA, VerticalFederatedClassifier
from fedspan.channel import wire
from fedspan.core.ledger import Exchange, Ledger
from fedspan.data.preparation import Preparation
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import write_secret
from fedspan.deployment.server_job import RunRequest
from fedspan.engines.loopback import Call, Deliver
from fedspan.errors import InputError
from fedspan.numerics.orthonormal import largest_angle

pytest.importorskip("cryptography", reason="needs fedspan[privacy]")

SITES = {"bank": 4, "clinic": 3, "shop": 5}
ROWS = 60


class Killed(BaseException):
    """The end of the server's process, as near as a test in one process comes to it."""


def make_people(seed: int = 0) -> tuple[dict[str, pd.DataFrame], pd.Index]:
    """Tables of partly other people, in another order everywhere; and who is in all of them."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(ROWS, 2))
    well = np.where(hidden[:, 0] > 0, "well", "ill")
    frames = {}
    for i, (site, d) in enumerate(SITES.items()):
        X = hidden @ rng.normal(size=(2, d)) + 0.1 * rng.normal(size=(ROWS, d))
        frame = pd.DataFrame(X, columns=[f"{site}{j}" for j in range(d)])
        frame["person"] = [f"Person {j}" if i % 2 else f" PERSON  {j} " for j in range(ROWS)]
        frame["state"] = well
        frames[site] = frame.drop(index=range(i * 3, i * 3 + 3)).sample(frac=1, random_state=i)
    return frames, pd.Index(range(9, ROWS))


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., LoopbackFederation]:
    """Makes three sites with these tables; `keys` are further lines of each table."""

    def make(*, secret: bool = False, rules: dict[str, Any] | None = None, **keys: Any) -> LoopbackFederation:
        frames, _ = make_people()
        sites = {}
        for site, frame in frames.items():
            path = tmp_path / f"{site}.csv"
            frame.to_csv(path, index=False, float_format="%.17g")
            columns = [*frame.columns]
            table = {"path": str(path), "columns": columns, "id": "person", "label": "state"}
            table |= {"classes": ["ill", "well"], **keys}
            if secret:
                table["secret_file"] = str(tmp_path / "secret")
            sites[site] = write_site(tmp_path / site, {"default": table}, **(rules or {"secure": False}))
        if secret:
            write_secret(tmp_path / "secret")
        return LoopbackFederation(tmp_path / "server", sites)

    return make


def request(estimator: str = "FederatedGCCA", match: str = "psi", **more: Any) -> RunRequest:
    options: dict[str, Any] = {"n_components": 2}
    if estimator != "FederatedGCCA":
        options = {"method": "ssca", "hidden": 4, "batch_size": None, "rounds": 5, "standardize": False}
    secure = more.pop("secure", {"enabled": False})
    return RunRequest(
        new_run(), estimator, {**options, "random_state": 3}, match=match, secure=secure, timeout=300.0, **more
    )


def common_views() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What the sites should learn from, in an order of its own."""
    frames, common = make_people()
    X = {site: frame.loc[common, [f"{site}{j}" for j in range(SITES[site])]] for site, frame in frames.items()}
    return {site: own.to_numpy() for site, own in X.items()}, frames["bank"].loc[common, "state"].to_numpy()


@pytest.mark.parametrize(("match", "secret"), [("psi", False), ("psi", True), ("digest", True)])
def test_gcca_learns_from_the_people_that_all_sites_have(
    federation: Callable[..., LoopbackFederation], match: str, secret: bool
) -> None:
    made, order = federation(secret=secret), request(match=match)
    assert made.carry_out(order) == {"done": True}
    there = FederatedGCCA.load(made.place(order) / "model.safetensors")
    here = FederatedGCCA(2, random_state=3).fit(common_views()[0])
    assert there.n_samples_ == ROWS - 9
    for ours, theirs in zip(here.weights_, there.weights_, strict=True):
        assert largest_angle(np.linalg.qr(ours)[0], np.linalg.qr(theirs)[0]) < 1e-5
    np.testing.assert_allclose(here.correlations_, there.correlations_, atol=1e-6)
    assert "PERSON" not in (made.place(order) / "ledger.jsonl").read_text().upper()


def test_a_vertical_classifier_learns_from_them(federation: Callable[..., LoopbackFederation]) -> None:
    """The batches are all rows, so that the order of the entities, which nobody can foresee, does not matter."""
    made, order = federation(), request("VerticalFederatedClassifier")
    assert made.carry_out(order) == {"done": True}
    there = VerticalFederatedClassifier.load(made.place(order) / "model.safetensors")
    X, y = common_views()
    options = dict(order.parameters)
    here = VerticalFederatedClassifier(**options).fit(X, y)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-6, atol=1e-9)


def test_a_site_that_accepts_secure_sums_only_still_matches(federation: Callable[..., LoopbackFederation]) -> None:
    made = federation(rules={"secure": True, "others": 2})
    order = request("VerticalFederatedClassifier", secure={"enabled": True, "threshold": 3})
    assert made.carry_out(order) == {"done": True}


@pytest.mark.parametrize(
    ("keys", "match", "says"),
    [
        ({"min_common": 52}, "psi", "Rows are matched here only if at least 52 entities are common"),
        ({"max_ids": 56}, "psi", "refused"),
        ({"id": "state"}, "psi", "refused"),  # an id that repeats: the reason is in the site's log only
        ({}, "digest", "has ids, but no secret to digest them with"),
    ],
)
def test_what_a_sites_file_forbids_is_refused(
    federation: Callable[..., LoopbackFederation], keys: dict[str, Any], match: str, says: str
) -> None:
    if "id" in keys:
        keys = {**keys, "label": "person", "classes": ["x"]}
    outcome = federation(**keys).carry_out(request(match=match))
    assert not outcome["done"]
    assert says in outcome["error"]
    assert "ill" not in outcome["error"].replace("still", "")


def test_a_site_may_leave_matching_out(federation: Callable[..., LoopbackFederation]) -> None:
    made = federation(rules={"secure": False, "algorithms": ["maxvarkrylov"]})
    assert "'matchring' is not allowed at this site" in made.carry_out(request())["error"]


def test_sites_with_different_secrets_are_told_so(
    federation: Callable[..., LoopbackFederation], tmp_path: Path
) -> None:
    made = federation(secret=True)
    write_secret(tmp_path / "other")
    file = made.sites["shop"] / "local" / "fedspan.toml"
    file.write_text(file.read_text().replace(str(tmp_path / "secret"), str(tmp_path / "other")))
    assert "different secrets for ids" in made.carry_out(request())["error"]


def heard(made: LoopbackFederation, stop: Callable[[str, int], bool]) -> tuple[list[tuple[str, bytes]], Any]:
    """What sites answer to `blind_ids`, and a server that ends after some message."""
    seen: list[tuple[str, bytes]] = []
    count = [0]

    def listen(call: Call, deliver: Deliver) -> Any:
        answer = deliver(call)
        if call.method == "exchange":
            task = wire.decode(call.message).task
            if task == "blind_ids":
                seen.append((call.site, wire.decode(answer).arrays["points"].tobytes()))  # type: ignore[arg-type]
            count[0] += 1
            if stop(task, count[0]):
                raise Killed
        return answer

    made.tamper = listen
    return seen, listen


@pytest.mark.parametrize("task", ["blind_ids", "blind_again", "confirm_common", "keep_rows"])
def test_a_ring_that_was_cut_off_begins_again_with_new_keys(
    federation: Callable[..., LoopbackFederation], task: str
) -> None:
    made, order = federation(), request()
    first, _ = heard(made, lambda name, _: name == task)
    with pytest.raises(Killed):
        made.carry_out(order)
    again, _ = heard(made, lambda *_: False)
    assert made.carry_out(order) == {"done": True}
    assert len(again) == 3
    keys = {points for _, points in first} & {points for _, points in again}
    assert not keys, "no set is blinded by the same key"
    each = {row for _, points in first for row in np.frombuffer(points, dtype="S32")}
    assert not each & {row for _, points in again for row in np.frombuffer(points, dtype="S32")}


def test_a_run_that_is_resumed_keeps_the_order(federation: Callable[..., LoopbackFederation]) -> None:
    """The ring is not repeated; to the bit, the run ends as one that was not cut off would have."""
    made, order = federation(), request()
    _, _ = heard(made, lambda task, count: task == "fit_view" and count > 40)
    with pytest.raises(Killed):
        made.carry_out(order)
    seen, _ = heard(made, lambda *_: False)
    assert made.carry_out(order) == {"done": True}
    assert not seen
    ledger = Ledger.read(made.place(order) / "ledger.jsonl")
    assert sum(e.task == "blind_ids" for e in ledger.events if isinstance(e, Exchange)) == 1
    model = FederatedGCCA.load(made.place(order) / "model.safetensors")
    here = FederatedGCCA(2, random_state=3).fit(common_views()[0])
    np.testing.assert_allclose(here.correlations_, model.correlations_, atol=1e-6)


def test_a_table_that_changed_after_the_matching_is_not_used(federation: Callable[..., LoopbackFederation]) -> None:
    made, order = federation(), request()
    _, _ = heard(made, lambda task, count: task == "fit_view")
    with pytest.raises(Killed):
        made.carry_out(order)
    made.tamper = None
    path = made.folder.parent / "shop.csv"
    frame = pd.read_csv(path)
    frame.iloc[::-1].to_csv(path, index=False)
    outcome = made.carry_out(order)
    assert not outcome["done"]


def test_a_site_that_leaves_in_the_middle_of_the_ring_can_come_back(
    federation: Callable[..., LoopbackFederation],
) -> None:
    made, order = federation(), replace(request(), retries=1)

    def leave(call: Call, deliver: Deliver) -> Any:
        if call.site == "shop" and call.method == "exchange" and wire.decode(call.message).task == "blind_again":
            raise ConnectionError
        return deliver(call)

    made.tamper = leave
    outcome = made.carry_out(order)
    assert not outcome["done"]
    assert "'blind_again' needs answers from 3 clients" in outcome["error"]
    assert not list(made.folder.rglob("matched.json"))
    made.tamper = None
    assert made.carry_out(order) == {"done": True}


def test_a_lost_answer_is_asked_for_again(federation: Callable[..., LoopbackFederation]) -> None:
    made, order, lost = federation(), request(), set[tuple[str, str]]()

    def lose(call: Call, deliver: Deliver) -> Any:
        answer = deliver(call)
        if call.method == "exchange":
            place = (call.site, wire.decode(call.message).task)
            if place not in lost:
                lost.add(place)
                raise ConnectionError
        return answer

    made.tamper = lose
    assert made.carry_out(order) == {"done": True}


def test_orders_that_differ_are_refused_where_sites_have_a_secret(
    federation: Callable[..., LoopbackFederation],
) -> None:
    order = request("VerticalFederatedClassifier", match="order")
    outcome = federation(secret=True).carry_out(order)
    assert "Each row must be the same entity in every view" in outcome["error"]


def test_without_a_secret_it_is_said_that_orders_were_not_compared(
    federation: Callable[..., LoopbackFederation],
) -> None:
    made, order = federation(), request("VerticalFederatedClassifier", match="order")
    made.carry_out(order)
    notes = Ledger.read(made.place(order) / "ledger.jsonl").notes
    assert any("has no secret for ids, so their order was not compared" in note for note in notes)


def test_a_site_remembers_positions_and_no_key(federation: Callable[..., LoopbackFederation]) -> None:
    made, order = federation(), request()
    assert made.carry_out(order) == {"done": True}
    files = [path for kit in made.sites.values() for path in (kit / "fedspan" / "runs").rglob("*") if path.is_file()]
    assert files
    blob = b"".join(path.read_bytes() for path in files)
    assert b"PERSON" not in blob.upper()
    assert json.loads(next(made.folder.rglob("matched.json")).read_text()) == {"entities": ROWS - 9}


@pytest.mark.parametrize("secure", [{"enabled": False}, {"enabled": True, "threshold": 3, "verified": False}])
@pytest.mark.parametrize("match", ["psi", "digest"])
def test_with_masks_everybody_whom_a_site_has_counts(
    federation: Callable[..., LoopbackFederation], match: str, secure: dict[str, Any]
) -> None:
    """The union is matched; the answer is that of the same rows laid side by side, with gaps."""
    made = federation(secret=match == "digest")
    order = request(match=match, secure=secure, table={"preparation": asdict(Preparation(missing="mask"))})
    assert made.carry_out(order) == {"done": True}
    there = FederatedGCCA.load(made.place(order) / "model.safetensors")
    frames, _ = make_people()
    X = {site: frame.sort_index()[[f"{site}{j}" for j in range(SITES[site])]] for site, frame in frames.items()}
    gaps = {site: own.reindex(range(ROWS)).to_numpy() for site, own in X.items()}
    here = FederatedGCCA(2, random_state=3).fit(gaps, missing="mask")
    assert there.n_samples_ == ROWS
    np.testing.assert_allclose(there.eigenvalues_, here.eigenvalues_, atol=1e-6)
    assert sorted(there.view_counts_.tolist()) == sorted(here.view_counts_.tolist()) == [2.0] * 9 + [3.0] * 51


def test_a_union_of_which_few_are_at_other_sites_is_refused(federation: Callable[..., LoopbackFederation]) -> None:
    order = request(table={"preparation": asdict(Preparation(missing="mask"))})
    outcome = federation(min_common=58).carry_out(order)
    assert not outcome["done"]
    assert "Rows are matched here only if at least 58 entities are common" in outcome["error"]


def test_deep_gcca_learns_by_the_networks_that_the_sites_files_name(
    federation: Callable[..., LoopbackFederation], tmp_path: Path
) -> None:
    """Each kit has a Python file of its own, and rows are matched by their ids."""
    pytest.importorskip("torch", reason="needs fedspan[deep]")
    for site, width in SITES.items():
        (tmp_path / site).mkdir()
        (tmp_path / site / "networks.py").write_text(
            f"from torch import nn\n\ndef make(outputs):\n    return nn.Linear({width}, outputs)\n"
        )
    made, options = federation(network="networks.py:make"), {"n_components": 2, "rounds": 3, "random_state": 3}
    order = RunRequest(
        new_run(), "DeepFederatedGCCA", options, match="psi", secure={"enabled": True, "threshold": 3}, timeout=300.0
    )
    assert made.carry_out(order) == {"done": True}
    model = DeepFederatedGCCA.load(made.place(order) / "model.safetensors")
    assert model.common_.shape == (ROWS - 9, 2)
    assert model.correlations_.shape == (1, 2)  # the mean over the sites
    assert model.n_features_ == [*SITES.values()]
    with pytest.raises(InputError, match="networks stayed at the sites"):
        model.transform(common_views()[0])


def test_a_site_without_a_network_says_what_to_write(federation: Callable[..., LoopbackFederation]) -> None:
    made = federation()
    order = RunRequest(new_run(), "DeepFederatedGCCA", {"n_components": 2}, match="psi", timeout=300.0)
    assert 'network = "file.py:function"' in made.carry_out(order)["error"]


def test_a_name_that_is_no_network_is_refused_in_the_sites_file(federation: Callable[..., LoopbackFederation]) -> None:
    made = federation(network="networks")
    order = RunRequest(new_run(), "DeepFederatedGCCA", {"n_components": 2}, match="psi", timeout=300.0)
    assert "file is not valid" in made.carry_out(order)["error"]
