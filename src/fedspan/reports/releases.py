"""What the clients' answers showed to the server, in words, and what protected it: the privacy paragraph of a report.

The same name of a task means something else in another family of algorithms, so the words stand by family, and the
ledger's note on the solver says which family it was. A task that is not here is named as it is.
"""

from __future__ import annotations

import math
import re
import tomllib

from fedspan.core.ledger import Exchange, Ledger

_PRODUCTS = "products of its second-moment matrix with the server's blocks (enough of them give the matrix itself)"
_LOCAL = "its estimate after local steps, and its share of the variances"
_ROWS = {
    "count": "its number of rows and its column sums",
    "size": "its number of rows",
    "spread": "its column sums of squares around the common mean",
    "settle": "its number of rows and columns, and its total sum of squares",
    "gram": "its whole second-moment matrix",
    "multiply": _PRODUCTS,
    "multiply_on_grid": _PRODUCTS + ", rounded",
    "iterate": _LOCAL,
    "iterate_aligned": _LOCAL,
    "split": "its masked product with the server's basis (obscured, not protected), and its share of the variance",
    "variances": "its variances along the components",
    "show": "of the largest client, its own basis after local steps",
    "span": "the leading eigenvectors of its own second-moment matrix",
    "weigh": "the leading eigenvectors and variances of its own second-moment matrix",
    "census": "how many rows it has, and how many of them are longer than the bound",
    "add_up": "its column sums",
    "energy": "its total sum of squares",
    "triangle": "its whole second-moment matrix",
    "project": "products of its second-moment matrix with the server's blocks",
    "leading": "the leading eigenvectors of its own second-moment matrix, rounded",
}


_FOLDS = "of all its rows and of all but each fifth of them"
_PERSONAL = {
    "count": "its number of rows and its column sums",
    "spread": "its number of rows and its column sums of squares",
    "size": "its number of rows and its column sums of squares",
    "sketch": f"the leading eigenvectors and variances of its own second-moment matrix ({_FOLDS}), its number of "
    "rows and its column sums of squares",
    "gram": f"its whole second-moment matrix ({_FOLDS})",
    "validate": "its reconstruction error on held-out rows, for each λ that was tried",
    "settle": "how far its own components are from the shared ones",
    "collect": "its own components, its mean, its number of rows, and how far its components are from the shared ones",
    "show": "its own components of that round, and its part of the objective",
    "project": "its projection of the shared components on its own, and its part of the objective",
    "descend": "its gradient for the shared components, and its part of the objective",
    "deflate": "products of its second-moment matrix with the shared components, less its own directions",
}
_VIEWS = {
    "identify": "how many rows it has, and one digest of their ids if a column of ids is named",
    "identify_rows": "a digest of each row's id (whoever guesses an id can check the guess)",
    "open_view": "how many features it has, and how many of them are independent",
    "sketch": "a few random combinations of its features for each entity, rounded",
    "multiply": "the server's blocks projected on the span of its features (enough of them give that span)",
    "multiply_on_grid": "the server's blocks projected on the span of its features, rounded (enough of them give that "
    "span)",
    "leading": "the leading directions of its own features among the entities, rounded",
    "begin": "a random combination of its features for each entity",
    "update": "for each entity what its features say of the common representation, and its part of the cost",
    "reduce": "the leading left singular vectors of its view: its own main directions among the entities",
    "show": "what its features say of the rows held out",
    "weigh": "its weights and offsets, its correlations with the common representation, and how much of its variance "
    "that holds",
}
_DEEP = {
    **_VIEWS,
    "start": "for each entity the output of its network before training",
    "train": "for each entity the output of its network, its part of the cost, and its correlation",
}
_LEARNING = {
    "open": "its numbers of rows and features",
    "gradient": "the loss and its gradient, summed over a batch of its rows",
    "losses": "the loss summed over all its rows",
    "clipped": "gradients of a batch of its rows, each cut to a bound, summed",
    "sampled": "gradients of rows drawn in secret, each cut to a bound, summed",
    "local": "the model's parameters after its own local steps, and its loss",
}
_VERTICAL = {
    "open": "its numbers of rows and features",
    "take": "",  # it is told its parameters, and answers nothing
    "forward": "for each row of a batch what its features contribute to the hidden cells",
    "head": "the loss, and the gradient of the output layer, summed over a batch (from the labels, which all clients "
    "know)",
    "backward": "the gradient of its own part of the parameters, summed over a batch",
    "backward_in_place": "the gradient of its own part of the parameters, summed over a batch",
}
_COLUMNS = {  # asked before any of them
    "describe_columns": "the names and units of its columns",
    "list_categories": "the categories that it has seen in the columns of categories",
    "add_up_columns": "its column sums and numbers of values that are not missing",
}
_FAMILY = {
    **dict.fromkeys(("personalauto", "personaleigen", "personalpaper", "perpca"), _PERSONAL),
    **dict.fromkeys(("maxvarkrylov", "maxvardavidson", "altmaxvar", "cutemaxvar", "mvlsa"), _VIEWS),
    "deepmaxvar": _DEEP,
    **dict.fromkeys(("ssca", "sscamomentum", "fedsgd", "fedavg"), _LEARNING),
    **dict.fromkeys(("verticalssca", "verticalsgd"), _VERTICAL),
}


# Algorithms that users know by another name.
_CALLED = {
    "personalauto": "method auto", "personaleigen": "method eigen", "personalpaper": "method paper",
    "maxvarkrylov": "krylov", "maxvardavidson": "davidson", "verticalssca": "ssca", "verticalsgd": "sgd",
}  # fmt: skip


def called(ledger: Ledger, otherwise: str) -> str:
    """The solver that ran, as users know it."""
    name = solver_name(ledger, otherwise)
    return _CALLED.get(name, name)


def solver_name(ledger: Ledger, otherwise: str = "") -> str:
    """The solver that ran: "auto" is resolved by the note that the estimator left."""
    chosen = [found[1] for note in ledger.notes if (found := re.match(r"solver (\w+)\b", note))]
    return chosen[-1] if chosen else otherwise


def shown(ledger: Ledger, task: str) -> str:
    """What that task's answers show, in words; nothing if they are empty."""
    words = {**_FAMILY.get(solver_name(ledger), _ROWS), **_COLUMNS}
    return words.get(task, f"the arrays of the task {task!r}")


def privacy(ledger: Ledger, job: str = "") -> str:
    """What protects the rows, and what does not. Nothing better than the truth."""
    sent = [e for e in ledger.events if isinstance(e, Exchange)]
    tasks = dict.fromkeys(e.task for e in sent)
    seen = dict.fromkeys(words for task in tasks if (words := shown(ledger, task)))
    given = tomllib.loads(job).get("privacy", {})
    delta = given.get("delta", 1e-6)
    epsilon = ledger.epsilon(delta)
    if math.isinf(epsilon):
        guarantee = "no differential privacy: epsilon is infinite"
    else:
        guarantee = f"differential privacy of single rows with epsilon {epsilon:.3g} at delta {delta:g}"
        if given.get("simulate"):
            guarantee += " in a simulation (its noise can be repeated by whoever knows the seed, so it protects nobody)"
    secure = bool(sent) and all(e.secure for e in sent)
    of = "of all clients together, and of none by itself" if secure else "of each client"
    sums = "secure aggregation" if secure else "no secure aggregation"
    noised = ", with noise" if not math.isinf(epsilon) and seen else ""
    return (
        f"{guarantee}; {sums}. The rows stayed with the clients; the server saw {of}{noised}: "
        f"{'; '.join(seen) or 'nothing'}.{' Numbers on this page carry that noise.' if noised else ''}"
    )
