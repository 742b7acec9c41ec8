"""FedPower figures 3 to 6 (without noise) and 7 to 10 (with noise): local iterations, clients, participation, decay.

MNIST at 200 clients and a9a at 20, k = 5, r = 10, sign-fixing, 40 communications. The paper draws curves and says
what is better; claims compare means over the last ten communications ("the end") or over the first five. Noise: the
paper's, with ε = 0.1 a communication for each half, δ = 0.01 (the paper does not say which; at 1 the noise hardly
shows). Acoustic is not to be had here. Quick: 12000 rows of MNIST in 14 × 14 pixels at 40 clients (300 rows each, as
in the paper) with 1 seed, 2 seeds of a9a; full: all rows, 5 seeds of a9a and 2 of MNIST.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from shards import MISSING, K, R, course, deal, exact, scaled

from fedspan.algorithms import FedPower, PaperNoise
from harness import Config, Found, Row

NEEDS = ("mnist", "a9a")
ROUNDS, EPSILON = 40, 0.1
CLIENTS = {"mnist": 200, "a9a": 20}


def run(config: Config, data: Path) -> Found:
    rows, lines = [], {}
    for name, m in CLIENTS.items():
        A = scaled(data, name)
        if name == "mnist" and config.mnist_clients < m:  # 300 rows per client, as with all of them at 200
            m = config.mnist_clients
            A = np.load(data / "mnist.npz")["X"][: 300 * m] / 255.0
            A = A.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(A), -1)
        V, seeds = exact(A), range(config.seeds if name == "a9a" else config.mnist_seeds)
        base = {"k": K, "tol": 0.0, "center": False, "p": 4, "align": "sign", "width": R}
        kinds = {
            "": FedPower(**base, decay=False),
            ", noise": PaperNoise(**base, decay=False, epsilon1=EPSILON, epsilon2=EPSILON),
        }
        for kind, fixed in kinds.items():
            part = max(m // 10, 2)
            settings = {
                "p = 4": (fixed, m),
                "p = 1": (replace(fixed, p=1), m),
                "decaying p": (replace(fixed, decay=True), m),
                "few clients": (fixed, max(m // 4, 2)),
                "a tenth takes part": (replace(fixed, count=part), m),
                "half takes part": (replace(fixed, count=m // 2), m),
                "half takes part, scheme 1": (replace(fixed, count=m // 2, scheme=1), m),
            }
            found = {
                label: np.mean([course(method, deal(A, seed, many), V, seed, ROUNDS) for seed in seeds], axis=0)
                for label, (method, many) in settings.items()
            }
            end = {label: float(curve[-10:].mean()) for label, curve in found.items()}
            early = {label: float(curve[:5].mean()) for label, curve in found.items()}
            print(name + kind, {label: f"{early[label]:.2e} {value:.2e}" for label, value in end.items()}, flush=True)
            lines |= {
                f"{name}{kind}, {label}": [(t, float(y)) for t, y in enumerate(found[label], 1)]
                for label in ("p = 4", "p = 1", "decaying p")
            }
            rows += (noisy if kind else quiet)(name, end, early, m)
    rows.append(Row("Acoustic: all of these", None, where="figures 3 to 10", impossible=MISSING))
    setting = {"communications": ROUNDS, "clients": CLIENTS, "k": K, "r": R, "ε": EPSILON}
    return Found(rows, range(config.seeds), setting, (), lines, ("communication", "distance"), (True, True))


def quiet(name: str, end: dict[str, float], early: dict[str, float], m: int) -> list[Row]:
    """What section 5.1 says."""
    claims = (
        ("p = 4 is ahead of p = 1 in the first 5 communications", early["p = 4"], early["p = 1"], "figure 3"),
        ("p = 1 ends lower than p = 4, whose error does not vanish", end["p = 1"], end["p = 4"], "figure 3"),
        (f"{m // 4} clients end lower than {m}", end["few clients"], end["p = 4"], "figure 4"),
        ("half of the clients end lower than a tenth", end["half takes part"], end["a tenth takes part"], "figure 5"),
        ("scheme 2 ends lower than scheme 1", end["half takes part"], end["half takes part, scheme 1"], "figure 5"),
        ("decaying p ends lower than p = 4", end["decaying p"], end["p = 4"], "figure 6"),
        ("decaying p is ahead of p = 1 in the first 5 communications", early["decaying p"], early["p = 1"], "figure 6"),
    )
    return [Row(f"{name}: {text}", ahead, against=behind, where=where) for text, ahead, behind, where in claims]


def noisy(name: str, end: dict[str, float], early: dict[str, float], m: int) -> list[Row]:
    """What section 5.2 says."""
    decays = ("decaying p", "p = 4") if name == "mnist" else ("p = 4", "decaying p")
    helps, half, tenth = "helps" if name == "mnist" else "does not help", "half takes part", "a tenth takes part"
    claims = (
        ("p = 4 is ahead of p = 1 in the first 5 communications", early["p = 4"], early["p = 1"], "figure 7"),
        (f"{m // 4} clients end lower than {m}", end["few clients"], end["p = 4"], "figure 8"),
        ("half of the clients end lower than a tenth", end[half], end[tenth], "figure 9: slightly better"),
        (f"decaying p {helps} at the end", end[decays[0]], end[decays[1]], "figure 10: helps on MNIST only"),
    )
    return [Row(f"{name}, noise: {text}", ahead, against=behind, where=where) for text, ahead, behind, where in claims]
