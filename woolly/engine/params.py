"""SamplingParams: how a request wants its tokens chosen, and when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from woolly.errors import RequestError

__all__ = ["SamplingParams"]


@dataclass(frozen=True)
class SamplingParams:
    """Names and defaults are llama.cpp's. A value out of range is refused by name.

    The chain: top_k, top_p and min_p narrow the candidates, temperature flattens or sharpens
    what remains, and one is drawn. A temperature of 0 takes the likeliest token, whatever else is set.
    """

    max_tokens: int | None = None  # None: until the model ends its answer or the context is full
    temperature: float = 0.8
    top_k: int = 40  # 0: all
    top_p: float = 0.95  # 1: all
    min_p: float = 0.05  # 0: all
    seed: int | None = None  # None: another one each time
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif not isinstance(self.stop, tuple):
            try:
                object.__setattr__(self, "stop", tuple(self.stop))
            except TypeError:
                raise RequestError(f"stop is {self.stop!r}; a string or a list of strings was expected") from None
        if not all(isinstance(stop, str) and stop for stop in self.stop):
            raise RequestError(f"stop is {list(self.stop)!r}; each must be a string that is not empty")
        if self.max_tokens is not None:
            self._whole("max_tokens", self.max_tokens, 1, None)
        self._number("temperature", self.temperature, 0.0, None)
        self._whole("top_k", self.top_k, 0, None)
        self._number("top_p", self.top_p, 0.0, 1.0)
        self._number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            self._whole("seed", self.seed, 0, 2**32 - 1)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos is {self.ignore_eos!r}; True or False was expected")

    @staticmethod
    def _whole(name: str, value: Any, low: int, high: int | None) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            upper = "" if high is None else f" and at most {high}"
            raise RequestError(f"{name} is {value!r}; a whole number of at least {low}{upper} was expected")

    @staticmethod
    def _number(name: str, value: Any, low: float, high: float | None) -> None:
        sound = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
        if not sound or value < low or (high is not None and value > high):
            upper = "" if high is None else f" and at most {high:g}"
            raise RequestError(f"{name} is {value!r}; a number of at least {low:g}{upper} was expected")
