"""The Sequence: one request on its way through the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from woolly.engine.logprobs import TokenLogprob
from woolly.engine.params import SamplingParams
from woolly.engine.prefix import PrefixReport, page_digest
from woolly.engine.sampler import Sampler
from woolly.engine.stop import StopMatcher
from woolly.runtime import PAGE_SIZE
from woolly.text import StreamDetokenizer

__all__ = ["FinishReason", "Hook", "Sequence"]

FinishReason = Literal["stop", "length", "cancelled", "error"]

# Reads what a step of the plan made of some tokens: their positions [n], and the values [n, width], which are its own.
Hook = Callable[[npt.NDArray[np.int32], npt.NDArray[np.float32]], None]

_ids = itertools.count()


@dataclass(eq=False)
class Sequence:
    """Tokens, pages and the text so far."""

    prompt: tuple[int, ...]
    params: SamplingParams
    sampler: Sampler
    detokenizer: StreamDetokenizer
    stop: StopMatcher
    stop_ids: frozenset[int]  # tokens that end it
    max_tokens: int | None  # of the answer; None: no limit, where the context is shifted
    index: int = 0  # which of the n answers to its prompt
    priority: int = 0  # higher goes first
    deadline: float | None = None  # on the clock of time.monotonic
    hooks: Mapping[int, tuple[Hook, ...]] = field(default_factory=dict)  # by step of the plan that the program runs
    id: int = field(default_factory=lambda: next(_ids))

    # What the model sees, and how much of it is in the cache.
    context: list[int] = field(init=False)  # prompt and output, but for what a context shift dropped
    n_computed: int = 0  # tokens of the context whose K and V are in the cache
    pages: list[int] = field(default_factory=list)
    n_published: int = 0  # pages that the index was told of
    digests: list[bytes] = field(default_factory=list)  # of the context's full pages, as far as they were needed
    n_hooked: int = 0  # tokens that the hooks have read

    # What came of it.
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the output, where asked for
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of the prompt from its second token on
    text: str = ""
    finish_reason: FinishReason | None = None
    is_unwanted: bool = False  # is about to be cancelled: a run for such sequences alone need not end
    stop_reason: str | int | None = None  # the stop string or token that ended it; "timeout" of a missed deadline
    error: Exception | None = None
    prefix: PrefixReport | None = None  # what it found in the cache when it was first admitted
    n_preemptions: int = 0
    n_shifts: int = 0
    n_drafted: int = 0  # tokens that were proposed for it,
    n_accepted: int = 0  # and those that came true

    # What no reader has taken yet.
    unread: str = ""
    n_read: int = 0  # tokens of the output whose log-probabilities were taken

    def __post_init__(self) -> None:
        self.context = list(self.prompt)
        self._row = np.empty(0, np.int32)

    @property
    def n_missing(self) -> int:
        """Tokens that are to be computed before the next one can be chosen; 1 while it is answering."""
        return len(self.context) - self.n_computed

    @property
    def n_unscored(self) -> int:
        """Tokens of the prompt whose log-probability is wanted and not known yet."""
        wanted = self.params.prompt_logprobs is not None
        return len(self.prompt) - 1 - len(self.prompt_logprobs) if wanted else 0

    @property
    def n_reusable(self) -> int:
        """Most tokens that may come from the cache unread: all but the last, or none where each row is wanted."""
        most = len(self.context) - 1
        if self.n_unscored:
            most = len(self.prompt_logprobs)
        return min(most, self.n_hooked) if self.hooks else most

    @property
    def page_row(self) -> npt.NDArray[np.int32]:
        """The pages as the batch wants them."""
        if len(self._row) != len(self.pages):
            self._row = np.array(self.pages, np.int32)
        return self._row

    def digests_to(self, n_pages: int) -> list[bytes]:
        """Digests of the first pages of the context, which must be full."""
        for page in range(len(self.digests), n_pages):
            tokens = self.context[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
            self.digests.append(page_digest(self.digests[-1] if self.digests else b"", tokens))
        return self.digests[:n_pages]

    def drop_pages(self) -> list[int]:
        """Gives its pages up; all of the context is to be computed again."""
        pages, self.pages = self.pages, []
        self._row = np.empty(0, np.int32)
        self.n_computed = self.n_published = 0
        return pages

    def shift(self, n_keep: int) -> None:
        """Drops the older half of what follows the first n_keep tokens. Its pages must have been given up before."""
        n_dropped = (len(self.context) - n_keep) // 2
        del self.context[n_keep : n_keep + n_dropped]
        del self.digests[n_keep // PAGE_SIZE :]
        self.n_shifts += 1

    def show(self, text: str) -> None:
        """Adds text to the answer."""
        self.text += text
        self.unread += text

    def take_unread(self) -> str:
        """Text since the last call."""
        text, self.unread = self.unread, ""
        return text

    def take_logprobs(self) -> Seq[TokenLogprob]:
        """Log-probabilities since the last call."""
        taken = self.logprobs[self.n_read :]
        self.n_read = len(self.logprobs)
        return taken
