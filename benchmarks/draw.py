"""Lines in a box, or rows beside printed numbers, as SVG that stands alone: enough for the figures of a paper.

(`fedspan.reports.drawing.charts` draws for a report: three curves at most, and colours from the page that it is in.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_W, _H, _LEFT, _TOP, _BOTTOM, _KEY = 860, 440, 64, 52, 48, 270
_COLOURS = (
    "#1b6ca8",
    "#c8553d",
    "#3a7d44",
    "#8e5ea2",
    "#b8860b",
    "#2a9d8f",
    "#6c757d",
    "#d1495b",
    "#4056a1",
    "#70543e",
)


def chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    x_label: str,
    y_label: str,
    log: tuple[bool, bool] = (False, False),
) -> str:
    """The lines by name, on plain or logarithmic axes, with a key beside them; what is not finite is left out."""
    lines = {name: [(x, y) for x, y in line if math.isfinite(y)] for name, line in lines.items()}
    points = [point for line in lines.values() for point in line]
    if not points:
        points = [(1.0, 1.0)]
    x_axis, y_axis = (_Axis([p[k] for p in points], logarithmic) for k, logarithmic in enumerate(log))
    right, low = _W - _KEY, _H - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x_axis(x) * (right - _LEFT), low - y_axis(y) * (low - _TOP)

    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{low - _TOP}" fill="none" stroke="#888"/>']
    for x in x_axis.ticks:
        px = at(x, points[0][1])[0]
        parts.append(_text(px, low + 16, f"{x:g}", "middle"))
        parts.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{_TOP}" y2="{low}" stroke="#ddd"/>')
    for y in y_axis.ticks:
        py = at(points[0][0], y)[1]
        parts.append(_text(_LEFT - 6, py + 4, f"{y:.3g}", "end"))
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
    for i, (name, line) in enumerate(lines.items()):
        colour, dash = _COLOURS[i % len(_COLOURS)], ' stroke-dasharray="6 3"' if i >= len(_COLOURS) else ""
        places = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if len(places) <= 80:  # more would hide the line, and make a large file
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        key = _TOP + 10 + 20 * i
        parts.append(f'<line x1="{right + 10}" x2="{right + 34}" y1="{key}" y2="{key}" stroke="{colour}" '
                     f'stroke-width="2"{dash}/>')  # fmt: skip
        parts.append(_text(right + 40, key + 4, name, "start"))
    parts += [_text(8, 20, title, "start", "bold"), _text((_LEFT + right) / 2, _H - 8, x_label, "middle")]
    parts.append(_text(8, _TOP - 10, y_label, "start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" font-family="sans-serif" font-size="12">'
        f'<rect width="{_W}" height="{_H}" fill="white"/>{"".join(parts)}</svg>'
    )


_MARKED = {"reproduced": "#3b6fb6", "better": "#3f8f5a", "worse": "#c1542d"}


def ratios(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Every row's number over the printed one (or over what a claim compares with), on a logarithmic axis."""
    shown = [row for row in rows if row["ours"] is not None]
    points = []
    for row in shown:
        other = row["against"] if row["printed"] is None else row["printed"]
        both = 0 < row["ours"] < math.inf and 0 < other < math.inf
        points.append(math.log10(row["ours"] / other) if both else math.copysign(2.0, row["ours"] - other))
    reach = max([0.3, *(abs(x) for x in points)])
    height, left, right = 70 + 18 * len(shown), 520, _W - 40

    def at(x: float) -> float:
        return left + (x / reach + 1) / 2 * (right - left)

    parts = [_text(8, 20, title, "start", "bold"), _text(at(0), 40, "ours over theirs", "middle")]
    parts.append(f'<line x1="{at(0):.1f}" x2="{at(0):.1f}" y1="46" y2="{height - 22}" stroke="#888"/>')
    parts += [_text(at(x), height - 6, f"{10**x:.2g}", "middle") for x in (-reach, 0.0, reach)]
    for i, (row, x) in enumerate(zip(shown, points, strict=True)):
        y, colour = 58 + 18 * i, _MARKED[row["mark"]]
        what = row["what"] if len(row["what"]) <= 90 else row["what"][:89] + "…"
        parts.append(_text(left - 10, y + 4, what, "end"))
        parts.append(f'<line x1="{at(0):.1f}" x2="{at(x):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{at(x):.1f}" cy="{y}" r="4" fill="{colour}"><title>{row["mark"]}</title></circle>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {height}" font-family="sans-serif"'
    return f'{head} font-size="11"><rect width="{_W}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'


class _Axis:
    """From values to 0..1, and round numbers on the way."""

    def __init__(self, values: Sequence[float], log: bool) -> None:
        self.log = log and min(values) > 0
        low, high = self._scale(min(values)), self._scale(max(values))
        self.low, self.high = (low, high) if high > low else (low - 0.5, high + 0.5)
        if self.log:
            first, last = math.floor(self.low), math.ceil(self.high)
            marks = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
        else:
            step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
            marks = [k * step for k in range(math.floor(self.low / step), math.ceil(self.high / step) + 1)]
        inside = [m for m in marks if self.low - 1e-9 <= self._scale(m) <= self.high + 1e-9]
        self.ticks = inside[:: max(1, len(inside) // 8)]

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        return (self._scale(value) - self.low) / (self.high - self.low)


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"
