"""Drawings of points and cells for the report, as SVG: scatter plots, the map of clients, who took part when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedspan._types import Array
from fedspan.reports.charts import BOTTOM, RIGHT, TOP, H, W, drawing, label, ticks

COLOURS = 7  # that are told apart; the others share one more
_LEFT, _HEAD = 58, 22  # room for the numbers of the y axis, and for its name above it
_CELLS, _NAMES = 120, 92  # columns of a strip chart; room for the names at its left


def scatter(groups: Mapping[str, Array], title: str, axes: tuple[str, str]) -> str:
    """Points (n, 2) of several groups and a legend; the largest groups have colours of their own."""
    order = sorted(groups, key=lambda name: -len(groups[name]))
    every = np.concatenate([groups[name] for name in order])
    frame, at = _axes(every, axes)
    colour = {name: min(i, COLOURS) for i, name in enumerate(order)}
    marks = []
    for name in order:  # the small ones on top
        steps = " ".join(f"M{x:.1f} {y:.1f}h0" for x, y in at(groups[name]))
        marks.append(f'<path class="points p{colour[name]}" d="{steps}"><title>{escape(name)}</title></path>')
    return drawing(W, H, title, [*frame, *marks], "chart") + (legend(order) if len(order) > 1 else "")


def legend(names: Sequence[str]) -> str:
    """Which colour is whose."""
    few, rest = names[:COLOURS], len(names) - COLOURS
    keys = [f'<span class="keep"><i class="k{i}"></i> {escape(name)}</span>' for i, name in enumerate(few)]
    keys += [f'<span class="keep"><i class="k{COLOURS}"></i> {rest} more</span>'] if rest > 0 else []
    return f'<p class="legend">{" ".join(keys)}</p>'


def client_map(names: Sequence[str], points: Array, centre: Array, title: str) -> str:
    """One dot per client, named where there is room ("a +3": three more lie there), and a ring for what they share."""
    frame, at = _axes(np.vstack([points, centre]), ("", ""), equal=True)
    parts, places = list(frame), at(points)
    for name, (x, y) in zip(names, places, strict=True):
        tip = f"<title>{escape(name)}</title>"
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5">{tip}</circle>')
    taken = np.zeros((0, 2))
    for name, place in zip(names, places, strict=True):
        apart = np.abs(taken - place)
        if not np.any((apart[:, 0] < 90) & (apart[:, 1] < 14)):  # else two names would run into each other
            taken = np.vstack([taken, place])
            here = int(np.sum(np.all(np.abs(places - place) < 9, axis=1)))
            said = name[:12] + (f" +{here - 1}" if here > 1 else "")
            left = place[0] > W - 100
            parts.append(label(place[0] + (-11 if left else 11), place[1] + 4, said, "end" if left else "start"))
    ((x, y),) = at(centre[None])
    parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8"><title>shared by all</title></circle>')
    return drawing(W, H, title, parts, "chart")


def _axes(points: Array, labels: tuple[str, str], equal: bool = False) -> tuple[list[str], Any]:
    """The frame with its numbers, and what takes points to their places. `equal`: one scale for both directions."""
    low, high = points.min(axis=0), points.max(axis=0)
    left, bottom, right = RIGHT if equal else _LEFT, H - BOTTOM, W - RIGHT
    top = TOP if equal else _HEAD
    size = np.array([right - left, bottom - top], dtype=float)
    span = np.where(high > low, high - low, 1.0)
    if equal:
        span = np.full(2, max(span / size)) * size
    low, span = (low + high) / 2 - 0.54 * span, 1.08 * span

    def at(where: Array) -> Array:
        share = (where - low) / span
        return np.column_stack([left + share[:, 0] * size[0], H - BOTTOM - share[:, 1] * size[1]])

    parts = [f'<rect class="frame" x="{left}" y="{top}" width="{size[0]:.1f}" height="{size[1]:.1f}"/>']
    if not equal:
        across = ticks(low[0], low[0] + span[0], whole=False)
        places = at(np.array([[x, low[1]] for x in across]))[:, 0]
        parts += [label(p, bottom + 17, _short(x, span[0]), "middle") for p, x in zip(places, across, strict=True)]
        for y in ticks(low[1], low[1] + span[1], whole=False):
            place = at(np.array([[low[0], y]]))[0, 1]
            parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{place:.1f}" y2="{place:.1f}"/>')
            parts.append(label(left - 7, place + 4, _short(y, span[1]), "end"))
        parts.append(label((left + right) / 2, H - 4, labels[0], "middle"))
        parts.append(label(left, top - 7, labels[1], "start"))
    return parts, at


def _short(value: float, span: float) -> str:
    return f"{0.0 if abs(value) < 1e-9 * span else value:.3g}".replace("e+0", "e").replace("e-0", "e-")


def participation(rows: Mapping[str, Sequence[int]], title: str) -> str:
    """A strip per client along the rounds: 2 answered, 1 was asked and did not, 0 was not asked."""
    rounds = max(len(values) for values in rows.values())
    bins = np.array_split(np.arange(rounds), min(rounds, _CELLS))
    step, tall = (W - _NAMES - RIGHT) / len(bins), 16
    height = TOP + tall * len(rows) + BOTTOM
    parts = []
    for i, (name, values) in enumerate(rows.items()):
        y = TOP + i * tall
        parts.append(label(_NAMES - 8, y + 12, name if len(name) <= 11 else name[:10] + "…", "end"))
        for j, cells in enumerate(bins):
            seen = [values[r] for r in cells]
            kind = "below" if 1 in seen else "bar" if 2 in seen else ""
            if kind:
                place = (
                    f'x="{_NAMES + j * step:.1f}" y="{y + 2}" width="{max(step - 0.6, 0.6):.1f}" height="{tall - 4}"'
                )
                parts.append(f'<rect class="{kind}" {place}/>')
    for number in ticks(1, rounds, whole=True) if rounds > 1 else [1]:
        x = _NAMES + (number - 0.5) / rounds * (W - _NAMES - RIGHT)
        parts.append(label(x, height - BOTTOM + 17, f"{number:g}", "middle"))
    parts.append(label((_NAMES + W - RIGHT) / 2, height - 4, "round", "middle"))
    return drawing(W, height, title, parts, "chart")
