"""What secure aggregation costs: `python benchmarks/secure.py [--write docs/secure-aggregation.md]`.

One exchange is the product M_i Z of 784×10 numbers at each of 10 and of 100 clients with 600 rows, all clients in this
process on one thread. Times are those of the processor, so other work on the machine does not count. Those per client
are what a site would take; the server's are what remains of the whole. Ratios are to the plain exchange of the same
run. The cost of the keys, once per run or after a loss, is apart.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedspan.algorithms import Ssi
from fedspan.channel import Channel
from fedspan.core.protection import Protection
from fedspan.core.protocol import Ask, Sum
from fedspan.engines import InProcess, inprocess
from fedspan.secure.masking import Secure
from page import put

D, K, ROWS = 784, 10, 600
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
        session.inner._fate = losing(stage, set(names[:: 10 // 3][: 3 * len(names) // 10]))
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


def main() -> None:
    inprocess.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    args = parser.parse_args()
    lines = [
        "| clients | exchange | time per client | server | bytes up | bytes down |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    print("\n".join(lines))
    for m in args.clients:
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
            lines.append(f"| {m} | {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    for path in args.write:
        put(lines, path, "costs")


if __name__ == "__main__":
    main()
