"""Figures 1 to 4 of mini-batch SSCA on MNIST, by one command: tables on the screen, drawings in a folder.

    python benchmarks/ssca/figures.py [--out FOLDER] [--seeds 10] [--more-seeds 3] [--figures 1,2,3,4] [--quick]
        [--rounds 1000] [--big-rounds 100] [--only "SSCA B=100,FedSGD B=100"]

Figures 1 and 2: training cost (over all rows) and test accuracy against the round, sample-based (ten clients of 6000
rows) and feature-based (ten clients of about 78 pixels). Figure 3: rounds until a test accuracy, against the work of a
round. Figure 4: ‖ω‖² against the training cost, for λ (Algorithm 1) and U (Algorithm 2). Settings of section VI,
step sizes as printed (paper=True). Means over --seeds for the curves with B = B·E = 100 of figure 1 (SSCA and FedSGD),
over --more-seeds for the others. Curves on batches of all 6000 rows stop after --big-rounds. Every run is kept in the
folder, so that a command that was cut goes on.
"""

from __future__ import annotations

import json
import sys
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
from draw import chart

from fedspan.algorithms import FedAvg, FedSgd, Limit, Ssca, Steps, VerticalSgd, VerticalSsca

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


def measure(curve: Curve, data: Data, seeds: int, args: Any) -> dict[int, tuple[float, float, float]]:
    """Mean cost, accuracy and ‖ω‖² over the seeds at the rounds that are shown."""
    started = time.perf_counter()
    runs = [one(curve, data, seed, args) for seed in range(seeds)]
    means = {t: tuple(np.mean([run[t] for run in runs], axis=0).tolist()) for t in runs[0] if t != "ms"}
    shown = "  ".join(f"{t}: {F:.3f} {100 * a:.2f}%" for t, (F, a, _) in means.items())
    seconds = f"{time.perf_counter() - started:6.0f} s, {np.mean([run['ms'] for run in runs]):.0f} ms a round"
    print(f"  {curve.name:24} {seeds:2d} seeds {seconds}   {shown}", flush=True)
    return {int(t): values for t, values in means.items()}  # type: ignore[misc]


def one(curve: Curve, data: Data, seed: int, args: Any) -> dict[str, Any]:
    """One run: what is shown of it, from the file in which it was kept, if it is there."""
    kind = "features" if curve.vertical else "samples"
    path = args.out / "kept" / f"{kind} {curve.name} {curve.method.rounds} rounds seed {seed}.json".replace(" ", "-")
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    seen: dict[str, Any] = {}

    def look(info: Any) -> None:
        if info.round in SHOWN or info.round == curve.method.rounds:
            w = info.estimate
            seen[str(info.round)] = (cost(data, w), accuracy(data, w), float(w @ w))

    result = solve(
        curve.method, by_features(data) if curve.vertical else by_samples(data, seed), seed, args.threads, look
    )
    seen["ms"] = 1e3 * result.ledger.seconds / result.rounds
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(seen), encoding="utf-8")
    return seen


def draw_curves(title: str, found: dict[Curve, Any], out: Path, stem: str) -> None:
    for k, (what, log) in enumerate((("training cost", True), ("test accuracy", False))):
        lines = {curve.name: [(t, values[k]) for t, values in points.items()] for curve, points in found.items()}
        (out / f"{stem}-{what.replace(' ', '-')}.svg").write_text(
            chart(lines, f"{title}: {what}", "round", what, log_x=True, log_y=log), encoding="utf-8"
        )


def trade_off(title: str, found: dict[Curve, Any], goal: float, out: Path, stem: str) -> None:
    """Figure 3: the round in which that accuracy is reached (on a line between shown ones), against a round's work."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for curve, points in found.items():
        if "U=" in curve.name:
            continue
        rounds, reached = list(points), [values[1] for values in points.values()]
        over = next((i for i, a in enumerate(reached) if a >= goal), None)
        if over is None:
            continue
        t = float(rounds[over])
        if over > 0:
            low, high = reached[over - 1], reached[over]
            t = rounds[over - 1] + (goal - low) / (high - low) * (rounds[over] - rounds[over - 1])
        lines.setdefault(curve.name.split()[0], []).append((curve.work, t))
        print(
            f"  {curve.name:24} work {curve.work:5d} a round: {100 * goal:.0f} % after about {t:.0f} rounds", flush=True
        )
    (out / f"{stem}.svg").write_text(
        chart({k: sorted(v) for k, v in lines.items()}, f"{title}: rounds until {100 * goal:.0f} %",
              "rows of a round at a client", "rounds", log_x=True, log_y=True), encoding="utf-8"
    )  # fmt: skip


def sparsity(data: Data, args: Any) -> None:
    """Figure 4: ‖ω‖² against the cost at the end."""
    lines: dict[str, list[tuple[float, float]]] = {"Algorithm 1, λ": [], "Algorithm 2, U": []}
    options, rounds = steps(*SAMPLE[100]), args.rounds
    for value in (1e-5, 1e-4, 1e-3):
        curve = Curve(f"λ = {value:g}", Ssca(NET, 100, rounds, l2=value, paper=True, **options), 100)
        F, _, norm = measure(curve, data, args.more_seeds, args)[rounds]
        lines["Algorithm 1, λ"].append((F, norm))
    for value in (0.1, 0.13, 0.2, 0.3):
        method = Ssca(NET, 100, rounds, objective="norm", limits=(Limit(value),), paper=True, **options)
        F, _, norm = measure(Curve(f"U = {value:g}", method, 100), data, args.more_seeds, args)[rounds]
        lines["Algorithm 2, U"].append((F, norm))
    (args.out / "figure-4.svg").write_text(
        chart(lines, "Figure 4: model size against cost", "training cost", "‖ω‖²"), encoding="utf-8"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("figures-ssca"))
    parser.add_argument("--more-seeds", type=int, default=3)
    parser.add_argument("--figures", default="1,2,3,4")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--big-rounds", type=int, default=100)
    parser.add_argument("--only", default="", help="names of curves of figures 1 and 2, with commas between")
    parser.add_argument("--quick", action="store_true", help="one seed, 50 rounds, 5 on all rows: that it runs")
    args = parser.parse_args()
    if args.quick:
        args.seeds, args.more_seeds, args.rounds, args.big_rounds = 1, 1, 50, 5
    figures, only = set(args.figures.split(",")), [name for name in args.only.split(",") if name]
    if not figures <= {"1", "2", "3", "4"}:
        sys.exit(f"need figures of 1, 2, 3, 4, got {args.figures}")
    data = mnist(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, title, curves in (
        ("1", "sample-based", sample_curves(args.rounds, args.big_rounds)),
        ("2", "feature-based", feature_curves(args.rounds)),
    ):
        if not figures & {number, "3"}:
            continue
        print(f"Figure {number}, {title}: round: training cost, test accuracy", flush=True)
        found = {}
        for curve in curves:
            if not only or curve.name in only:
                must = number == "1" and curve.name in MUST
                found[curve] = measure(curve, data, args.seeds if must else args.more_seeds, args)
        draw_curves(f"Figure {number}, {title}", found, args.out, f"figure-{number}")
        if "3" in figures:
            goal = 0.5 if args.quick else 0.93
            print(f"Figure 3, {title}", flush=True)
            trade_off(f"Figure 3, {title}", found, goal, args.out, f"figure-3-{title}")
        if args.write and number == "1" and all(name in {c.name for c in found} for name in MUST):
            put(table(found).splitlines(), args.write, "curves")
    if "4" in figures:
        print("Figure 4, sample-based, B = 100", flush=True)
        sparsity(data, args)
    print(f"drawings in {args.out}")


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
