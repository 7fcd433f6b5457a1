"""Plots of the report: bars of ratios, and lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from woolly.measure.svg import WIDTH, apart, head, label, linear_scale, page, plot_top, segment


@dataclass(frozen=True)
class Bar:
    """A ratio, the range of its rounds, and words beside it."""

    name: str
    ratio: float
    least: float
    most: float
    note: str


@dataclass(frozen=True)
class Line:
    """A series of (x, y, least y, most y)."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]


def ratio_plot(title: str, notes: Sequence[str], bars: Sequence[Bar]) -> str:
    """Bars from 0, with a line at 1: longer is better for us."""
    left, right, top, step = 190, 260, plot_top(notes), 30
    most = max([1.25, *(bar.most for bar in bars)])
    x = linear_scale(0, most, left, WIDTH - right)
    height = top + step * len(bars) + 50
    bottom = top + step * len(bars) + 8
    out = head(title, notes)
    for value in _ticks(0, most, 6):
        out.append(segment("axis" if value == 1 else "grid", x(value), top - 4, x(value), bottom))
        out.append(label(x(value), bottom + 18, f"{value:g}x", "middle", "note"))
    if 1 not in _ticks(0, most, 6):
        out.append(segment("axis", x(1), top - 4, x(1), bottom))
    for i, bar in enumerate(bars):
        y = top + step * i
        out.append(label(left - 10, y + 18, bar.name, "end"))
        kind = "f0" if bar.ratio >= 1 else "worse"
        out.append(
            f'<rect class="{kind}" x="{left}" y="{y + 4}" width="{x(bar.ratio) - left:.1f}" height="20" rx="2"/>'
        )
        if bar.most > bar.least:
            out.append(segment("range", x(bar.least), y + 14, x(bar.most), y + 14))
            out += [segment("range", x(end), y + 10, x(end), y + 18) for end in (bar.least, bar.most)]
        at = x(max(bar.ratio, bar.most)) + 8
        out.append(
            f'<text x="{at:.1f}" y="{y + 18}"><tspan class="strong">{bar.ratio:.2f}x</tspan>'
            f'<tspan class="note" dx="8">{escape(bar.note)}</tspan></text>'
        )
    return page(height, title, out)


def line_plot(title: str, notes: Sequence[str], x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """Lines over a logarithmic x whose values are labelled themselves; y starts at 0."""
    left, right, top, bottom = 80, 150, plot_top(notes) + 16, plot_top(notes) + 336
    xs = sorted({point[0] for line in lines for point in line.points})
    most = max(point[3] for line in lines for point in line.points)
    x = linear_scale(math.log2(xs[0]), math.log2(xs[-1]), left + 20, WIDTH - right)
    y = linear_scale(0, 1.05 * most, bottom, top)
    out = head(title, notes)
    for value in _ticks(0, 1.05 * most, 6):
        out.append(segment("axis" if value == 0 else "grid", left, y(value), WIDTH - right + 10, y(value)))
        out.append(label(left - 8, y(value) + 4, f"{value:g}", "end", "note"))
    for value in xs:
        out.append(label(x(math.log2(value)), bottom + 20, f"{value:g}", "middle", "note"))
    out.append(label((left + WIDTH - right) / 2, bottom + 42, x_name, "middle"))
    out.append(label(left - 8, top - 12, y_name, "start", "note"))
    ends = [(y(line.points[-1][1]), i) for i, line in enumerate(lines)]
    labels = dict(zip((i for _, i in sorted(ends)), apart([at for at, _ in sorted(ends)], 18), strict=True))
    for i, line in enumerate(lines):
        path = " ".join(f"{x(math.log2(px)):.1f},{y(py):.1f}" for px, py, _, _ in line.points)
        out.append(f'<polyline class="line s{i}" points="{path}"/>')
        for px, py, low, high in line.points:
            at = x(math.log2(px))
            if high > low:
                out.append(segment(f"line s{i}", at, y(low), at, y(high)))
            out.append(f'<circle class="mark f{i}" cx="{at:.1f}" cy="{y(py):.1f}" r="5"/>')
        out.append(label(WIDTH - right + 18, labels[i] + 4, line.name, "start", f"strong f{i}"))
    return page(bottom + 62, title, out)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round values, at most `most` + 1 of them."""
    step = next(
        scale * 10.0**power
        for power in range(-6, 12)
        for scale in (1, 2, 5)
        if (high - low) / (scale * 10.0**power) <= most
    )
    return [round(i * step, 9) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
