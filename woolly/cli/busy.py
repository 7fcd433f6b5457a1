"""How much of the processor other programs take while something is measured."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

__all__ = ["NOTABLE", "Others"]

# Less than this is what a quiet machine does by itself.
NOTABLE = 0.1


class Others:
    """Other programs' share of the cores' time within a `with` block; None where the system does not tell it."""

    share: float | None = None

    def __enter__(self) -> Others:
        self._start = _busy_seconds(), time.process_time(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, own, start = self._start
        after = _busy_seconds()
        elapsed = time.perf_counter() - start
        if busy is None or after is None or elapsed <= 0:
            return
        others = (after - busy) - (time.process_time() - own)
        # Counted in hundredths of a second: of a moment it is only roughly known.
        self.share = round(min(1.0, max(0.0, others / (elapsed * (os.cpu_count() or 1)))), 2)


def _busy_seconds() -> float | None:
    """Of all cores together since the machine started, as Linux counts it."""
    if sys.platform == "win32":
        return None
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        idle = fields[3] + fields[4]
        return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
