"""A real federation (processes, mutual TLS) learns what one process does, to the bit; see also tests/deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs fedspan[flare]")

import first_job as job
from orders import (
    ESTIMATORS,
    RUNS,
    assert_noised,
    assert_same_as_fitted_here,
    assert_same_as_in_one_process,
    order_for,
    order_for_estimator,
    order_with_noise,
    write_tables,
)
from people_tables import assert_people_matched
from world import collect, federation, submit

pytestmark = pytest.mark.xdist_group("flare")


@pytest.mark.parametrize(("name", "secure"), job.ALGORITHMS)
def test_a_federation_gives_the_same_bits(first_job: Any, name: str, secure: bool) -> None:
    assert_same_as_in_one_process(first_job.place((name, secure)), name, secure, first_job.sites)


@pytest.mark.parametrize("task", job.ESTIMATORS)
def test_an_estimator_learns_the_same_on_a_federation(first_job: Any, task: str) -> None:
    assert_same_as_fitted_here(first_job.place(task), task, first_job.sites)


def test_noise_of_a_federation_is_not_the_seeds(first_job: Any) -> None:
    """It comes from each site's operating system; what leaves is noised and masked, and the ledger says how much."""
    assert_noised(first_job.place("noised"), first_job.sites)


def test_a_federation_matches_people_by_their_ids(first_job: Any) -> None:
    assert_people_matched(first_job.place("people"), first_job.sites)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    """One job on five sites carries out an order for every algorithm; some of them once more with secure sums."""
    folder = tmp_path_factory.mktemp("same-bits")
    orders: dict[Any, Any] = {(name, secure): order_for(name, secure) for name, secure in RUNS}
    orders |= {task: order_for_estimator(task) for task in ESTIMATORS}
    orders["noised"] = order_with_noise()
    with federation(folder, write_tables(folder), secure=False) as made:
        asked = list(orders.values())
        outcomes = collect(made, submit(made, asked), asked, folder / "out")
    assert not {key: outcomes[order.run] for key, order in orders.items() if not outcomes[order.run]["done"]}
    return {key: folder / "out" / order.run for key, order in orders.items()}


@pytest.mark.long
@pytest.mark.parametrize(("name", "secure"), RUNS)
def test_five_sites_give_the_same_bits(answers: dict[Any, Path], name: str, secure: bool) -> None:
    assert_same_as_in_one_process(answers[name, secure], name, secure)


@pytest.mark.long
@pytest.mark.parametrize("task", ESTIMATORS)
def test_an_estimator_learns_the_same_on_five_sites(answers: dict[Any, Path], task: str) -> None:
    assert_same_as_fitted_here(answers[task], task)


@pytest.mark.long
def test_noise_of_five_sites_is_not_the_seeds(answers: dict[Any, Path]) -> None:
    assert_noised(answers["noised"])
