"""Drawings for the report, as SVG text without scripts. Colours are classes, so that light and dark both work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedspan.cli.progress import size

W, H = 360, 230  # of a chart; the page scales it, and text of 13 stays above 11 pixels down to 310
_LEFT, RIGHT, TOP, BOTTOM = 50, 14, 14, 38
_WIDE = 60  # the left edge where numbers are longer than a power of ten


def line_chart(
    xs: Sequence[float],
    ys: Sequence[float],
    title: str,
    x_label: str,
    level: float,
    *,
    bytes_: bool,
    level_name: str = "tol",
) -> str:
    """y (above 0, on a log scale) against x, with a dashed line at `level` if that is above 0."""
    shown = [*ys, level] if level > 0 else list(ys)
    low, high = math.floor(math.log10(min(shown))), math.ceil(math.log10(max(shown)))
    high = max(high, low + 1)
    x_low, x_high = (0.0, max(xs)) if bytes_ else (min(xs), max(xs))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        up = (math.log10(y) - low) / (high - low)
        return _LEFT + across * (W - _LEFT - RIGHT), H - BOTTOM - up * (H - TOP - BOTTOM)

    parts = []
    for power in range(low, high + 1, max(1, math.ceil((high - low) / 6))):
        _, y = at(x_low, 10.0**power)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(label(_LEFT - 8, y + 4, f"1e{power}" if power else "1", "end"))
    parts += [
        _below(at(x, 10.0**low)[0], size(x) if bytes_ else f"{x:g}") for x in ticks(x_low, x_high, whole=not bytes_)
    ]
    parts.append(label((_LEFT + W - RIGHT) / 2, H - 4, x_label, "middle"))
    if level > 0:
        _, y = at(x_low, level)
        parts.append(f'<line class="level" x1="{_LEFT}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(label(_LEFT + 6, y - 6 if y > TOP + 12 else y + 16, f"{level_name} {level:g}", "start"))
    points = [at(x, y) for x, y in zip(xs, ys, strict=True)]
    parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
    if len(points) <= 60:  # more would be a thick line
        for (x, y), value, where in zip(points, ys, xs, strict=True):
            tip = f"{size(where) if bytes_ else f'round {where:g}'}: {value:.2e}"
            parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{tip}</title></circle>')
    return drawing(W, H, title, parts, "chart")


def curve_chart(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    title: str,
    x_label: str,
    *,
    bytes_: bool = False,
    level: float | None = None,
    names: Sequence[str] = (),
    mark: int | None = None,
) -> str:
    """Curves of any sign against x, on a plain scale; at most three, told apart by colour, dashes and a legend.

    `names` are written at the xs instead of numbers; `mark` is the place of one x that is pointed out.
    """
    values = [y for ys in curves.values() for y in ys] + ([] if level is None else [level])
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - pad, high + pad
    x_low, x_high = (0.0, max(xs)) if bytes_ else (min(xs), max(xs))
    top = TOP + (18 if len(curves) > 1 else 0)

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (x - x_low) / ((x_high - x_low) or 1.0), (y - low) / (high - low)
        return _WIDE + across * (W - _WIDE - RIGHT), H - BOTTOM - up * (H - top - BOTTOM)

    parts = []
    for tick in ticks(low, high, whole=False):
        y = at(x_low, tick)[1]
        parts.append(f'<line class="grid" x1="{_WIDE}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = f"{0.0 if abs(tick) < 1e-9 * (high - low) else tick:.4g}"
        parts.append(label(_WIDE - 8, y + 4, text.replace("e+0", "e").replace("e-0", "e-"), "end"))
    where = xs if names else ticks(x_low, x_high, whole=not bytes_)
    texts = list(names) or [size(x) if bytes_ else f"{x:g}" for x in where]
    parts += [_below(at(x, low)[0], text) for x, text in zip(where, texts, strict=True) if text]
    parts.append(label((_WIDE + W - RIGHT) / 2, H - 4, x_label, "middle"))
    if level is not None:
        y = at(x_low, level)[1]
        parts.append(f'<line class="level" x1="{_WIDE}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if mark is not None:
        x = at(xs[mark], low)[0]
        parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{H - BOTTOM}"/>')
    for i, (name, ys) in enumerate(curves.items()):
        points = [at(x, y) for x, y in zip(xs, ys, strict=True)]
        parts.append(f'<polyline class="line line{i}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        for (x, y), value, place in zip(points, ys, xs, strict=True) if len(points) <= 60 else ():
            tip = f"{name}{'' if names else f', {size(place)}' if bytes_ else f', round {place:g}'}: {value:.4g}"
            parts.append(
                f'<circle class="dot dot{i}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{escape(tip)}</title></circle>'
            )
    across = float(_WIDE)
    for i, name in enumerate(curves if len(curves) > 1 else ()):
        parts.append(f'<line class="line line{i}" x1="{across:.0f}" x2="{across + 18:.0f}" y1="12" y2="12"/>')
        parts.append(label(across + 24, 16, name, "start"))
        across += 40 + 7 * len(name)
    return drawing(W, H, title, parts, "chart")


def bar_chart(values: Sequence[float], title: str, x_label: str, noun: str = "component") -> str:
    """Shares from 0 to 1, one bar each, from a common zero."""
    room = W - _LEFT - RIGHT
    step = room / len(values)
    gap = 2.0 if step > 6 else 0.0
    top = max(values) or 1.0
    height = H - TOP - BOTTOM - 12
    parts = []
    for i, value in enumerate(values):
        h = value / top * height
        x, y = _LEFT + i * step, H - BOTTOM - h
        tip = f"<title>{noun} {i + 1}: {value:.2%}</title>"
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{step - gap:.1f}" height="{h:.1f}">{tip}</rect>'
        )
        if len(values) <= 12:
            digits = 3 if step > 36 else 2  # so that two numbers do not touch
            parts.append(label(x + (step - gap) / 2, y - 5, f"{100 * value:.{digits}g}", "middle"))
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{W - RIGHT}" y1="{H - BOTTOM}" y2="{H - BOTTOM}"/>')
    parts += [
        label(_LEFT + (number - 0.5) * step - gap / 2, H - BOTTOM + 18, f"{number:g}", "middle")
        for number in (ticks(1, len(values), whole=True) if len(values) > 1 else [1])
    ]
    parts.append(label((_LEFT + W - RIGHT) / 2, H - 4, x_label, "middle"))
    parts.append(label(_LEFT - 8, H - BOTTOM + 4, "0 %", "end"))
    return drawing(W, H, title, parts, "chart")


def picture(values: Sequence[float], side: int, title: str) -> str:
    """A square grid of cells, row by row: one colour above zero, another below, stronger where larger."""
    top = max(map(abs, values)) or 1.0
    parts = []
    for i, value in enumerate(values):
        strength = abs(value) / top
        if strength >= 0.01:
            row, column = divmod(i, side)
            sign = "above" if value > 0 else "below"
            parts.append(f'<rect class="{sign}" x="{column}" y="{row}" width="1" height="1" opacity="{strength:.2f}"/>')
    return drawing(side, side, title, parts, "picture")


def ticks(low: float, high: float, *, whole: bool) -> list[float]:
    """About five round numbers from low to high."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-300) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


def _below(x: float, text: str) -> str:
    """A text at a place of the x axis; one at the right edge ends there."""
    edge = x + 4 * len(text) > W
    return label(W - 2 if edge else x, H - BOTTOM + 18, text, "end" if edge else "middle")


def label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def drawing(width: int, height: int, title: str, parts: Sequence[str], kind: str) -> str:
    """The parts as one picture, with its title for those who cannot see it."""
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    return f"{head}{''.join(parts)}</svg>"
