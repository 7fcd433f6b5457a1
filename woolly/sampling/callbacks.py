"""Calls of user callbacks, with exceptions wrapped in CallbackError."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.errors import CallbackError

if TYPE_CHECKING:
    from woolly.sampling.history import History

Float32 = npt.NDArray[np.float32]


def call_processor(
    processor: Callable[[Sequence[int], Float32], Float32 | None], history: History, row: Float32
) -> Float32:
    """Return the row of a logits processor: its return value, or the row edited in place."""
    result = _call("logits_processors", processor, history, row)
    if result is None:
        return row
    if not isinstance(result, np.ndarray) or result.shape != row.shape or result.dtype.kind != "f":
        raise CallbackError(
            f"{_name(processor)} of logits_processors returned {_describe(result)}; expected None or one float per"
            f" token (shape {row.shape})"
        )
    return np.array(result, np.float32)


def call_sampler(sampler: Callable[[Sequence[int], Float32], int], history: History, row: Float32) -> int:
    """Return the token of a custom sampler; raise CallbackError for a banned token."""
    possible = row > -np.inf
    token = _call("custom_sampler", sampler, history, row)
    if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < len(possible):
        raise CallbackError(
            f"custom_sampler {_name(sampler)} returned {_describe(token)}; expected a token id from 0 to"
            f" {len(possible) - 1}"
        )
    if not possible[token]:
        raise CallbackError(
            f"custom_sampler {_name(sampler)} returned token {token}, which is banned (its logit is -inf)"
        )
    return int(token)


def _call(what: str, function: Callable[[Sequence[int], Float32], Any], history: History, row: Float32) -> Any:
    try:
        return function(history.last(-1).tolist(), row)
    except BaseException as error:
        pass_interrupt(error)
        raise CallbackError(f"{_name(function)} of {what} raised {type(error).__name__}: {error}") from error


def pass_interrupt(error: BaseException) -> None:
    """Re-raise Ctrl-C, which may interrupt the main thread anywhere. Other exits come from the callback."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _describe(value: Any) -> str:
    return (
        f"an array of shape {value.shape} and type {value.dtype}" if isinstance(value, np.ndarray) else f"{value!r:.80}"
    )
