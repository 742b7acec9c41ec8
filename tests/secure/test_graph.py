"""The graph of neighbours: regular, symmetric, the same for all, and as safe as it says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.stats
from masked_world import Router, ask_sum, numbers, session

from fedspan.secure import graph
from fedspan.secure.graph import Degree, choose_degree, find_circle, find_circles, mirror_circles


@pytest.mark.parametrize("clients", [401, 1000, 5000, 100_000])
def test_k_and_t_are_as_safe_as_they_say(clients: int) -> None:
    """Against scipy's hypergeometric distribution."""
    degree = choose_degree(clients)
    assert degree is not None
    k, t = degree
    colluding, there = -(-clients // 10), clients * 7 // 10
    assert clients * scipy.stats.hypergeom.sf(t - graph.HONEST, clients - 1, colluding, k) < 2.0**-40
    assert clients * scipy.stats.hypergeom.cdf(t - 1, clients - 1, there - 1, k) < 2.0**-30
    assert clients * 0.4 ** (k // 2) < 2.0**-40
    assert k < clients - 1
    assert k % 2 == 0


def test_few_clients_share_masks_with_all() -> None:
    assert choose_degree(2) is choose_degree(graph.COMPLETE_UP_TO) is None
    np.testing.assert_array_equal(find_circles(b"", 4, None), [[0, 1, 2, 3]] * 4)
    assert find_circle(b"", 4, None, 2) == [0, 1, 2, 3]
    np.testing.assert_array_equal(mirror_circles(find_circles(b"", 3, None)), [[0, 3, 6], [1, 4, 7], [2, 5, 8]])


@pytest.mark.parametrize(("clients", "k"), [(12, 4), (41, 10), (500, 110)])
def test_the_graph_is_regular_and_symmetric_and_all_derive_the_same(clients: int, k: int) -> None:
    circles = find_circles(b"seed", clients, Degree(k, 2))
    assert circles.shape == (clients, k + 1)
    edges = {(i, j) for i, row in enumerate(circles.tolist()) for j in row}
    assert len(edges) == clients * (k + 1)
    assert edges == {(j, i) for i, j in edges}
    assert all((i, i) in edges for i in range(clients))
    assert all(find_circle(b"seed", clients, Degree(k, 2), i) == circles[i].tolist() for i in range(clients))
    mirror = mirror_circles(circles)
    owners = np.repeat(np.arange(clients), k + 1)
    assert (circles.ravel()[mirror] == np.arange(clients)[:, None]).all()  # at that place stands the client
    np.testing.assert_array_equal(owners[mirror], circles)  # in the row of its neighbour


def test_every_pair_is_as_likely_to_be_neighbours() -> None:
    count: Counter[int] = Counter()
    for seed in range(3000):
        count.update(find_circle(seed.to_bytes(4, "big"), 13, Degree(4, 3), 0))
    assert count.pop(0) == 3000
    assert scipy.stats.chisquare(list(count.values())).pvalue > 1e-7
    assert len(count) == 12


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse graph among few: each of 12 or more clients has 6 neighbours, 4 must agree."""
    monkeypatch.setattr(graph, "choose_degree", lambda clients: Degree(6, 4) if clients >= 12 else None)


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("t", [9, 14])
def test_the_sum_on_a_sparse_graph_is_right(t: int) -> None:
    data = numbers(14)
    router = Router(data, t)
    secure = session(router, t)
    for exchange in range(3):
        replies, _ = ask_sum(secure, tuple(data), (1, exchange))
        assert replies.total["n"] == sum(int(arrays["n"]) for arrays in data.values())
    assert {len(party.circle.secrets) for party in router.parties.values()} == {6}  # type: ignore[union-attr]


def dead_from(stage: str, who: set[str]) -> Any:
    gone: set[str] = set()

    def fate(task: str, client: str) -> tuple[bool, bool]:
        if task == stage and client in who:
            gone.add(client)
        return client not in gone, client not in gone

    return fate


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("stage", ["@commit", "@keys", "@roster", "give", "@agree", "@unmask"])
def test_losses_at_any_stage_leave_a_right_sum_on_a_sparse_graph(stage: str) -> None:
    data, who = numbers(16), {"c003", "c011"}
    replies, _ = ask_sum(session(Router(data, 11, dead_from(stage, who)), 11, 11), tuple(data))
    present = [name for name in data if name not in replies.missing]
    assert set(replies.missing) == (who if stage in ("@commit", "@keys", "@roster", "give") else set())
    assert replies.total["n"] == sum(int(data[name]["n"]) for name in present)


def test_many_clients_with_the_degree_that_is_chosen_for_them() -> None:
    """The real parameters, at the smallest size where a client does not share masks with all."""
    data = numbers(420, size=1)
    lost = set(list(data)[::4])
    replies, _ = ask_sum(session(Router(data, 281, dead_from("give", lost)), 281, 281), tuple(data))
    assert set(replies.missing) == lost
    assert replies.total["n"] == sum(int(data[name]["n"]) for name in data if name not in lost)
