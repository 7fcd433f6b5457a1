"""Prompts as they are given: one or several, with parameters for all or for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woolly.engine.params import SamplingParams
from woolly.errors import RequestError

__all__ = ["is_list_of_prompts", "params_of_each"]


def is_list_of_prompts(prompt: object) -> bool:
    """Whether these are several prompts: a list that begins with a text or with a list of ids, or an empty list."""
    if isinstance(prompt, (str, bytes, bytearray)) or not isinstance(prompt, Sequence):
        return False
    return isinstance(prompt[0], Sequence) if prompt else isinstance(prompt, list)


def params_of_each(params: Any, n: int) -> list[SamplingParams]:
    """The parameters of each of n prompts, of one for all or one for each."""
    given = list(params) if isinstance(params, (list, tuple)) else [SamplingParams() if params is None else params] * n
    if len(given) != n:
        raise RequestError(f"{len(given)} params were given for {n} prompts; one for all, or one for each")
    for one in given:
        if not isinstance(one, SamplingParams):
            raise RequestError(f"params is of type {type(one).__name__}; SamplingParams(...) was expected")
    return given
