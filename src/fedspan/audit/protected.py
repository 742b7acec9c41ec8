"""What the server holds of a run with secure sums or noise: measured on what was on the wire, as the attacks are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import chi2

from fedspan._types import Array
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.algorithms.spectral.oneshot import unpack_triangle
from fedspan.audit.attacks import error, success_rate
from fedspan.core.ledger import Ledger
from fedspan.core.protocol import Sensitivity, Task, tasks_of
from fedspan.data.tables import open_table
from fedspan.engines.transcript import Talk
from fedspan.errors import InputError
from fedspan.jobs.model import Job
from fedspan.numerics.operators import Rows
from fedspan.privacy import noise
from fedspan.privacy.accountant import gaussian_mu
from fedspan.privacy.request import RowDP
from fedspan.reports.facts import RunFacts

_UNLIKELY = 1e-4  # a p-value below this says that the bytes are not random


def describe_protection(
    facts: RunFacts, job: Job, ledger: Ledger, talks: Sequence[Talk], tasks: Mapping[str, Task]
) -> list[str]:
    """One sentence for each thing that was measured; `tasks` are those that the clients declare."""
    notes = []
    if facts.secure:
        notes.append(check_randomness(talks, tasks))
    elif facts.privacy is not None:
        measured = _measure_noise(facts.privacy, job, talks)
        notes += measured or [
            "No attack has been run on the noisy answers of this method yet; the bound below holds for every attack."
        ]
    if facts.privacy is not None:
        notes.append(describe_bound(ledger.epsilon(facts.privacy.delta), facts.privacy.delta))
    return notes


def describe_bound(epsilon: float, delta: float) -> str:
    """What the best possible attack on a single row can reach against noise for that epsilon and delta."""
    if math.isinf(epsilon):
        return "Something was sent without noise, so nothing bounds what can be learned about a single row."
    mu = gaussian_mu(epsilon, delta)
    return (
        "Whether a given row was in the data: the best possible attack is right in at most "
        f"{success_rate(mu):.1%} of cases, if both answers are equally likely (mu {mu:.2g})."
    )


def check_randomness(talks: Sequence[Talk], tasks: Mapping[str, Task]) -> str:
    """Is what a client sent anything but random bytes? A chi-square test for each client, on all that is not public."""
    sent: dict[str, list[bytes]] = defaultdict(list)
    for talk in talks:
        if talk.task not in tasks or not tasks[talk.task].public:
            sent[talk.client] += [np.ascontiguousarray(array).tobytes() for array in talk.answer.values()]
    sent = {client: parts for client, parts in sent.items() if any(parts)}
    if not sent:
        return "Secure aggregation: nothing but public values was sent."
    least, total = 1.0, 0
    for parts in sent.values():
        counts = np.bincount(np.frombuffer(b"".join(parts), dtype=np.uint8), minlength=256)
        expected = counts.sum() / 256
        total += int(counts.sum())
        least = min(least, float(chi2.sf(np.sum((counts - expected) ** 2) / expected, 255)))
    least = min(1.0, least * len(sent))
    measured = f"(chi-square test on {total:,} bytes of {len(sent)} clients, smallest p {least:.2g})"
    if least > _UNLIKELY:
        return (
            f"Secure aggregation: what each client sent looks like random bytes {measured}. There is nothing to "
            "reconstruct about a single client; the server holds only sums."
        )
    return f"Secure aggregation: what single clients sent DOES NOT LOOK RANDOM {measured}. Report this as a bug."


def _measure_noise(privacy: RowDP, job: Job, talks: Sequence[Talk]) -> list[str]:
    """How far each client's noisy second-moment matrix is from its own."""
    bound, C = tasks_of(PrivateClient)["triangle"].releases["G"], privacy.row_norm
    if not isinstance(bound, Sensitivity) or not isinstance(C, int | float):
        return []
    step_bound = bound.bound(C, privacy.neighbours == "replace-one")
    notes = []
    for talk in talks:
        if talk.task != "triangle":
            continue
        try:
            X = open_table(job.sources()[talk.client]()).X
        except InputError:
            continue
        G = talk.answer["G"]
        M = _unpack_matrix(G * noise.step(step_bound, G.size))
        truth = Rows(X, C).gram(talk.question.get("mean"), None)
        notes.append(
            f"Client {talk.client!r}: the second-moment matrix that the server holds has a relative error of "
            f"{error(M, truth):.2g}, because of the noise."
        )
    return notes


def _unpack_matrix(G: Array) -> Array:
    M = unpack_triangle(G / math.sqrt(2))
    M[np.diag_indices_from(M)] *= math.sqrt(2)
    return M
