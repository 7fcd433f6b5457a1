"""Load of other programs and of the disk during a measurement."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

# Background load of an idle machine.
NOTABLE = 0.1


class OtherLoad:
    """Share of CPU time used by other programs during a `with` block; None if the system does not report it."""

    share: float | None = None

    def __enter__(self) -> OtherLoad:
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
        # Linux counts in hundredths of a second, so the share of a short block is imprecise.
        self.share = round(min(1.0, max(0.0, others / (elapsed * (os.cpu_count() or 1)))), 2)


def cpu_wait_seconds() -> float:
    """Return the seconds that runnable threads of this process waited for a core; 0 if not reported."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat") if sys.platform == "linux" else ():
        try:
            total += int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return total / 1e9


def disk_bytes() -> int:
    """Return the bytes that this process has read from disk; 0 if the system does not report it."""
    try:
        listing = Path("/proc/self/io").read_text()
        return int(next(line for line in listing.splitlines() if line.startswith("read_bytes:")).split()[1])
    except (OSError, StopIteration, ValueError):
        return 0


def _busy_seconds() -> float | None:
    """Return the busy seconds of all cores since the machine started, as reported by Linux."""
    if sys.platform == "win32":
        return None
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        idle = fields[3] + fields[4]
        return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
