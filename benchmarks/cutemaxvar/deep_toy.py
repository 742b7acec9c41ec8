"""CuteMaxVar's deep toy: `python benchmarks/cutemaxvar/deep_toy.py [--seeds 5] [--write docs/deep-gcca.md]`.

Entities of three classes, seen by three nodes as rings, a spiral and a grid (2-D each, standardised), 10,000 for
training and 1,000 unseen. Networks 2-128-64-2 with ReLU, Adam 1e-3, batches of 1000, 10 steps a round, 50 rounds; the
accuracy is that of a linear SVM fitted to the common representation of the training entities, on the unseen ones.

CR is the paper's compression ratio, 1 - q·R_C / (32·R_A), with the rounds that each needs for an accuracy of .95, and
beside it the same from the bytes that crossed the wire until then (first exchange, scales, headers and all).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.svm import SVC, LinearSVC
from torch import nn

from fedspan import DeepFederatedGCCA
from fedspan.algorithms.gcca.networks import compute_outputs, load_parameters
from fedspan.core.run import Info
from fedspan.engines import InProcess

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

J, UNSEEN, GOAL = 10_000, 1_000, 0.95


def toy(seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Rings, spiral and grid, standardised by the training entities; and the classes."""
    rng, n = np.random.default_rng(seed), J + UNSEEN
    y = rng.integers(0, 3, n)
    radius, angle = np.array([0.5, 1.3, 2.1])[y] + 0.32 * rng.normal(size=n), rng.uniform(0, 2 * np.pi, n)
    rings = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    u = rng.uniform(0.3, 1, n)
    turn = 2 * np.pi * y / 3 + 6 * u
    spiral = 2 * u[:, None] * np.column_stack([np.cos(turn), np.sin(turn)]) + 0.22 * rng.normal(size=(n, 2))
    i = rng.integers(0, 3, n)
    grid = np.column_stack([i - 1, (y - i) % 3 - 1]) + 0.36 * rng.normal(size=(n, 2))
    return [(X - X[:J].mean(axis=0)) / X[:J].std(axis=0) for X in (rings, spiral, grid)], y


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))


def accuracy(G: np.ndarray, new: np.ndarray, y: np.ndarray) -> float:
    """Of a linear SVM, both in units of the deviation over the training entities."""
    return float(LinearSVC().fit(np.sqrt(J) * G, y[:J]).score(np.sqrt(J) * new, y[J:]))


class Open(InProcess):
    """An engine whose nodes the benchmark can look into while they learn."""

    def start(self, *args: Any) -> Any:
        self.session = super().start(*args)
        return self.session

    def common(self, views: list[np.ndarray]) -> np.ndarray:
        """Of the unseen entities, as `DeepFederatedGCCA.transform` has it."""
        nets = [load_parameters(network(), site.state.theta) for _, site in sorted(self.session.sites.items())]
        M = np.sum([compute_outputs(net, X) for net, X in zip(nets, views, strict=True)], axis=0)
        w, U = np.linalg.eigh(np.cov(M[:J].T, bias=True))
        return (M[J:] - M[:J].mean(axis=0)) @ (U / np.sqrt(w * J)) @ U.T


def deep(views: list[np.ndarray], y: np.ndarray, bits: int | None, seed: int, rounds: int) -> dict[str, Any]:
    """Accuracy after every round, and bytes on both links so far."""
    curve: list[float] = []
    kept: list[Open] = []

    def engine(data: Any) -> Open:
        kept.append(Open(data))
        return kept[-1]

    def watch(info: Info) -> None:
        curve.append(accuracy(info.estimate, kept[-1].common(views), y))

    model = DeepFederatedGCCA(
        [network] * 3, 2, bits=bits, rounds=rounds, engine=engine, callback=watch, random_state=seed
    ).fit([X[:J] for X in views])
    last = accuracy(model.common_, model.transform([X[J:] for X in views]), y)  # through the public way
    reached = next((r for r, value in enumerate(curve, 1) if value >= GOAL), None)
    sent = [int(row["bytes_up"] + row["bytes_down"]) for row in model.history_]
    return {
        "curve": curve, "last": last, "reached": reached, "sent": sent, "cost": model.cost_, "common": model.common_
    }  # fmt: skip


def linear(views: list[np.ndarray], y: np.ndarray) -> float:
    """Linear MAX-VAR GCCA by a direct decomposition: the leading eigenvectors of Σ X_iX_i†."""
    bases = [np.linalg.svd(X[:J], full_matrices=False)[0] for X in views]
    G = np.linalg.svd(np.hstack(bases), full_matrices=False)[0][:, :2]
    new = np.mean([X[J:] @ np.linalg.lstsq(X[:J], G, rcond=None)[0] for X in views], axis=0)
    return accuracy(G, new, y)


def best_view(views: list[np.ndarray], y: np.ndarray) -> float:
    """Of an SVM with radial basis functions on one view by itself."""
    return max(float(SVC().fit(X[:J], y[:J]).score(X[J:], y[J:])) for X in views)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 (default 5)")
    parser.add_argument("--rounds", type=int, default=50, help="of each run (default 50)")
    parser.add_argument("--bits", type=int, nargs="*", default=[2, 3, 4], help="of CuteMaxVar-Deep (default 2 3 4)")
    parser.add_argument("--write", type=Path, help="put the table into this Markdown file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="2 bits")
    lines = [
        "| seed | method | .95 by round | at round 20 | at the end | cost (7) | MB | CR to .95 | CR to .95, bytes "
        "| CR at the end, bytes |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    for seed in range(args.seeds):
        views, y = toy(seed)
        rows = [f"| {seed} | linear GCCA | | | {linear(views, y):.3f} | | | | | |"]
        rows += [f"| {seed} | best view alone, RBF SVM | | | {best_view(views, y):.3f} | | | | | |"]
        alt = deep(views, y, None, seed, args.rounds)
        for bits in [None, *args.bits]:
            run = alt if bits is None else deep(views, y, bits, seed, args.rounds)
            name = "AltMaxVar-Deep" if bits is None else f"CuteMaxVar-Deep, {bits} bits"
            at20 = f"{run['curve'][19]:.3f}" if args.rounds >= 20 else ""
            ratios = ["", "", ""]
            if bits is not None:
                ratios[2] = f"{1 - run['sent'][-1] / alt['sent'][-1]:.3f}"
                if run["reached"] and alt["reached"]:
                    ratios[0] = f"{1 - bits * run['reached'] / (32 * alt['reached']):.3f}"
                    ratios[1] = f"{1 - run['sent'][run['reached']] / alt['sent'][alt['reached']]:.3f}"
            rows.append(
                f"| {seed} | {name} | {run['reached'] or 'never'} | {at20} | {run['last']:.3f} | {run['cost']:.3f} "
                f"| {run['sent'][-1] / 1e6:.2f} | {' | '.join(ratios)} |"
            )
        print("\n".join(rows), flush=True)
        lines += rows
    if args.write:
        put(lines, args.write, "deep toy")


if __name__ == "__main__":
    main()
