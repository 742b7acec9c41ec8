"""An attack on vertical learning: the features of rows, from what all clients' features add to the hidden cells.

The server knows the weights of every client, because it makes them. In each batch it sees H = Σ h_i, h_i = X_i ω_i
(B, J): for every row of the batch J equations in the features of all clients together. A row that is drawn again under
other weights gives J more. The server solves them by least squares (of least norm, if they are too few). Secure sums do
not stand in the way, because H is the sum; without them, each h_i gives equations in the features of one client alone.

Measured: how much of the variance of the features, scaled as the run scales them, the solution explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedspan._types import Array
from fedspan.engines.transcript import Talk

_ROWS_TRIED = 200
_MOST_EQUATIONS = 20_000  # of one row: what is seen later adds little


def attack_embeddings(talks: Sequence[Talk], tables: Mapping[str, Array]) -> list[str]:
    """One sentence: what the server can work out about the features of rows from the sums of their embeddings."""
    clients = sorted(tables)
    widths = {name: tables[name].shape[1] for name in clients}
    seen = _collect_equations(talks, clients, widths)
    columns = np.hstack([tables[name] for name in clients])
    tried = [row for row in sorted(seen) if row < len(columns) and np.isfinite(columns[row]).all()][:_ROWS_TRIED]
    if len(tried) < 3:
        return [
            "Features of rows: not attacked. The networks of this run are not the built-in one, or too few rows were "
            "seen under weights that are known; that does not mean that nothing can be worked out."
        ]
    found, equations = np.zeros((len(tried), columns.shape[1])), []
    for at, row in enumerate(tried):
        A, b = np.vstack([A for A, _ in seen[row]]), np.concatenate([b for _, b in seen[row]])
        A, b = A[:_MOST_EQUATIONS], b[:_MOST_EQUATIONS]
        found[at] = np.linalg.lstsq(A, b, rcond=1e-8)[0]
        equations.append(len(b))
    explained = _explain(columns[tried], found)
    return [
        f"Features of rows: the server knows all weights, and saw {np.mean(equations):.0f} sums of embeddings of a row "
        f"on average; solved for the {columns.shape[1]} features of all clients, they explain {explained:.1%} of the "
        "features' variance (all of it: the server knows the rows). Secure sums do not hinder this attack, only fewer "
        "hidden cells or fewer rounds than there are features to solve for."
    ]


def _collect_equations(
    talks: Sequence[Talk], clients: list[str], widths: Mapping[str, int]
) -> dict[int, list[tuple[Array, Array]]]:
    """By row, the equations A z = b that each batch with it gave."""
    weights: dict[str, Array] = {}
    done: set[tuple[int, int, int]] = set()
    found: dict[int, list[tuple[Array, Array]]] = {}
    for talk in talks:
        question = talk.question
        if talk.task == "take":
            omega = np.asarray(question["omega"], dtype=np.float64)
            if omega.ndim == 2 and 0 <= len(omega) - widths[talk.client] <= 1:  # one more: intercepts
                weights[talk.client] = omega
            continue
        if "H" not in question or "rows" not in question or len(weights) < len(clients):
            continue
        key = (talk.sitting, talk.round, _digest_rows(question["rows"]))
        if key in done:
            continue
        done.add(key)
        H = np.asarray(question["H"], dtype=np.float64)
        H = H.sum(axis=0) if H.ndim == 3 else H
        for name in clients:
            H = H - weights[name][widths[name] :].sum(axis=0)  # intercepts, which one client has
        A = np.vstack([weights[name][: widths[name]] for name in clients]).T
        for row, b in zip(np.asarray(question["rows"]).tolist(), H, strict=True):
            found.setdefault(int(row), []).append((A, b))
    return found


def _digest_rows(rows: Array) -> int:
    return hash(np.asarray(rows).tobytes())


def _explain(truth: Array, found: Array) -> float:
    """The share of the variance of standardised features that what was found tells, column by column."""
    X, Z = truth - truth.mean(axis=0), found - found.mean(axis=0)
    kept = X.std(axis=0) > 0
    size = np.linalg.norm(X, axis=0) * np.linalg.norm(Z, axis=0)
    correlation = np.divide((X * Z).sum(axis=0), size, out=np.zeros(len(size)), where=size > 0)
    return float(np.mean(np.square(correlation[kept]))) if kept.any() else 0.0
