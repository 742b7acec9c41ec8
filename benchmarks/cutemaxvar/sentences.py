"""Sentences in four languages, one language at each client: `python benchmarks/cutemaxvar/sentences.py [--write FILE]`.

The data set is multi30k_4lang (29000 captions in English, German, French, Czech), in a random order: 28000 are fitted,
the other 1000 only aligned. Words in at least 2 of the fitted sentences, tf-idf by these, rows of unit length, centred,
ridge 1. AC is the share of the test sentences whose nearest neighbour in another language is themselves. The cost after
a round is (7) with the clients' weights and the G that they were made for; for Krylov, of its best G and the weights
for it. v* is that of the first row's last round. Bytes are those of the wire, all clients, both links, the opening
included, but not what only this benchmark asks (representations of the test sentences; weights at the end).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import fedspan
from fedspan.algorithms import AltMaxVar, CuteMaxVar, MaxVarKrylov, Mvlsa
from fedspan.algorithms.gcca.entities import Entities
from fedspan.channel import Channel, pack
from fedspan.core.run import Info
from fedspan.estimators._options.maxvar_solvers import build_maxvar_channel
from fedspan.numerics.alignment import alignment_accuracy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from page import put

ASKED_HERE = ("show", "weigh")
LOOK = 10**6  # a patience that never ends: the rows held out are looked at in every round, and nothing is stopped


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    solver: Any
    bits: int | str | None
    rounds: int


def rows(tol: float) -> list[Row]:
    return [
        Row("krylov", MaxVarKrylov(tol=1e-3), None, 10),
        Row("krylov, 6 bits", MaxVarKrylov(tol=tol, rounded=True, grid=6), "auto", 5),
        Row("altmaxvar", AltMaxVar(tol=1e-3), None, 9),
        Row("cutemaxvar, 4 bits", CuteMaxVar(tol=1e-3), 4, 9),
        Row("cutemaxvar, 3 bits", CuteMaxVar(tol=1e-3), 3, 9),
        Row("cutemaxvar, 2 bits", CuteMaxVar(tol=1e-3), 2, 3),
    ]


def sentences(fitted: int, seed: int, tested: int = 1000, folder: Path | None = None) -> list[Entities]:
    """One view per language, tf-idf by the fitted rows alone."""
    folder = folder or Path(os.environ.get("FEDSPAN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    out = []
    with np.load(folder / "multi30k_4lang.npz", allow_pickle=False) as z:
        for i in range(4):
            parts = (z[f"X{i}_data"].astype(np.float64), z[f"X{i}_indices"], z[f"X{i}_indptr"])
            X = sp.csr_array(parts, shape=tuple(z[f"X{i}_shape"]))
            X = X[np.random.default_rng(seed).permutation(X.shape[0])[: fitted + tested]]
            seen = np.bincount(X[:fitted].indices, minlength=X.shape[1])
            X, seen = X[:, seen >= 2], seen[seen >= 2]
            X = X.multiply(np.log((1 + fitted) / (1 + seen)) + 1).tocsr()
            size = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
            X = sp.csr_array(sp.diags_array(1 / np.where(size > 0, size, 1)) @ X)
            out.append(Entities(X[:fitted], held_out=X[fitted:]))
    return out


def prepared(row: Row, k: int, ridge: float) -> tuple[Any, Channel]:
    """The solver and the channel of a row."""
    solver = replace(row.solver, k=k, ridge=ridge, patience=LOOK)
    return solver, build_maxvar_channel(solver, row.bits, 8) if row.bits else Channel(up=pack(), down=pack())


def measure(row: Row, views: list[Entities], k: int, ridge: float, seed: int, log: Any) -> list[dict[str, float]]:
    """AC, cost and bytes after every round."""
    started = time.time()

    def watch(info: Info) -> None:
        print(row.name, k, info.round, info.metrics, f"{time.time() - started:.0f} s", file=log, flush=True)

    solver, channel = prepared(row, k, ridge)
    engine = fedspan.engines.InProcess({f"view {i}": view for i, view in enumerate(views)})
    result = fedspan.run(solver, engine, rounds=row.rounds, seed=seed, channel=channel, callback=watch)
    sent = np.zeros(row.rounds + 1)
    for event in result.ledger.rows():
        if event["event"] == "exchange" and event["task"] not in ASKED_HERE:
            sent[event["round"]] += sum(event["bytes_up"]) + sum(event["bytes_down"])
    sums = np.cumsum(sent)
    return [
        {"round": line["round"], "cost": line["cost"], "AC": line["accuracy"], "MB": sums[int(line["round"])] / 1e6}
        for line in result.ledger.history()
        if line["round"]
    ]


def one_shot(views: list[Entities], k: int, ridge: float, seed: int) -> dict[str, float]:
    """MVLSA of rank K."""
    data = {f"view {i}": view for i, view in enumerate(views)}
    result = fedspan.run(Mvlsa(k=k, ridge=ridge, rank=k), fedspan.engines.InProcess(data), rounds=1, seed=seed)
    answer = result.state.answer
    shown = [view.held_out @ answer.Q[name] - answer.offset[name] for name, view in data.items()]
    sent = sum(
        sum(event["bytes_up"]) + sum(event["bytes_down"])
        for event in result.ledger.rows()
        if event["event"] == "exchange" and event["task"] not in ASKED_HERE
    )
    return {"cost": answer.cost, "AC": alignment_accuracy(shown), "MB": sent / 1e6}


def table(k: int, found: dict[str, list[dict[str, float]]], best: float, once: dict[str, float] | None) -> list[str]:
    lines = [
        f"| K = {k}, v* = {best:.3f} | rounds to 1.5·v* | MB to 1.5·v* | AC there | best AC by round 7 (its round) "
        "| AC at the end (its cost/v*, round) |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, history in found.items():
        hit = next((line for line in history if line["cost"] <= 1.5 * best), None)
        reached = f"{hit['round']} | {hit['MB']:.1f} | {hit['AC']:.3f}" if hit else "not reached | – | –"
        top = max((line for line in history if line["round"] <= 7), key=lambda line: line["AC"])
        end = history[-1]
        lines.append(
            f"| {name} | {reached} | {top['AC']:.3f} ({top['round']}) "
            f"| {end['AC']:.3f} ({end['cost'] / best:.2f}, {end['round']}) |"
        )
    if once:
        ratio = once["cost"] / best
        lines.append(f"| mvlsa of rank {k} | one round, {ratio:.2f}·v* | {once['MB']:.1f} | {once['AC']:.3f} | – | – |")
    return lines


def curve(k: int, history: list[dict[str, float]], best: float) -> list[str]:
    """AC and cost together, round by round."""
    head = f"| cutemaxvar, 3 bits, K = {k}: round | " + " | ".join(str(line["round"]) for line in history) + " |"
    return [
        head,
        "|---|" + "--:|" * len(history),
        "| AC | " + " | ".join(f"{line['AC']:.3f}" for line in history) + " |",
        "| cost / v* | " + " | ".join(f"{line['cost'] / best:.2f}" for line in history) + " |",
    ]


def all_found(args: argparse.Namespace, views: list[Entities], k: int) -> dict[str, Any]:
    """Every row's history and MVLSA's: from the file of results if they are there, else run now and written there."""
    kept = json.loads(args.results.read_text()) if args.results and args.results.exists() else {}
    for row in rows(args.tol):
        key = f"{k} {row.name}"
        if key not in kept and (not args.only or row.name in args.only):
            row = replace(row, rounds=min(row.rounds, args.rounds))
            kept[key] = measure(row, views, k, args.ridge, args.seed, sys.stderr)
            _keep(args.results, kept)
    if f"{k} mvlsa" not in kept and (not args.only or "mvlsa" in args.only):
        kept[f"{k} mvlsa"] = one_shot(views, k, args.ridge, args.seed)
        _keep(args.results, kept)
    return {key.split(" ", 1)[1]: value for key, value in kept.items() if key.startswith(f"{k} ")}


def _keep(path: Path | None, kept: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--entities", type=int, default=28000, help="sentences that are fitted (default 28000)")
    parser.add_argument("--ridge", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=2e-3, help="of the 6-bit Krylov: what its bits must be enough for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=99, help="cut every row to so many rounds")
    parser.add_argument("--only", nargs="+", default=[], help="these rows only: it takes some minutes a row")
    parser.add_argument("--results", type=Path, help="a JSON file that keeps what was measured, for the next call")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="put the tables into these Markdown files")
    args = parser.parse_args()
    views, lines = sentences(args.entities, args.seed), []
    for k in args.components:
        found = all_found(args, views, k)
        once = found.pop("mvlsa", None)
        if "krylov" not in found:
            print(found)
            continue
        best = found["krylov"][-1]["cost"]
        lines += [*table(k, found, best, once), ""]
        if "cutemaxvar, 3 bits" in found:
            lines += [*curve(k, found["cutemaxvar, 3 bits"], best), ""]
        full, coarse = (
            next((line["MB"] for line in found.get(name, []) if line["cost"] <= 1.5 * best), np.nan)
            for name in ("krylov", "krylov, 6 bits")
        )
        full /= 2
        if coarse > 0:
            lines += [
                f"6-bit Krylov, K = {k}: {coarse:.1f} MB to 1.5·v*, {full / coarse:.1f} times fewer than float32 "
                f"({full:.1f} MB, half of what float64 sent).",
                "",
            ]
    print("\n".join(lines), flush=True)
    for path in args.write:
        put(lines[:-1], path, "sentences")


if __name__ == "__main__":
    main()
