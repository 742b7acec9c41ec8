"""Charts as SVG text without scripts: lines, bars, pictures, and the parts that other charts are made of.

Colours are CSS classes, so that a report can be light or dark. A chart for another page, or for a file of its own, is
`to_standalone(chart)`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from fedspan.reports.format import escape, format_bytes

W, H = 360, 230  # of a chart; the page scales it, and text of 13 stays above 11 pixels down to 310
RIGHT, TOP, BOTTOM = 14, 14, 38
_LEFT = 50
CHARACTER = 7.4  # about the width of a character of 13 pixels
_BAR = 72  # bars are not wider than this
_MOST_DOTS = 60  # more would look like a thick line

CHART_STYLE = """
svg text { fill: var(--soft, #5c6570); font: 13px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule, #e1e4e8); } .axis { stroke: var(--soft, #5c6570); }
.level { stroke: var(--soft, #5c6570); stroke-dasharray: 5 4; }
.line { fill: none; stroke: var(--blue, #2563b8); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--blue, #2563b8); stroke: var(--card, #fff); stroke-width: 1.5; } .bar { fill: var(--blue, #2563b8); }
.line1 { stroke: var(--orange, #b34f08); stroke-dasharray: 7 4; } .dot1 { fill: var(--orange, #b34f08); }
.line2 { stroke: var(--soft, #5c6570); stroke-dasharray: 2 3; } .dot2 { fill: var(--soft, #5c6570); }
.halo { paint-order: stroke; stroke: var(--card, #fff); stroke-width: 4px; stroke-linejoin: round; }
.arrow { stroke: var(--ink, #1d2126); stroke-width: 1.5; } .tip { fill: var(--ink, #1d2126); }
.frame { fill: none; stroke: var(--rule, #e1e4e8); }
.ring { fill: none; stroke: var(--orange, #b34f08); stroke-width: 2.5; }
.points { fill: none; stroke-width: 4.5; stroke-linecap: round; stroke-opacity: .55; }
.p0 { stroke: var(--blue, #2563b8); } .p1 { stroke: var(--orange, #b34f08); } .p2 { stroke: var(--p2, #15803d); }
.p3 { stroke: var(--p3, #a21caf); } .p4 { stroke: var(--p4, #b91c1c); } .p5 { stroke: var(--p5, #0e7490); }
.p6 { stroke: var(--p6, #854d0e); } .p7 { stroke: var(--soft, #5c6570); }
.k0 { fill: var(--blue, #2563b8); } .k1 { fill: var(--orange, #b34f08); } .k2 { fill: var(--p2, #15803d); }
.k3 { fill: var(--p3, #a21caf); } .k4 { fill: var(--p4, #b91c1c); } .k5 { fill: var(--p5, #0e7490); }
.k6 { fill: var(--p6, #854d0e); } .k7 { fill: var(--soft, #5c6570); }
.above { fill: var(--blue, #2563b8); } .below { fill: var(--orange, #b34f08); }
"""


def draw_line_chart(
    xs: Sequence[float],
    ys: Sequence[float],
    title: str,
    x_label: str,
    level: float = 0.0,
    *,
    in_bytes: bool = False,
    level_name: str = "tol",
) -> str:
    """y (0 or more, on a log scale) against x, with a dashed line at `level` if that is above 0.

    A y of 0 is drawn on a line of its own below the smallest power of ten. `in_bytes`: x is a number of bytes, and else
    a number of rounds.
    """
    drawn = [y for y in [*ys, level] if y > 0] or [1.0]
    low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)))
    high = max(high, low + 1)
    has_zero = min(ys) <= 0
    bottom = low - max(1.0, 0.1 * (high - low)) if has_zero else low
    step = max(1, math.ceil((high - low) / 6))
    powers = range(low, high + 1, step)
    left = max(_LEFT, measure_labels([f"1e{power}" for power in powers]))
    x_low, x_high = (0.0, max(xs)) if in_bytes else (min(xs), max(xs))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        up = ((math.log10(y) if y > 0 else bottom) - bottom) / (high - bottom)
        return left + across * (W - left - RIGHT), H - BOTTOM - up * (H - TOP - BOTTOM)

    parts = []
    ticks = [(10.0**power, f"1e{power}" if power else "1") for power in powers] + ([(0.0, "0")] if has_zero else [])
    for value, text in ticks:
        _, y = place(x_low, value)
        parts.append(draw_horizontal("grid", left, y))
        parts.append(draw_label(left - 8, y + 4, text, "end"))
    parts += [
        _draw_tick(place(x, 10.0**low)[0], format_bytes(x) if in_bytes else f"{x:g}")
        for x in choose_ticks(x_low, x_high, whole=not in_bytes)
    ]
    parts.append(draw_label((left + W - RIGHT) / 2, H - 4, x_label, "middle"))
    if level > 0:
        _, y = place(x_low, level)
        parts.append(draw_horizontal("level", left, y))
    points = [place(x, y) for x, y in zip(xs, ys, strict=True)]
    tips = [f"{format_bytes(x) if in_bytes else f'round {x:g}'}: {value:.2e}" for x, value in zip(xs, ys, strict=True)]
    parts += _draw_curve(points, tips, "line", "dot")
    if level > 0:  # over the curve, which may run along the level
        beside = y - 6 if y > TOP + 12 else y + 16
        parts.append(draw_label(left + 6, beside, f"{level_name} {level:g}", "start", kind="halo"))
    return draw_svg(W, H, title, parts, "chart")


def draw_curve_chart(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    title: str,
    x_label: str,
    *,
    in_bytes: bool = False,
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
    x_low, x_high = (0.0, max(xs)) if in_bytes else (min(xs), max(xs))
    ticks = {tick: format_tick(tick, high - low, 4) for tick in choose_ticks(low, high, whole=False)}
    left = max(_LEFT, measure_labels(ticks.values()))
    legend, lines = _draw_legend(list(curves), left)
    top = TOP + 18 * lines

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (x - x_low) / ((x_high - x_low) or 1.0), (y - low) / (high - low)
        return left + across * (W - left - RIGHT), H - BOTTOM - up * (H - top - BOTTOM)

    def describe_x(x: float) -> str:
        if names:
            return ""
        return f", {format_bytes(x)}" if in_bytes else f", round {x:g}"

    parts = []
    for tick, text in ticks.items():
        y = place(x_low, tick)[1]
        parts.append(draw_horizontal("grid", left, y))
        parts.append(draw_label(left - 8, y + 4, text, "end"))
    if names:
        marked = list(zip(xs, names, strict=True))
    else:
        marked = [
            (x, format_bytes(x) if in_bytes else f"{x:g}") for x in choose_ticks(x_low, x_high, whole=not in_bytes)
        ]
    parts += [_draw_tick(place(x, low)[0], text) for x, text in marked if text]
    parts.append(draw_label((left + W - RIGHT) / 2, H - 4, x_label, "middle"))
    if level is not None:
        parts.append(draw_horizontal("level", left, place(x_low, level)[1]))
    if mark is not None:
        x = place(xs[mark], low)[0]
        parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{H - BOTTOM}"/>')
    for i, (name, ys) in enumerate(curves.items()):
        points = [place(x, y) for x, y in zip(xs, ys, strict=True)]
        tips = [f"{name}{describe_x(x)}: {value:.4g}" for x, value in zip(xs, ys, strict=True)]
        parts += _draw_curve(points, tips, f"line line{i}", f"dot dot{i}")
    return draw_svg(W, H, title, [*parts, *legend], "chart")


def draw_bar_chart(
    values: Sequence[float],
    title: str,
    x_label: str,
    *,
    cumulative: bool = False,
    level: float | None = None,
    level_name: str = "",
    kept: int | None = None,
) -> str:
    """Shares from 0 to 1, one bar each, from a common zero; with a line of their sums so far if `cumulative`.

    Bars beyond the first `kept` are paler; `level` is a dashed line.
    """
    step = (W - _LEFT - RIGHT) / len(values)
    sums = list(itertools.accumulate(values)) if cumulative else []
    largest = max([*values, *sums, level or 0.0]) or 1.0
    height = H - TOP - BOTTOM - 12
    parts = []
    for i, value in enumerate(values):
        h = value / largest * height
        middle, y = _LEFT + (i + 0.5) * step, H - BOTTOM - h
        bar = draw_bar(middle, step, y, h, f"{x_label} {i + 1}: {value:.2%}")
        parts.append(bar if kept is None or i < kept else f'<g opacity="0.4">{bar}</g>')
        if len(values) <= 12:
            digits = 3 if step > 36 else 2  # so that two numbers do not touch
            parts.append(draw_label(middle, y - 5, f"{100 * value:.{digits}g}", "middle"))
    if level is not None:
        y = H - BOTTOM - level / largest * height
        parts.append(draw_horizontal("level", _LEFT, y))
        parts.append(draw_label(W - RIGHT, y - 6 if y > TOP + 12 else y + 16, level_name, "end", kind="halo"))
    parts.append(draw_horizontal("axis", _LEFT, H - BOTTOM))
    if len(sums) > 1:
        points = [(_LEFT + (i + 0.5) * step, H - BOTTOM - total / largest * height) for i, total in enumerate(sums)]
        tips = [f"{x_label}s 1 to {i + 1}: {total:.2%}" for i, total in enumerate(sums)]
        line, *dots = _draw_curve(points, tips, "line line1", "dot dot1")
        parts += [line, *dots[1:]]  # the first sum is the first bar
        parts.append(draw_label(points[-1][0] + 4, points[-1][1] - 8, f"{100 * sums[-1]:.3g} %", "end", kind="halo"))
    parts += [
        draw_label(_LEFT + (number - 0.5) * step, H - BOTTOM + 18, f"{number:g}", "middle")
        for number in (choose_ticks(1, len(values), whole=True) if len(values) > 1 else [1])
    ]
    parts.append(draw_label((_LEFT + W - RIGHT) / 2, H - 4, x_label, "middle"))
    parts.append(draw_label(_LEFT - 8, H - BOTTOM + 4, "0 %", "end"))
    return draw_svg(W, H, title, parts, "chart")


def draw_picture(values: Sequence[float], side: int, title: str) -> str:
    """A square grid of cells, row by row: one colour above zero, another below, stronger where larger."""
    largest = max(map(abs, values)) or 1.0
    parts = []
    for i, value in enumerate(values):
        strength = abs(value) / largest
        if strength >= 0.01:
            row, column = divmod(i, side)
            sign = "above" if value > 0 else "below"
            parts.append(f'<rect class="{sign}" x="{column}" y="{row}" width="1" height="1" opacity="{strength:.2f}"/>')
    return draw_svg(side, side, title, parts, "picture")


def to_standalone(svg: str) -> str:
    """A chart with its own colours, for a notebook, another page, or a file with the ending .svg."""
    head, end, rest = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"{end}<style>{CHART_STYLE}</style>{rest}'


def measure_labels(texts: Iterable[str]) -> float:
    """The room that labels at the left of an axis need."""
    return 10 + CHARACTER * max(map(len, texts), default=0)


def choose_ticks(low: float, high: float, *, whole: bool) -> list[float]:
    """About five round numbers from low to high."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-300) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


def format_tick(value: float, span: float, digits: int = 3) -> str:
    """A number at an axis of that span: 0 where only rounding is left."""
    text = f"{0.0 if abs(value) < 1e-9 * span else value:.{digits}g}"
    return text.replace("e+0", "e").replace("e-0", "e-")


def draw_label(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    """A text at a place; `anchor` is "start", "middle" or "end", and `kind` may be "halo": readable over lines."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def draw_bar(middle: float, step: float, y: float, height: float, tip: str) -> str:
    """A bar in a column that is `step` wide, with a tooltip."""
    width = min(step - (2.0 if step > 6 else 0.0), _BAR)
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="bar" x="{middle - width / 2:.1f}" y="{y:.1f}" {size}><title>{escape(tip)}</title></rect>'


def draw_horizontal(kind: str, left: float, y: float) -> str:
    """A line from `left` to the right edge; `kind` is "grid", "axis" or "level" (dashed)."""
    return f'<line class="{kind}" x1="{left}" x2="{W - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def draw_svg(width: float, height: float, title: str, parts: Sequence[str], kind: str) -> str:
    """The parts as one picture, with its title for those who cannot see it."""
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    return f"{head}{''.join(parts)}</svg>"


def _draw_curve(points: Sequence[tuple[float, float]], tips: Sequence[str], line: str, dot: str) -> list[str]:
    """A line through the points and, if they are few, a dot with a tooltip at each."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline class="{line}" points="{path}"/>']
    if len(points) <= _MOST_DOTS:
        for (x, y), tip in zip(points, tips, strict=True):
            title = f"<title>{escape(tip)}</title>"
            parts.append(f'<circle class="{dot}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>')
    return parts


def _draw_legend(names: Sequence[str], left: float) -> tuple[list[str], int]:
    """Which curve is whose, in as many lines as it takes; nothing for one curve."""
    if len(names) < 2:
        return [], 0
    parts, x, line = [], left, 0
    for i, name in enumerate(names):
        width = 28 + CHARACTER * len(name)
        if i and x + width > W:
            x, line = left, line + 1
        y = 12 + 18 * line
        parts.append(f'<line class="line line{i}" x1="{x:.0f}" x2="{x + 18:.0f}" y1="{y}" y2="{y}"/>')
        parts.append(draw_label(x + 24, y + 4, name, "start"))
        x += width + 12
    return parts, line + 1


def _draw_tick(x: float, text: str) -> str:
    """A text below the x axis; one at the right edge ends there."""
    at_edge = x + 4 * len(text) > W
    return draw_label(W - 2 if at_edge else x, H - BOTTOM + 18, text, "end" if at_edge else "middle")
