"""Calls to the functions of a request. Their exceptions become CallbackError."""

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
            f"{_name(processor)} of logits_processors gave {_describe(result)}; None, or one float per token"
            f" (shape {row.shape}), was expected"
        )
    return np.array(result, np.float32)


def call_sampler(sampler: Callable[[Sequence[int], Float32], int], history: History, row: Float32) -> int:
    """Return the token of a custom sampler; CallbackError for a banned token."""
    possible = row > -np.inf
    token = _call("custom_sampler", sampler, history, row)
    if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < len(possible):
        raise CallbackError(
            f"custom_sampler {_name(sampler)} gave {_describe(token)}; a token id from 0 to {len(possible) - 1}"
            " was expected"
        )
    if not possible[token]:
        raise CallbackError(
            f"custom_sampler {_name(sampler)} chose token {token}, which is ruled out (its logit is -inf)"
        )
    return int(token)


def _call(what: str, function: Callable[[Sequence[int], Float32], Any], history: History, row: Float32) -> Any:
    try:
        return function(history.last(-1).tolist(), row)
    except BaseException as error:
        pass_interrupt(error)
        raise CallbackError(f"{_name(function)} of {what} raised {type(error).__name__}: {error}") from error


def pass_interrupt(error: BaseException) -> None:
    """Re-raises Ctrl-C, which interrupts the main thread in whatever it runs; other exits are the callback's own."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _describe(value: Any) -> str:
    return (
        f"an array of shape {value.shape} and type {value.dtype}" if isinstance(value, np.ndarray) else f"{value!r:.80}"
    )
