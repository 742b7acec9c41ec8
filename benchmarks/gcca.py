"""Time and memory beside cca-zoo: `python benchmarks/gcca.py [--write docs/gcca.md]`.

Three views of 10,000×200 with 10 common factors, 10 components. Each method runs in a process of its own, several times
in turn, so that both meet the same machine; the least time and the least peak of resident memory above that of the
process with the data in it are shown, and the largest angle between the answers' common spaces. Ours is a whole
federation in one process: three clients, their messages and the server.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from page import put


def views(J: int, N: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(J, 10))
    return [Z @ rng.normal(size=(10, N)) + 3.0 * rng.normal(size=(J, N)) for _ in range(3)]


def peak() -> float:
    """The largest resident memory so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(method: str, folder: str, k: int) -> None:
    """One fit; prints seconds, MB and leaves the common space in a file."""
    if method == "fedspan":
        from fedspan import FederatedGCCA
    else:
        from cca_zoo.linear import GCCA
    X = [np.load(Path(folder) / f"{i}.npy") for i in range(3)]
    small = [x[:300, :5] for x in X]  # loads what is imported late, and the BLAS
    (FederatedGCCA(2).fit(small) if method == "fedspan" else GCCA(2).fit(small))
    before, started, busy = peak(), time.perf_counter(), time.process_time()
    if method == "fedspan":
        model = FederatedGCCA(k, tol=1e-8, random_state=0).fit(X)
        cost = [time.perf_counter() - started, time.process_time() - busy, peak() - before]
        G = model.common_
    else:
        other = GCCA(k).fit(X)
        cost = [time.perf_counter() - started, time.process_time() - busy, peak() - before]
        G = np.linalg.qr(sum((x - x.mean(axis=0)) @ w for x, w in zip(X, other.weights_, strict=True)))[0]
    np.save(Path(folder) / f"{method}.npy", G)
    print(json.dumps(cost))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the table into these Markdown files")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child, args.components)
        return
    with tempfile.TemporaryDirectory() as folder:
        for i, X in enumerate(views(args.rows, args.features)):
            np.save(Path(folder) / f"{i}.npy", X)
        found: dict[str, list[list[float]]] = {"fedspan": [], "cca-zoo": []}
        for _ in range(args.repeat):
            for method, kept in found.items():
                command = [sys.executable, __file__, "--components", str(args.components), "--child", method, folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                kept.append(json.loads(done.stdout.splitlines()[-1]))
        ours, theirs = (np.load(Path(folder) / f"{method}.npy") for method in found)
    angle = float(np.linalg.norm(theirs - ours @ (ours.T @ theirs), 2))
    best = {method: np.min(kept, axis=0) for method, kept in found.items()}
    lines = [
        f"| 3 views of {args.rows}×{args.features}, K = {args.components} | seconds | CPU seconds | MB above data |",
        "|---|--:|--:|--:|",
        *(f"| {method} | {wall:.2f} | {busy:.2f} | {memory:.0f} |" for method, (wall, busy, memory) in best.items()),
        "| cca-zoo / fedspan | " + " | ".join(f"{ratio:.1f}" for ratio in best["cca-zoo"] / best["fedspan"]) + " |",
        "",
        f"The sine of the largest angle between the two answers is {angle:.1e}.",
    ]
    print("\n".join(lines))
    for path in args.write:
        put(lines, path, "peers")


if __name__ == "__main__":
    main()
