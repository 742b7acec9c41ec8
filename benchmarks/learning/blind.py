"""Classifiers with their default settings on raw tables at five clients, beside what pooled rows would give.

    python benchmarks/learning/blind.py --seeds 700 701 702 703 704 --out blind.jsonl
    python benchmarks/learning/blind.py --table blind.jsonl --write docs/classifier.md

Every figure is appended to the file as it comes, and what is there is not run again. 30 % of the rows are for testing.
"iid": rows dealt at random. "skewed": of each class, the clients' shares are drawn from a Dirichlet distribution with
parameter 0.3. "vertical": five clients with a fifth of the columns each. The pooled models are scikit-learn's
LogisticRegression and MLPClassifier behind a StandardScaler.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import AIMS, FRESH, KNOWN, LOSS_AIMS, MissingTableError, Table, open_table

from fedspan import FederatedClassifier, VerticalFederatedClassifier

FORMS = ("iid", "skewed", "vertical", "logistic", "mlp")
CLIENTS, TEST, CONCENTRATION = 5, 0.3, 0.3
_BEGIN, _END = "<!-- blind begins -->", "<!-- blind ends -->"


def deal(y: np.ndarray, form: str, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of each client; every client has at least one."""
    if form == "iid":
        return np.array_split(rng.permutation(len(y)), CLIENTS)
    parts: list[list[int]] = [[] for _ in range(CLIENTS)]
    for c in np.unique(y):
        at = rng.permutation(np.flatnonzero(y == c))
        cuts = np.cumsum(rng.dirichlet(np.full(CLIENTS, CONCENTRATION)))[:-1] * len(at)
        for part, rows in zip(parts, np.split(at, cuts.astype(int)), strict=True):
            part.extend(rows)
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return [np.array(part) for part in parts]


def measure(table: Table, form: str, seed: int) -> dict[str, float]:
    """Accuracy and log-loss on the test rows, with rounds and CPU seconds."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table.y))
    k = int(TEST * len(order))
    X, y, Xt, yt = table.X[order[k:]], table.y[order[k:]], table.X[order[:k]], table.y[order[:k]]
    started = time.process_time()
    rounds = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form in ("logistic", "mlp"):
            small = len(y) < 5000  # a large table is stopped early, which its default would not do
            mlp = MLPClassifier(random_state=seed, early_stopping=not small)
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000) if form == "logistic" else mlp)
            classes, Q = model.fit(X, y).classes_, model.predict_proba(Xt)
        elif form == "vertical":
            cuts = np.array_split(np.arange(X.shape[1]), min(CLIENTS, X.shape[1]))
            fitted = VerticalFederatedClassifier(random_state=seed).fit([X[:, cut] for cut in cuts], y)
            classes, Q, rounds = fitted.classes_, fitted.predict_proba([Xt[:, cut] for cut in cuts]), fitted.n_rounds_
        else:
            parts = deal(y, form, rng)
            fitted = FederatedClassifier(random_state=seed).fit([X[at] for at in parts], [y[at] for at in parts])
            classes, Q, rounds = fitted.classes_, fitted.predict_proba(Xt), fitted.n_rounds_
    seconds = time.process_time() - started
    whole = np.full((len(yt), table.classes), 1e-15)  # a class without a row to learn from
    whole[:, classes] = np.maximum(Q, 1e-15)
    whole /= whole.sum(axis=1, keepdims=True)
    return {
        "accuracy": float((whole.argmax(axis=1) == yt).mean()),
        "loss": float(log_loss(yt, whole, labels=range(table.classes))),
        "rounds": rounds,
        "seconds": seconds,
    }


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure_all(path: Path, names: list[str], seeds: list[int], forms: list[str]) -> None:
    """Measure what is not in the file yet, seed by seed."""
    done = {(row["table"], row["form"], row["seed"]) for row in read(path)}
    for seed in seeds:
        for name in names:
            try:
                table = open_table(name)
            except MissingTableError as error:
                print(f"skipped {name}: {error}")
                continue
            for form in forms:
                if (name, form, seed) in done:
                    continue
                found = {"table": name, "form": form, "seed": seed, **measure(table, form, seed)}
                with path.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(found, flush=True)


def tabulate(rows: list[dict]) -> Iterator[str]:
    """Medians over seeds, one line per table."""
    yield "| table | seeds | aim | iid | skewed | vertical | pooled logistic | pooled MLP | seconds (CPU) |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name in [*KNOWN, *FRESH]:
        own = [row for row in rows if row["table"] == name]
        if not own:
            continue
        cells, seconds = {}, []
        for form in FORMS:
            of_form = [row for row in own if row["form"] == form]
            if not of_form:
                cells[form] = "–"
                continue
            accuracy, loss = (np.median([row[key] for row in of_form]) for key in ("accuracy", "loss"))
            cells[form] = f"{accuracy:.3f}, {loss:.3f}"
            seconds.append(f"{np.median([row['seconds'] for row in of_form]):.1f}")
        counts = sorted(sum(row["form"] == form for row in own) for form in FORMS)
        seeds = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        aim = "fresh" if name in FRESH else f"{AIMS[name]}" if name in AIMS else "known"
        if name in LOSS_AIMS:
            aim += f", {LOSS_AIMS[name]}"
        yield f"| {name} | {seeds} | {aim} | " + " | ".join(cells[f] for f in FORMS) + f" | {' / '.join(seconds)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("blind.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[700, 701, 702, 703, 704])
    parser.add_argument("--tables", nargs="+", default=[*KNOWN, *FRESH], choices=[*KNOWN, *FRESH])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--table", type=Path, help="only print the table of a file")
    parser.add_argument("--write", type=Path, help="with --table: a page that has the marks of the table")
    asked = parser.parse_args()
    if asked.table is None:
        measure_all(asked.out, asked.tables, asked.seeds, asked.forms)
        return
    lines = "\n".join(tabulate(read(asked.table)))
    print(lines)
    if asked.write is not None:
        before, rest = asked.write.read_text().split(_BEGIN)
        asked.write.write_text(f"{before}{_BEGIN}\n{lines}\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
