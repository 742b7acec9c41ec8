"""Rounds until a test accuracy is reached: auto beside FedAvg, SGD with momentum, SCAFFOLD, FedAdam with the best step.

    python benchmarks/learning/rounds.py --data mnist --out rounds.jsonl --seeds 700 701 702 703 704
    python benchmarks/learning/rounds.py --table rounds.jsonl --write docs/classifier.md

Ten clients, ten local steps of 100 rows (E=10, B=100), 128 hidden cells. For all methods alike the pixels are scaled as
classifiers scale columns by default (mean 0, deviation 1, cut at 5, then all by one factor). "iid": rows dealt at
random; "shards": two shards of the rows sorted by class for each client. The baselines take every step of one and the
same grid, and the table shows the best one of each on each problem, which auto is not given. MNIST is that of the
shared data; Fashion-MNIST is in the Debian package dataset-fashion-mnist.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedspan.algorithms import FedAdam, FedAvg, LocalSsca, Scaffold, Steps
from fedspan.algorithms.learning.scaling import Scaling
from fedspan.core.protocol import Server
from fedspan.core.run import Info, run
from fedspan.engines import InProcess
from fedspan.numerics.swish import Swish

SHARED = Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FASHION = Path(os.environ.get("FEDSPAN_FASHION", "/usr/share/datasets/fashion-mnist"))
NET = Swish(128, 10, intercept=True, length2=100.0)
GRID = (0.03, 0.1, 0.3, 1.0)
TARGETS = {"mnist": (0.93, 0.96), "fashion": (0.80, 0.85)}
CLIENTS = 10
_BEGIN, _END = "<!-- rounds begins -->", "<!-- rounds ends -->"


def read_mnist() -> tuple[np.ndarray, ...]:
    with np.load(SHARED / "mnist.npz", allow_pickle=False) as held:
        return tuple(held[name] for name in ("X", "y", "X_test", "y_test"))


def read_fashion() -> tuple[np.ndarray, ...]:
    out = []
    for part in ("train", "t10k"):
        for kind, skip in (("images-idx3", 16), ("labels-idx1", 8)):
            raw = gzip.decompress((FASHION / f"{part}-{kind}-ubyte.gz").read_bytes())
            held = np.frombuffer(raw, dtype=np.uint8, offset=skip)
            out.append(held.reshape(-1, 784) if skip == 16 else held)
    return tuple(out)


def to_blocks(X: np.ndarray) -> list[np.ndarray]:
    return [part.astype(np.float32) for part in np.array_split(X, 50)]


def deal(y: np.ndarray, form: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    if form == "iid":
        return np.array_split(rng.permutation(len(y)), CLIENTS)
    shards = np.array_split(np.argsort(y, kind="stable"), 2 * CLIENTS)
    order = rng.permutation(2 * CLIENTS)
    return [np.concatenate([shards[order[2 * i]], shards[order[2 * i + 1]]]) for i in range(CLIENTS)]


def list_methods(rounds: int) -> Iterator[tuple[str, float, Server]]:
    shared = {"model": NET, "batch": 100, "rounds": rounds, "steps": 10}
    yield "auto", 0.0, LocalSsca(**shared, early_stopping=False, calibrate=False)
    for step in GRID:
        rate = {"rate": Steps(step, 0.0), "l2": 1e-5}
        yield "FedAvg", step, FedAvg(**shared, **rate)
        yield "SGD-m (β = .9)", step, FedAvg(**shared, rate=Steps(step / 3, 0.0), l2=1e-5, momentum=0.9)
        yield "SCAFFOLD", step, Scaffold(**shared, **rate)
        yield "FedAdam", step, FedAdam(**shared, rate=Steps(0.1, 0.0), l2=1e-5, server=step / 10)


def measure(method: Server, clients: list, test: tuple, target: float, seed: int) -> list[float]:
    """The test accuracy after each round, until the target is reached."""
    seen: list[float] = []

    class Reached(Exception):
        pass

    def look(info: Info) -> None:
        if info.round:
            omega = np.asarray(info.estimate)
            seen.append(float((NET.proba(omega, test[0]).argmax(axis=1) == test[1]).mean()))
            if seen[-1] >= target:
                raise Reached

    with suppress(Reached):
        run(method, InProcess(clients, threads=1), rounds=method.rounds, seed=seed, callback=look)
    return seen


def count_rounds(seen: list[float], target: float) -> int | None:
    return next((t for t, accuracy in enumerate(seen, 1) if accuracy >= target), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=["mnist", "fashion"], default="mnist")
    parser.add_argument("--forms", nargs="+", default=["iid", "shards"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[700, 701, 702, 703, 704])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("rounds.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--write", type=Path, help="with --table: a page that has the marks of the table")
    asked = parser.parse_args()
    if asked.table is not None:
        lines = "\n".join(tabulate([json.loads(line) for line in asked.table.read_text().splitlines()]))
        print(lines)
        if asked.write is not None:
            before, rest = asked.write.read_text().split(_BEGIN)
            asked.write.write_text(f"{before}{_BEGIN}\n{lines}\n{_END}{rest.split(_END)[1]}")
        return
    if asked.data == "mnist" and not (SHARED / "mnist.npz").exists():
        print("skipped: mnist.npz is not there; set FEDSPAN_DATA to the folder of the shared data sets")
        return
    if asked.data == "fashion" and not FASHION.exists():
        print("skipped: the Debian package dataset-fashion-mnist is not installed")
        return
    X, y, Xt, yt = read_mnist() if asked.data == "mnist" else read_fashion()
    scaling = Scaling.of(X.mean(axis=0), X.std(axis=0), np.zeros(X.shape[1]))
    scaling = scaling.with_length(sum(float(np.square(scaling.apply(x)).sum()) for x in to_blocks(X)) / len(X))
    rows, held = (np.concatenate([scaling.apply(x).astype(np.float32) for x in to_blocks(part)]) for part in (X, Xt))
    test = (held, yt)
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    done = {tuple(json.loads(line)[key] for key in ("data", "form", "seed", "method", "step")) for line in lines}
    for seed in asked.seeds:
        for form in asked.forms:
            parts = deal(y, form, seed)
            clients = [(rows[at], y[at].astype(np.int64)) for at in parts]
            for name, step, method in list_methods(asked.rounds):
                if (asked.data, form, seed, name, step) in done or (asked.methods and name not in asked.methods):
                    continue
                seen = measure(method, clients, test, TARGETS[asked.data][1], seed)
                found = {"data": asked.data, "form": form, "seed": seed, "method": name, "step": step, "seen": seen}
                with asked.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print({**found, "seen": [round(a, 3) for a in seen]}, flush=True)


def tabulate(rows: list[dict]) -> Iterator[str]:
    """Rounds to both targets by the best step of each method; "–": not within the rounds that were run."""
    yield "| data | clients | method | step | rounds to the first target | to the second | seeds |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for data, form in dict.fromkeys((row["data"], row["form"]) for row in rows):
        here = [row for row in rows if (row["data"], row["form"]) == (data, form)]
        for name in dict.fromkeys(row["method"] for row in here):
            best: tuple[float, float, float] = (np.inf, np.inf, np.nan)
            seeds = 0
            for step in dict.fromkeys(row["step"] for row in here if row["method"] == name):
                own = [row["seen"] for row in here if row["method"] == name and row["step"] == step]
                first, second = (
                    float(np.median([count_rounds(seen, target) or np.inf for seen in own])) for target in TARGETS[data]
                )
                if (first, second) <= best[:2]:
                    best, seeds = (first, second, step), len(own)
            shown = ["–" if np.isinf(n) else f"{n:g}" for n in best[:2]]
            step = "–" if name == "auto" else f"{best[2]:g}"
            yield f"| {data} | {form} | {name} | {step} | {shown[0]} | {shown[1]} | {seeds} |"


if __name__ == "__main__":
    main()
