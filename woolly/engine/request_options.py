"""RequestOptions: options besides the prompt and its sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.loading.hooks import Hook
    from woolly.engine.request import Request
    from woolly.sampling.reasoning_budget import ReasoningMarkers


@dataclass(frozen=True)
class RequestOptions:
    """Options of one request, not checked yet."""

    index: int = 0  # index among `params.n` answers
    beside: Request | None = None  # another of these answers, which shares its grammar's time limit
    priority: int = 0  # higher goes first
    timeout: float | None = None  # seconds after which the request ends with its output so far
    hooks: Mapping[str | int, Hook] | None = None  # by step (step_names.py)
    score_only: bool = False  # generates nothing
    shown: frozenset[int] = frozenset()  # control tokens that become text
    reasoning_markers: ReasoningMarkers | None = None  # markers of reasoning at the start of the answer
    reasoning_ends: Sequence[int] = ()  # tokens of the answer after which reasoning is ended: it was, in one cut off
    salt: bytes = b""  # cached pages are shared only between equal salts
    group: int | None = None  # a `Request.group` to join; None: the group of `beside`, or a new one
    n_shared: int = 0  # leading tokens that other requests are likely to share: a system prompt with its tools
    replay_tokens: Sequence[int] = ()  # first tokens of the answer, replayed from an interrupted one
