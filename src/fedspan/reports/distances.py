"""A picture of how far each client is from the shared components: an SVG text that needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from fedspan._types import Array

_W, _H, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 230, 50, 14, 14, 38  # as the report's other charts


def distances_svg(names: Sequence[str], distances: Array) -> str:
    """One bar per client, the nearest first, from 0 (spans the shared components) to 1 (nothing in common)."""
    order = np.argsort(distances, kind="stable")
    height, step = _H - _TOP - _BOTTOM, (_W - _LEFT - _RIGHT) / max(len(order), 1)
    gap = 2.0 if step > 6 else 0.0
    parts = []
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _H - _BOTTOM - level * height
        parts.append(f'<line class="grid" stroke="#8884" x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{level:g}", "end"))
    for place, i in enumerate(order):
        h = float(distances[i]) * height
        x, y = _LEFT + place * step, _H - _BOTTOM - h
        tip = f"<title>{escape(names[i])}: {distances[i]:.3f}</title>"
        size = f'width="{step - gap:.1f}" height="{h:.1f}"'
        parts.append(f'<rect class="bar" fill="#3b6fb6" x="{x:.1f}" y="{y:.1f}" {size}>{tip}</rect>')
        if len(order) * 7.5 * max(map(len, names)) <= _W - _LEFT - _RIGHT:  # else they would run into each other
            parts.append(_text(x + (step - gap) / 2, _H - _BOTTOM + 14, names[i], "middle"))
    label = "distance of each client to the shared components" if len(order) > 12 else "distance to the shared part"
    parts.append(_text((_LEFT + _W - _RIGHT) / 2, _H - 4, label, "middle"))
    head = f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W} {_H}" role="img"'
    return f'{head} aria-label="{escape(label)}" font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text fill="currentColor" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
