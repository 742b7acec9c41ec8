"""Who asked for a run, and whether it is what was asked for: a site does not take the server's word for either."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from certificates import ADA, BOB
from orders import new_run

from fedspan.algorithms import Gram, PersonalEigen, Ssi
from fedspan.data.preparation import Preparation
from fedspan.deployment.approval import admission
from fedspan.deployment.approval.admission import Admission
from fedspan.deployment.approval.decisions import Decisions
from fedspan.deployment.approval.signed_order import SignedOrder, sign_order, verify_order
from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.deployment.policy import Policy
from fedspan.deployment.server_job import RunRequest
from fedspan.deployment.site_evidence import collect_evidence, describe_book
from fedspan.deployment.site_rules.book import Book
from fedspan.engines.loopback import Call, Deliver
from fedspan.engines.start import StartMessage, plain_fields
from fedspan.errors import InputError, PolicyRefusal

Make = Callable[..., LoopbackFederation]
PLAIN = {"n_components": 2, "solver": "ssi", "max_rounds": 3, "tol": 0.0, "random_state": 0}


def order(**changes: Any) -> RunRequest:
    parameters = {**PLAIN, **changes.pop("parameters", {})}
    return RunRequest(new_run(), "FederatedPCA", parameters, **{"retries": 0, **changes})


def change_opening(**values: Any) -> Callable[[Call, Deliver], bytes | str]:
    """A server that opens something else than was signed, at every site."""

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        if call.method == "open":
            tree = {**json.loads(call.message), **values}
            call = call._replace(message=json.dumps(tree))
        return deliver(call)

    return tamper


def refusals(kit: Path) -> list[str]:
    return [line for line in describe_book(kit) if "refused" in line]


def test_a_signed_order_runs_and_the_book_says_whose_it_was(make_gated: Make) -> None:
    three = make_gated(researchers=[ADA])
    request = order()
    assert three.carry_out(request)["done"]
    for kit in three.sites.values():
        opened = next(entry for entry in Book(kit).read() if entry.event == "opened")
        assert opened.facts["by"] == ADA
        record = Decisions(kit).find(str(opened.facts["signed"]))
        assert record is not None
        assert verify_order(kit, record.signed).find_request(request.run) == RunRequest.from_json(
            json.loads(json.dumps(request.to_json()))
        )


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("south", "not a researcher's"),
        ("late", "by this machine's clock it is"),
        ("early", "by this machine's clock it is"),
        ("foreign", "not issued by this federation's root"),
        (BOB, f"{BOB} may not run jobs at this site"),
        (None, "orders only that a researcher has signed"),
    ],
)
def test_orders_of_anybody_else_are_refused_before_anything_leaves(
    make_gated: Make, researchers: dict[str, Path], who: str | None, why: str
) -> None:
    three = make_gated(researchers=[ADA])
    three.researcher = None if who is None else researchers[who]
    outcome = three.carry_out(order())
    assert not outcome["done"]
    assert why in outcome.get("error", "")
    assert all(entry.event == "refused" for kit in three.sites.values() for entry in Book(kit).read())


def test_a_researcher_who_is_taken_off_the_list_is_refused_at_once(make_gated: Make) -> None:
    """The file is read again for every run; a run under way stops before its next answer."""
    three = make_gated(researchers=[ADA], secure=False)
    kit = three.sites["north"]
    path = kit / "local" / "fedspan.toml"
    asked = 0

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        nonlocal asked
        if call.method == "exchange" and call.site == "north":
            asked += 1
            if asked == 4:
                path.write_text(path.read_text().replace(ADA, BOB))
        return deliver(call)

    three.tamper = tamper
    request = order(secure={"enabled": False}, parameters={"max_rounds": 8})
    assert "own file has changed" in three.carry_out(request).get("error", "")
    answered = sum(entry.event == "answered" for entry in Book(kit).read())
    assert "may not run jobs" in three.carry_out(request).get("error", "")
    assert sum(entry.event == "answered" for entry in Book(kit).read()) == answered


def test_no_byte_of_an_order_can_be_changed(authority: Any, researchers: dict[str, Path], tmp_path: Path) -> None:
    kit = authority.make_kit(tmp_path / "north", "north")
    signed = sign_order(researchers[ADA], [order()], ["north", "south", "east"])
    assert verify_order(kit, signed).submitter.name == ADA
    other = sign_order(researchers[BOB], [order()], ["north", "south", "east"])
    for at in range(0, len(signed.text), 37):
        flipped = signed.text[:at] + chr(ord(signed.text[at]) ^ 1) + signed.text[at + 1 :]
        with pytest.raises(PolicyRefusal, match="changed since"):
            verify_order(kit, replace(signed, text=flipped))
    for swapped in (replace(signed, certificate=other.certificate), replace(signed, signature=other.signature)):
        with pytest.raises(PolicyRefusal, match="changed since"):
            verify_order(kit, swapped)
    for broken in (replace(signed, signature="?"), replace(signed, certificate="AAAA")):
        with pytest.raises(PolicyRefusal):
            verify_order(kit, broken)
    for tree in ({}, {"text": 1}, [], None, {**signed.to_json(), "more": 1}):
        with pytest.raises(PolicyRefusal, match="must carry an order"):
            SignedOrder.from_json(tree)


def choose_columns(count: int) -> dict[str, Any]:
    return asdict(Preparation(columns=tuple(f"lab{i}" for i in range(count))))


SWAPS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # what the researcher asks besides; what the server opens instead; what the site says
    "run": ({}, {"run": "a" * 32}, "has no such run"),
    "more components": ({}, {"fields": plain_fields(Ssi(k=5, tol=0.0))}, "n_components is 2"),
    "more rounds": ({"secure": {"enabled": True, "verified": True}}, {"rounds": 50}, "rounds are at most 3"),
    "another method": ({}, {"algorithm": "Gram", "fields": plain_fields(Gram(k=2))}, "the method is"),
    "another family": ({}, {"algorithm": "PersonalEigen", "fields": plain_fields(PersonalEigen(k=2))}, "the method is"),
    "no secure sums": (
        {"secure": {"enabled": True}},
        {"threshold": None, "verified": False, "groups": []},
        "secure sums are True",
    ),
    "not verified": ({"secure": {"enabled": True}}, {"verified": False, "groups": []}, "sums are verified"),
    "smaller sums": (
        {"secure": {"enabled": True, "verified": False}},
        {"threshold": 2},
        "sites in a sum are at least 3",
    ),
    "more columns": (
        {"table": {"name": None, "preparation": choose_columns(3)}},
        {"table": {"name": None, "preparation": choose_columns(4)}},
        "the columns are",
    ),
    "another table": ({}, {"table": {"name": "other"}}, "the table is 'default'"),
    "an invented site": ({}, {"clients": ["east", "north", "south", "west"]}, "the sites are"),
}


@pytest.mark.parametrize("swap", SWAPS)
def test_a_server_that_opens_something_else_than_was_signed_is_refused_and_logged(
    make_gated: Make, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    asked, opened, why = SWAPS[swap]
    three = make_gated(secure=False, others=1, approval="each", researchers=[ADA])
    request = order(**asked)
    approve_everywhere(three, request)
    three.tamper = change_opening(**opened)
    outcome = three.carry_out(request)
    assert not outcome["done"]
    assert why in outcome.get("error", "")
    for kit in three.sites.values():
        assert not any(entry.event in ("opened", "answered") for entry in Book(kit).read())
    assert any("not the one that was signed" in line or "no such run" in line for line in refusals(three.sites["east"]))
    # Without the comparison the sites open what the server says: that is why it is there.
    monkeypatch.setattr(admission, "check_follows", lambda start, order: None)
    three.carry_out(request)
    if swap not in ("another table", "an invented site", "another family"):  # which other rules stop, too
        assert any(entry.event == "opened" for kit in three.sites.values() for entry in Book(kit).read())
    three.tamper = None


def approve_everywhere(three: LoopbackFederation, request: RunRequest) -> str:
    """Send it once, so that it waits, and approve it at each site; returns its digest."""
    assert "waiting for the approval" in three.carry_out(request).get("error", "")
    digests = set()
    for kit in three.sites.values():
        (record,) = Decisions(kit).list_waiting()
        digests.add(Decisions(kit).approve(record.digest).digest)
    (digest,) = digests
    return digest


def test_an_order_waits_until_every_site_has_approved_it(make_gated: Make) -> None:
    three = make_gated(approval="each")
    request = order()
    outcome = three.carry_out(request)
    assert not outcome["done"]
    assert not outcome.get("input")  # nothing has to be changed
    for kit in three.sites.values():
        assert not any(entry.event in ("opened", "answered") for entry in Book(kit).read())
    approve_everywhere(three, request)
    assert three.carry_out(request)["done"]
    assert Book(three.sites["east"]).verify().broken == ()
    assert any("approved order" in line for line in describe_book(three.sites["east"]))


def test_an_order_that_was_refused_says_why_and_stays_refused(make_gated: Make) -> None:
    three = make_gated(approval="each")
    request = order()
    approve_everywhere(three, request)
    kit = three.sites["north"]
    (record,) = Decisions(kit).list_all()
    Decisions(kit).refuse(record.digest[:8], "not before the\nethics vote")
    for _ in range(2):
        assert "refused by this site's administrator: not before the ethics vote" in three.carry_out(request)["error"]
    Decisions(kit).approve(record.digest)
    assert three.carry_out(request)["done"]


def test_a_run_that_is_under_way_stops_when_its_order_is_refused(make_gated: Make) -> None:
    three = make_gated(approval="each", secure=False)
    request = order(secure={"enabled": False}, parameters={"max_rounds": 8})
    digest = approve_everywhere(three, request)
    kit, asked = three.sites["south"], 0

    def tamper(call: Call, deliver: Deliver) -> bytes | str:
        nonlocal asked
        asked += call.method == "exchange" and call.site == "south"
        if asked == 4:
            Decisions(kit).refuse(digest, "enough")
            asked += 1
        return deliver(call)

    three.tamper = tamper
    outcome = three.carry_out(request)
    assert "refused by this site's administrator: enough" in outcome.get("error", "")
    assert sum(entry.event == "answered" for entry in Book(kit).read()) == 3


def test_only_named_researchers_need_no_approval_if_the_file_says_so(
    make_gated: Make, researchers: dict[str, Path]
) -> None:
    three = make_gated(approval="researcher", researchers=[ADA])
    assert three.carry_out(order())["done"]
    three.researcher = researchers[BOB]
    request = order()
    approve_everywhere(three, request)
    assert three.carry_out(request)["done"]


def test_a_rule_for_one_algorithm_holds_for_it_alone(make_gated: Make) -> None:
    three = make_gated()
    for kit in three.sites.values():
        path = kit / "local" / "fedspan.toml"
        path.write_text(
            path.read_text() + '\n[algorithms."gram"]\napproval = "each"\n[algorithms.ssi]\nverified = true\n'
        )
    assert three.carry_out(order())["done"]  # three sites: verified by default
    assert "runs 'ssi' verified only" in three.carry_out(order(secure={"enabled": True, "verified": False}))["error"]
    gram = order(parameters={"solver": "gram"})
    approve_everywhere(three, gram)
    assert three.carry_out(gram)["done"]
    # The solver is left open, so that the server might choose gram.
    assert "waiting" in three.carry_out(order(parameters={"solver": "auto"}))["error"]


def test_a_private_order_cannot_be_opened_in_more_parts_than_its_budget_has_shares(make_gated: Make) -> None:
    three = make_gated(secure=False)
    privacy = {"epsilon": 2.0, "delta": 1e-6, "row_norm": 6.0}
    request = order(parameters={"solver": "gram", "max_rounds": 1}, privacy=privacy)
    assert three.carry_out(request)["done"], "as it was signed"
    kit = three.sites["north"]
    (record,) = Decisions(kit).list_all()
    assert 0 < sum(record.shares.values()) <= 1 + 1e-6
    text = (kit / "fedspan" / "runs" / request.run / "0" / "order.json").read_text()
    assert three.researcher is not None
    gate = Admission(kit, sign_order(three.researcher, [request], list(three.sites)))
    policy, opened = Policy.read(kit), json.loads(text)
    gate.check_opening(policy, StartMessage.from_json(text))  # the same part again, after a crash, costs nothing
    many = [StartMessage.from_json(json.dumps({**opened, "part": part})) for part in range(5, 100)]
    with pytest.raises(PolicyRefusal, match="more releases than the privacy budget"):
        _ = [gate.check_opening(policy, start) for start in many]
    weaker = {**opened, "privacy": {**opened["privacy"], "epsilon": 8.0}}
    with pytest.raises(PolicyRefusal, match=r"epsilon is 2\.0"):
        gate.check_opening(policy, StartMessage.from_json(json.dumps(weaker)))
    with pytest.raises(PolicyRefusal, match="there is noise"):
        gate.check_opening(policy, StartMessage.from_json(json.dumps({**opened, "privacy": None})))


def test_options_are_compared_for_orders_of_single_algorithms(make_gated: Make) -> None:
    three = make_gated(secure=False)
    request = RunRequest(new_run(), algorithm="Ssi", fields=plain_fields(Ssi(k=2)), rounds=3, secure={"enabled": False})
    three.tamper = change_opening(fields=plain_fields(Ssi(k=4)))
    assert "the options are" in three.carry_out(request)["error"]
    three.tamper = None
    assert three.carry_out(request)["done"]


def test_evidence_holds_the_order_as_it_was_signed_and_what_the_researcher_adds(
    make_gated: Make, tmp_path: Path
) -> None:
    """An auditor verifies the signature from the folder alone, with the root's certificate that is in it."""
    three = make_gated(approval="each")
    request = order()
    digest = approve_everywhere(three, request)
    assert three.carry_out(request)["done"]
    kit, results = three.sites["east"], tmp_path / "results"
    results.mkdir()
    for name in ("ledger.jsonl", "model.safetensors"):
        (results / name).write_bytes((three.place(request) / name).read_bytes())
    (results / "report.html").write_text("report")
    (results / "federation.json").write_text(json.dumps({"kit": "k", "run": "another"}))
    with pytest.raises(InputError, match="not the researcher's folder of this run"):
        collect_evidence(kit, request.run, tmp_path / "no", results)
    assert not (tmp_path / "no").exists()
    (results / "federation.json").write_text(json.dumps({"kit": "k", "run": request.run}))
    out = tmp_path / "evidence"
    names = collect_evidence(kit, request.run, out, results)
    assert {"ledger.jsonl", "report.html", "model-card.md", f"signed-{digest[:16]}.json", "rootCA.pem"} <= set(names)
    (tmp_path / "auditor" / "startup").mkdir(parents=True)
    (tmp_path / "auditor" / "startup" / "rootCA.pem").write_bytes((out / "rootCA.pem").read_bytes())
    kept = json.loads((out / f"signed-{digest[:16]}.json").read_text())
    signed = SignedOrder.from_json(kept["signed"])
    assert verify_order(tmp_path / "auditor", signed).submitter.name == ADA
    assert kept["state"] == "approved"
    assert not any(path.suffix == ".key" for path in out.iterdir())
    model = sha256((results / "model.safetensors").read_bytes()).hexdigest()
    assert model in (out / "model-card.md").read_text()
