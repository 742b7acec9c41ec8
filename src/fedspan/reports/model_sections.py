"""The report's own sections for personalized PCA, for GCCA, and for the classifiers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedspan.cli.progress import count
from fedspan.core.ledger import Ledger
from fedspan.reports.charts import bar_chart, curve_chart
from fedspan.reports.distances import distances_svg
from fedspan.reports.page import figure, table
from fedspan.reports.points import client_map, scatter
from fedspan.reports.sections import Drawn, Section, component_pictures, largest_loadings, sizes

_ENTITIES = 4000  # points of a scatter
_MAPPED = 300  # clients in their map
_MOST = 50  # rows of a table of clients or components
_KINDS = ("equal weight", "by number of rows")
_SLACK = 1e-9  # below this a slack is rounding error


def course(ledger: Ledger, *metrics: str) -> tuple[list[int], dict[str, list[float]], list[float]]:
    """The rounds in which all of these metrics are known, their values, and the bytes sent until then."""
    rows = {int(row["round"]): row for row in ledger.history() if row["round"] > 0}  # of a repeated round, the last
    known = {r: row for r, row in sorted(rows.items()) if all(math.isfinite(row.get(m, math.nan)) for m in metrics)}
    values = {m: [row[m] for row in known.values()] for m in metrics}
    return list(known), values, [row["bytes_up"] + row["bytes_down"] for row in known.values()]


def by_round(ledger: Ledger, curves: Mapping[str, str], caption: str, level: float | None = None) -> str:
    """A figure of one or more metrics (name → metric) by round; nothing if there is no course."""
    rounds, values, _ = course(ledger, *curves.values())
    if len(rounds) < 2:
        return ""
    named = {name: values[metric] for name, metric in curves.items()}
    start = _settled(list(named.values()))
    if start:
        caption += f" (from round {rounds[start]} on; before that up to {number(max(map(max, named.values())))})"
    named = {name: ys[start:] for name, ys in named.items()}
    return figure(caption, curve_chart(rounds[start:], named, caption, "round", level=level))


def _settled(curves: list[list[float]]) -> int:
    """Where to begin drawing: after the first tenth, if that is so large that nothing else would be seen."""
    start = len(curves[0]) // 10
    span = max(map(max, curves)) - min(map(min, curves))
    rest = max(max(ys[start:]) for ys in curves) - min(min(ys[start:]) for ys in curves)
    return start if rest < 0.1 * span else 0


def number(value: float, digits: int = 3) -> str:
    """A number for people."""
    if math.isinf(value):
        return "∞"
    text = f"{value:.{digits}g}"
    return f"{float(text):,.{digits + 3}g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else text.replace("e+0", "e")


# --- personalized PCA -------------------------------------------------------------------------------------------------


def _personal_summary(model: Any, found: str) -> str:
    return (
        f"{len(model.shared_components_)} components for each of {count(model.n_clients_, 'client')} with "
        f"{model.n_samples_:,} rows of {model.n_features_in_:,} features together, found by {found}; "
        f"the clients' own components are {model.shrinkage_in_words_} (λ = {number(model.shrinkage_)})."
    )


def _personal_figures(model: Any, last: dict[str, float]) -> dict[str, str]:
    return {
        "λ": number(model.shrinkage_),
        "drawn together": f"{model.shrinkage_share_:.0%}",
        "mean distance": f"{model.mean_distance_:.3f}",
    }


def _personal(model: Any, ledger: Ledger, drawn: Drawn) -> str:
    charts = [_map(model), _distances(model), _held_out(model)]
    parts = [
        "<h2>Clients and what they share</h2>",
        f"<p>{escape(_in_words(model))}</p>",
        f'<div class="charts">{"".join(charts)}</div>',
        _farthest(model),
        "<h2>Shared components</h2>",
        table(
            ["no.", "largest loadings"],
            [[str(i + 1), text] for i, text in enumerate(largest_loadings(model, model.shared_components_))],
            numbers=set(),
        ),
        component_pictures(model, model.shared_components_),
    ]
    return "".join(parts)


def _in_words(model: Any) -> str:
    share = model.shrinkage_share_
    how = "It was given"
    if model.cv_losses_.size:
        how = "It was found by cross-validation on the clients' own rows"
    if len(np.atleast_2d(model.cv_losses_)) == len(_KINDS):
        how += ", where the shared part had equal weight at every client, or less weight at clients with more rows"
    meaning = {
        "local": "each client's components are nearly those of its own rows alone",
        "shared": "each client's components are nearly the shared ones",
    }.get(model.shrinkage_in_words_, f"the shared part has {share:.0%} of the say in each client's components")
    return (
        f"λ = {number(model.shrinkage_)} says how strongly the clients are drawn together (0: each alone, ∞: one set "
        f"for all). {how}. Here that is “{model.shrinkage_in_words_}”: {meaning}. A distance of 0 means that a "
        f"client's components span what the shared ones do, 1 that they have nothing in common; the mean is "
        f"{model.mean_distance_:.3f}."
    )


def _map(model: Any) -> str:
    """The clients' subspaces in the plane: classical scaling of their distances, with the shared one among them."""
    if model.components_ is None or model.n_clients_ < 3:
        return ""
    U = np.concatenate([model.components_[:_MAPPED], model.shared_components_[None]])  # (m + 1, k, d)
    m, k, d = U.shape
    angles = (U.reshape(m * k, d) @ U.reshape(m * k, d).T).reshape(m, k, m, k)
    squares = np.clip(1.0 - (angles**2).sum(axis=(1, 3)) / k, 0.0, None)  # 0: the same span, 1: nothing in common
    centre = np.eye(m) - 1.0 / m
    theta, V = np.linalg.eigh(-0.5 * centre @ squares @ centre)
    plane = V[:, -2:][:, ::-1] * np.sqrt(np.clip(theta[-2:][::-1], 0.0, None))
    held = np.clip(theta[-2:], 0.0, None).sum() / (np.clip(theta, 0.0, None).sum() or 1.0)
    caption = f"Map of the clients ({held:.0%} of their distances): like ones are near; the ring is what all share"
    names = [str(name) for name in model.client_names_[:_MAPPED]]
    return figure(caption, client_map(names, plane[:-1], plane[-1], caption))


def _distances(model: Any) -> str:
    if model.distances_ is None:
        return ""
    return figure(
        "How far each client is from what all share (0: the same span, 1: nothing in common)",
        distances_svg(model.client_names_, model.distances_),
    )


def _held_out(model: Any) -> str:
    losses = np.atleast_2d(model.cv_losses_)
    if losses.size == 0 or not np.isfinite(losses).all():
        return ""
    lambdas = model.cv_shrinkages_
    names = [number(lam) if i % 3 == 0 or i == len(lambdas) - 1 else "" for i, lam in enumerate(lambdas)]
    names[-2:-1] = [""]
    kinds = _KINDS if len(losses) == len(_KINDS) else ("held-out error",)
    curves = dict(zip(kinds, losses.tolist(), strict=True))
    best = int(np.argmin(losses.min(axis=0)))
    caption = "Reconstruction error of held-out rows, by λ; the dashed line is the λ that was taken"
    places = list(range(len(lambdas)))
    return figure(caption, curve_chart(places, curves, caption, "λ", names=names, mark=best))


def _farthest(model: Any) -> str:
    if model.distances_ is None:
        return (
            "<p>The clients kept their components (collect = false), so their distances are not known one by one.</p>"
        )
    order = np.argsort(-model.distances_, kind="stable")
    rows = [[str(model.client_names_[i]), f"{model.distances_[i]:.3f}"] for i in order[:5]]
    if len(order) > 8:
        rows += [["…", "…"], *([str(model.client_names_[i]), f"{model.distances_[i]:.3f}"] for i in order[-3:])]
    elif len(order) > 5:
        rows += [[str(model.client_names_[i]), f"{model.distances_[i]:.3f}"] for i in order[5:]]
    return "<h2>From the farthest client to the nearest</h2>" + table(["client", "distance"], rows, numbers={1})


PERSONALIZED = Section(
    "Personalized PCA", _personal_summary, sizes, _personal, figures=_personal_figures, change="change of the objective"
)


# --- GCCA -------------------------------------------------------------------------------------------------------------


def _gcca_summary(model: Any, found: str) -> str:
    return (
        f"{model.common_.shape[1]} common components of {model.n_samples_:,} entities, of which "
        f"{count(model.n_views_, 'client')} hold one view each ({sum(model.n_features_):,} features together), found "
        f"by {found}; the mean correlation of a view with them is {model.correlations_.mean():.3f}."
    )


def _gcca_sizes(model: Any) -> dict[str, str]:
    return {
        "entities": f"{model.n_samples_:,}",
        "views": f"{model.n_views_:,}",
        "features": f"{sum(model.n_features_):,}",
    }


def _gcca_figures(model: Any, last: dict[str, float]) -> dict[str, str]:
    out = {"cost": f"{model.cost_:.6g}", "mean correlation": f"{model.correlations_.mean():.3f}"}
    if "best_accuracy" in last:
        out["alignment accuracy"] = f"{last['best_accuracy']:.1%}"
    return out


def _gcca(model: Any, ledger: Ledger, drawn: Drawn) -> str:
    charts = [
        by_round(ledger, {"cost": "cost"}, "Cost, by round"),
        by_round(ledger, {"alignment accuracy": "accuracy"}, "Alignment accuracy of the rows held out, by round"),
    ]
    k = model.common_.shape[1]
    shown_k = min(k, 10)
    mean = model.correlations_.mean(axis=0)
    if k > 1:
        caption = "Mean correlation of the views with each common component, in percent"
        charts.append(figure(caption, bar_chart(np.clip(mean, 0, None).tolist(), caption, "component")))
    if k > 1 and drawn.allowed:
        step = -(-len(model.common_) // _ENTITIES)
        few = f"{len(model.common_[::step]):,} of {model.n_samples_:,} entities" if step > 1 else "each point an entity"
        caption = f"First two common components, {few}"
        charts.append(
            figure(caption, scatter({"": model.common_[::step, :2]}, caption, ("component 1", "component 2")))
        )
    head = ["view", "features", "variance", *(str(i + 1) for i in range(shown_k))]
    rows = [
        [str(name), f"{n:,}", f"{part:.1%}", *(f"{c:.3f}" for c in correlations[:shown_k])]
        for name, n, part, correlations in zip(
            model.view_names_, model.n_features_, model.explained_variance_ratio_, model.correlations_, strict=True
        )
    ]
    rows.append(["all views", f"{sum(model.n_features_):,}", "", *(f"{c:.3f}" for c in mean[:shown_k])])
    more = f" Of {k} components the first {shown_k} are shown." if k > shown_k else ""
    return (
        f'<h2>Cost and agreement</h2><div class="charts">{"".join(charts)}</div>'
        "<h2>Correlations between the views</h2>"
        "<p>How far each view agrees with what all views have in common: the correlation of what the view says of the "
        "entities with each common component (1: it says the same; 0: it knows nothing of it). “Variance” is the part "
        f"of the view's own variance that the common components hold.{more}</p>"
        + table(head, rows, numbers=set(range(1, len(head))))
    )


GCCA = Section("Federated GCCA", _gcca_summary, _gcca_sizes, _gcca, figures=_gcca_figures)


# --- classifiers ------------------------------------------------------------------------------------------------------


def _classes(labels: Sequence[Any]) -> str:
    names = ", ".join(str(label) for label in labels[:10])
    return f"{count(len(labels), 'class').replace('classs', 'classes')} ({names}{', …' if len(labels) > 10 else ''})"


def _classifier_summary(model: Any, found: str) -> str:
    if hasattr(model, "views_"):
        where = f"whose {model.n_features_in_:,} features are spread over {count(model.n_clients_, 'client')}"
    else:
        where = f"with {model.n_features_in_:,} features at {count(model.n_clients_, 'client')}"
    limits = len(model.verified_)
    under = f", under {count(limits, 'limit')}" if limits else ""
    classes = _classes(model.labels_)
    return f"A classifier of {classes}, learned from {model.n_samples_:,} rows {where} by {found}{under}."


def _classifier_figures(model: Any, last: dict[str, float]) -> dict[str, str]:
    out = {"cost": "cost", "norm2": "‖ω‖²", "constraint_1": "constraint (≤ 0)", "slack_1": "slack"}
    out = {words: number(last[key], 4) for key, words in out.items() if math.isfinite(last.get(key, math.nan))}
    if last.get("slack_1", 1.0) < _SLACK:
        out["slack"] = "0"
    return out | {"parameters": f"{len(model.coef_):,}"}


def _classifier(model: Any, ledger: Ledger, drawn: Drawn) -> str:
    limits = list(model.verified_) or [
        f"limit {m}" for m in range(1, 9) if any(f"slack_{m}" in r for r in ledger.history())
    ]
    charts = [by_round(ledger, {"‖ω‖²": "norm2"}, "‖ω‖², the squared size of the parameters, by round")]
    for m, name in enumerate(limits, 1):
        value = {"constraint": f"constraint_{m}", "slack": f"slack_{m}"}
        charts.append(by_round(ledger, value, f"{name}: value less bound (0: just met, above: broken), and slack", 0.0))
        charts.append(by_round(ledger, {"multiplier": f"multiplier_{m}"}, f"{name}: its multiplier, by round"))
    parts = [f'<h2>The model</h2><div class="charts">{"".join(charts)}</div>']
    last = (ledger.history() or [{}])[-1]
    if model.verified_:
        rows = []
        for m, (name, value) in enumerate(model.verified_.items(), 1):
            over = last.get(f"verified_{m}", math.nan)
            verdict = "not verified" if math.isnan(over) else "holds" if over <= 0 else f"broken by {over:.3g}"
            rows.append([name, f"{value:.6g}", verdict, number(last.get(f"multiplier_{m}", math.nan), 4)])
        parts.append(
            "<h2>Limits</h2><p>Each was verified over all training rows of all clients, in exact rounds at the end. "
            "The multiplier is the price of the limit: how fast the objective would fall if the bound were raised.</p>"
        )
        parts.append(table(["limit", "value over all rows", "verdict", "multiplier"], rows, numbers={1, 3}))
    if hasattr(model, "views_"):
        views = [[str(name), f"{n:,}"] for name, n in list(model.views_.items())[:_MOST]]
        parts.append("<h2>Views</h2>" + table(["client", "features"], views, numbers={1}))
    return "".join(parts)


_COST = (("cost", "Cost (mean loss of the round's batches)"),)
CLASSIFIER = Section("Federated classifier", _classifier_summary, sizes, _classifier, _COST, _classifier_figures)
VERTICAL = Section("Vertical federated classifier", _classifier_summary, sizes, _classifier, _COST, _classifier_figures)
