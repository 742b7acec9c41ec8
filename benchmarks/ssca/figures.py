"""The curves of figures 1 and 2 of mini-batch SSCA on MNIST, and the table of docs/classifier.md.

    python benchmarks/ssca/figures.py [--seeds 10] [--more-seeds 3] [--rounds 1000] [--big-rounds 100] [--keep FOLDER]
        [--only "SSCA B=100,FedSGD B=100"] [--write docs/classifier.md]

Training cost (over all rows) and test accuracy against the round, sample-based (ten clients of 6000 rows) and
feature-based (ten clients of about 78 pixels). Settings of section VI, step sizes as printed (paper=True). Means over
--seeds for SSCA and FedSGD with B = 100, over --more-seeds for the others. Curves on batches of all 6000 rows stop
after --big-rounds. Every run is kept in a folder, so that a command that was cut goes on. `fedspan bench
ssca/figure1` (2, 4) compares them with what the paper says.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    FEATURE,
    NET,
    SAMPLE,
    Data,
    accuracy,
    arguments,
    by_features,
    by_samples,
    cost,
    mnist,
    put,
    solve,
    steps,
)

from fedspan.algorithms import FedAvg, FedSgd, Limit, Ssca, Steps, VerticalSgd, VerticalSsca
from fedspan.core.ledger import Exchange

SHOWN = (1, 10, 20, 50, 100, 200, 300, 400, 500, 750, 1000)
RATE, HELD = Steps(0.3, 0.3), Steps(0.3, 0.0)  # of SGD, and of SGD-m with β = 0.1
MUST = ("SSCA B=100", "FedSGD B=100")


@dataclass(frozen=True)
class Curve:
    """One line of a figure."""

    name: str
    method: Any
    work: int  # rows of a round at each client: B, or B·E
    vertical: bool = False


def sample_curves(rounds: int, big: int) -> list[Curve]:
    """Figure 1."""
    out = []
    for B, numbers in SAMPLE.items():
        T = big if B == 6000 else rounds
        out.append(Curve(f"SSCA B={B}", Ssca(NET, B, T, paper=True, **steps(*numbers)), B))
    for work, pairs in ((10, [(10, 1)]), (100, [(100, 1), (10, 10)]), (6000, [(600, 10)])):
        for B, E in pairs:
            T = big if work == 6000 else rounds
            plain: Any = FedSgd(NET, B, T, rate=RATE) if E == 1 else FedAvg(NET, B, T, rate=RATE, steps=E)
            name = f"FedSGD B={B}" if E == 1 else f"FedAvg B={B} E={E}"
            out.append(Curve(name, plain, work))
            out.append(Curve(name.replace("FedSGD", "SGD-m").replace("FedAvg", "SGD-m"),
                             replace(plain, rate=HELD, momentum=0.1), work))  # fmt: skip
    for B, numbers in SAMPLE.items():
        T = big if B == 6000 else rounds
        limited = Ssca(NET, B, T, objective="norm", limits=(Limit(0.13),), paper=True, **steps(*numbers))
        out.append(Curve(f"SSCA U=0.13 B={B}", limited, B))
    return out


def feature_curves(rounds: int) -> list[Curve]:
    """Figure 2."""
    out = []
    for B, numbers in FEATURE.items():
        common: dict[str, Any] = {"model": NET, "batch": B, "rounds": rounds}
        limited = {"objective": "norm", "limits": (Limit(0.13),)}
        out += [
            Curve(f"SSCA B={B}", VerticalSsca(**common, paper=True, **steps(*numbers)), B, True),
            Curve(f"SGD B={B}", VerticalSgd(**common, rate=RATE), B, True),
            Curve(f"SGD-m B={B}", VerticalSgd(**common, rate=HELD, momentum=0.1), B, True),
            Curve(f"SSCA U=0.13 B={B}", VerticalSsca(**common, paper=True, **limited, **steps(*numbers)), B, True),
        ]
    return out


Points = dict[int, tuple[float, float, float]]


def measure(curve: Curve, data: Data, seeds: int, keep: Path | None = None, threads: int | None = None) -> Points:
    """Mean cost, accuracy and ‖ω‖² over the seeds at the rounds that are shown."""
    started = time.perf_counter()
    runs = [one(curve, data, seed, keep, threads) for seed in range(seeds)]
    means = {t: tuple(np.mean([run[t] for run in runs], axis=0).tolist()) for t in runs[0] if t != "ms"}
    shown = "  ".join(f"{t}: {F:.3f} {100 * a:.2f}%" for t, (F, a, _) in means.items())
    seconds = f"{time.perf_counter() - started:6.0f} s, {np.mean([run['ms'] for run in runs]):.0f} ms a round"
    print(f"  {curve.name:24} {seeds:2d} seeds {seconds}   {shown}", flush=True)
    return {int(t): values for t, values in means.items()}  # type: ignore[misc]


def one(curve: Curve, data: Data, seed: int, keep: Path | None, threads: int | None) -> dict[str, Any]:
    """One run: what is shown of it, from the file in which it was kept, if it is there."""
    kind = "features" if curve.vertical else "samples"
    name = f"{kind} {curve.name} {curve.method.rounds} rounds seed {seed}.json".replace(" ", "-")
    path = keep / name if keep else None
    if path and path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    seen: dict[str, Any] = {}

    def look(info: Any) -> None:
        if info.round in SHOWN or info.round == curve.method.rounds:
            w = info.estimate
            seen[str(info.round)] = (cost(data, w), accuracy(data, w), float(w @ w))

    clients = by_features(data) if curve.vertical else by_samples(data, seed)
    result = solve(curve.method, clients, seed, threads, look)
    seen["ms"] = 1e3 * result.ledger.seconds / result.rounds
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(seen), encoding="utf-8")
    return seen


def megabytes(curve: Curve, data: Data) -> float:
    """Of one round, both links, all clients: every round sends as much."""
    ledger = solve(replace(curve.method, rounds=1), by_samples(data, 0), 0, None).ledger
    first = [event for event in ledger.events if isinstance(event, Exchange) and event.round == 1]
    return sum(sum(event.bytes_up) + sum(event.bytes_down) for event in first) / 1e6


def rounds_to(points: Points, goal: float) -> float:
    """The round in which that accuracy is reached, on a line between shown ones; infinite if it is not."""
    rounds, reached = list(points), [accuracy for _, accuracy, _ in points.values()]
    over = next((i for i, value in enumerate(reached) if value >= goal), None)
    if over is None:
        return float("inf")
    if over == 0:
        return float(rounds[0])
    low, high = reached[over - 1], reached[over]
    return rounds[over - 1] + (goal - low) / (high - low) * (rounds[over] - rounds[over - 1])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--keep", type=Path, default=Path("figures-ssca"))
    parser.add_argument("--more-seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--big-rounds", type=int, default=100)
    parser.add_argument("--only", default="", help="names of curves of figures 1 and 2, with commas between")
    args = parser.parse_args()
    data, only = mnist(args.data), [name for name in args.only.split(",") if name]
    found: dict[Curve, Points] = {}
    for curve in [*sample_curves(args.rounds, args.big_rounds), *feature_curves(args.rounds)]:
        if not only or curve.name in only:
            seeds = args.seeds if curve.name in MUST and not curve.vertical else args.more_seeds
            found[curve] = measure(curve, data, seeds, args.keep, args.threads)
    by_rows = {curve: points for curve, points in found.items() if not curve.vertical}
    if args.write and all(name in {c.name for c in by_rows} for name in MUST):
        put(table(by_rows).splitlines(), args.write, "curves")


def table(found: dict[Curve, Any]) -> str:
    """Test accuracy of the curves at the rounds that they have in common, in the form of a page."""
    rounds = [t for t in SHOWN if t > 1 and all(t in points for points in found.values())]
    lines = ["| method | " + " | ".join(f"round {t}" for t in rounds) + " |", "|---" * (len(rounds) + 1) + "|"]
    for curve, points in found.items():
        cells = " | ".join(f"{points[t][0]:.3f}, {100 * points[t][1]:.2f} %" for t in rounds)
        lines.append(f"| {curve.name} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
