"""SSCA figures 1 and 3 (a): sample-based learning on MNIST against SGD and momentum SGD.

Ten clients of 6000 rows, the settings of section VI. The paper prints curves and says which is ahead: claims on the
training cost over all rows at the last round, for the same work of a round (B, or B·E), and on the rounds until a
test accuracy. Quick: 100 rounds (5 on all rows), one seed, 90 %; full: 1000 rounds (100), three seeds, 93 %.
"""

from __future__ import annotations

from pathlib import Path

from common import mnist
from figures import measure, megabytes, rounds_to, sample_curves

from harness import Config, Cost, Found, Row

NEEDS = ("mnist",)
WHERE, JOB = "section VI, figure 1", "a classifier (SSCA figure 1, test accuracy {:.0%})"
SAME_WORK = {
    "SSCA B=10": ("FedSGD B=10", "SGD-m B=10"),
    "SSCA B=100": ("FedSGD B=100", "SGD-m B=100", "FedAvg B=10 E=10", "SGD-m B=10 E=10"),
    "SSCA B=6000": ("FedAvg B=600 E=10",),
}


def run(config: Config, data: Path) -> Found:
    rounds, big, seeds, goal = config.rounds, config.rounds_on_all, config.seeds, config.accuracy
    images = mnist(data)
    curves = [curve for curve in sample_curves(rounds, big) if "U=" not in curve.name]
    found = {curve.name: measure(curve, images, seeds) for curve in curves}
    last = {name: points[max(points)][0] for name, points in found.items()}
    rows = [
        Row(f"{ours} has a lower training cost than {other}", last[ours], "nats", against=last[other], where=WHERE)
        for ours, others in SAME_WORK.items()
        for other in others
    ]
    rows += [
        Row(
            "the exception: SSCA B=6000 is slightly slower than SGD-m B=600 E=10",
            last["SGD-m B=600 E=10"],
            "nats",
            against=last["SSCA B=6000"],
            where="figure 1 (c)",
        ),
        Row(
            "larger batches converge faster: SSCA B=100 against B=10",
            last["SSCA B=100"],
            "nats",
            against=last["SSCA B=10"],
            where=WHERE,
        ),
    ]
    accuracy = {name: points[max(points)][1] for name, points in found.items()}
    rows.append(
        Row(
            "SSCA B=100 has a higher test accuracy than FedSGD B=100",
            accuracy["SSCA B=100"],
            "",
            "higher",
            against=accuracy["FedSGD B=100"],
            where="figure 1 (b)",
        )
    )
    to = {curve.name: rounds_to(found[curve.name], goal) for curve in curves if curve.work < 6000}
    for ours in ("SSCA B=10", "SSCA B=100"):
        for other in SAME_WORK[ours]:
            rows.append(
                Row(
                    f"{ours} needs fewer rounds to {goal:.0%} than {other}",
                    to[ours],
                    "rounds",
                    against=to[other],
                    where="figure 3 (a)",
                )
            )
    each = {curve.name: megabytes(curve, images) for curve in curves if curve.name in to}
    costs = [Cost(JOB.format(goal), name, t, t * each[name], True) for name, t in to.items() if t < float("inf")]
    lines = {name: [(float(t), cost) for t, (cost, _, _) in points.items()] for name, points in found.items()}
    setting = {"rounds": rounds, "rounds on all rows": big, "accuracy": goal}
    return Found(rows, range(seeds), setting, costs, lines, ("round", "training cost"), (True, True))
