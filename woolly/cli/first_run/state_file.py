"""First-run state of a user: `start.json` in WOOLLY_HOME."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from woolly.errors import StoreError
from woolly.store import DEFAULT_MODEL, models_folder, resolve
from woolly.store.safe_files import atomic_write

_PAUSE = 3600  # seconds before contacting an unreachable hub again


@dataclass(frozen=True)
class FirstRunState:
    """State of earlier starts."""

    has_answered: bool = False  # an answer was shown at a terminal before
    model: str | None = None  # default model; None: not chosen yet
    unreached: int = 0  # time when the hub was last unreachable, in seconds since 1970

    @property
    def is_settled(self) -> bool:
        """True if a model was chosen and is on this machine, so that no question is needed."""
        return self.model == DEFAULT_MODEL or (self.model is not None and is_here(self.model))

    @property
    def may_ask_the_hub(self) -> bool:
        """True if the hub was reachable the last time, or if enough time has passed since."""
        return not 0 <= time.time() - self.unreached < _PAUSE


def read_state() -> FirstRunState:
    """Return the stored state, empty if the file is missing or invalid."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, StoreError):
        found = json.loads(_file().read_bytes())
        start = FirstRunState(bool(found["has_answered"]), found["model"], int(found["unreached"]))
        if start.model is None or isinstance(start.model, str):
            return start
    return FirstRunState()


def save_state(**facts: Any) -> None:
    """Store values of `FirstRunState`. Errors are ignored if WOOLLY_HOME is not writable."""
    start = replace(read_state(), **facts)
    with contextlib.suppress(OSError, StoreError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as out:
            out.write(json.dumps(asdict(start)).encode())


def default_model() -> str:
    """Return the default model: the chosen one if it is on this machine, else smollm2."""
    start = read_state()
    return start.model if start.model is not None and start.is_settled else DEFAULT_MODEL


def is_here(name: str) -> bool:
    """True if the file of a model is on this machine."""
    try:
        resolve(name)
    except StoreError:
        return False
    return True


def _file() -> Path:
    return models_folder().parent / "start.json"
