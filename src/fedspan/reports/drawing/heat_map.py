"""A heat map of loadings: which features each component is made of, and with which sign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedspan._types import Array
from fedspan.reports.drawing.charts import CHARACTER, W, draw_label, draw_svg
from fedspan.reports.format import escape

_ROW, _TOP, _EDGE = 19, 24, 8  # the height of a row, the room above the rows and beside them
_NAMES = 190.0  # the room for names at most; longer ones are shown whole by their tooltips
_WIDEST = 64.0  # a column is not wider than this


def draw_heat_map(names: Sequence[str], values: Array, title: str, columns: Sequence[str]) -> str:
    """One row per name and one column per column of values: blue above zero, orange below, stronger where larger."""
    largest = float(np.abs(values).max()) or 1.0
    left = min(_NAMES, 12 + CHARACTER * max(map(len, names)))
    step = min((W - left - _EDGE) / len(columns), _WIDEST)
    fits = int((left - 12) / CHARACTER)
    parts = [draw_label(left + (j + 0.5) * step, _TOP - 8, name, "middle") for j, name in enumerate(columns)]
    for i, name in enumerate(names):
        y = _TOP + i * _ROW
        short = name if len(name) <= fits else name[: fits - 1] + "…"
        parts.append(f"<g>{draw_label(left - 6, y + 14, short, 'end')}<title>{escape(name)}</title></g>")
        for j, value in enumerate(values[i]):
            tip = f"<title>{escape(name)}, {escape(columns[j])}: {value:+.3f}</title>"
            place = f'x="{left + j * step:.1f}" y="{y}" width="{step - 1:.1f}" height="{_ROW - 1}"'
            kind, strength = "above" if value > 0 else "below", abs(value) / largest
            parts.append(f'<rect class="{kind}" {place} opacity="{strength:.2f}">{tip}</rect>')
    return draw_svg(W, _TOP + _ROW * len(names) + _EDGE, title, parts, "chart")
