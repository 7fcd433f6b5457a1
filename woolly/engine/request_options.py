"""RequestOptions: request options other than the prompt and the sampling parameters."""

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
    """Options of a request, not validated yet."""

    index: int = 0  # index among `params.n` answers
    beside: Request | None = None  # another answer to the prompt, which shares the grammar time limit
    priority: int = 0  # higher goes first
    timeout: float | None = None  # seconds after which the request ends with the output so far
    hooks: Mapping[str | int, Hook] | None = None  # keyed by step name (see step_names.py)
    score_only: bool = False  # compute log-probabilities only; generate nothing
    shown: frozenset[int] = frozenset()  # control tokens to include in the text
    reasoning_markers: ReasoningMarkers | None = None  # markers of reasoning at the start of the answer
    reasoning_ends: Sequence[int] = ()  # tokens that end reasoning at its budget
    salt: bytes = b""  # requests share cached pages only if their salts are equal
    group: int | None = None  # `Request.group` to join; None: the group of `beside`, or a new one
    n_shared: int = 0  # leading tokens that other requests are likely to share, such as a system prompt with tools
    replay_tokens: Sequence[int] = ()  # leading answer tokens, replayed from an interrupted answer
