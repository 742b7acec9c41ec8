"""A verified run is cut off at every message in turn, and goes on to the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from orders import VERIFIED, assert_same_estimate, order_for, write_site, write_tables

from fedspan.deployment.loopback_federation import LoopbackFederation
from fedspan.engines.loopback import Call, Deliver


class Killed(BaseException):
    """The end of the server's process."""


class Kill:
    """Ends the server at its n-th question, before it is heard or after it was answered."""

    def __init__(self, at: int, after: bool) -> None:
        self.at, self.after, self.count = at, after, 0

    def __call__(self, call: Call, deliver: Deliver) -> Any:
        if call.method != "exchange":
            return deliver(call)
        self.count += 1
        if self.count > self.at and not self.after:
            raise Killed
        answer = deliver(call)
        if self.count > self.at:
            raise Killed
        return answer


def cut_off(five: LoopbackFederation, name: str, places: Iterable[tuple[int, bool]]) -> int:
    """Kill a run at each of those questions in turn, and go on; how many there were before it ended by itself."""
    cuts = 0
    for at, after in places:
        order, kill = order_for(name, "verified"), Kill(at, after)
        try:
            assert LoopbackFederation(five.folder, five.sites, kill).carry_out(order) == {"done": True}
            return cuts
        except Killed:
            cuts += 1
            assert five.carry_out(order) == {"done": True}, (at, after)
            assert_same_estimate(five.place(order), name, "verified")
    raise AssertionError("the run has no end")


# Every so many questions, in turn not heard and answered; of the others about two.
STRIDES = {"krylov": 3, "krylov rounded": 7, "ssca limited": 17, "vertical sgd": 23}


@pytest.mark.parametrize("name", VERIFIED)
def test_a_verified_run_survives_the_loss_of_its_server(five: LoopbackFederation, name: str) -> None:
    stride = STRIDES.get(name, 43)
    assert cut_off(five, name, ((i * stride + i % 2, bool(i % 2)) for i in count())) >= (4 if name in STRIDES else 1)


def test_groups_of_a_job_reach_the_sites(tmp_path: Path) -> None:
    order = order_for("krylov", "verified")
    grouped = {"enabled": True, "verified": True, "groups": [["ada", "bo"], ["cy", "dee", "eve"]]}
    sites = {name: write_site(tmp_path / name, own, secure=False) for name, own in write_tables(tmp_path).items()}
    alone = LoopbackFederation(tmp_path / "server", sites)
    assert alone.carry_out(replace(order, secure=grouped)) == {"done": True}
    assert_same_estimate(alone.place(order), "krylov", "verified")
    outcome = alone.carry_out(order_for("krylov", "verified"))
    assert "was summed with these groups of sites before: ada, bo; cy, dee, eve" in outcome["error"]


def test_sites_that_demand_verified_runs_get_them_by_default(tmp_path: Path) -> None:
    """Without [secure] in the job, as `fedspan site init --sites` leaves the sites."""
    tables = write_tables(tmp_path)
    rules = {"verified": True, "sites": list(tables)}
    sites = {name: write_site(tmp_path / name, own, **rules) for name, own in tables.items()}
    federation = LoopbackFederation(tmp_path / "server", sites)
    order = order_for("krylov")
    assert federation.carry_out(replace(order, secure=None)) == {"done": True}
    assert_same_estimate(federation.place(order), "krylov", "verified")
    refused = order_for("davidson", True)
    outcome = federation.carry_out(refused)
    assert (
        "accepts verified runs only, and this one is not (davidson cannot be, because its opening" in outcome["error"]
    )
