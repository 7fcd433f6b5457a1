"""State of a user's first answers: `start.json` in Woolly's home."""

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

_PAUSE = 3600  # seconds after which a hub that was not reached is asked again


@dataclass(frozen=True)
class FirstRunState:
    """Record of earlier starts."""

    has_answered: bool = False  # whether a person at a terminal has had an answer
    model: str | None = None  # what answers if no model is named; None: nothing was chosen yet
    unreached: int = 0  # when the hub last could not be reached, in seconds since 1970

    @property
    def is_settled(self) -> bool:
        """Returns whether a model was chosen and is here, so that nothing needs to be asked."""
        return self.model == DEFAULT_MODEL or (self.model is not None and is_here(self.model))

    @property
    def may_ask_the_hub(self) -> bool:
        """Returns whether the hub was reached the last time, or long enough has passed since."""
        return not 0 <= time.time() - self.unreached < _PAUSE


def read_state() -> FirstRunState:
    """Returns what is remembered; nothing if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, StoreError):
        found = json.loads(_file().read_bytes())
        start = FirstRunState(bool(found["has_answered"]), found["model"], int(found["unreached"]))
        if start.model is None or isinstance(start.model, str):
            return start
    return FirstRunState()


def save_state(**facts: Any) -> None:
    """Writes down facts of `FirstRunState`. A home that cannot be written loses them, and nothing else."""
    start = replace(read_state(), **facts)
    with contextlib.suppress(OSError, StoreError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as out:
            out.write(json.dumps(asdict(start)).encode())


def default_model() -> str:
    """Returns the name of the model that answers if none is named: the chosen one if it is here, else smollm2."""
    start = read_state()
    return start.model if start.model is not None and start.is_settled else DEFAULT_MODEL


def is_here(name: str) -> bool:
    """Returns whether the file of a model is on this machine."""
    try:
        resolve(name)
    except StoreError:
        return False
    return True


def _file() -> Path:
    return models_folder().parent / "start.json"
