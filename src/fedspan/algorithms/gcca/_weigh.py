"""How a run on views ends: the weights that go with G, and the rows held out by which it may stop early.

Notation: G (J, K) the common representation, P = Σ P_i the sum of the views' projectors, T = GᵀPG (K, K) with
eigenvalues θ, Q_i (N_i, K) the weights, M_i = B_iQ_i; AC the alignment accuracy. What the server sees: see _view.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from fedspan._types import Array, Arrays
from fedspan.algorithms.gcca._view import send_common
from fedspan.core.protocol import Ask, Round, complete
from fedspan.numerics.alignment import alignment_accuracy
from fedspan.numerics.orthonormal import polar

NOT_SUMS_OF_VIEWS = "every client's weights come back by themselves at the end, because the model is made of them"


@dataclass(frozen=True)
class Answer:
    """What the last exchange found: every client's weights, and how well its view agrees with G."""

    G: Array  # (J, K) in the order of the eigenvalues
    theta: Array  # (K,) tr of GᵀP_iG over the views
    cost: float  # (7)
    Q: dict[str, Array]  # (N_i, K) for features as they are, not centred or scaled
    offset: dict[str, Array]  # (K,) what centering takes off
    correlations: dict[str, Array]  # (K,) of M_i with G, column by column
    explained: dict[str, float]  # the share of the view's variance in the span of G


@dataclass(frozen=True)
class Watch:
    """The best so far by the alignment of the rows held out."""

    G: Array  # (J, K)
    accuracy: float
    round: int
    latest: float  # the accuracy of the last round


def ask_weights(G: Array, coarse: bool = False) -> Round[Answer]:
    """Ask for the weights that answer for G, and turn all to the principal axes of P on its span.

    A coarse channel leaves the clients with a Ĝ that is not quite orthonormal: θ, the cost and the correlations are
    those of its span, exactly, because the clients also say what ĜᵀĜ is.
    """
    each = (yield from complete(Ask("solve", send_common(G, coarse)))).each
    T, GG = (np.sum([arrays[name] for arrays in each.values()], axis=0) for name in ("T", "GG"))
    sizes, axes = scipy.linalg.eigh((GG + GG.T) / (2 * len(each)))
    W = axes / np.sqrt(np.maximum(sizes, 1e-12 * sizes[-1]))  # a Ĝ that lost a column has no share in θ
    theta, S = scipy.linalg.eigh(W.T @ (T + T.T) @ W / 2)
    theta, S = theta[::-1], W @ S[:, ::-1]  # SᵀĜᵀĜS = I
    G = polar(G @ S)
    signs = np.where(G[np.argmax(np.abs(G), axis=0), np.arange(G.shape[1])] < 0, -1.0, 1.0)
    G, S = G * signs, S * signs
    return Answer(
        G,
        theta,
        cost=0.5 * (len(each) * G.shape[1] - float(theta.sum())),
        Q={name: arrays["Q"] @ S for name, arrays in each.items()},
        offset={name: arrays["offset"] @ S for name, arrays in each.items()},
        correlations={name: _correlate(arrays, S) for name, arrays in each.items()},
        explained={name: float(arrays["explained"]) for name, arrays in each.items()},
    )


def _correlate(arrays: Arrays, S: Array) -> Array:
    """The correlations of M_iS with ĜS, column by column."""
    inner = np.einsum("ij,ij->j", S, arrays["T"] @ S)
    size = np.sqrt(np.maximum(np.einsum("ij,ij->j", S, arrays["MM"] @ S), 0.0))
    return np.divide(inner, size, out=np.zeros_like(inner), where=size > 0)


def watch_held_out(before: Watch | None, G: Array, arrays: Arrays, t: int) -> Round[Watch]:
    """Ask for AC of the rows held out in round t, and keep the better of what was the best and this round's G.

    `arrays` hold G, or nothing if the clients have their weights for it. The server sees the representations of the
    rows held out, view by view.
    """
    shown = (yield from complete(Ask("test", arrays))).each
    accuracy = alignment_accuracy([reply["H"] for reply in shown.values()])
    if before is not None and accuracy <= before.accuracy:
        return replace(before, latest=accuracy)
    return Watch(G, accuracy, t, accuracy)


def is_out_of_patience(watch: Watch | None, t: int, patience: int) -> bool:
    """Whether `patience` rounds have passed without a better alignment."""
    return patience > 0 and watch is not None and t - watch.round >= patience


def view_metrics(cost: float, kkt: float, watch: Watch | None) -> dict[str, float]:
    """What the methods on views say of their progress."""
    accuracy = {"accuracy": watch.latest, "best_accuracy": watch.accuracy} if watch else {}
    return {"cost": cost, "kkt": kkt} | accuracy
