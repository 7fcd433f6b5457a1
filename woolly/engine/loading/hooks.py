"""Hooks: functions of a request that read the values of a step of the plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from woolly.errors import CallbackError
from woolly.sampling.callbacks import pass_interrupt

# Takes positions [n] of some tokens and a copy of the step's values [n, width] for them.
Hook = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], None]


def call_hook(hook: Hook, step: int, positions: npt.NDArray[np.int32], value: npt.NDArray[np.float32]) -> None:
    """Call a hook; its exceptions become CallbackError."""
    try:
        hook(positions, value)
    except BaseException as error:
        pass_interrupt(error)
        raise CallbackError(f"the hook at step {step} failed: {error!r}") from error
