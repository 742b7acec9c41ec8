"""SSCA figures 4 and 1 (e): model size against training cost, by a penalty λ and by a limit U that must be kept.

MNIST, ten clients, B = 100. Algorithm 1 with λ, Algorithm 2 with U: as printed, and as fedspan runs it (limit
control, verified closing rounds). Costs are computed over all 60000 rows. Quick: 200 rounds, limits that 200 rounds
can reach (0.25, 0.35); full: 1000 rounds, 0.13 and 0.2, and one run with B = 6000 as printed. constrained.py says
more, and writes the table of docs/classifier.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from common import NET, SAMPLE, accuracy, by_samples, cost, mnist, solve, steps

from fedspan.algorithms import Limit, Ssca, Steps
from harness import Config, Found, Row

NEEDS = ("mnist",)
KEPT, TRADE = "figure 1 (e) and section VII: strictly satisfy the constraint", "figure 4"


def run(config: Config, data: Path) -> Found:
    rounds, limits = config.rounds, config.limits
    images, seed = mnist(data), 0
    clients = by_samples(images, seed)
    found: dict[str, tuple[float, float, float]] = {}

    def look(name: str, method: Ssca) -> None:
        omega = method.estimate(solve(method, clients, seed, None).state)
        found[name] = (cost(images, omega), float(omega @ omega), accuracy(images, omega))
        print(name, found[name], flush=True)

    options, penalties = steps(*SAMPLE[100]), (1e-5, 1e-3, 1e-2)
    for value in penalties:
        look(f"λ = {value:g}", Ssca(NET, 100, rounds, l2=value, paper=True, **options))
    hold = round(0.8 * rounds)
    for U in limits:
        printed = Ssca(NET, 100, rounds, objective="norm", limits=(Limit(U),), paper=True, **options)
        rho, gamma = (Steps(s.a, s.alpha, hold=hold, tail=t) for s, t in ((printed.rho, 0.5), (printed.gamma, 0.8)))
        look(f"U = {U:g}, as printed", printed)
        look(f"U = {U:g}", replace(printed, paper=False, rho=rho, gamma=gamma))
    if config.all_rows:
        look(
            "U = 0.13, as printed, B = 6000",
            Ssca(NET, 6000, rounds, objective="norm", limits=(Limit(0.13),), paper=True, **steps(*SAMPLE[6000])),
        )
        limits = [*limits, 0.13]
    rows = []
    for name, (F, _, _) in found.items():
        if name.startswith("U"):
            U = float(name.split()[2].rstrip(","))
            rows.append(Row(f"{name}: the training cost is at most U", F, "nats", against=U, where=KEPT))
    norms = {name: norm for name, (_, norm, _) in found.items()}
    low, high = f"U = {limits[0]:g}", f"U = {limits[1]:g}"
    rows += [
        Row(f"a looser limit gives a smaller model (‖ω‖² at {high})", norms[high], "", against=norms[low], where=TRADE),
        Row(
            "a larger λ gives a smaller model (‖ω‖² at 0.01)",
            norms["λ = 0.01"],
            "",
            against=norms["λ = 1e-05"],
            where=TRADE,
        ),
        Row(
            "a larger λ costs accuracy in training (cost at 1e-5)",
            found["λ = 1e-05"][0],
            "nats",
            against=found["λ = 0.01"][0],
            where=TRADE,
        ),
        Row(
            "a stricter limit gives a higher test accuracy",
            found[low][2],
            "",
            "higher",
            against=found[high][2],
            where="figure 4: to control the test accuracy effectively",
        ),
        Row(
            "the limit gives a smaller model than λ = 1e-5 does",
            norms[low],
            "",
            against=norms["λ = 1e-05"],
            where=TRADE,
        ),
    ]
    groups = {"Algorithm 1, λ": "λ", "Algorithm 2, U": "U"}
    lines = {
        name: sorted((F, norm) for key, (F, norm, _) in found.items() if key[0] == letter and "printed" not in key)
        for name, letter in groups.items()
    }
    setting = {"rounds": rounds, "B": 100, "limits": limits, "penalties": penalties}
    return Found(rows, [seed], setting, (), lines, ("training cost", "‖ω‖²"), (False, False))
