"""Roofline plot: rate by arithmetic intensity, with memory and compute limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from woolly.measure.svg import WIDTH, apart, head, label, linear_scale, page, plot_top, segment


@dataclass(frozen=True)
class Roof:
    """Compute limit, in units of the y axis."""

    name: str
    height: float


@dataclass(frozen=True)
class Mark:
    """Point of the plot, in one of up to three series."""

    name: str
    x: float
    y: float
    series: int


def roofline_plot(
    title: str,
    notes: Sequence[str],
    bandwidth: float,
    roofs: Sequence[Roof],
    series: Sequence[str],
    marks: Sequence[Mark],
) -> str:
    """Return the plot with logarithmic axes. Left of the ridge is memory-bound, right of it compute-bound."""
    left, right, top, bottom = 80, 170, plot_top(notes) + 44, plot_top(notes) + 444
    highest = max(roof.height for roof in roofs)
    low_x = min([1.0, *(mark.x for mark in marks)]) / 3
    high_x = max([4 * highest / bandwidth, *(3 * mark.x for mark in marks)])
    low_y = min([*(mark.y for mark in marks), *(roof.height for roof in roofs)]) / 1.6
    high_y = 1.3 * max([highest, *(mark.y for mark in marks)])
    x = _logarithmic(low_x, high_x, left, WIDTH - right)
    y = _logarithmic(low_y, high_y, bottom, top)
    out = head(title, notes)
    for value in _decades(low_y, high_y, (1, 2, 5)):
        out.append(segment("grid", left, y(value), WIDTH - right, y(value)))
        out.append(label(left - 8, y(value) + 4, f"{value:g}", "end", "note"))
    for value in _decades(low_x, high_x, (1,)):
        out.append(segment("grid", x(value), top, x(value), bottom))
        out.append(label(x(value), bottom + 20, f"{value:g}", "middle", "note"))
    out.append(label((left + WIDTH - right) / 2, bottom + 42, "products per byte read", "middle"))
    out.append(label(20, top - 12, "billion products/s", "start", "note"))
    for i, name in enumerate(series):
        out.append(f'<circle class="mark f{i}" cx="{190 + 215 * i}" cy="{top - 16}" r="6"/>')
        out.append(label(202 + 215 * i, top - 12, name, "start"))
    start = max(low_x, low_y / bandwidth)
    corners = [(start, start * bandwidth), (highest / bandwidth, highest)]
    path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in corners)
    out.append(f'<polyline class="roof" points="{path}"/>')
    out.append(label(left + 8, top + 14, f"memory: {bandwidth:.1f} GB/s", "start", "note"))
    ordered = sorted(roofs, key=lambda roof: -roof.height)
    for at, roof in zip(apart([y(roof.height) for roof in ordered], 16), ordered, strict=True):
        out.append(
            segment("roof", x(max(roof.height / bandwidth, low_x)), y(roof.height), WIDTH - right, y(roof.height))
        )
        out.append(label(WIDTH - right + 8, at + 4, roof.name, "start", "note"))
    return page(bottom + 62, title, [*out, *_marks(marks, x, y, WIDTH - right)])


def _marks(marks: Sequence[Mark], x: Callable[[float], float], y: Callable[[float], float], max_x: float) -> list[str]:
    """Draw points, then labels above them. Points of a series that are close together share a label."""
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
        to_the_left = start + width > max_x
        if to_the_left:
            start = min(x(mark.x) for mark in group) - 10 - width
        at = sum(y(mark.y) for mark in group) / len(group) + 4
        while any(abs(at - y2) < 14 and start < end2 and start2 < start + width for start2, end2, y2 in placed):
            at += 3
        placed.append((start, start + width, at))
        anchor, px = ("end", start + width) if to_the_left else ("start", start)
        out.append(label(px, at, text, anchor, f"label f{series}"))
    return out


def _logarithmic(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    scale = linear_scale(math.log10(low), math.log10(high), start, end)
    return lambda value: scale(math.log10(value))


def _decades(low: float, high: float, steps: Sequence[int]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for p in powers for step in steps if low <= (value := step * 10.0**p) <= high]
