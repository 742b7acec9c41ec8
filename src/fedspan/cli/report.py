"""The report of a run: one HTML file that needs nothing else, made from the job, the ledger and the model."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np

from fedspan import __version__
from fedspan.cli.page import Html, figure, figures, notes, page, table
from fedspan.cli.progress import accuracy, count, duration, size
from fedspan.cli.svg import bar_chart, line_chart, picture
from fedspan.estimators.pca import FederatedPCA
from fedspan.ledger import Exchange, Ledger

_COMPONENTS, _LOADINGS, _PICTURES, _PIXELS, _CLIENTS = 6, 5, 12, 1024, 500  # how much is shown
_ACCURACY = {"KKT": "KKT violation", "change": "change of the estimate"}
_ROUNDING = 1e-16  # an error below this is rounding error, and is drawn here

# What each task of the clients sends to the server, in words; a task that is not here is named as it is.
_PRODUCTS = "products of its second-moment matrix with the server's blocks (enough of them give the matrix itself)"
_LOCAL = "its estimate after local steps, and its share of the variances"
_RELEASES = {
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


def render(job: str, ledger: Ledger, model: FederatedPCA) -> str:
    """The whole page. `job` is the text of job.toml."""
    title, noun, share = ("PCA", "principal components", "variance")
    if not model.center:
        title, noun, share = ("SVD", "right singular vectors", "sum of squares")
    summary = (
        f"{len(model.components_)} {noun} of {model.n_samples_:,} rows with {model.n_features_in_:,} "
        f"features at {count(model.n_clients_, 'client')}, found by {solver_name(model, ledger)} in "
        f"{count(model.n_rounds_, 'round')}; they explain {model.explained_variance_ratio_.sum():.1%} of the {share}."
    )
    parts = [
        f"<h1>Federated {title}</h1><p>{escape(summary)}</p>",
        figures(_key_figures(ledger, model)),
        f"<p><strong>Privacy:</strong> {escape(privacy(ledger, job))}</p>",
        "<h2>Convergence</h2>", _convergence(ledger, model),
        "<h2>Components</h2>", _components(model),
        "<h2>Clients</h2>", _clients(ledger),
        "<h2>Notes</h2>", notes(ledger.notes),
        f"<h2>The job</h2><p>Seed {model.seed_}.</p><pre>{escape(job)}</pre>",
        f'<p class="soft">Written by fedspan {escape(__version__)} from job.toml, ledger.jsonl and '
        "model.safetensors in this folder. Bytes are those of the encoded messages; what was sent twice counts twice."
        "</p>",
    ]  # fmt: skip
    return page("fedspan report", parts)


def outcome(model: FederatedPCA) -> str:
    """How the run ended, in words."""
    if model.converged_:
        return "converged"
    return "stopped before tol was met" if model.tol > 0 else "all rounds run (tol = 0)"


def privacy(ledger: Ledger, job: str = "") -> str:
    """What protects the rows, and what does not. Nothing better than the truth."""
    sent = [e for e in ledger.events if isinstance(e, Exchange)]
    seen = dict.fromkeys(_RELEASES.get(e.task, f"the arrays of the task {e.task!r}") for e in sent)
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
        f"{'; '.join(seen) or 'nothing'}."
    )


def solver_name(model: FederatedPCA, ledger: Ledger) -> str:
    """The solver that ran: "auto" is resolved by the note that the estimator left."""
    chosen = [found[1] for note in ledger.notes if (found := re.match(r"solver (\w+)\b", note))]
    return chosen[-1] if chosen else str(model.solver)


def _key_figures(ledger: Ledger, model: FederatedPCA) -> dict[str, str]:
    last = (ledger.history() or [{}])[-1]
    figures = {
        "rounds": str(model.n_rounds_),
        "exchanges": str(ledger.exchanges),
        "bytes up": size(ledger.bytes_up),
        "bytes down": size(ledger.bytes_down),
        "time": duration(ledger.seconds),
        "samples": f"{model.n_samples_:,}",
        "clients": f"{model.n_clients_:,}",
        "features": f"{model.n_features_in_:,}",
        "outcome": outcome(model),
    }
    label, error = accuracy(last)
    if not math.isnan(error):
        figures[_ACCURACY[label]] = f"{error:.2e}" if error >= _ROUNDING else f"below {_ROUNDING:g}"
    if "floor" in last:
        figures["floor of the change"] = f"{last['floor']:.2g}"
    if "gap" in last:  # θ_k - θ_{k+1}, as a share of θ_k: near 0, the last component is hardly determined
        theta = model.explained_variance_[-1] * (model.n_samples_ - 1)
        figures["gap after the last"] = f"{last['gap'] / theta:.1%}" if theta > 0 else "0 %"
    return figures


def _convergence(ledger: Ledger, model: FederatedPCA) -> str:
    rows = {int(row["round"]): row for row in ledger.history() if row["round"] > 0}  # of a repeated round, the last
    seen = {r: row for r, row in sorted(rows.items()) if row.get("kkt", math.inf) < math.inf}
    label = "KKT" if 2 * len(seen) >= len(rows) else "change"  # some solvers see the violation in few rounds only
    name = label.lower()
    course = {r: row for r, row in sorted(rows.items()) if row.get(name, math.inf) < math.inf}
    if len(course) < 2:
        return "<p>One round: there is no course to draw.</p>"
    errors = [max(row[name], _ROUNDING) for row in course.values()]
    sent = [row["bytes_up"] + row["bytes_down"] for row in course.values()]
    what = _ACCURACY[label]
    by_round = line_chart(list(course), errors, f"{what} by round", "round", model.tol, bytes_=False)
    by_bytes = line_chart(sent, errors, f"{what} by bytes", "bytes sent, up and down", model.tol, bytes_=True)
    left, right = figure(f"{what}, by round", by_round), figure(f"{what}, by bytes on the wire", by_bytes)
    return f'<div class="charts">{left}{right}</div>'


def _components(model: FederatedPCA) -> str:
    ratio = model.explained_variance_ratio_
    scree = figure(
        "Explained variance of each component, in percent of all",
        bar_chart(ratio.tolist(), "Explained variance", "component"),
    )
    d = model.n_features_in_
    names: Sequence[str] = [str(n) for n in getattr(model, "feature_names_in_", [f"column {i}" for i in range(d)])]
    rows = []
    for i, component in enumerate(model.components_[:_COMPONENTS]):
        top = np.argsort(-np.abs(component), kind="stable")[:_LOADINGS]
        loadings = " ".join(f'<span class="keep">{component[j]:+.2f} {escape(names[j])}</span>' for j in top)
        rows.append([str(i + 1), f"{ratio[i]:.2%}", f"{ratio[: i + 1].sum():.2%}", Html(loadings)])
    loadings = table(["no.", "variance", "so far", "largest loadings"], rows, numbers={1, 2})
    return f'<div class="charts">{scree}</div>{_pictures(model)}<h2>Largest loadings</h2>{loadings}'


def _pictures(model: FederatedPCA) -> str:
    """Components as pictures, where the features are pixels of a square: so named, or without names."""
    side = math.isqrt(model.n_features_in_)
    names = getattr(model, "feature_names_in_", ["pixel"])
    pixels = all(str(name).startswith("pixel") for name in names)
    if side**2 != model.n_features_in_ or not 16 <= model.n_features_in_ <= _PIXELS or not pixels:
        return ""
    figures = (
        f"<figure>{picture(component.tolist(), side, f'component {i + 1}')}<figcaption>{i + 1}</figcaption></figure>"
        for i, component in enumerate(model.components_[:_PICTURES])
    )
    caption = f"The same components as pictures of {side} by {side}: blue above zero, orange below."
    return f'<p class="soft" style="margin-top:12px">{caption}</p><div class="pictures">{"".join(figures)}</div>'


def _clients(ledger: Ledger) -> str:
    up, down, asked, answered = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    part: dict[str, set[int]] = {}  # the rounds in which a client answered
    seconds: dict[str, float] = {}
    for event in ledger.events:
        if isinstance(event, Exchange):
            lists = zip(event.clients, event.bytes_up, event.bytes_down, event.seconds, strict=True)
            for client, u, d, s in lists:
                up[client] += u
                down[client] += d
                seconds[client] = seconds.get(client, 0.0) + s
                asked[client] += 1
                answered[client] += client not in event.missing
                if client not in event.missing and event.round > 0:
                    part.setdefault(client, set()).add(event.round)
    rows = [
        [
            c,
            size(up[c]),
            size(down[c]),
            duration(seconds[c]),
            f"{len(part.get(c, ()))} of {ledger.rounds}",
            f"{answered[c]} of {asked[c]}",
        ]
        for c in sorted(seconds)[:_CLIENTS]
    ]
    more = f"<p>And {len(seconds) - _CLIENTS:,} more, in ledger.jsonl.</p>" if len(seconds) > _CLIENTS else ""
    head = ["client", "up", "down", "time", "rounds", "answered"]
    return table(head, rows, numbers={1, 2, 3, 4, 5}) + more
