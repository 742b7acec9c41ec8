"""What secure aggregation costs: `python benchmarks/secure.py [--tables …] [--write docs/secure-aggregation.md]`.

costs: one exchange is the product M_i Z of 784×10 numbers at each of 10 and of 100 clients with 600 rows, all clients
in this process on one thread. Times are those of the processor, so other work on the machine does not count. Those per
client are what a site would take; the server's are what remains of the whole. Ratios are to the plain exchange of the
same run. The cost of the keys, once per run or after a loss, is apart.

crowds: one exchange of 7840 whole numbers among 1000 and 5000 clients that hold nothing else, without an engine: what
the protocol itself takes. The clients share masks with the neighbours that secure/graph.py gives them.

bits: the bytes of a whole run of krylov with bits="auto" on 1000 features (MNIST: 784) and 8 clients, 10 components,
tol 1e-6, with secure sums, as multiples of those without. Narrow lanes were tuned on these six problems with other
seeds, so only the seeds are fresh.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedspan.algorithms import Krylov, Ssi
from fedspan.channel import Channel, pack, wire
from fedspan.core.ledger import Exchange
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Replies, Sum
from fedspan.core.run import run
from fedspan.core.snapshot import HubSnapshot, SessionSnapshot
from fedspan.engines import InProcess, inprocess
from fedspan.engines.hub import Collector
from fedspan.secure import graph
from fedspan.secure.masking import Party, Secure
from fedspan.secure.session import PhaseCosts, SecureSession
from page import put

D, K, ROWS = 784, 10, 600
NUMBERS = 7840
DATA = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
Cost = dict[str, float]


def losing(stage: str, lost: set[str]) -> Callable[..., tuple[bool, bool]]:
    """From that stage on those clients are not heard of; only in the exchange being measured."""

    def fate(client: str, message: Any) -> tuple[bool, bool]:
        gone = client in lost and message.exchange == 2 and (message.task == stage or message.task == "@recover")
        return not gone, not gone

    return fate


def measure(
    clients: dict[str, Any], secure: Secure | None, least: int | None, repeat: int, stage: str = ""
) -> list[Cost]:
    """The costs of an exchange, and of new keys where there are some."""
    names = tuple(clients)
    session: Any = InProcess(clients, threads=1).start(Ssi(k=K), Channel(), 0, Protection(None, secure, least))
    if stage:
        session.inner._draw_fate = losing(stage, set(names[:: 10 // 3][: 3 * len(names) // 10]))
    settle, Z = (
        Ask("settle", {}, Sum("n", "energy", "features")),
        np.linalg.qr(np.random.default_rng(0).normal(size=(D, K)))[0],
    )
    multiply, numbers = Ask("multiply", {"Z": Z}, Sum("Y")), count()

    def cost(ask: Ask, new_keys: bool = False) -> Cost:
        if new_keys:
            session.roster = ()
        started = time.process_time()
        replies, event = session.exchange(ask, names, 1, next(numbers))
        whole = time.process_time() - started
        assert replies.total, "no sum was formed"
        each, up, down = (float(np.mean(x)) for x in (event.seconds, event.bytes_up, event.bytes_down))
        return {"client": each, "server": whole - sum(event.seconds), "up": up, "down": down}

    def typical(costs: list[Cost]) -> Cost:
        return {key: float(np.median([cost[key] for cost in costs])) for key in costs[0]}

    cost(settle), cost(settle)  # opens the data, agrees on keys
    exchange = typical([cost(multiply) for _ in range(repeat)])
    if secure is None or stage:
        return [exchange]
    with_keys, without = (typical([cost(settle, new) for _ in range(3)]) for new in (True, False))
    session.close()
    return [exchange, {key: with_keys[key] - without[key] for key in without}]


class Crowd:
    """A session whose clients answer every task with the same numbers, masked; from `stage` on, `lost` are gone."""

    def __init__(self, clients: int, threshold: int) -> None:
        self.parties = {f"{i:05d}": Party(f"{i:05d}", threshold) for i in range(clients)}
        self.x = np.random.default_rng(0).integers(-(2**40), 2**40, NUMBERS)
        self.stage, self.lost = "", set(list(self.parties)[:: 10 // 3][: 3 * clients // 10])
        self.seconds = 0.0  # of all clients

    def exchange(self, ask: Ask, cohort: tuple[str, ...], round: int, exchange: int) -> tuple[Replies, Exchange]:
        collector, down, up = Collector(ask, cohort), [], []
        for name in cohort:
            arrays = {**ask.arrays, **ask.privately.get(name, {})}
            down.append(wire.size(wire.Message(ask.task, round, exchange, arrays)))
            started, party = time.process_time(), self.parties[name]
            gone = name in self.lost and ask.task in (self.stage, "@recover")
            reply = None if gone else self._answer(party, ask.task, arrays, (round, exchange))
            self.seconds += time.process_time() - started
            up.append(0 if reply is None else wire.size(wire.Message(ask.task, round, exchange, reply)))
            collector.add(name, reply)
            if party.sent is not None:
                party.sent.arrays = {}  # it would keep what it sent, and all are in this memory
        return collector.replies(), Exchange(
            round, exchange, ask.task, cohort, tuple(down), tuple(up), (0.0,) * len(cohort)
        )

    def _answer(self, party: Party, task: str, arrays: Any, place: tuple[int, int]) -> Any:
        return party.answer(task, arrays, place) if task.startswith("@") else party.mask({"x": self.x}, place)

    def snapshot(self) -> SessionSnapshot:
        return SessionSnapshot(HubSnapshot({}, {}), {})

    def restore(self, saved: SessionSnapshot, after: int) -> None: ...
    def close(self) -> None: ...


def measure_crowd(clients: int) -> Iterator[str]:
    """Rows of the table: keys, and an exchange with no losses, and with three tenths lost before and after masking."""
    t, degree = 2 * clients // 3 + 1, graph.choose_degree(clients)
    assert degree is not None
    crowd = Crowd(clients, t)
    secure, names = SecureSession(crowd, t, t, retries=0), tuple(crowd.parties)

    def describe(what: str, act: Callable[[], tuple[Any, Any]]) -> str:
        crowd.seconds, started = 0.0, time.process_time()
        up, down = act()
        server = time.process_time() - started - crowd.seconds
        bytes_up, bytes_down = (f"{np.mean(link) / 1e3:.1f} kB" for link in (up, down))
        each = f"{1e3 * crowd.seconds / clients:.1f} ms"
        return f"| {clients} | {degree.neighbours} | {what} | {each} | {server:.2f} s | {bytes_up} | {bytes_down} |"

    def agree() -> tuple[Any, Any]:
        costs = PhaseCosts(names)
        secure._agree_on_keys(names, (0, 0), costs)
        down, up, _ = zip(*costs.spent.values(), strict=True)
        return up, down

    def sum_up(number: int) -> tuple[Any, Any]:
        replies, event = secure.exchange(Ask("give", want=Sum("x")), names, 1, number)
        assert (replies.total["x"] == (clients - len(replies.missing)) * crowd.x).all(), "the sum is wrong"
        return event.bytes_up, event.bytes_down

    yield describe("keys, once per run or after a loss", agree)
    yield describe("an exchange", lambda: sum_up(0))
    for number, (what, stage) in enumerate((("before", "give"), ("after", "@unmask")), start=1):
        crowd.stage = ""
        if not secure.roster:
            agree()
        crowd.stage = stage
        yield describe(f"an exchange, 30 % lost {what} masking", partial(sum_up, number))


def make_problems(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of 8 clients: a decaying spectrum in general position and along the columns, digits, a flat spectrum, counts
    with very uneven columns, and smooth series whose amplitude differs between clients."""
    rng, d, names = np.random.default_rng(seed), 1000, [f"s{i}" for i in range(8)]
    decay = 10 / np.sqrt(np.arange(1, d + 1))
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    yield "decaying, rotated", {name: rng.normal(size=(500, d)) * decay @ turn.T for name in names}
    yield "decaying, along the columns", {name: rng.normal(size=(500, d)) * decay for name in names}
    if (DATA / "mnist.npz").exists():
        digits = np.load(DATA / "mnist.npz")["X"].reshape(-1, 784).astype(np.float64)
        chosen = digits[rng.permutation(len(digits))[:8000]] / 255
        yield "MNIST", {name: chosen[i::8] for i, name in enumerate(names)}
    yield "flat", {name: rng.normal(size=(1000, d)) * np.linspace(1, 3, d) ** 2 for name in names}
    rates, loads = np.exp(rng.normal(0, 1.5, d)), np.exp(0.5 * rng.normal(size=(20, d)))
    counts = {name: rng.poisson(rates * (rng.gamma(1.0, size=(500, 20)) @ loads) / 20) for name in names}
    yield "counts, uneven columns", {name: x.astype(np.float64) for name, x in counts.items()}
    yield "series, uneven clients", {name: (1 + i) * _draw_series(rng, 400, d) for i, name in enumerate(names)}


def _draw_series(rng: np.random.Generator, n: int, d: int) -> Any:
    noise = rng.normal(size=(n, d)) * np.sqrt(1 - 0.98**2)
    noise[:, 0] /= np.sqrt(1 - 0.98**2)
    for j in range(1, d):
        noise[:, j] += 0.98 * noise[:, j - 1]
    return noise


def measure_bits(seed: int) -> Iterator[str]:
    """Rows of the table of bytes."""
    channel = Channel(up=pack(), down=pack())
    for name, clients in make_problems(seed):
        plain, secure, verified = (
            run(
                Krylov(k=K, tol=1e-6, rounded=True),
                InProcess(clients),
                rounds=300,
                seed=seed,
                channel=channel,
                secure=protection,
            )
            for protection in (None, Secure(), Secure(verified=True))
        )
        asked = sum(isinstance(e, Exchange) and e.task == "multiply_on_grid" for e in secure.ledger.events)
        ratios = [
            sum(getattr(one.ledger, link) for link in links) / sum(getattr(plain.ledger, link) for link in links)
            for one in (secure, verified)
            for links in (("bytes_up",), ("bytes_up", "bytes_down"))
        ]
        cells = " | ".join(f"×{ratio:.2f}" for ratio in ratios)
        yield f"| {name} | {secure.rounds} | {asked - secure.rounds} | {cells} |"


def main() -> None:
    inprocess.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the tables into these Markdown files")
    args = parser.parse_args()
    for table in args.tables:
        lines = []
        for line in TABLES[table]():
            print(line, flush=True)
            lines.append(line)
        for path in args.write:
            put(lines, path, table)


def make_costs() -> Iterator[str]:
    yield "| clients | exchange | time per client | server | bytes up | bytes down |"
    yield "|--:|---|--:|--:|--:|--:|"
    for m in (10, 100):
        rng = np.random.default_rng(1)
        clients = {f"{i:03d}": rng.normal(size=(ROWS, D)) for i in range(m)}
        repeat, t = max(3, 30 // m), 2 * m // 3 + 1
        some = f"{t} of {m} must answer"
        plain = measure(clients, None, None, repeat)[0]
        rows: list[tuple[str, Cost]] = [("plain", plain)]
        for name, least in (("all must answer", None), (some, t)):
            cost, keys = measure(clients, Secure(), least, repeat)
            rows += [(f"secure, {name}", cost), (f"secure, {name}: keys", keys)]
        for name, stage in (("before masking", "multiply"), ("after masking", "@unmask")):
            rows.append((f"secure, {some}, 30 % lost {name}", measure(clients, Secure(), t, 1, stage)[0]))
        for name, cost in rows:
            ratio = "" if cost is plain or name.endswith("keys") else f" (×{cost['client'] / plain['client']:.1f})"
            cells = [f"{1e3 * cost['client']:.1f} ms{ratio}", f"{round(1e3 * cost['server'])} ms"]
            for link in ("up", "down"):
                ratio = "" if cost is plain or name.endswith("keys") else f" (×{cost[link] / plain[link]:.2f})"
                cells.append(f"{cost[link] / 1e3:.1f} kB{ratio}")
            yield f"| {m} | {name} | {' | '.join(cells)} |"


def make_crowds() -> Iterator[str]:
    yield "| clients | neighbours | what | time per client | server | bytes up | bytes down |"
    yield "|--:|--:|---|--:|--:|--:|--:|"
    for clients in (1000, 5000):
        yield from measure_crowd(clients)


def make_bits() -> Iterator[str]:
    yield "| problem | rounds | asked again | up | both directions | verified: up | verified: both |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    yield from measure_bits(2026)


TABLES: dict[str, Callable[[], Iterator[str]]] = {"costs": make_costs, "crowds": make_crowds, "bits": make_bits}


if __name__ == "__main__":
    main()
