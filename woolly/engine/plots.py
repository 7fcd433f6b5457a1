"""Plots as SVG text: bars of ratios, lines, and a roofline. Legible on light and dark pages, without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Bar", "Line", "Mark", "Roof", "line_plot", "ratio_plot", "roofline_plot"]

_WIDTH = 860
_STYLE = """
.page { fill: #ffffff } .grid { stroke: #d8dee4; stroke-width: 1 } .axis { stroke: #57606a; stroke-width: 1 }
text { font: 13px system-ui, -apple-system, "Segoe UI", "Helvetica Neue", sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 } .note { font-size: 12px; fill: #57606a } .strong { font-weight: 600 }
.label { font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 3px }
.range { stroke: #1f2328; stroke-width: 1.5 } .roof { fill: none; stroke: #57606a; stroke-width: 2 }
.line { fill: none; stroke-width: 2.5 } .mark { stroke: #ffffff; stroke-width: 1.5 }
.f0 { fill: #0969da } .s0 { stroke: #0969da } .f1 { fill: #bc4c00 } .s1 { stroke: #bc4c00 }
.f2 { fill: #1a7f37 } .s2 { stroke: #1a7f37 } .worse { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .grid { stroke: #30363d } .axis { stroke: #9198a1 }
text { fill: #e6edf3 } .note { fill: #9198a1 } .range { stroke: #e6edf3 } .roof { stroke: #9198a1 }
.mark, .label { stroke: #0d1117 }
.f0 { fill: #4493f8 } .s0 { stroke: #4493f8 } .f1 { fill: #f0883e } .s1 { stroke: #f0883e }
.f2 { fill: #3fb950 } .s2 { stroke: #3fb950 } .worse { fill: #f0883e }
}
""".strip()


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


@dataclass(frozen=True)
class Roof:
    """The most that arithmetic allows, in the unit of y."""

    name: str
    height: float


@dataclass(frozen=True)
class Mark:
    """A point of a roofline plot, of one of up to three series."""

    name: str
    x: float
    y: float
    series: int


def ratio_plot(title: str, notes: Sequence[str], bars: Sequence[Bar]) -> str:
    """Bars from 0, with a line at 1: longer is better for us."""
    left, right, top, step = 190, 260, _top(notes), 30
    most = max([1.25, *(bar.most for bar in bars)])
    x = _scale(0, most, left, _WIDTH - right)
    height = top + step * len(bars) + 50
    bottom = top + step * len(bars) + 8
    out = _head(title, notes)
    for value in _ticks(0, most, 6):
        out.append(_segment("axis" if value == 1 else "grid", x(value), top - 4, x(value), bottom))
        out.append(_text(x(value), bottom + 18, f"{value:g}x", "middle", "note"))
    if 1 not in _ticks(0, most, 6):
        out.append(_segment("axis", x(1), top - 4, x(1), bottom))
    for i, bar in enumerate(bars):
        y = top + step * i
        out.append(_text(left - 10, y + 18, bar.name, "end"))
        kind = "f0" if bar.ratio >= 1 else "worse"
        out.append(
            f'<rect class="{kind}" x="{left}" y="{y + 4}" width="{x(bar.ratio) - left:.1f}" height="20" rx="2"/>'
        )
        if bar.most > bar.least:
            out.append(_segment("range", x(bar.least), y + 14, x(bar.most), y + 14))
            out += [_segment("range", x(end), y + 10, x(end), y + 18) for end in (bar.least, bar.most)]
        at = x(max(bar.ratio, bar.most)) + 8
        out.append(
            f'<text x="{at:.1f}" y="{y + 18}"><tspan class="strong">{bar.ratio:.2f}x</tspan>'
            f'<tspan class="note" dx="8">{escape(bar.note)}</tspan></text>'
        )
    return _page(height, title, out)


def line_plot(title: str, notes: Sequence[str], x_name: str, y_name: str, lines: Sequence[Line]) -> str:
    """Lines over a logarithmic x whose values are labelled themselves; y starts at 0."""
    left, right, top, bottom = 80, 150, _top(notes) + 16, _top(notes) + 336
    xs = sorted({point[0] for line in lines for point in line.points})
    most = max(point[3] for line in lines for point in line.points)
    x = _scale(math.log2(xs[0]), math.log2(xs[-1]), left + 20, _WIDTH - right)
    y = _scale(0, 1.05 * most, bottom, top)
    out = _head(title, notes)
    for value in _ticks(0, 1.05 * most, 6):
        out.append(_segment("axis" if value == 0 else "grid", left, y(value), _WIDTH - right + 10, y(value)))
        out.append(_text(left - 8, y(value) + 4, f"{value:g}", "end", "note"))
    for value in xs:
        out.append(_text(x(math.log2(value)), bottom + 20, f"{value:g}", "middle", "note"))
    out.append(_text((left + _WIDTH - right) / 2, bottom + 42, x_name, "middle"))
    out.append(_text(left - 8, top - 12, y_name, "start", "note"))
    ends = [(y(line.points[-1][1]), i) for i, line in enumerate(lines)]
    labels = dict(zip((i for _, i in sorted(ends)), _apart([at for at, _ in sorted(ends)], 18), strict=True))
    for i, line in enumerate(lines):
        path = " ".join(f"{x(math.log2(px)):.1f},{y(py):.1f}" for px, py, _, _ in line.points)
        out.append(f'<polyline class="line s{i}" points="{path}"/>')
        for px, py, low, high in line.points:
            at = x(math.log2(px))
            if high > low:
                out.append(_segment(f"line s{i}", at, y(low), at, y(high)))
            out.append(f'<circle class="mark f{i}" cx="{at:.1f}" cy="{y(py):.1f}" r="5"/>')
        out.append(_text(_WIDTH - right + 18, labels[i] + 4, line.name, "start", f"strong f{i}"))
    return _page(bottom + 62, title, out)


def roofline_plot(
    title: str,
    notes: Sequence[str],
    bandwidth: float,
    roofs: Sequence[Roof],
    series: Sequence[str],
    marks: Sequence[Mark],
) -> str:
    """Rates over products per byte, both logarithmic: under the slope memory binds, under the roofs arithmetic."""
    left, right, top, bottom = 80, 170, _top(notes) + 44, _top(notes) + 444
    highest = max(roof.height for roof in roofs)
    low_x = min([1.0, *(mark.x for mark in marks)]) / 3
    high_x = max([4 * highest / bandwidth, *(3 * mark.x for mark in marks)])
    low_y = min([*(mark.y for mark in marks), *(roof.height for roof in roofs)]) / 1.6
    high_y = 1.3 * max([highest, *(mark.y for mark in marks)])
    x = _logarithmic(low_x, high_x, left, _WIDTH - right)
    y = _logarithmic(low_y, high_y, bottom, top)
    out = _head(title, notes)
    for value in _decades(low_y, high_y, (1, 2, 5)):
        out.append(_segment("grid", left, y(value), _WIDTH - right, y(value)))
        out.append(_text(left - 8, y(value) + 4, f"{value:g}", "end", "note"))
    for value in _decades(low_x, high_x, (1,)):
        out.append(_segment("grid", x(value), top, x(value), bottom))
        out.append(_text(x(value), bottom + 20, f"{value:g}", "middle", "note"))
    out.append(_text((left + _WIDTH - right) / 2, bottom + 42, "products per byte read", "middle"))
    out.append(_text(20, top - 12, "billion products/s", "start", "note"))
    for i, name in enumerate(series):
        out.append(f'<circle class="mark f{i}" cx="{190 + 215 * i}" cy="{top - 16}" r="6"/>')
        out.append(_text(202 + 215 * i, top - 12, name, "start"))
    start = max(low_x, low_y / bandwidth)
    corners = [(start, start * bandwidth), (highest / bandwidth, highest)]
    path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in corners)
    out.append(f'<polyline class="roof" points="{path}"/>')
    out.append(_text(left + 8, top + 14, f"memory: {bandwidth:.1f} GB/s", "start", "note"))
    ordered = sorted(roofs, key=lambda roof: -roof.height)
    for at, roof in zip(_apart([y(roof.height) for roof in ordered], 16), ordered, strict=True):
        out.append(
            _segment("roof", x(max(roof.height / bandwidth, low_x)), y(roof.height), _WIDTH - right, y(roof.height))
        )
        out.append(_text(_WIDTH - right + 8, at + 4, roof.name, "start", "note"))
    return _page(bottom + 62, title, [*out, *_marks(marks, x, y, _WIDTH - right)])


def _marks(marks: Sequence[Mark], x: Callable[[float], float], y: Callable[[float], float], most_x: float) -> list[str]:
    """Points first, then labels over them: one for all points of a series that lie together, none over another."""
    out, groups = [], list[tuple[int, list[Mark]]]()
    for mark in sorted(marks, key=lambda mark: (mark.series, mark.x, -mark.y)):
        out.append(f'<circle class="mark f{mark.series}" cx="{x(mark.x):.1f}" cy="{y(mark.y):.1f}" r="6"/>')
        if groups and groups[-1][0] == mark.series:
            last = groups[-1][1][-1]
            if abs(x(last.x) - x(mark.x)) < 12 and abs(y(last.y) - y(mark.y)) < 14:
                groups[-1][1].append(mark)
                continue
        groups.append((mark.series, [mark]))
    placed: list[tuple[float, float, float]] = []
    for series, group in sorted(groups, key=lambda one: y(one[1][0].y)):
        text = " · ".join(mark.name for mark in group)
        width = 6.5 * len(text)
        start = max(x(mark.x) for mark in group) + 10
        to_the_left = start + width > most_x
        if to_the_left:
            start = min(x(mark.x) for mark in group) - 10 - width
        at = sum(y(mark.y) for mark in group) / len(group) + 4
        while any(abs(at - y2) < 14 and start < end2 and start2 < start + width for start2, end2, y2 in placed):
            at += 3
        placed.append((start, start + width, at))
        anchor, px = ("end", start + width) if to_the_left else ("start", start)
        out.append(_text(px, at, text, anchor, f"label f{series}"))
    return out


def _page(height: float, title: str, elements: Iterable[str]) -> str:
    body = "\n".join(elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}"'
        f' height="{height:g}" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n'
        f'<style>\n{_STYLE}\n</style>\n<rect class="page" width="100%" height="100%" rx="6"/>\n{body}\n</svg>\n'
    )


def _head(title: str, notes: Sequence[str]) -> list[str]:
    return [
        _text(20, 32, title, "start", "title"),
        *(_text(20, 54 + 17 * i, note, "start", "note") for i, note in enumerate(notes)),
    ]


def _top(notes: Sequence[str]) -> int:
    return 56 + 17 * len(notes)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low if high > low else 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round values, at most so many and one more."""
    step = next(
        scale * 10.0**power
        for power in range(-6, 12)
        for scale in (1, 2, 5)
        if (high - low) / (scale * 10.0**power) <= most
    )
    return [round(i * step, 9) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _logarithmic(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    scale = _scale(math.log10(low), math.log10(high), start, end)
    return lambda value: scale(math.log10(value))


def _decades(low: float, high: float, steps: Sequence[int]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for p in powers for step in steps if low <= (value := step * 10.0**p) <= high]


def _apart(positions: Sequence[float], gap: float) -> list[float]:
    """Ascending positions, moved down where they are nearer than a gap."""
    out: list[float] = []
    for position in positions:
        out.append(position if not out else max(position, out[-1] + gap))
    return out
