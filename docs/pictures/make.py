"""The pictures of the job pages: `python docs/pictures/make.py [pca svd gcca deep personalized classifier]`.

Every one is of a run of fedspan itself, on data that scikit-learn brings or on the generators of the benchmarks, so
that anyone can make them again. They are plain SVG on a white card, drawn with the report's own charts.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from fedspan import FederatedClassifier, FederatedGCCA, FederatedPCA, FederatedSVD, PersonalizedPCA
from fedspan._files import write_whole
from fedspan.reports.drawing.charts import draw_curve_chart

HERE = Path(__file__).resolve().parent
COLOURS = ["#2563b8", "#c2570c", "#1a936f", "#8e44ad", "#c0392b", "#16a3b8", "#b8860b", "#d1478c", "#5c6570", "#6a994e"]
STYLE = """text{fill:#5c6570;font:13px system-ui,sans-serif}.head{fill:#1d2126}.grid{stroke:#e1e4e8}.dot{fill:#2563b8}
.axis,.level{stroke:#5c6570}.level{stroke-dasharray:5 4}.line{fill:none;stroke:#2563b8;stroke-width:2}
.line1{stroke:#c2570c;stroke-dasharray:7 4}.line2{stroke:#5c6570;stroke-dasharray:2 3}
.dot1{fill:#c2570c}.dot2{fill:#5c6570}"""
W, WIDE, H = 320, 390, 300  # of a panel: points, a chart


def digits() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """1797 handwritten digits of 8×8 pixels at three uneven sites; all of them, and which digit each is."""
    X, y = load_digits(return_X_y=True)
    return {"north": X[:900], "south": X[900:1300], "west": X[1300:]}, X, y


def panel(title: str, parts: Sequence[str]) -> str:
    return f'<text class="head" x="8" y="20">{escape(title)}</text>' + "".join(parts)


def scatter(title: str, points: np.ndarray, kinds: np.ndarray) -> str:
    """Points by colour, fitted into a panel."""
    low, high = np.quantile(points, 0.005, axis=0), np.quantile(points, 0.995, axis=0)
    shown = ((points >= low) & (points <= high)).all(axis=1)
    points, kinds = points[shown], kinds[shown]
    x, y = ((points - low) / (high - low) * [W - 24, H - 48] + [12, 36]).T
    dots = []
    for kind in np.unique(kinds):
        here = "".join(f"M{a:.0f} {H + 24 - b:.0f}h0" for a, b in zip(x[kinds == kind], y[kinds == kind], strict=True))
        colour = COLOURS[int(kind)]
        dots.append(f'<path d="{here}" stroke="{colour}" stroke-width="4" stroke-linecap="round" opacity=".7"/>')
    return panel(title, dots)


def chart(title: str, svg: str) -> str:
    """A chart of the report in a panel."""
    return panel(title, [svg.replace("<svg ", f'<svg x="0" y="34" width="{WIDE}" height="{H - 44}" ', 1)])


def rounds_chart(curves: Mapping[str, Sequence[float]], level: float | None = None) -> str:
    """Curves against rounds, as far as all of them go."""
    last = min(map(len, curves.values()))
    return draw_curve_chart(range(1, last + 1), {n: v[:last] for n, v in curves.items()}, "", "rounds", level=level)


def images(title: str, rows: Sequence[np.ndarray], names: Sequence[str]) -> str:
    """Rows of 8×8 images, dark is high: for every grey one path of unit cells."""
    cells: dict[int, list[str]] = {}
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            for at, value in enumerate(np.clip(image, 0, 16).round()):
                cells.setdefault(int(value), []).append(f"M{9.5 * c + at % 8:g} {11.5 * r + at // 8:g}h1")
    parts = [f'<text x="8" y="{62 + 53 * r}">{escape(name)}</text>' for r, name in enumerate(names)]
    for value, marks in cells.items():
        grey = 255 - 15 * value
        parts.append(
            f'<path transform="translate(120 40) scale(4.6)" d="{"".join(marks)}" stroke="rgb({grey},{grey},{grey})"/>'
        )
    return panel(title, parts)


def save(name: str, title: str, *panels: str, width: int = W) -> None:
    """Panels in rows of two, in one file."""
    across, down = min(len(panels), 2) * width, (len(panels) + 1) // 2 * H
    inside = [f'<g transform="translate({i % 2 * width} {i // 2 * H})">{part}</g>' for i, part in enumerate(panels)]
    write_whole(
        FOLDER / f"{name}.svg",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {down}" width="{across}" height="{down}" '
        f'role="img" aria-label="{escape(title)}"><style>{STYLE}</style>'
        f'<rect width="{across}" height="{down}" rx="8" fill="#fff"/>{"".join(inside)}</svg>\n',
    )


def pca() -> None:
    sites, X, y = digits()
    model = FederatedPCA(2, random_state=0).fit(sites)
    history = {}
    for solver in ("krylov", "ssi"):
        run = FederatedPCA(4, solver=solver, tol=1e-12, max_rounds=20, random_state=0).fit(sites)
        history[solver] = [np.log10(row["kkt"]) for row in run.history_[1:]]
    save(
        "pca", "Digits at three sites by their first two components; violation against rounds",
        scatter("1797 digits (by colour), first two components", model.transform(X), y),
        chart("log10 of the violation (KKT), four components", rounds_chart(history)),
        width=WIDE,
    )  # fmt: skip


def svd() -> None:
    sites, X, y = digits()
    some = [int(np.flatnonzero(y == digit)[3]) for digit in range(10)]
    rows, names = [X[some]], ["as they are"]
    for k in (2, 5, 10, 20):
        model = FederatedSVD(k, random_state=0).fit(sites)
        rows.append(model.inverse_transform(model.transform(X[some])))
        names.append(f"from {k} numbers")
    title = "Ten digits, from their coordinates in the leading singular vectors of three sites' rows"
    save("svd", title, images(title, rows, names), width=580)


def gcca() -> None:
    _, X, y = digits()
    views = {"top rows": X[:, :24], "middle rows": X[:, 24:40], "bottom rows": X[:, 40:]}
    kept = y < 5
    model = FederatedGCCA(2, ridge=1.0, random_state=0).fit({name: V[kept] for name, V in views.items()})
    alone = [
        scatter(f"{name} alone (PCA)", FederatedPCA(2, random_state=0).fit([V[kept]]).transform(V[kept]), y[kept])
        for name, V in views.items()
    ]
    save("gcca", "Three owners' views of digits, and their common representation",
         *alone, scatter("what all three share (GCCA)", model.common_, y[kept]))  # fmt: skip


def deep() -> None:
    from fedspan import DeepFederatedGCCA

    sys.path.insert(0, str(HERE.parents[1] / "benchmarks" / "cutemaxvar"))
    from deep_toy import network, toy

    views, y = toy(0)
    known = [X[:2000] for X in views]
    model = DeepFederatedGCCA([network] * 3, 2, bits=3, batch_size=None, rounds=50, random_state=0).fit(known)
    new = slice(10_000, 10_600)
    names = ("one owner sees rings", "one a spiral", "one a grid")
    panels = [scatter(name, X[new], y[new]) for name, X in zip(names, views, strict=True)]
    save("deep-gcca", "Three owners' views of entities of three classes, and what their networks agree on",
         *panels, scatter("what the networks agree on", model.transform([X[new] for X in views]), y[new]))  # fmt: skip


def personalized() -> None:
    sys.path.insert(0, str(HERE.parents[1] / "benchmarks" / "personalized"))
    from problem import error, global_pca, local_pca, section_v, true_error

    spread = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    curves: dict[str, list[float]] = {"PersonalizedPCA": [], "each alone": [], "one for all": []}
    for variance in spread:
        train, held, _ = section_v(0, variance)
        auto = PersonalizedPCA(10, center=False, random_state=0).fit(train)
        answers = [list(auto.components_.transpose(0, 2, 1)), local_pca(train, 10), global_pca(train, 10)]
        for name, U in zip(curves, answers, strict=True):
            curves[name].append(error(U, held) / true_error())
    at = list(range(len(spread)))
    save("personalized", "Held-out error of 50 clients of 20 rows against how far the clients differ",
         chart("50 clients of 20 rows: held-out error over the least possible", draw_curve_chart(
             at, curves, "", "how far the clients differ (σ_U²)", names=[f"{s:g}" for s in spread])),
         width=WIDE + 30)  # fmt: skip


def classifier() -> None:
    sites, _, y = digits()
    Xs = {name: X / 16 for name, X in sites.items()}
    ys = dict(zip(sites, np.split(y, [900, 1300]), strict=True))
    curves, norms = {}, {}
    for name, limit in (("no limit", None), ("cost ≤ 0.2", 0.2)):
        model = FederatedClassifier(hidden=32, batch_size=50, rounds=200, cost_limit=limit, random_state=0).fit(Xs, ys)
        curves[name] = [row["cost"] for row in model.history_[1:]]
        norms[name] = [row["norm2"] for row in model.history_[1:]]
    save("classifier", "Training cost and squared norm of the weights, with and without a limit on the cost",
         chart("mean training loss (of the batches)", rounds_chart(curves, level=0.2)),
         chart("‖ω‖², the squared norm of all weights", rounds_chart(norms)),
         width=WIDE)  # fmt: skip


PICTURES = {"pca": pca, "svd": svd, "gcca": gcca, "deep": deep, "personalized": personalized, "classifier": classifier}
FOLDER = HERE

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # some runs are cut short on purpose
    for wanted in sys.argv[1:] or PICTURES:
        PICTURES[wanted]()
