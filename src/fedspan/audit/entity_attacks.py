"""Attacks on runs whose columns are at different sites: what the server knows of entities, of columns and of absences.

Three questions, each answered in a sentence with the figure that a guess would reach:

1. Whom is an entity like? The server holds numbers for each entity (scores, or the common representation). Measured:
   how many of an entity's five nearest neighbours in the pooled columns are among its five nearest in what the server
   holds; and, if the job names a column of labels, how often the five neighbours tell an entity's label.
2. Which columns does a client have? Every answer of a client is a combination of its columns. Measured: how much of its
   columns' variance lies in the span of its answers; all of it means that they are known up to a mixture.
3. Who is missing where? Measured: for how many entities the server knows which views have them.

What the server knows of rows in vertical learning is in embedding_attacks.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.spatial import cKDTree

from fedspan._types import Array
from fedspan.data.tables import open_table
from fedspan.engines.transcript import Talk
from fedspan.errors import InputError
from fedspan.estimators.matching.match_entities import match_entities
from fedspan.jobs.model import Job
from fedspan.numerics.grid import from_grid

# Whose messages are read here.
VERTICAL = frozenset({"ColumnsKrylov", "MaxVarKrylov", "MaxVarDavidson", "KeptMaxVar", "DeepMaxVar"})
_NEIGHBOURS = 5
_ENTITIES_TRIED = 2000  # looked at, at most
# What answers combine columns, and under which name; with "_on_grid", too: the same in whole steps.
_PRODUCTS_SENT = {
    "fit_view": "Y",
    "fit_view_twice": "Y",
    "fit_located": "Y",
    "multiply_entities": "Y",
    "start": "M",
    "train": "M",
}
_CLOSING = {"keep_loadings": "Z", "keep_weights": "G", "solve": "G", "train": "G"}


def attack_entities(job: Job, talks: Sequence[Talk], counts: Array | None, *, secure: bool) -> list[str]:
    """One sentence for each thing that was measured.

    `counts` says how many views have each entity, as the server knows it at the end, if some lack any. `secure`: the
    answers are masked, and only sums were seen.
    """
    held = _find_held(talks)
    tables, labels, problem = read_view_tables(job)
    notes: list[str] = []
    if held is None:
        return ["The run did not end, so the server does not hold a final representation of the entities yet."]
    if problem:
        notes.append(
            f"What the server knows of entities could not be measured, because tables cannot be read here. ({problem})"
        )
    else:
        notes += _measure_neighbours(held, tables, labels)
        if not secure:
            notes += _measure_spans(talks, tables)
    notes += _measure_absences(len({talk.client for talk in talks}), counts, secure=secure)
    return notes


def _find_held(talks: Sequence[Talk]) -> Array | None:
    """What the server sends at the end: a row for each entity."""
    for talk in reversed(talks):
        if talk.task not in _CLOSING:
            continue
        question = talk.question
        if "codes" in question:
            return from_grid(question["codes"], question["scale"])
        Z = np.asarray(question[_CLOSING[talk.task]], dtype=np.float64)
        return Z * np.sqrt(question["theta"]) if "theta" in question else Z
    return None


def read_view_tables(job: Job) -> tuple[dict[str, Array], Array | None, str]:
    """Every client's columns in the order of the run, the labels if there are any, or why they cannot be read.

    Entities that a view lacks are rows of NaN.
    """
    tables: dict[str, Array] = {}
    labels: Array | None = None
    try:
        opened = {name: open_table(source()) for name, source in job.sources().items()}
        orders: Mapping[str, Array] = {}
        if job.match != "order":
            how: Literal["union", "intersection"] = "union" if job.preparation.missing == "mask" else "intersection"
            ids: dict[str, Any] = {name: () if table.ids is None else table.ids for name, table in opened.items()}
            orders = match_entities(ids, method="digest", how=how)
        for name, table in opened.items():
            X = (sp.csr_array(table.X).toarray() if sp.issparse(table.X) else np.asarray(table.X)).astype(np.float64)
            own = None if table.labels is None else np.asarray(table.labels)
            if name in orders:
                rows = orders[name]
                X = np.where(rows[:, None] >= 0, X[np.maximum(rows, 0)], np.nan)
                own = None if own is None or (rows < 0).any() else own[rows]
            tables[name], labels = X, own if labels is None else labels
    except InputError as error:
        return {}, None, str(error)
    return tables, labels, ""


def _measure_neighbours(held: Array, tables: Mapping[str, Array], labels: Array | None) -> Iterator[str]:
    pooled = np.hstack(list(tables.values()))
    known = np.isfinite(held).all(axis=1) & np.isfinite(pooled).all(axis=1) & np.any(held != 0, axis=1)
    rows = np.flatnonzero(known)[:_ENTITIES_TRIED]
    if len(rows) < 3 * _NEIGHBOURS:
        return
    B = pooled[rows] - pooled[rows].mean(axis=0)
    deviations = B.std(axis=0)
    true = _find_nearest(B / np.where(deviations > 0, deviations, 1.0))
    guessed = _find_nearest(held[rows])
    shared = np.mean([len(np.intersect1d(a, b)) for a, b in zip(true, guessed, strict=True)]) / _NEIGHBOURS
    yield (
        f"Whom an entity is like: of its {_NEIGHBOURS} nearest neighbours in the pooled columns, {shared:.1%} are "
        f"among its {_NEIGHBOURS} nearest in what the server holds (a guess finds {_NEIGHBOURS / (len(rows) - 1):.1%})."
    )
    if labels is None:
        return
    words, codes = np.unique(labels[rows].astype(str), return_inverse=True)
    if not 1 < len(words) < len(rows) / 2:
        return
    votes = np.apply_along_axis(lambda near: np.bincount(codes[near], minlength=len(words)).argmax(), 1, guessed)
    yield (
        f"An entity's label, from those of its {_NEIGHBOURS} nearest neighbours in what the server holds: right for "
        f"{np.mean(votes == codes):.1%} (always the most frequent label: {np.bincount(codes).max() / len(codes):.1%})."
    )


def _find_nearest(X: Array) -> Array:
    """The numbers of the nearest other rows, (n, 5)."""
    found = np.asarray(cKDTree(X).query(X, k=_NEIGHBOURS + 1)[1])
    return np.array([row[row != i][:_NEIGHBOURS] for i, row in enumerate(found)])


def _measure_spans(talks: Sequence[Talk], tables: Mapping[str, Array]) -> Iterator[str]:
    """For each client, the share of its columns' variance in the span of what it answered."""
    said: dict[str, list[Array]] = {}
    for talk in talks:
        array = _PRODUCTS_SENT.get(talk.task.removesuffix("_on_grid"))
        if array is not None:
            said.setdefault(talk.client, []).append(np.asarray(talk.answer[array], dtype=np.float64))
    shares = {}
    for name, blocks in said.items():
        X, Y = tables[name], np.hstack(blocks)
        present = np.isfinite(X).all(axis=1)
        B = X[present] - X[present].mean(axis=0)
        U, s, _ = np.linalg.svd(
            Y[present] / np.maximum(np.linalg.norm(Y[present], axis=0), 1e-300), full_matrices=False
        )
        U = U[:, s > 1e-6 * s[0]]
        total = float(np.sum(B**2))
        shares[name] = float(np.sum((U.T @ B) ** 2)) / total if total > 0 else 0.0
    if shares:
        most = max(shares, key=lambda name: shares[name])
        yield (
            f"Which columns a client has: of the variance of the columns of {most!r}, {shares[most]:.1%} lies in the "
            f"span of its own answers (least of all clients: {min(shares.values()):.1%}). All of it would mean that "
            "the server knows the columns up to a mixture. Secure sums hide this."
        )


def _measure_absences(views: int, counts: Array | None, *, secure: bool) -> Iterator[str]:
    if counts is None:
        return
    if not secure:
        yield f"Who is missing where: each of the {views} views told the server which entities it has, so it knows all."
        return
    certain = np.mean((counts == 0) | (counts == views))
    guess = np.mean(np.maximum(counts, views - counts) / views)
    yield (
        f"Who is missing where: the server knows how many views have each entity. For {certain:.1%} of the entities "
        f"that says of every view whether it has them; of all pairs of entity and view its best guess is right in "
        f"{guess:.1%}."
    )
