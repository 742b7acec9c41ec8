"""Fitted models on matplotlib axes, in scikit-learn's convention: a display holds the numbers and draws them.

`model.plot_components()` makes a display and draws it; `display.plot(ax=…)` draws it again elsewhere, and `display.ax_`
and `display.figure_` are where it was drawn last. matplotlib is imported only here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from fedspan._types import Array
from fedspan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = {  # what of a round is drawn, the first that is known; and whether on a logarithmic scale
    "kkt": ("KKT violation", True),
    "change": ("change of the estimate", True),
    "decrement": ("Newton decrement", True),
    "cost": ("cost", False),
    "loss": ("loss", False),
    "objective": ("objective", False),
}
_MOST_NAMES = 30  # features whose names fit beside an axis


@dataclass
class _Display:
    """What all displays share: where they were drawn."""

    ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)

    def _open_axes(self, ax: Axes | None) -> Axes:
        self.ax_ = _make_axes() if ax is None else ax
        figure = self.ax_.figure
        self.figure_ = figure  # type: ignore[assignment]
        return self.ax_


def _make_axes() -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("plots", "plots") from None
    return plt.subplots(layout="constrained")[1]


@dataclass
class ComponentsDisplay(_Display):
    """Components as a heat map: one row for each, one column for each feature, blue above zero and red below."""

    components: Array
    names: Sequence[str] | None = None

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw it, on new axes if none are given."""
        axes, (k, d) = self._open_axes(ax), self.components.shape
        most = float(np.abs(self.components).max()) or 1.0
        image = axes.imshow(self.components, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
        axes.set_yticks(range(k), [str(i + 1) for i in range(k)])
        axes.set(ylabel="component", xlabel="feature")
        if self.names is not None and d <= _MOST_NAMES:
            axes.set_xticks(range(d), list(self.names), rotation=60, ha="right", rotation_mode="anchor")
            axes.set_xlabel("")
        self.figure_.colorbar(image, ax=axes, label="loading")
        return self


@dataclass
class ScreeDisplay(_Display):
    """The variance along each component, and the line above which it is more than noise, if that is known."""

    variances: Array
    kept: int
    noise: float | None = None

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw it, on new axes if none are given."""
        axes, m = self._open_axes(ax), len(self.variances)
        colours = ["tab:blue" if i < self.kept else "lightsteelblue" for i in range(m)]
        axes.bar(np.arange(1, m + 1), self.variances, color=colours)
        if self.noise is not None:
            axes.axhline(self.noise, color="0.3", linestyle="--", label="95 % quantile of noise")
            axes.legend()
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="component", ylabel="variance")
        return self


@dataclass
class ConvergenceDisplay(_Display):
    """A measure of progress against the rounds of a run."""

    rounds: Sequence[float]
    values: Sequence[float]
    name: str
    logarithmic: bool = True
    tol: float | None = None

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw it, on new axes if none are given."""
        axes = self._open_axes(ax)
        axes.plot(self.rounds, self.values, marker="o", markersize=4)
        if self.logarithmic and min(self.values) > 0:
            axes.set_yscale("log")
            if self.tol:
                axes.axhline(self.tol, color="0.3", linestyle="--", label=f"tol = {self.tol:g}")
                axes.legend()
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="round", ylabel=self.name)
        return self


@dataclass
class ScoresDisplay(_Display):
    """Rows by their coordinates in two components, coloured by group."""

    groups: Mapping[str, Array]  # (n, 2) each
    labels: tuple[str, str]

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw it, on new axes if none are given."""
        axes = self._open_axes(ax)
        for name, rows in self.groups.items():
            axes.scatter(rows[:, 0], rows[:, 1], s=12, alpha=0.6, linewidths=0, label=name)
        if len(self.groups) > 1:
            axes.legend(markerscale=1.5, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set(xlabel=self.labels[0], ylabel=self.labels[1])
        return self


def build_convergence(history: Sequence[Mapping[str, float]], tol: float | None) -> ConvergenceDisplay:
    """The first measure that two rounds know; a run without any is refused."""
    rows = {row["round"]: row for row in history if row["round"] > 0}  # of a round that was repeated, the last
    for measure, (name, logarithmic) in MEASURES.items():
        known = [row for row in rows.values() if np.isfinite(row.get(measure, np.nan))]
        if len(known) > 1:
            values = [float(row[measure]) for row in known]
            level = tol if measure in ("kkt", "change", "decrement") else None
            return ConvergenceDisplay([row["round"] for row in known], values, name, logarithmic, level)
    raise InputError(
        f"There is no course to draw: the run took {len(rows)} {'round' if len(rows) == 1 else 'rounds'}, and its "
        "method reports no progress between them."
    )


def group_rows(Z: Array, labels: Sequence[object] | None) -> dict[str, Array]:
    """Coordinates by the label of their rows."""
    if labels is None:
        return {"rows": Z}
    words = np.asarray(labels).astype(str)
    if words.shape != (len(Z),):
        raise InputError(f"labels must have one entry for each of the {len(Z)} rows, but the shape is {words.shape}.")
    return {str(word): Z[words == word] for word in np.unique(words)}
