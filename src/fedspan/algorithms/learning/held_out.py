"""Rows that a client holds out of training, and what sums over them say of a model: loss, confusion, calibration.

Notation: Q (n, L) the probabilities of a model, T a temperature (Q is the softmax of the outputs divided by T).

The held-out rows are the same in every round and run: an even share of each class, drawn by a fixed stream.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from fedspan._types import Array, Arrays
from fedspan.numerics.swish import softmax

_OWN_LOG = logging.getLogger("fedspan.evaluation")
BINS = 10  # of the calibration curve
_LEAST = 1e-15  # a probability below this counts as this
_FIXED = 20_260  # the stream that deals rows


def deal_rows(y: Array, share: float) -> tuple[Array, Array]:
    """The numbers of the rows to train on, and of those to hold out: that share, spread evenly over the classes."""
    n = len(y)
    order = np.lexsort((np.random.default_rng(_FIXED).random(n), y))
    steps = np.floor(np.arange(n + 1) * share + 0.5)
    held = np.zeros(n, dtype=bool)
    held[order] = steps[1:] > steps[:-1]
    if held.all():  # a single row is trained on
        held[:] = False
    return np.flatnonzero(~held), np.flatnonzero(held)


def count_held_out(rows: int, share: float) -> int:
    """How many of so many rows `deal_rows` holds out."""
    held = int(np.floor(rows * share + 0.5))
    return held if held < rows else 0


@dataclass(frozen=True)
class Evaluation:
    """Sums over held-out rows: what a model does with rows that it was not trained on."""

    n: float  # rows
    loss: float  # mean
    confusion: Array  # (L, L) rows by their class, and by the predicted class
    curve: Array  # (BINS, 3) by probability of the predicted class: rows, Σ probability, how many were right
    alone: tuple[float, float] | None = None  # accuracy and mean loss if every client asked its own linear model

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / max(self.confusion.sum(), 1))

    @property
    def recall(self) -> Array:
        """(L,) of the rows of each class, the share that is predicted rightly; NaN where none was held out."""
        return _divide(np.diag(self.confusion), self.confusion.sum(axis=1))

    @property
    def precision(self) -> Array:
        """(L,) of the rows for which each class is predicted, the share that has it; NaN where there is none."""
        return _divide(np.diag(self.confusion), self.confusion.sum(axis=0))

    @property
    def calibration_error(self) -> float:
        """The mean distance between how sure the model is and how often it is right, over the bins of the curve."""
        rows, sure, right = self.curve.T
        return float(np.abs(sure - right).sum() / max(rows.sum(), 1))


def tell_site(sums: Arrays, alone: Array) -> None:
    """Write what the held-out rows of this client alone say into its own log: nobody else sees them by themselves."""
    n, confusion = float(sums["n"]), sums["confusion"]
    if not n:
        return
    own = Evaluation(n, float(sums["loss"]) / n, confusion, sums["curve"])
    found = ", ".join("none held out" if np.isnan(share) else f"{share:.3f}" for share in own.recall)
    _OWN_LOG.info(
        "Of the %d rows that this site holds out, the model predicts %.3f rightly (loss %.3g; by class: %s); a linear "
        "model of this site's other rows alone %.3f (loss %.3g).",
        n,
        own.accuracy,
        own.loss,
        found,
        float(alone[0]) / n,
        float(alone[1]) / n,
    )


def _divide(parts: Array, wholes: Array) -> Array:
    return np.where(wholes > 0, parts / np.maximum(wholes, 1), np.nan)


def measure_outputs(outputs: Array, y: Array, weight: Array | None) -> dict[str, Array]:
    """n, Σ loss, the confusion matrix and the calibration curve of rows, from the model's outputs."""
    L = outputs.shape[1]
    Q = softmax(outputs.astype(np.float64, copy=False))
    guess, right = Q.argmax(axis=1), Q[np.arange(len(y)), y]
    loss = -np.log(np.maximum(right, _LEAST))
    top = Q[np.arange(len(y)), guess]
    at = np.minimum((top * BINS).astype(int), BINS - 1)
    sums = [np.bincount(at, weights=values, minlength=BINS) for values in (np.ones(len(y)), top, guess == y)]
    confusion = np.bincount(y * L + guess, minlength=L * L).reshape(L, L)
    return {
        "n": np.array(len(y)),
        "loss": np.array(float(loss.sum() if weight is None else loss @ weight)),
        "confusion": confusion,
        "curve": np.stack(sums, axis=1).astype(np.float64),
    }


def temper_rows(outputs: Array, y: Array, temperatures: Array) -> tuple[Array, Array]:
    """At each temperature Σ loss of rows, and Σ -log(1 - the largest probability): their loss if that were wrong."""
    losses, wrong = np.zeros((2, len(temperatures)))
    for k, T in enumerate(temperatures):
        Q = softmax(outputs.astype(np.float64, copy=False) / T) if len(y) else outputs
        losses[k] = -np.log(np.maximum(Q[np.arange(len(y)), y], _LEAST)).sum()
        wrong[k] = -np.log(np.maximum(1 - Q.max(axis=1, initial=0.0), _LEAST)).sum()
    return losses, wrong
