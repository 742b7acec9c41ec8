"""SSCA figure 2 (c) and (d): feature-based learning on MNIST under a limit U that must be kept.

Ten clients of about 78 pixels of the same 60000 images. Algorithm 4 with the settings of section VI and U = 0.13, as
printed for B = 10, 100, 1000, and with B = 100 and 1000 as fedspan runs it (limit control, verified closing rounds).
B = 1000 is what B = 100 is where ten clients hold rows: as many rows in a round. Costs are computed over all rows.
Quick: 200 rounds and U = 0.35; full: 1000 rounds, as in the paper, and U = 0.13.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from common import FEATURE, NET, accuracy, by_features, cost, mnist, solve, steps
from figures import SHOWN

from fedspan.algorithms import Limit, Steps, VerticalSsca
from fedspan.core.run import Info
from harness import Config, Found, Row

NEEDS = ("mnist",)
KEPT = "figure 2 (c) and section VII: strictly satisfy the constraint"


def run(config: Config, data: Path) -> Found:
    rounds, U, seed = config.rounds, config.limit, 0
    images = mnist(data)
    clients = by_features(images)
    methods = {}
    for B, numbers in FEATURE.items():
        printed = VerticalSsca(NET, B, rounds, objective="norm", limits=(Limit(U),), paper=True, **steps(*numbers))
        methods[f"B = {B}, as printed"] = printed
        if B > 10:
            hold = round(0.8 * rounds)
            rho, gamma = (Steps(s.a, s.alpha, hold=hold, tail=t) for s, t in ((printed.rho, 0.5), (printed.gamma, 0.8)))
            methods[f"B = {B}"] = replace(printed, paper=False, rho=rho, gamma=gamma)
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    last = {}
    for name, method in methods.items():

        def look(info: Info, seen: list[tuple[float, float]] = curves[name]) -> None:
            if info.round in SHOWN:
                seen.append((float(info.round), cost(images, info.estimate)))

        omega = method.estimate(solve(method, clients, seed, None, look).state)  # after the closing rounds, if any
        last[name] = cost(images, omega)
        print(name, curves[name], last[name], float(omega @ omega), accuracy(images, omega), flush=True)
    rows = [
        Row(f"U = {U:g}, {name}: the training cost is at most U", F, "nats", against=U, where=KEPT)
        for name, F in last.items()
    ]
    early = {name: dict(curve)[50.0] for name, curve in curves.items()}
    rows.append(
        Row(
            "larger batches converge faster: B = 1000 against B = 10 (training cost after 50 rounds)",
            early["B = 1000, as printed"],
            "nats",
            against=early["B = 10, as printed"],
            where="section VI, figure 2 (c)",
        )
    )
    return Found(rows, [seed], {"rounds": rounds, "U": U}, (), curves, ("round", "training cost"), (True, True))
