"""Plot of file size against KL divergence, with known mixes for comparison."""

from __future__ import annotations

import math

from woolly.measure.bit_allocation.search import Allocation
from woolly.measure.svg import WIDTH, apart, head, label, linear_scale, page, plot_top, segment

_HEIGHT, _LEFT, _RIGHT = 320, 80, 150


def plot_allocation(allocation: Allocation, model: str, overhead: int) -> str:
    """Return an SVG document; `overhead` is the file size without tensors."""
    known = [mix for mix in allocation.known if mix.name != allocation.best.name]
    points = [
        ((one.n_bytes + overhead) / 1e6, max((one.held_out or one.loss).kl, 1e-6), one.name, kind)
        for kind, own in (("f0", [allocation.best]), ("f1", known))
        for one in own
    ]
    has_held = allocation.best.held_out is not None
    title = f"{model}: what a file of a size loses"
    notes = [f"mean KL divergence from the original in nats, {'held-out' if has_held else 'the same'} text, log scale"]
    top = plot_top(notes)
    bottom = top + _HEIGHT
    sizes, losses = [p[0] for p in points], [math.log10(p[1]) for p in points]
    pad = 0.05 * (max(sizes) - min(sizes) or max(sizes))
    x_of = linear_scale(min(sizes) - pad, max(sizes) + pad, _LEFT, WIDTH - _RIGHT)
    y_of = linear_scale(math.floor(4 * min(losses)) / 4, math.ceil(4 * max(losses)) / 4, bottom - 10, top + 10)
    drawn = [*head(title, notes), segment("axis", _LEFT, bottom, WIDTH - _RIGHT, bottom)]
    drawn.append(segment("axis", _LEFT, top, _LEFT, bottom))
    for tick in range(5):
        value = min(sizes) + (max(sizes) - min(sizes)) * tick / 4
        drawn.append(label(x_of(value), bottom + 18, f"{value:.4g} MB", "middle", "note"))
        loss = min(losses) + (max(losses) - min(losses)) * tick / 4
        drawn.append(segment("grid", _LEFT, y_of(loss), WIDTH - _RIGHT, y_of(loss)))
        drawn.append(label(_LEFT - 8, y_of(loss) + 4, f"{10**loss:.3g}", "end", "note"))
    order = sorted(points, key=lambda point: -point[1])
    places = apart([y_of(math.log10(point[1])) for point in order], 14)
    for (x, kl, name, kind), y in zip(order, places, strict=True):
        drawn.append(f'<circle class="{kind} mark" cx="{x_of(x):.1f}" cy="{y_of(math.log10(kl)):.1f}" r="6"/>')
        drawn.append(
            label(x_of(x) + 10, y + 4, f"{name} {kl:.4f}", "start", "label strong" if kind == "f0" else "label")
        )
    return page(bottom + 34, title, drawn)
