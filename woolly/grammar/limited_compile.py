"""Trials: grammars that may be costly are first compiled in a child process with limits.

llguidance does not limit the work of building some automata, and Rust aborts the process if an allocation fails. A
thread cannot stop or survive this, so a child process compiles the grammar first. This takes 30 ms for each grammar
that is not cached. Most grammars of JSON schemas need no trial, because their parts are limited beforehand.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from woolly.errors import RequestError
from woolly.machine.limited_process import LIMITS, can_start, run_limited

MEMORY = 1 << 30  # address space of the child, with its stack; costly but valid schemas take 150 MB
SECONDS = 8  # CPU time; the largest schema within the limits takes 4.7 on a slow core
PATIENCE = 60.0  # wall-clock seconds on a loaded machine
PLAIN_SIZE = 256 << 10
_MAX_OUTPUT_BYTES = 64 << 10  # maximum output of the child

_MAX_JOINED = 3  # "&" of one terminal, whose automata multiply

_slots = threading.BoundedSemaphore(2)  # limits the child processes of concurrent hostile requests


def is_plain(kind: str, grammar: str) -> bool:
    """Return True if the length of a grammar limits its cost, so that it needs no trial."""
    if kind in ("json_object", "choice"):
        return True
    if kind != "json_schema" or len(grammar) >= PLAIN_SIZE or "%json" in grammar:
        return False  # automata of multipleOf
    return all(line.count(" & ") <= _MAX_JOINED for line in grammar.split("\\n"))


def try_grammar(grammar: str, limits: Mapping[str, int], stack: int) -> None:
    """Raise RequestError if a child process cannot compile the grammar within MEMORY and SECONDS."""
    if not can_start():
        return  # no Python interpreter to start; the limits on sources remain
    import llguidance._lib as library

    order = {
        "grammar": grammar,
        "limits": dict(limits),
        "library": library.__file__,
        "limiter": str(LIMITS),
        "memory": MEMORY,
        "seconds": SECONDS,
        "stack": stack,
    }
    with _slots:
        try:
            written = run_limited(
                Path(__file__).with_name("limited_compile_child.py"),
                json.dumps(order).encode(),
                memory=MEMORY,
                patience=PATIENCE,
                max_output_bytes=_MAX_OUTPUT_BYTES,
            )
        except OSError as error:
            raise RequestError(f"cannot check the grammar, because no process can start: {error.strerror}") from None
    if written is None:
        raise _too_costly()


def _too_costly() -> RequestError:
    return RequestError(
        f"the grammar is too costly to compile: {SECONDS} s and {MEMORY >> 30} GB are the limits; make its patterns,"
        " formats, lengths and multipleOf fewer or simpler"
    )
