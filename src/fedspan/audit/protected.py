"""What the server holds of a run with secure sums or noise: measured on what was on the wire, as the attacks are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.stats import chi2

from fedspan._types import Array
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.algorithms.spectral.oneshot import unpack_triangle
from fedspan.core.ledger import Ledger
from fedspan.core.protocol import Sensitivity, tasks_of
from fedspan.data.table import open_table
from fedspan.engines.transcript import Talk
from fedspan.errors import InputError
from fedspan.jobs.model import Job
from fedspan.numerics.operators import Rows
from fedspan.privacy import noise
from fedspan.privacy.accountant import gaussian_mu


def protected(job: Job, ledger: Ledger, talks: Sequence[Talk]) -> list[str]:
    """One sentence for each thing that was tried."""
    notes = []
    if job.secure.get("enabled"):
        notes.append(_randomness(talks))
    elif job.privacy:
        notes += _noised(job, talks)
    if job.privacy:
        mu = gaussian_mu(ledger.epsilon(job.privacy["delta"]), job.privacy["delta"])
        notes.append(
            f"was a row there? nobody can tell better than with mu {mu:.2g}: the best test is right in "
            f"{_right(mu):.1%} of cases if either case is as likely"
        )
    return notes


def _right(mu: float) -> float:
    return 0.5 * math.erfc(-mu / 2 / math.sqrt(2))


def _randomness(talks: Sequence[Talk]) -> str:
    """Is a client's part of the sums anything but random bytes? A chi-square test for each client."""
    sent: dict[str, list[bytes]] = defaultdict(list)
    for talk in talks:
        sent[talk.client] += [np.ascontiguousarray(array).tobytes() for array in talk.answer.values()]
    worst, total = 1.0, 0
    for parts in sent.values():
        counts = np.bincount(np.frombuffer(b"".join(parts), dtype=np.uint8), minlength=256)
        expected = counts.sum() / 256
        total += int(counts.sum())
        worst = min(worst, float(chi2.sf(np.sum((counts - expected) ** 2) / expected, 255)))
    worst = min(1.0, worst * len(sent))
    verdict = "cannot be told from random bytes" if worst > 1e-4 else "DIFFER FROM RANDOM BYTES"
    return (
        f"secure aggregation: what single clients sent {verdict} (chi-square over {total:,} bytes, least p {worst:.2g} "
        f"of {len(sent)} clients); there is nothing to reconstruct of one client, the server holds the sums"
    )


def _noised(job: Job, talks: Sequence[Talk]) -> list[str]:
    """How far each client's noised matrix is from its own."""
    notes = []
    for talk in talks:
        if talk.task != "triangle":
            continue
        try:
            X = open_table(job.sources()[talk.client]()).X
        except InputError:
            continue
        bound = tasks_of(PrivateClient)["triangle"].releases["G"]
        G = talk.answer["G"]
        assert isinstance(bound, Sensitivity)  # noqa: S101 - declared in private.py
        C, replaced = job.privacy["row_norm"], job.privacy.get("neighbours") == "replace-one"
        M = _matrix(G * noise.step(bound.bound(C, replaced), G.size))
        truth = Rows(X, C).gram(talk.question.get("mean"), None)
        error = float(np.linalg.norm(M - truth) / np.linalg.norm(truth))
        notes.append(f"client {talk.client!r}: the second moments that the server holds are off by {error:.2g}")
    return notes


def _matrix(G: Array) -> Array:
    M = unpack_triangle(G / math.sqrt(2))
    M[np.diag_indices_from(M)] *= math.sqrt(2)
    return M
