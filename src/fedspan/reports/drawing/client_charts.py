"""Charts of clients: how far each is from the shared components, and who took part in which round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedspan._types import Array
from fedspan.reports.drawing.charts import (
    BOTTOM,
    RIGHT,
    TOP,
    H,
    W,
    choose_ticks,
    draw_bar,
    draw_horizontal,
    draw_label,
    draw_svg,
)

_LEFT_SIDE = 50
_CELLS, _NAMES = 120, 92  # columns of a strip; room for the names at its left


def draw_distances(names: Sequence[str], distances: Array) -> str:
    """One bar per client, the nearest first, from 0 (spans the shared components) to 1 (nothing in common)."""
    order = np.argsort(distances, kind="stable")
    height, step = H - TOP - BOTTOM, (W - _LEFT_SIDE - RIGHT) / max(len(order), 1)
    names_fit = len(order) * 7.5 * max(map(len, names), default=0) <= W - _LEFT_SIDE - RIGHT
    parts = []
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = H - BOTTOM - level * height
        parts.append(draw_horizontal("grid", _LEFT_SIDE, y))
        parts.append(draw_label(_LEFT_SIDE - 8, y + 4, f"{level:g}", "end"))
    for place, i in enumerate(order):
        h = float(distances[i]) * height
        middle = _LEFT_SIDE + (place + 0.5) * step
        parts.append(draw_bar(middle, step, H - BOTTOM - h, h, f"{names[i]}: {distances[i]:.3f}"))
        if names_fit:
            parts.append(draw_label(middle, H - BOTTOM + 14, names[i], "middle"))
    parts.append(draw_label((_LEFT_SIDE + W - RIGHT) / 2, H - 4, "clients, the nearest first", "middle"))
    return draw_svg(W, H, "distance of each client to the shared components", parts, "chart")


def draw_participation(strips: Mapping[str, Sequence[int]], title: str) -> str:
    """A strip per client along the rounds: 2 answered, 1 was asked and did not answer, 0 was not asked."""
    rounds = max(len(values) for values in strips.values())
    bins = np.array_split(np.arange(rounds), min(rounds, _CELLS))
    step, tall = (W - _NAMES - RIGHT) / len(bins), 16
    height = TOP + tall * len(strips) + BOTTOM
    parts = []
    for i, (name, values) in enumerate(strips.items()):
        y = TOP + i * tall
        parts.append(draw_label(_NAMES - 8, y + 12, name if len(name) <= 11 else name[:10] + "…", "end"))
        for j, cells in enumerate(bins):
            seen = {values[r] for r in cells}
            kind = "below" if 1 in seen else "bar" if 2 in seen else ""
            if kind:
                x, width = _NAMES + j * step, max(step - 0.6, 0.6)
                place = f'x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{tall - 4}"'
                parts.append(f'<rect class="{kind}" {place}/>')
    for number in choose_ticks(1, rounds, whole=True) if rounds > 1 else [1]:
        x = _NAMES + (number - 0.5) / rounds * (W - _NAMES - RIGHT)
        parts.append(draw_label(x, height - BOTTOM + 17, f"{number:g}", "middle"))
    parts.append(draw_label((_NAMES + W - RIGHT) / 2, height - 4, "round", "middle"))
    return draw_svg(W, height, title, parts, "chart")
