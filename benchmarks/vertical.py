"""Columns at different sites: `python benchmarks/vertical.py [pca|honest|gaps|costs …] [--write]`.

pca     VerticalPCA beside the pooled PCA on MNIST (every tenth image, four sites) and mfeat (six views, scaled):
        rounds, error of the values, bytes; and the 5-NN attack on what the server holds.
honest  FederatedGCCA with ridge="auto" and n_components="auto": views of noise, planted problems.
gaps    30 % of the entities missing in each view: masks beside a pooled oracle, complete rows and imputed means.
costs   what each kind of vertical run sends and shows, from ledgers.

Settings were chosen on seeds 0 to 4 (and 101, where a mistake showed); the tables are of seeds 200 to 209 (gaps: 200
to 204).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fedspan import FederatedGCCA, Secure, VerticalPCA
from fedspan.algorithms import (
    ColumnsKrylov,
    DeepMaxVar,
    KeptMaxVar,
    MaxVarKrylov,
    StudyViews,
    VerticalGuarded,
    VerticalLinear,
    VerticalSsca,
)
from fedspan.algorithms.gcca.deep import DeepView
from fedspan.algorithms.gcca.sum_views import SumViews, WeightedView
from fedspan.core.protocol import tasks_of
from fedspan.core.run import run
from fedspan.engines import InProcess
from fedspan.estimators._options.maxvar_solvers import quantize_both_links
from fedspan.numerics.swish import Swish as SwishNetwork
from page import put

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
SEEDS = range(200, 210)
Views = list[np.ndarray]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def load(name: str) -> tuple[Views, np.ndarray, bool]:
    """Views, classes, and whether columns are to be scaled."""
    z = np.load(DATA / f"{name}.npz")
    if name == "mnist":
        X = z["X"][::10].astype(np.float64)
        return [X[:, at] for at in np.array_split(np.arange(784), 4)], z["y"][::10], False
    return [z[f"X{i}"].astype(np.float64) for i in range(6)], z["y"], True


def held_by_server(views: Views, scale: bool, hide: bool) -> np.ndarray:
    engine = InProcess({str(i): X for i, X in enumerate(views)})
    state = run(ColumnsKrylov(k=10, scale=scale, hide=hide, last=50), engine, rounds=50, seed=100).state
    return np.asarray(state.basis * np.sqrt(state.values))


def pca() -> list[str]:
    rows = []
    for name in ("mnist", "mfeat"):
        views, y, scale = load(name)
        B = np.hstack(views)
        B = B - B.mean(axis=0)
        B = B / np.where(B.std(axis=0) > 0, B.std(axis=0), 1.0) if scale else B
        theta = np.linalg.eigvalsh(B.T @ B)[::-1][:10]
        near = {hide: attack(held_by_server(views, scale, hide), y) for hide in (False, True)}
        for secure, bits, hide in (
            (False, None, False),
            (False, "auto", False),
            (Secure(verified=True), None, False),
            (Secure(verified=True), "auto", True),
        ):
            model = VerticalPCA(10, scale=scale, secure=secure, bits=bits, hide_scores=hide, random_state=100).fit(
                views
            )
            error = np.abs(model.singular_values_**2 / theta - 1).max()
            options = [
                text for text, on in (("secure, verified", secure), ("bits='auto'", bits), ("hidden", hide)) if on
            ]
            sent, what = model.ledger_, f"{name}, {len(views)} sites"
            row = [f"{what}: {', '.join(options)}" if options else what, str(model.n_rounds_), f"{error:.1e}"]
            rows.append([*row, f"{sent.bytes_up / 1e6:.1f}", f"{sent.bytes_down / 1e6:.1f}", f"{near[hide]:.3f}"])
    return table(["k = 10", "rounds", "error of the variances", "MB up", "MB down", "5-NN attack"], rows)


def attack(held: np.ndarray, y: np.ndarray) -> float:
    return float(cross_val_score(KNeighborsClassifier(5), held, y).mean())


def planted(J: int, N: int, strength: float, seed: int, shared: int) -> tuple[np.ndarray, Views]:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(J, shared))
    return hidden, [strength * hidden @ rng.normal(size=(shared, N)) + rng.normal(size=(J, N)) for _ in range(3)]


def explain(hidden: np.ndarray, G: np.ndarray) -> float:
    """R² of what is hidden on the representation."""
    A = np.column_stack([np.ones(len(G)), G])
    left = hidden - A @ np.linalg.lstsq(A, hidden, rcond=None)[0]
    return 1 - float(np.sum(left**2) / np.sum((hidden - hidden.mean(axis=0)) ** 2))


def honest() -> list[str]:
    rows = []
    for name, (J, N, strength, shared) in {
        "noise, 100×60": (100, 60, 0.0, 0),
        "two planted, weak (SNR 0.08), 100×60": (100, 60, 0.2, 2),
        "two planted, SNR 3, 100×60": (100, 60, np.sqrt(3 / 2), 2),
        "three planted, SNR 3, 200×20": (200, 20, 1.0, 3),
    }.items():
        counts, held, seen, chosen, plain = [], [], [], [], []
        for seed in SEEDS:
            hidden, views = planted(J, N, strength, seed, max(shared, 1))
            auto = FederatedGCCA("auto", ridge="auto", random_state=seed).fit(views)
            counts.append(auto.n_components_)
            if auto.n_components_:
                held.append(auto.held_out_correlations_.mean())
            k = max(shared, 2)
            bare = FederatedGCCA(k, random_state=seed).fit(views)
            seen.append(bare.correlations_.mean())
            if shared:
                ridged = FederatedGCCA(shared, ridge="auto", random_state=seed).fit(views)
                chosen.append(explain(hidden, ridged.common_))
                plain.append(explain(hidden, bare.common_))
        right = sum(count == shared for count in counts)
        worst = f" ({min(chosen):.3f})" if chosen else ""
        means = [f"{np.mean(x):.3f}" if x else "–" for x in (seen, held, plain, chosen)]
        rows.append([name, f"{right} of {len(counts)}", *means[:3], means[3] + worst])
    head = ["ten fresh seeds", "right K", "in-sample correlation, ridge 0", "held out, auto", "R², ridge 0"]
    return table([*head, "R², ridge auto (worst)"], rows)


def with_gaps(views: Views, seed: int) -> Views:
    rng = np.random.default_rng([seed, 1])
    keep = rng.random((len(views[0]), len(views))) >= 0.3
    keep[~keep.any(axis=1), 0] = True
    return [np.where(keep[:, i : i + 1], X, np.nan) for i, X in enumerate(views)]


def pooled(gaps: Views, k: int) -> tuple[np.ndarray, np.ndarray]:
    J = len(gaps[0])
    P, D = np.zeros((J, J)), np.zeros(J)
    for X in gaps:
        at = np.flatnonzero(~np.isnan(X[:, 0]))
        B = X[at] - X[at].mean(axis=0)
        D[at] += 1
        P[np.ix_(at, at)] += B @ np.linalg.solve(B.T @ B, B.T)
    w, G = scipy.linalg.eigh(P, np.diag(D), subset_by_index=[J - k, J - 1])
    return len(gaps) * w[::-1], np.linalg.qr(G * np.sqrt(D)[:, None])[0]


def gaps() -> list[str]:
    rows = []
    for noise in (1.0, 2.5):
        found: list[list[float]] = []
        for seed in range(200, 205):
            rng = np.random.default_rng(seed)
            hidden = rng.normal(size=(800, 3))
            views = [hidden @ rng.normal(size=(3, 20)) + noise * rng.normal(size=(800, 20)) for _ in range(4)]
            holes = with_gaps(views, seed)
            masked = FederatedGCCA(3, tol=1e-8, secure=True, random_state=seed).fit(holes, missing="mask")
            w, Q = pooled(holes, 3)
            Z = np.linalg.qr(masked.common_ * np.sqrt(masked.view_counts_)[:, None])[0]
            angle = np.linalg.norm(Q - Z @ (Z.T @ Q), 2)
            whole = FederatedGCCA(3, random_state=seed).fit(views)
            dropped = FederatedGCCA(3, random_state=seed).fit(holes, missing="drop")
            filled = [np.where(np.isnan(X), np.nanmean(X, axis=0), X) for X in holes]
            imputed = FederatedGCCA(3, random_state=seed).fit(filled)
            models = (whole.common_, masked.common_, dropped.transform(holes), imputed.common_)
            found.append([angle, np.abs(masked.eigenvalues_ - w).max(), *(explain(hidden, G) for G in models)])
        worst, mean = np.max(found, axis=0), np.mean(found, axis=0)
        rows.append([f"noise {noise:g}", f"{worst[0]:.1e}", f"{worst[1]:.1e}", *(f"{x:.3f}" for x in mean[2:])])
    head = ["4 views of 800×20, 30 % missing, secure", "angle to the pooled answer", "error of the eigenvalues"]
    return table([*head, "R², nothing missing", "mask", "complete rows", "imputed means"], rows)


def make_small_network(k: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, k))


def costs() -> list[str]:
    """What every task of a vertical run shows, in its own words, and what it cost on one table.

    Deep GCCA under secure sums sends float32, because masks need exact sums.
    """
    rng = np.random.default_rng(100)
    hidden = rng.normal(size=(500, 3))
    views = {name: hidden @ rng.normal(size=(3, 20)) + rng.normal(size=(500, 20)) for name in ("a", "b", "c", "d")}
    holes = dict(zip(views, with_gaps(list(views.values()), 100), strict=True))
    runs: dict[str, tuple[Any, Any]] = {
        "VerticalPCA": (ColumnsKrylov(k=3, last=50), views),
        "VerticalPCA, hide_scores": (ColumnsKrylov(k=3, hide=True, last=50), views),
        "GCCA (krylov)": (MaxVarKrylov(k=3, last=50), views),
        "GCCA, secure": (KeptMaxVar(k=3, last=50), views),
        "GCCA, missing='mask'": (KeptMaxVar(k=3, missing="mask", last=50), holes),
        "its ridge and K, both auto": (StudyViews(k=6, ridges=(1e-3, 0.1, 0.3, 1.0, 3.0, 10.0), shuffles=19), views),
    }
    weights = {name: rng.normal(size=(20, 3)) for name in views}
    labelled = {name: (X, (hidden[:, 0] > 0).astype(np.int64)) for name, X in views.items()}
    network = SwishNetwork(hidden=8, classes=2)
    runs |= {
        "new rows (transform)": (
            SumViews(),
            {name: WeightedView(X, weights[name], np.zeros(3)) for name, X in views.items()},
        ),
        "new rows, some missing": (
            SumViews(partial=True),
            {
                name: WeightedView(np.nan_to_num(X), weights[name], np.zeros(3), ~np.isnan(X[:, 0]))
                for name, X in holes.items()
            },
        ),
        "deep GCCA, 3 bits, 50 rounds": (
            DeepMaxVar(k=3),
            {name: DeepView(X, partial(make_small_network, 3)) for name, X in views.items()},
        ),
        "vertical classifier, sums": (VerticalGuarded(network, batch=100, rounds=50), labelled),
        "vertical classifier, exchange='each'": (
            VerticalSsca(network, batch=100, rounds=50, exchange="each"),
            labelled,
        ),
        "vertical regression": (
            VerticalLinear(rounds=50),
            {name: (X, hidden[:, 0], None) for name, X in views.items()},
        ),
    }
    rows = []
    for name, (server, data) in runs.items():
        sizes = []
        channel = quantize_both_links(3, 8) if "bits" in name else None
        for secure in (None, Secure()):
            if secure and ("solve" in server.asks() or "each" in name):  # which show every client's own
                sizes.append("–")
                continue
            ledger = run(
                server, InProcess(data), rounds=50, seed=100, secure=secure, channel=None if secure else channel
            ).ledger
            sizes.append(f"{(ledger.bytes_up + ledger.bytes_down) / 1e3:.0f}")
        shown = tasks_of(server.client)
        words = "; ".join(shown[task].shows for task in sorted(server.asks()) if not task.startswith("identify"))
        verified = "yes" if not isinstance(server.replay(), str) else f"no: {server.replay()}"
        rows.append([name, str(ledger.rounds), *sizes, verified, words])
    head = ["4 views of 500×20, k = 3", "rounds", "kB", "kB, secure", "can be verified"]
    return table([*head, "what a client's answers show (with secure sums: of all together)"], rows)


PARTS: dict[str, tuple[Callable[[], list[str]], str, str]] = {
    "pca": (pca, "vertical-pca.md", "columns"),
    "honest": (honest, "gcca.md", "honest"),
    "gaps": (gaps, "gcca.md", "gaps"),
    "costs": (costs, "vertical-pca.md", "costs"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in asked.parts:
        make, page, mark = PARTS[part]
        lines = make()
        print("\n".join(lines), flush=True)
        if asked.write:
            put(lines, ROOT / "docs" / page, mark)


if __name__ == "__main__":
    main()
