"""The report of linear regressions: the table of coefficients, and how much of the target they explain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from fedspan._types import Array
from fedspan.core.ledger import Ledger
from fedspan.reports._section import Metrics, RowsModel, Section, ShownRows, list_sizes
from fedspan.reports.format import escape, format_count, format_number
from fedspan.reports.page import render_table

_MOST_COEFFICIENTS = 200  # rows of the table
_LOSS_WORDS = {
    "squared": "least squares",
    "poisson": "Poisson regression of counts",
    "huber": "Huber's robust regression",
}


class ShownCoefficients(Protocol):
    """What the report reads of a `CoefficientTable`."""

    @property
    def header(self) -> list[str]: ...

    @property
    def cells(self) -> list[list[str]]: ...


class RegressionModel(RowsModel, Protocol):
    """What the report reads of a fitted `FederatedRegressor`."""

    loss: str
    l2: float
    robust: bool
    deviance_: float
    null_deviance_: float
    residual_scale_: float
    degrees_of_freedom_: float
    rank_: int
    tol: float

    def summary(self, level: float = ...) -> ShownCoefficients: ...


def _summarize_regression(model: RegressionModel, duration: str) -> str:
    penalty = f" with an L2 penalty of {model.l2:g}" if model.l2 else ""
    return (
        f"A linear model by {_LOSS_WORDS[model.loss]}{penalty}, found {duration} from {model.n_samples_:,} rows with "
        f"{model.n_features_in_:,} features at {format_count(model.n_clients_, 'client')}. It is the model of all rows "
        "together, to rounding."
    )


def _list_regression_figures(model: RegressionModel, last: Metrics) -> dict[str, str]:
    figures = {}
    if model.loss != "huber" and model.null_deviance_ > 0:
        words = "R² (training rows)" if model.loss == "squared" else "D² (training rows)"
        figures[words] = format_number(1 - model.deviance_ / model.null_deviance_, 4)
    if model.loss != "poisson" and math.isfinite(model.residual_scale_):
        figures["residual scale"] = format_number(model.residual_scale_, 4)
    return figures | {"degrees of freedom": f"{model.degrees_of_freedom_:,.0f}"}


def _render_regression(model: RegressionModel, ledger: Ledger, rows: ShownRows) -> str:
    kind = "robust (sandwich)" if model.robust or model.loss == "huber" else "model-based"
    says = f"Standard errors are {kind}."
    if model.l2:
        says += " With a penalty they are those of the penalised estimate, whose bias is not in them."
    return render_coefficients(model.summary(), says)


def render_coefficients(table: ShownCoefficients, says: str) -> str:
    """The table of coefficients, with a sentence before it."""
    cells = table.cells[:_MOST_COEFFICIENTS]
    if len(cells) < len(table.cells):
        says += f" The first {len(cells)} of {len(table.cells):,} coefficients are shown."
    numbers = set(range(len(table.header) - 6, len(table.header)))
    return f"<h2>Coefficients</h2><p>{escape(says)}</p>" + render_table(table.header, cells, numbers=numbers)


class ViewRegression(RowsModel, Protocol):
    """What the report reads of a fitted `VerticalFederatedRegressor`."""

    loss: str
    l2: float
    coef_: Array
    intercept_: float
    residual_scale_: float
    views_: Mapping[str, int]
    tol: float


def _summarize_view_regression(model: ViewRegression, duration: str) -> str:
    penalty = f" with an L2 penalty of {model.l2:g}" if model.l2 else ""
    return (
        f"A linear model by {_LOSS_WORDS[model.loss]}{penalty}, found {duration} from {model.n_samples_:,} rows whose "
        f"{model.n_features_in_:,} features are spread over {format_count(model.n_clients_, 'client')}. It is the "
        "model of all columns together, to rounding."
    )


def _list_view_figures(model: ViewRegression, last: Metrics) -> dict[str, str]:
    return {"cost": format_number(last.get("cost", math.nan), 4), "intercept": format_number(model.intercept_, 4)}


def _render_views(model: ViewRegression, ledger: Ledger, rows: ShownRows) -> str:
    names = [(client, j) for client, width in model.views_.items() for j in range(width)]
    shown = zip(names, model.coef_, strict=True)
    cells = [[client, f"{j}", f"{value:.6g}"] for (client, j), value in shown][:_MOST_COEFFICIENTS]
    says = "Standard errors need moments between the clients' columns, which are not exchanged."
    return f"<h2>Coefficients</h2><p>{says}</p>" + render_table(
        ["client", "column", "coefficient"], cells, numbers={1, 2}
    )


def _describe_regression_outcome(model: RegressionModel, last: Metrics) -> str:
    return "converged" if model.converged_ else "no finite optimum was reached"


def _get_regression_tol(model: RegressionModel) -> float:
    return 0.0


def _describe_view_outcome(model: ViewRegression, last: Metrics) -> str:
    return "converged" if model.converged_ else "the optimum was not reached"


def _get_view_tol(model: ViewRegression) -> float:
    return 0.0


VIEW_REGRESSION: Section[ViewRegression] = Section(
    "Vertical federated regression",
    _summarize_view_regression,
    list_sizes,
    _list_view_figures,
    _render_views,
    _describe_view_outcome,
    _get_view_tol,
    (("cost", "Cost (mean loss of all rows)"),),
)


REGRESSION: Section[RegressionModel] = Section(
    "Federated regression",
    _summarize_regression,
    list_sizes,
    _list_regression_figures,
    _render_regression,
    _describe_regression_outcome,
    _get_regression_tol,
    (("cost", "Cost (mean loss of all rows)"),),
)
