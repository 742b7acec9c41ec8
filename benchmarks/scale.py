"""How cost grows: with clients, features, components and the cohort.

All clients in one process on one thread (`InProcess`), opened when they are asked and at most 256 at once, as files
would be; every point in a process of its own, so that its peak memory is its own (that of the imports is taken off).
Seconds are the processor's, of a round after the first; a client's hold the opening of its data, the server's are what
remains of the round. An exponent is that of least squares on logarithms; `last` is the slope between the two largest.
`python benchmarks/scale.py --write` puts the tables into docs/scale.md.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import fedspan
from fedspan.algorithms import FedPower, Gram, Krylov, PersonalPaper
from fedspan.core.ledger import Exchange, RoundEnd
from fedspan.engines import InProcess, inprocess
from fedspan.secure.masking import Secure
from harness import Config, Found, Row

Case = dict[str, Any]
Point = dict[str, Any]
COSTS = ("seconds", "server", "client", "up", "down", "opening", "keys", "memory")
METHODS: dict[str, Callable[[Case], Any]] = {
    "krylov": lambda c: Krylov(c["components"], tol=0.0),
    "gram": lambda c: Gram(c["components"]),
    "fedpower": lambda c: FedPower(c["components"], tol=0.0, decay=False, count=c["cohort"]),
    "personalized": lambda c: PersonalPaper(c["components"], 30.0, rounds=c["rounds"], tol=-1.0, count=c["cohort"]),
}


@dataclass(frozen=True)
class Sweep:
    """One size grows, the others stay."""

    method: str
    over: str
    sizes: tuple[int, ...]
    fixed: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.method} over {self.over}"

    def cases(self, rounds: int) -> list[Case]:
        base = {"method": self.method, "rows": 4, "features": 20, "components": 2, "cohort": None, "rounds": rounds}
        cases = [{**base, **self.fixed, self.over: size} for size in self.sizes]
        return [{**case, "rounds": 2} if case["clients"] > 50_000 else case for case in cases]


SMALL, WIDE, SECURE = {"rows": 10, "features": 50}, {"clients": 4, "rows": 100, "components": 5}, {"features": 100}
JOB = {"rows": 20, "features": 1000, "components": 10}  # what docs/scale.md extrapolates
SWEEPS = (
    Sweep("krylov", "clients", (10, 100, 1000, 10_000, 100_000), {}),
    Sweep("krylov", "features", (100, 400, 1500, 5000, 20_000), WIDE),
    Sweep("krylov", "components", (2, 4, 8, 16, 32), {**WIDE, "features": 5000}),
    Sweep("gram", "features", (100, 200, 400, 800, 1600), WIDE),
    Sweep("gram", "clients", (10, 100, 1000, 10_000), {}),
    Sweep("fedpower", "cohort", (10, 30, 100, 300, 1000), {**SMALL, "clients": 1000}),
    Sweep("fedpower", "clients", (100, 1000, 10_000), {**SMALL, "cohort": 100}),
    Sweep("personalized", "cohort", (10, 30, 100, 300, 1000), {**SMALL, "clients": 1000}),
    Sweep("personalized", "clients", (100, 1000, 10_000), {**SMALL, "cohort": 100}),
    Sweep("krylov, secure", "clients", (10, 30, 100, 300), SECURE),
    Sweep("krylov, secure, a third may be lost", "clients", (10, 30, 100), SECURE),
    Sweep("krylov, 1000 features", "clients", (30, 100, 300, 1000), JOB),
    Sweep("krylov, 1000 features, secure, a third may be lost", "clients", (10, 30, 100), JOB),
)


def measure(case: Case) -> Point:
    """One run in this process: costs per round after the first (per client: of those asked), and of the opening."""
    clock = SimpleNamespace(perf_counter=time.process_time)
    inprocess.time = clock  # type: ignore[assignment]
    sys.modules["fedspan.core.run"].time = clock  # type: ignore[attr-defined]
    m, secure = case["clients"], "secure" in case["method"]

    def opener(i: int) -> Callable[[], np.ndarray]:
        return lambda: np.random.default_rng(i).normal(size=(case["rows"], case["features"]))

    before = _peak()
    engine = InProcess({f"{i:06d}": opener(i) for i in range(m)}, threads=1)
    result = fedspan.run(
        METHODS[case["method"].split(",")[0]](case), engine, rounds=case["rounds"], seed=0,
        secure=Secure() if secure else None, min_clients=2 * m // 3 + 1 if "lost" in case["method"] else None,
    )  # fmt: skip
    memory = _peak() - before
    rounds = {e.round: e.seconds for e in result.ledger.events if isinstance(e, RoundEnd)}
    counted = [number for number in rounds if number > 1] or [1]  # gram has one round only
    asked = [e for e in result.ledger.events if isinstance(e, Exchange)]
    taken = [e for e in asked if e.round in counted]
    cohort = max(len(e.clients) for e in taken)
    n = len(counted)
    seconds, clients = sum(rounds[number] for number in counted) / n, sum(sum(e.seconds) for e in taken) / n
    return {
        "seconds": seconds, "server": seconds - clients, "client": clients / cohort,
        "up": sum(sum(e.bytes_up) for e in taken) / n / cohort,
        "down": sum(sum(e.bytes_down) for e in taken) / n / cohort,
        "opening": rounds[0],
        "keys": max(sum(e.seconds) / m for e in asked if e.round == 0) if secure else 0.0,
        "memory": memory,
    }  # fmt: skip


def _peak() -> float:
    """The largest memory of this process so far, in MB."""
    status = Path("/proc/self/status")  # getrusage would tell that of the parent, if it was larger
    if status.is_file():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def apart(case: Case) -> Point:
    """The same in a process of its own."""
    done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr}")
    return dict(json.loads(done.stdout))


def fit(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """y ~ x^exponent: least squares on logarithms; `off` is the factor by which the worst point is off the line."""
    lx, ly = np.log(x), np.log(y)
    (slope, level), last = np.polyfit(lx, ly, 1), (ly[-1] - ly[-2]) / (lx[-1] - lx[-2])
    off = float(np.exp(np.abs(ly - slope * lx - level).max()))
    return {"exponent": float(slope), "last": float(last), "off": off, "from": x[0], "to": x[-1]}


def fits(points: Sequence[Point]) -> dict[str, dict[str, dict[str, float]]]:
    """By sweep and cost; what is not there at every size (memory below a page, no keys) has no exponent."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for sweep in SWEEPS:
        mine = [p for p in points if p["sweep"] == sweep.name]
        x = [p[sweep.over] for p in mine]
        columns = {cost: [p[cost] for p in mine] for cost in COSTS}
        found[sweep.name] = {cost: fit(x, y) for cost, y in columns.items() if min(y) > 0}
    return found


def claims(points: Sequence[Point]) -> list[Row]:
    """What one would expect, beside what was found: exponents at most those, or flat from the first to the last."""
    found = fits(points)

    def exponent(sweep: str, cost: str, most: float) -> Row:
        f = found[sweep][cost]
        text = f"{sweep}: exponent of {WORDS[cost]} from {f['from']:,} to {f['to']:,}"
        return Row(text, f["exponent"], factor=1.1, against=most, where="beyond the paper")

    def flat(sweep: str, cost: str, within: float) -> Row:
        y = [p[cost] for p in points if p["sweep"] == sweep]
        text = f"{sweep}: {WORDS[cost]}, largest over smallest"
        return Row(text, max(y) / min(y), factor=within, against=1.0, where="beyond the paper")

    rows = [exponent("krylov over clients", cost, 1.0) for cost in ("seconds", "server")]
    rows += [exponent("krylov over features", cost, 1.0) for cost in ("seconds", "server", "up", "down")]
    rows += [exponent("krylov over components", "server", 2.0), exponent("krylov over components", "up", 1.0)]
    rows += [exponent("gram over features", "up", 2.0), exponent("gram over features", "server", 3.0)]
    rows += [exponent(f"{name} over cohort", "seconds", 1.0) for name in ("fedpower", "personalized")]
    for name, keys in (("krylov, secure", 1.0), ("krylov, secure, a third may be lost", 2.0)):  # Shamir: m shares of t
        rows += [exponent(f"{name} over clients", "client", 1.0), exponent(f"{name} over clients", "keys", keys)]
    rows += [flat(f"{name} over clients", "up", 1.05) for name in ("krylov", "gram", "fedpower", "personalized")]
    return rows + [flat(f"{name} over clients", "seconds", 2.0) for name in ("fedpower", "personalized")]


WORDS = {
    "seconds": "seconds per round", "server": "the server's seconds", "client": "a client's seconds",
    "up": "bytes up per client", "down": "bytes down per client", "opening": "seconds of the opening",
    "keys": "a client's seconds for keys", "memory": "peak memory, MB",
}  # fmt: skip


def run(config: Config, data: Path) -> Found:
    cases = [(sweep.name, case) for sweep in SWEEPS for case in sweep.cases(config.rounds)]
    points = []
    with ThreadPoolExecutor(inprocess.count_cores()) as pool:  # of processes: each has a thread and a core
        for (name, case), costs in zip(cases, pool.map(apart, [case for _, case in cases]), strict=True):
            points.append({"sweep": name, **case, **costs})
            print(name, case["clients"], {c: float(f"{costs[c]:.3g}") for c in COSTS}, flush=True)
    lines = {s.name: [(p[s.over], p["seconds"]) for p in points if p["sweep"] == s.name] for s in SWEEPS}
    setting = {"points": len(points), "threads": 1, "clients open at once": 256}
    labels = ("size that grows", "processor seconds per round")
    return Found(claims(points), [0], setting, (), lines, labels, (True, True), points)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        from scale_page import write

        write()
    else:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
