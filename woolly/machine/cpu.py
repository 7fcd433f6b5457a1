"""Name of the processor."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def cpu_name() -> str:
    """Return the processor's model name, or its instruction set if the system does not report the name."""
    for command in (["lscpu"], ["sysctl", "machdep.cpu.brand_string"]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10, env={**os.environ, "LC_ALL": "C"}
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if name := _model_name(done.stdout):
            return name
    listing = Path("/proc/cpuinfo")
    return _model_name(listing.read_text() if listing.exists() else "") or platform.processor() or platform.machine()


def _model_name(listing: str) -> str:
    for line in listing.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "machdep.cpu.brand_string") and value.strip() not in ("", "-"):
            return value.strip()
    return ""
