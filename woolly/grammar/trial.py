"""Trials: a grammar that could be costly is first compiled in a child process with limits.

llguidance counts no fuel while it lowers a JSON schema, and Rust aborts the process if an allocation fails. No thread
can stop or survive that, so the child goes first: 30 ms for each grammar that is not in the cache.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.machine.apple import footprint

if TYPE_CHECKING:
    import subprocess

__all__ = ["is_plain", "try_grammar"]

MEMORY = 1 << 30  # of the child's address space, its stack included; costly but sound schemas take 150 MB
SECONDS = 8  # of processor time; the largest schema within the bounds takes 4.7 on a slow core
PATIENCE = 60.0  # seconds on the clock of a loaded machine
_LOOK = 0.02  # seconds between two looks at a child's memory: enough for 100 MB more at the speed of memory
PLAIN_SIZE = 64 << 10

# What makes automata whose size is not bounded by the length of the schema.
_COSTLY = ("pattern", "patternProperties", "multipleOf", "allOf")

_slots = threading.BoundedSemaphore(2)  # so that many hostile requests do not start as many children


def is_plain(kind: str, grammar: str) -> bool:
    """Whether the cost of a grammar is bounded by its length, so that it needs no trial."""
    if kind in ("json_object", "choice"):
        return True
    return kind == "json_schema" and len(grammar) < PLAIN_SIZE and not any(f'"{name}"' in grammar for name in _COSTLY)


def try_grammar(grammar: str, limits: Mapping[str, int], stack: int) -> None:
    """RequestError if a child process cannot compile the grammar within MEMORY and SECONDS."""
    if not sys.executable or getattr(sys, "frozen", False):
        return  # there is no interpreter to start; the bounds on sources remain
    import llguidance._lib as library

    order = {
        "grammar": grammar,
        "limits": dict(limits),
        "library": library.__file__,
        "memory": MEMORY,
        "seconds": SECONDS,
        "stack": stack,
    }
    import subprocess  # few answers have a grammar

    with _slots:
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("trial_child.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise RequestError(f"the grammar cannot be tried, because no process can start: {error.strerror}") from None
        with child:
            try:
                _wait(child, json.dumps(order).encode())
            except BaseException:
                child.kill()
                raise
    if child.returncode != 0:
        raise _too_costly()


def _wait(child: subprocess.Popen[bytes], order: bytes) -> None:
    """Hands the order to a child and waits for its end. RequestError if it takes too long or too much memory."""
    from subprocess import TimeoutExpired

    # Linux and Windows limit the child's memory by themselves. macOS cannot: each process maps hundreds of gigabytes.
    watched = sys.platform == "darwin"
    end = time.monotonic() + PATIENCE
    while True:
        try:
            child.communicate(order, timeout=_LOOK if watched else PATIENCE)
            return
        except TimeoutExpired:
            if time.monotonic() >= end or (watched and footprint(child.pid) > MEMORY):
                raise _too_costly() from None
            order = b""  # the child has the order, or gets the rest of it


def _too_costly() -> RequestError:
    return RequestError(
        f"the grammar is too costly to compile: {SECONDS} s and {MEMORY >> 30} GB are the limits; make its patterns,"
        " formats, lengths and multipleOf fewer or simpler"
    )
