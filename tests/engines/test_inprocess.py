"""Clients in this process: threads, clients that are opened when they are needed, and many of them."""

from __future__ import annotations

import time
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedspan.algorithms import Gram, Krylov, Ssi
from fedspan.algorithms._moments import RowsClient
from fedspan.channel import Channel, delta, quantize
from fedspan.core.checkpoint import Checkpoint, flatten
from fedspan.core.ledger import Exchange
from fedspan.core.participation import Participation
from fedspan.core.protocol import Array, Arrays, Ask, Client, Each, Sensitivity, Sum, task
from fedspan.core.rng import Streams
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.engines.hub import Collector
from fedspan.errors import InputError


def bits(result: Any) -> Any:
    skeleton, arrays = flatten(result.state)
    return repr(skeleton), [a.tobytes() for a in arrays.values()]


def rows(n_clients: int, d: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    scales = 0.8 ** np.arange(d)
    return {f"client {i:05d}": rng.normal(size=(20 + 7 * i % 50, d)) * scales + 1 for i in range(n_clients)}


@pytest.mark.parametrize(
    "algorithm", [Ssi(k=4, tol=0), Krylov(k=4, tol=1e-12), Gram(k=4)], ids=lambda a: type(a).__name__
)
@pytest.mark.parametrize(
    "channel", [Channel(), Channel(delta(quantize(6)), delta(quantize(6)))], ids=["plain", "delta"]
)
def test_the_number_of_threads_does_not_matter_to_the_bit(algorithm: Any, channel: Channel) -> None:
    """Each client does the same operations, with one thread of BLAS; the replies are added in the order of ids."""
    clients = rows(24, 40)
    with threadpool_limits(1):
        results = [
            run(algorithm, InProcess(clients, threads=threads), rounds=6, seed=0, channel=channel)
            for threads in (1, 2, 4)
        ]
    assert bits(results[0]) == bits(results[1]) == bits(results[2])


class SlowClient(RowsClient):
    """The first clients answer last."""

    @task(releases={"Y": Sensitivity(2)}, shows="its products")
    def multiply(self, state: Any, arrays: Arrays, rng: Streams) -> Any:
        time.sleep(0.01 if rng.client < "client 00003" else 0.0)
        return super().multiply(state, arrays, rng)


@dataclass(frozen=True)
class SlowSsi(Ssi):
    client: type[Client[Any]] = SlowClient


def test_replies_are_folded_in_the_order_of_ids_whoever_answers_first() -> None:
    clients = rows(6, 10)
    want = run(SlowSsi(tol=0), InProcess(clients, threads=1), rounds=2, seed=0)
    got = run(SlowSsi(tol=0), InProcess(clients, threads=6), rounds=2, seed=0)
    assert bits(got) == bits(want)
    assert all(list(e.clients) == sorted(clients) for e in got.ledger.events if isinstance(e, Exchange))


SEEN: list[int] = []


class WatchClient(RowsClient):
    """Looks at how many threads BLAS may use while it works."""

    @task(releases={"Y": Sensitivity(2)}, shows="its products")
    def multiply(self, state: Any, arrays: Arrays, rng: Streams) -> Any:
        SEEN.append(max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"))
        return super().multiply(state, arrays, rng)


@dataclass(frozen=True)
class WatchSsi(Ssi):
    client: type[Client[Any]] = WatchClient


@pytest.mark.parametrize(
    ("allowed", "threads", "n_clients", "each"),
    [(4, 4, 4, 1), (4, 4, 2, 2), (4, 4, 1, 4), (4, 1, 3, 1), (1, 4, 2, 1), (2, 4, 1, 2)],
)
def test_blas_threads_and_ours_use_the_cores_once(allowed: int, threads: int, n_clients: int, each: int) -> None:
    """And never more than BLAS was allowed outside: OPENBLAS_NUM_THREADS=1 means one."""
    SEEN.clear()
    with threadpool_limits(allowed, user_api="blas"):
        run(WatchSsi(tol=0), InProcess(rows(n_clients, 5), threads=threads), rounds=1, seed=0)
        after = max(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")
    assert [each] * n_clients == SEEN
    assert after == allowed


class Shelf:
    """Data sets that are made when they are opened; knows how many are alive."""

    def __init__(self, clients: dict[str, Array]) -> None:
        self.alive, self.most, self.opened = 0, 0, 0
        self.clients: dict[str, Callable[[], Array]] = {name: self._opener(x) for name, x in clients.items()}

    def _opener(self, x: Array) -> Callable[[], Array]:
        def open_data() -> Array:
            data = x.copy()
            self.opened, self.alive = self.opened + 1, self.alive + 1
            self.most = max(self.most, self.alive)
            weakref.finalize(data, self._closed)
            return data

        return open_data

    def _closed(self) -> None:
        self.alive -= 1


@pytest.mark.parametrize("threads", [1, 4])
def test_no_more_than_max_open_data_sets_are_alive(threads: int) -> None:
    """And one per thread that is being opened or still at work. The same to the bit: the same rows, opened again."""
    clients = {f"{i:03d}": np.random.default_rng(i).normal(size=(5, 4)) + i for i in range(300)}
    shelf = Shelf(clients)
    result = run(Ssi(tol=0), InProcess(shelf.clients, threads=threads, max_open=8), rounds=2, seed=0)
    assert 8 <= shelf.most <= 8 + threads
    assert shelf.alive == 0  # all are closed when the run is over
    assert shelf.opened == 300 * result.ledger.exchanges  # each exchange visits all, eight are too few to be kept
    assert bits(result) == bits(run(Ssi(tol=0), InProcess(clients, threads=1), rounds=2, seed=0))


def test_clients_that_fit_are_opened_once() -> None:
    shelf = Shelf(rows(8, 4))
    run(Ssi(tol=0), InProcess(shelf.clients, max_open=8), rounds=4, seed=0)
    assert shelf.opened == 8


def test_the_client_used_last_is_kept_longest() -> None:
    shelf = Shelf(rows(40, 4))
    result = run(
        Ssi(tol=0),
        InProcess(shelf.clients, threads=1, max_open=39),
        rounds=3,
        seed=0,
        participation=Participation(count=1),
    )
    assert result.ledger.exchanges == 5
    assert shelf.opened <= 40 + 40 + 1  # the opening visits all twice; one of the next three at most was closed


def test_a_run_resumed_opens_only_whom_it_asks(tmp_path: Any) -> None:
    shelf = Shelf(rows(20, 4))
    options: dict[str, Any] = {"seed": 0, "participation": Participation(count=3), "checkpoint": Checkpoint(tmp_path)}
    run(Ssi(tol=0), InProcess(shelf.clients), rounds=1, **options)
    shelf.opened = 0
    run(Ssi(tol=0), InProcess(shelf.clients), rounds=2, **options)
    assert shelf.opened == 3


def memory_of(n_clients: int) -> int:
    """The largest number of bytes that the run held at once, the clients' openers not among them."""
    base = np.random.default_rng(0).normal(size=(50, 30))
    clients = {f"{i:05d}": lambda i=i: base + i / n_clients for i in range(n_clients)}
    engine = InProcess(clients, threads=1, max_open=64)
    tracemalloc.start()
    try:
        run(Ssi(tol=0), engine, rounds=3, seed=0, participation=Participation(count=100))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_clients_beyond_their_own_data() -> None:
    """A client of 50×30 has 12,000 bytes of data. What is kept of one that is closed (its id, its state, its place in
    the ledger) takes 550, and must stay below 1000; the data of no more than 64 clients are there at once."""
    few, many = memory_of(500), memory_of(2_500)
    assert (many - few) / 2_000 < 1_000
    assert few < 64 * 12_000 + 500 * 1_000 + 1_000_000


def test_a_broadcast_is_coded_once_for_all_who_stand_at_the_same_memory() -> None:
    """Also in later rounds, when all have moved on to the next memory together."""
    stage, coded = delta(quantize(4)), []

    def encode(arrays: Arrays, state: Any, rng: Streams) -> Any:
        coded.append(rng.round)
        return stage.encode(arrays, state, rng)

    channel = Channel(down=stage._replace(encode=encode))
    result = run(Ssi(tol=0), InProcess(rows(30, 5)), rounds=4, seed=0, channel=channel)
    assert len(coded) == result.ledger.exchanges


@pytest.mark.parametrize(
    ("clients", "why"),
    [
        ([], "There are no clients"),
        ({}, "There are no clients"),
        ({"": np.ones((2, 2))}, "name must not be empty"),
        ({"@server": np.ones((2, 2))}, "must not begin with '@'"),
        ({1: np.ones((2, 2)), "1": np.ones((2, 2))}, "names must differ as text"),
    ],
)
def test_clients_must_have_names(clients: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        InProcess(clients)


def test_a_list_is_numbered_so_that_the_order_of_ids_is_its_order() -> None:
    assert InProcess([0] * 101).clients[:3] == ("000", "001", "002")
    assert list(InProcess([0] * 11).clients) == sorted(InProcess([0] * 11).clients)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": -1}, {"max_open": 0}])
def test_threads_and_open_clients_are_at_least_one(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="threads and max_open must be at least 1, but are"):
        InProcess([0], **options)


def test_sums_take_what_clients_send_in_unlike_dtypes() -> None:
    collector = Collector(Ask("t", want=Sum("x")), ("a", "b", "c"))
    for name, x in (("a", np.array([1], np.int64)), ("b", np.array([0.5])), ("c", np.array([1e-9], np.float32))):
        collector.add(name, {"x": x})
    np.testing.assert_allclose(collector.replies().total["x"], 1.5 + 1e-9, rtol=1e-12)


def test_a_sum_does_not_change_what_the_clients_sent() -> None:
    collector, x = Collector(Ask("t", want=Sum("x")), ("a", "b")), np.ones(2)
    collector.add("a", {"x": x})
    collector.add("b", {"x": x})
    assert collector.replies().total["x"].tolist() == [2, 2]
    assert x.tolist() == [1, 1]


def test_each_reply_is_told_by_client_and_the_silent_are_named() -> None:
    collector = Collector(Ask("t", want=Each()), ("a", "b", "c"))
    for name, reply in (("a", {"x": np.ones(1)}), ("b", None), ("c", {"x": np.zeros(1)})):
        collector.add(name, reply)
    replies = collector.replies()
    assert (list(replies.each), replies.missing, replies.asked) == (["a", "c"], ("b",), ("a", "b", "c"))
