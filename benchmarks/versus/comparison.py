"""Comparison of two engines measured in turn: medians, their ratio, and the spread of the rounds."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from woolly.machine.cpu import cpu_name

Better = Literal["more", "less"]


@dataclass(frozen=True)
class Comparison:
    """One figure of both engines, a value per round."""

    name: str
    unit: str
    better: Better  # which direction is good
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Ratio of the medians; above 1 where ours is better, in either direction."""
        return self._ratio(statistics.median(self.ours), statistics.median(self.theirs))

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ratios of each round, whose two values were measured one right after the other."""
        return tuple(self._ratio(a, b) for a, b in zip(self.ours, self.theirs, strict=True))

    def _ratio(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.better == "more" else theirs / ours

    def as_json(self) -> dict[str, Any]:
        """All values, and what follows from them."""
        return {
            "unit": self.unit,
            "better": self.better,
            "ours": statistics.median(self.ours),
            "theirs": statistics.median(self.theirs),
            "ratio": self.ratio,
            "spread_ours": spread(self.ours),
            "spread_theirs": spread(self.theirs),
            "rounds": [{"ours": a, "theirs": b} for a, b in zip(self.ours, self.theirs, strict=True)],
        }


def spread(values: Sequence[float]) -> float:
    """The whole range as a part of the median: 0.1 where values lie within a tenth of it."""
    return (max(values) - min(values)) / statistics.median(values)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """Markdown; a ratio above 1 is in favour of Woolly."""
    rows = [("", "unit", "Woolly", "llama.cpp", "ratio", "ratios of the rounds", "spread, ours / theirs")]
    for c in comparisons:
        rows.append(
            (
                c.name,
                c.unit,
                short(statistics.median(c.ours)),
                short(statistics.median(c.theirs)),
                f"**{c.ratio:.2f}**",
                f"{min(c.ratios):.2f} - {max(c.ratios):.2f}",
                f"{spread(c.ours):.0%} / {spread(c.theirs):.0%}",
            )
        )
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head: text to the left, figures to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = [("-" * widths[0]), *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [
        [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]  # noqa: B905
        for row in rows
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [aligned[0], rule, *aligned[1:]])


def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, the system, and how busy it is."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = [round(x, 2) for x in os.getloadavg()]
    return {
        "cpu": cpu_name(),
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": load,
    }


def short(value: float) -> str:
    """Three or four figures."""
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 10 else 3
    return f"{value:.{digits}f}"
