"""SVG primitives for plots: no scripts, readable in light and dark mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape

WIDTH = 860
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


def page(height: float, title: str, elements: Iterable[str]) -> str:
    """Return the complete document, with the styles of both color schemes."""
    body = "\n".join(elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}"'
        f' height="{height:g}" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n'
        f'<style>\n{_STYLE}\n</style>\n<rect class="page" width="100%" height="100%" rx="6"/>\n{body}\n</svg>\n'
    )


def head(title: str, notes: Sequence[str]) -> list[str]:
    """Return the title and a line for each note."""
    return [
        label(20, 32, title, "start", "title"),
        *(label(20, 54 + 17 * i, note, "start", "note") for i, note in enumerate(notes)),
    ]


def plot_top(notes: Sequence[str]) -> int:
    """Return the y coordinate of the plot's top edge, below the notes."""
    return 56 + 17 * len(notes)


def label(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    """Return text at a point. `anchor` is start, middle or end."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def segment(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line of one style."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def linear_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the linear map from low..high to start..end."""
    span = high - low if high > low else 1.0
    return lambda value: start + (value - low) / span * (end - start)


def apart(positions: Sequence[float], gap: float) -> list[float]:
    """Return ascending positions, moved down to keep a minimum distance."""
    out: list[float] = []
    for position in positions:
        out.append(position if not out else max(position, out[-1] + gap))
    return out
