"""What the server saw of the clients, in words, and what protected it: the privacy paragraph of a report."""

from __future__ import annotations

import math

from fedspan.algorithms.agree_columns import AgreeOnColumns
from fedspan.algorithms.field.agree_genes import AgreeOnGenes
from fedspan.algorithms.field.agree_variants import AgreeOnVariants
from fedspan.algorithms.registry import ALGORITHMS
from fedspan.algorithms.spectral.parallel_analysis import ParallelAnalysis
from fedspan.core.ledger import Exchange, Ledger, Started
from fedspan.core.protocol import Task, tasks_of
from fedspan.privacy.request import RowDP

# Algorithms that users know by another name.
_USER_NAMES = {
    "PersonalAuto": "auto",
    "PersonalEigen": "eigen",
    "PersonalPaper": "paper",
    "MaxVarKrylov": "krylov",
    "MaxVarDavidson": "davidson",
    "LocalSsca": "local ssca",
    "VerticalGuarded": "guarded ssca",
    "KeptMaxVar": "krylov",
    "ColumnsKrylov": "krylov",
    "StudyViews": "study",
    "VerticalSsca": "ssca",
    "VerticalSgd": "sgd",
}
_LINEAR = ("LogisticNewton", "RegressionNewton")  # which have two ways to the optimum


def solver_name(started: Started) -> str:
    """The solver that ran, as users know it."""
    if started.algorithm in _LINEAR:
        return str(started.options.get("solver", "newton"))
    return _USER_NAMES.get(started.algorithm, started.algorithm.lower())


def describe_solver(ledger: Ledger) -> str:
    """Which solver ran and why: one sentence; nothing if the ledger is too old to say."""
    started = ledger.started
    if started is None:
        return ""
    reason = f" ({started.why})" if started.why else ""
    return f"Solver: {solver_name(started)}{reason}."


def describe_task(started: Started | None, task: str) -> str:
    """What a task's answers show to the server; nothing if they are empty."""
    declared = _find_declared(started, task)
    if declared is not None and not declared.releases:
        return ""
    if declared is not None and declared.shows:
        return declared.shows
    return f"the arrays of the task {task!r}"


def _find_declared(started: Started | None, task: str) -> Task | None:
    """The task as the client that ran declares it, or as what came before does."""
    before = (AgreeOnColumns, ParallelAnalysis, AgreeOnVariants, AgreeOnGenes)
    declared = {name: found for kind in before for name, found in tasks_of(kind.client).items()}
    if started is not None and started.algorithm in ALGORITHMS:
        declared |= tasks_of(ALGORITHMS[started.algorithm].client)
    return declared.get(task)


def describe_privacy(ledger: Ledger, privacy: RowDP | None = None) -> str:
    """What protects the rows, and what the server saw. Nothing better than the truth."""
    sent = [event for event in ledger.events if isinstance(event, Exchange)]
    secure = bool(sent) and all(event.secure for event in sent)
    delta = 1e-6 if privacy is None else privacy.delta
    epsilon = ledger.epsilon(delta)
    noised = not math.isinf(epsilon) and bool(sent)
    sentences = [
        _describe_guarantee(epsilon, delta, secure),
        "The noise was simulated: anyone who knows the seed can repeat it, so it protects nobody."
        if noised and privacy is not None and privacy.simulate
        else "",
        "The rows stayed with the clients.",
        _describe_view(ledger, sent, secure, noised),
        "The numbers on this page include that noise." if noised else "",
    ]
    return " ".join(filter(None, sentences))


def _describe_guarantee(epsilon: float, delta: float, secure: bool) -> str:
    sums = "secure aggregation" if secure else "no secure aggregation"
    if math.isinf(epsilon):
        return f"No differential privacy (ε is infinite){'; ' if secure else ' and '}{sums}."
    return f"Differential privacy of single rows with ε = {epsilon:.3g} at δ = {delta:g}; {sums}."


def _describe_view(ledger: Ledger, sent: list[Exchange], secure: bool, noised: bool) -> str:
    tasks = dict.fromkeys(event.task for event in sent)
    seen = list(dict.fromkeys(words for task in tasks if (words := describe_task(ledger.started, task))))
    if not seen:
        return "The server saw nothing of them."
    noise = ", with noise" if noised else ""
    whose = f"summed over all clients{noise}; no single client's values" if secure else f"of each client{noise}"
    return f"The server saw ({whose}): {'; '.join(seen)}."
