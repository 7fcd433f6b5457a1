"""Hooks: callbacks of a request that read the output of a step of the plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from woolly.errors import CallbackError
from woolly.sampling.callbacks import pass_interrupt

# Receives the positions [n] of some tokens, and a copy of the step's output for them [n, width].
Hook = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], None]


def call_hook(hook: Hook, step: int, positions: npt.NDArray[np.int32], value: npt.NDArray[np.float32]) -> None:
    """Call a hook; wrap its exception in CallbackError."""
    try:
        hook(positions, value)
    except BaseException as error:
        pass_interrupt(error)
        raise CallbackError(f"the hook at step {step} failed: {error!r}") from error
