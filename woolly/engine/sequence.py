"""The Sequence: one request on its way through the engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

from woolly.engine.params import SamplingParams
from woolly.engine.sampler import Sampler
from woolly.engine.stop import StopMatcher
from woolly.text import StreamDetokenizer

__all__ = ["FinishReason", "Sequence"]

FinishReason = Literal["stop", "length", "cancelled", "error"]

_ids = itertools.count()


@dataclass(eq=False)
class Sequence:
    """Tokens, pages and the text so far."""

    prompt: Seq[int]
    params: SamplingParams
    sampler: Sampler
    detokenizer: StreamDetokenizer
    stop: StopMatcher
    max_tokens: int  # bounded by the context
    id: int = field(default_factory=lambda: next(_ids))
    output: list[int] = field(default_factory=list)
    text: str = ""
    pages: list[int] = field(default_factory=list)
    n_computed: int = 0  # tokens whose K and V are in the cache
    finish_reason: FinishReason | None = None
    unread: str = ""  # text that no reader has taken yet

    def show(self, text: str) -> None:
        """Adds text to the answer."""
        self.text += text
        self.unread += text

    def take_unread(self) -> str:
        """Text since the last call."""
        text, self.unread = self.unread, ""
        return text

    @property
    def n_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt) + len(self.output)

    def pending(self, n: int) -> list[int]:
        """At most n tokens that come next into the cache."""
        first = self.n_computed
        if first >= len(self.prompt):
            return self.output[first - len(self.prompt) :][:n]
        return list(self.prompt[first : first + n])
