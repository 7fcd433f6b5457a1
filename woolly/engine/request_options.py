"""The RequestOptions: what a caller asks for beside a prompt and its sampling."""

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

    index: int = 0  # which of `params.n` answers this is
    beside: Request | None = None  # another of these answers, whose grammar's time it shares
    priority: int = 0  # higher goes first
    timeout: float | None = None  # seconds after which the request ends with what it has
    hooks: Mapping[str | int, Hook] | None = None  # by the step that they read (step_names.py)
    score_only: bool = False  # generates nothing
    shown: frozenset[int] = frozenset()  # control tokens that become text
    reasoning_markers: ReasoningMarkers | None = None  # of the reasoning that the answer may begin with
    reasoning_ends: Sequence[int] = ()  # tokens of the answer after which reasoning is ended: it was, in one cut off
    salt: bytes = b""  # cached pages are shared by requests of an equal one
    group: int | None = None  # a `Request.group` whose turn it shares; None: that of `beside`, or one of its own
    n_shared: int = 0  # first tokens that other requests are likely to begin with: a system prompt with its tools
    replay_tokens: Sequence[int] = ()  # first tokens of the answer, replayed from an interrupted one
