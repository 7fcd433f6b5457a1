"""Decoder subprocesses with limited concurrency, a timeout per file and a deadline per conversation."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from woolly.errors import RequestError
from woolly.machine.limited_process import LIMITS, run_limited

_LONG = 1.0  # seconds in the queue; a longer wait means that the server is busy


def run_decoder(
    script: str,
    order: Mapping[str, Any],
    data: bytes,
    slots: threading.Semaphore,
    *,
    name: str,
    patience: float,
    deadline: float = math.inf,
    max_output_bytes: int,
) -> bytes | None:
    """Return the output of a file's decoder process, or None if it failed or exceeded its limits.

    Raise RequestError if the files of the conversation are not decoded by `deadline` (on the clock of time.monotonic),
    or with code "busy" if no slot becomes free in time.
    """
    begun = time.monotonic()
    late = RequestError("the files of the conversation take too long to decode; send fewer files")
    if begun >= deadline:
        raise late
    busy = RequestError(
        f"{name} was not decoded in time because the server is decoding other files; try again", code="busy"
    )
    if not slots.acquire(timeout=min(patience, deadline - begun)):
        raise busy
    waited = time.monotonic() - begun
    try:
        written = run_limited(
            Path(__file__).with_name(script),
            json.dumps({**order, "limiter": str(LIMITS.absolute())}).encode() + b"\n" + data,
            memory=order["memory"],
            patience=min(patience, deadline - time.monotonic()),
            max_output_bytes=max_output_bytes,
        )
    except OSError as error:
        raise RequestError(f"cannot decode {name}: failed to start a process ({error.strerror})") from None
    finally:
        slots.release()
    if written is None and time.monotonic() >= deadline:
        raise busy if waited > _LONG else late
    return written
