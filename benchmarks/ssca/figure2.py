"""SSCA figures 2 and 3 (b): feature-based learning on MNIST against SGD and momentum SGD.

Ten clients of about 78 pixels of the same 60000 images, the settings of section VI; claims as for figure 1. Quick:
200 rounds and one seed, 80 %; full: 1000 rounds and three seeds, 93 %.
"""

from __future__ import annotations

from pathlib import Path

from common import mnist
from figures import feature_curves, measure, rounds_to

from harness import Config, Found, Row

NEEDS = ("mnist",)


def run(config: Config, data: Path) -> Found:
    rounds, seeds, goal = config.rounds, config.seeds, config.accuracy
    images = mnist(data)
    curves = [curve for curve in feature_curves(rounds) if "U=" not in curve.name]
    found = {curve.name: measure(curve, images, seeds) for curve in curves}
    last = {name: points[max(points)][0] for name, points in found.items()}
    rows = []
    for B in (10, 100, 1000):
        for other in ("SGD", "SGD-m"):
            names = f"SSCA B={B}", f"{other} B={B}"
            rows.append(
                Row(
                    f"{names[0]} has a lower training cost than {names[1]}",
                    last[names[0]],
                    "nats",
                    against=last[names[1]],
                    where="section VI, figure 2",
                )
            )
            ours, theirs = (rounds_to(found[name], goal) for name in names)
            rows.append(
                Row(
                    f"{names[0]} needs fewer rounds to {goal:.0%} than {names[1]}",
                    ours,
                    "rounds",
                    against=theirs,
                    where="figure 3 (b)",
                )
            )
    rows.append(
        Row(
            "larger batches converge faster: SSCA B=1000 against B=10",
            last["SSCA B=1000"],
            "nats",
            against=last["SSCA B=10"],
            where="section VI, figure 2",
        )
    )
    lines = {name: [(float(t), cost) for t, (cost, _, _) in points.items()] for name, points in found.items()}
    setting = {"rounds": rounds, "accuracy": goal}
    return Found(rows, range(seeds), setting, (), lines, ("round", "training cost"), (True, True))
