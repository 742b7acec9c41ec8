"""Charts of points in a plane: rows in two components, and clients by how alike they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedspan._types import Array
from fedspan.reports.drawing.charts import (
    BOTTOM,
    CHARACTER,
    RIGHT,
    TOP,
    H,
    W,
    choose_ticks,
    draw_horizontal,
    draw_label,
    draw_svg,
    format_tick,
    measure_labels,
)
from fedspan.reports.format import escape

COLOURS = 7  # that are told apart; the other groups share one more
_LEFT_EDGE, _HEAD = 58, 22  # room for the numbers of the y axis, and for its name above it
_NEAR = np.array([90.0, 14.0])  # two names closer than this would overlap
_LEGEND_LINE, _LEGEND_NAME = 20, 40  # the height of a line of a legend, and the longest name that is written out
_LINE = 15.0  # two lines of text closer than this would overlap
_SAME = 9.0  # two dots closer than this look like one


def draw_scatter(
    groups: Mapping[str, Array], title: str, axes: tuple[str, str], arrows: Mapping[str, Array] | None = None
) -> str:
    """Points (n, 2) of several groups and a legend; the largest groups have colours of their own.

    `arrows`: by name, directions (2,) from the origin, drawn so that the longest spans most of the frame (a biplot).
    """
    order = sorted(groups, key=lambda name: -len(groups[name]))
    every = np.concatenate([groups[name] for name in order])
    if arrows:
        every = np.vstack([every, np.zeros((1, 2))])
    frame, to_places = _draw_axes(every, axes)
    marks = []
    for i, name in enumerate(order):  # the small ones on top
        steps = " ".join(f"M{x:.1f} {y:.1f}h0" for x, y in to_places(groups[name]))
        marks.append(f'<path class="points p{min(i, COLOURS)}" d="{steps}"><title>{escape(name)}</title></path>')
    legend, lines = _draw_legend_of(order) if len(order) > 1 else ([], 0)
    parts = [*frame, *marks, *_draw_arrows(arrows or {}, to_places), *legend]
    return draw_svg(W, H + _LEGEND_LINE * lines, title, parts, "chart")


def _draw_arrows(arrows: Mapping[str, Array], to_places: Callable[[Array], Array]) -> list[str]:
    """Lines from the origin, with names at their ends where there is room."""
    if not arrows:
        return []
    ((x0, y0), (x1, y1)) = to_places(np.array([[0.0, 0.0], [1.0, 1.0]]))
    pixels = np.array([[x1 - x0, y1 - y0]]) * np.stack(list(arrows.values()))
    with np.errstate(divide="ignore"):  # an arrow along one axis meets no edge of the other
        room = np.where(pixels > 0, [W - RIGHT - x0, H - BOTTOM - y0], [x0 - _LEFT_EDGE, y0 - _HEAD]) / np.abs(pixels)
    ends = np.array([x0, y0]) + pixels * 0.92 * float(room.min())
    parts, named = [], np.zeros((0, 2))
    for name, (x, y) in zip(arrows, ends, strict=True):
        tip = f"<title>{escape(name)}</title>"
        parts.append(f'<line class="arrow" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x:.1f}" y2="{y:.1f}">{tip}</line>')
        parts.append(f'<circle class="tip" cx="{x:.1f}" cy="{y:.1f}" r="3">{tip}</circle>')
        width = CHARACTER * len(name)
        left = x + 6 + width > W
        place = np.array([x - width - 6 if left else x + 6, y])
        overlaps = (np.abs(named[:, 1] - y) < _LINE).any() if len(named) else False
        if not overlaps and place[0] >= 0 and place[0] + width <= W:
            named = np.vstack([named, place])
            parts.append(draw_label(place[0], y + 4, name, "start", kind="halo"))
    return parts


def draw_client_map(names: Sequence[str], points: Array, centre: Array, title: str) -> str:
    """One dot per client, named where there is room ("a +3": three more are there), and a ring for what they share."""
    frame, to_places = _draw_frame(np.vstack([points, centre]))
    parts, places = [frame], to_places(points)
    for name, (x, y) in zip(names, places, strict=True):
        tip = f"<title>{escape(name)}</title>"
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5">{tip}</circle>')
    named = np.zeros((0, 2))
    for name, place in zip(names, places, strict=True):
        overlaps = np.all(np.abs(named - place) < _NEAR, axis=1).any()
        if not overlaps:
            named = np.vstack([named, place])
            here = int(np.sum(np.all(np.abs(places - place) < _SAME, axis=1)))
            text = name[:12] + (f" +{here - 1}" if here > 1 else "")
            left = place[0] > W - 100
            parts.append(draw_label(place[0] + (-11 if left else 11), place[1] + 4, text, "end" if left else "start"))
    ((x, y),) = to_places(centre[None])
    parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8"><title>shared by all</title></circle>')
    return draw_svg(W, H, title, parts, "chart")


def _draw_legend_of(names: Sequence[str]) -> tuple[list[str], int]:
    """Which colour is whose, below the axes, and how many lines that takes."""
    rest = len(names) - COLOURS
    shown = [*names[:COLOURS], *([f"{rest} more"] if rest > 0 else [])]
    parts, x, line = [], float(RIGHT), 0
    for i, name in enumerate(shown):
        text = name if len(name) <= _LEGEND_NAME else f"{name[: _LEGEND_NAME - 1]}…"
        width = 16 + CHARACTER * len(text)
        if x > RIGHT and x + width > W:
            x, line = float(RIGHT), line + 1
        y = H + 12 + _LEGEND_LINE * line
        parts.append(f'<circle class="k{min(i, COLOURS)}" cx="{x + 5:.1f}" cy="{y - 4}" r="5"/>')
        parts.append(f"<g>{draw_label(x + 15, y, text, 'start')}<title>{escape(name)}</title></g>")
        x += width + 14
    return parts, line + 1


def _draw_axes(points: Array, labels: tuple[str, str]) -> tuple[list[str], Callable[[Array], Array]]:
    """The frame with its numbers, and what takes points to their places in it."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    low, span = (low + high) / 2 - 0.54 * span, 1.08 * span
    ticks = {y: format_tick(y, span[1]) for y in choose_ticks(low[1], low[1] + span[1], whole=False)}
    left, bottom, right = max(_LEFT_EDGE, measure_labels(ticks.values())), H - BOTTOM, W - RIGHT
    size = np.array([right - left, bottom - _HEAD], dtype=float)

    def to_places(where: Array) -> Array:
        share = (where - low) / span
        return np.column_stack([left + share[:, 0] * size[0], bottom - share[:, 1] * size[1]])

    parts = [f'<rect class="frame" x="{left}" y="{_HEAD}" width="{size[0]:.1f}" height="{size[1]:.1f}"/>']
    for x in choose_ticks(low[0], low[0] + span[0], whole=False):
        place = to_places(np.array([[x, low[1]]]))[0, 0]
        parts.append(draw_label(place, bottom + 17, format_tick(x, span[0]), "middle"))
    for y, text in ticks.items():
        place = to_places(np.array([[low[0], y]]))[0, 1]
        parts.append(draw_horizontal("grid", left, place))
        parts.append(draw_label(left - 7, place + 4, text, "end"))
    parts.append(draw_label((left + right) / 2, H - 4, labels[0], "middle"))
    parts.append(draw_label(left, _HEAD - 7, labels[1], "start"))
    return parts, to_places


def _draw_frame(points: Array) -> tuple[str, Callable[[Array], Array]]:
    """An empty frame with one scale for both directions, and what takes points to their places in it."""
    left, top, bottom, right = RIGHT, TOP, H - BOTTOM, W - RIGHT
    size = np.array([right - left, bottom - top], dtype=float)
    low, high = points.min(axis=0), points.max(axis=0)
    extent = np.where(high > low, high - low, 1.0)
    scale = 1.08 * float(np.max(extent / size))
    middle, centre = (low + high) / 2, np.array([(left + right) / 2, (top + bottom) / 2])

    def to_places(where: Array) -> Array:
        return np.asarray(centre + (where - middle) / scale * np.array([1.0, -1.0]))

    return f'<rect class="frame" x="{left}" y="{top}" width="{size[0]:.1f}" height="{size[1]:.1f}"/>', to_places
