"""Request: a prompt and its answer in the engine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from woolly.cache.prefix import PrefixReport, page_digest
from woolly.runtime import PAGE_SIZE

if TYPE_CHECKING:
    from woolly.engine.loading.hooks import Hook
    from woolly.engine.multimodal.multimodal_input import MultimodalInput
    from woolly.plan import Plan
    from woolly.sampling.logprobs import TokenLogprob
    from woolly.sampling.params import SamplingParams
    from woolly.sampling.sampler import Sampler
    from woolly.tokens import StreamDetokenizer
    from woolly.tokens.stop_strings import StopMatcher

FinishReason = Literal["stop", "length", "cancelled", "error"]

_ids = itertools.count()


@dataclass(eq=False)
class Request:
    """State of a request: tokens, pages and generated text."""

    prompt: tuple[int, ...]
    params: SamplingParams
    sampler: Sampler
    detokenizer: StreamDetokenizer
    stop: StopMatcher
    stop_ids: frozenset[int]  # tokens that end the answer
    max_tokens: int | None  # maximum answer tokens; None: unlimited, with context shift
    index: int = 0  # index among the n answers to a prompt
    priority: int = 0  # higher goes first
    deadline: float | None = None  # on the clock of time.monotonic
    queued: float = 0.0  # time of queueing, on the same clock
    begun: float = 0.0  # time of the first admission
    is_early: bool = False  # prefetches a prompt; its pages are evicted first
    salt: bytes = b""  # requests share cached pages only if their salts are equal
    adapters: tuple[float, ...] = ()  # scale of each adapter of the model
    adapter_digests: tuple[bytes, ...] = ()  # digests of these adapters
    hooks: Mapping[int, tuple[Hook, ...]] = field(default_factory=dict)  # keyed by step of the running plan
    hooked: Plan | None = None  # plan that the keys of `hooks` refer to
    id: int = field(default_factory=lambda: next(_ids))
    replay_tokens: tuple[int, ...] = ()  # leading answer tokens, replayed from an interrupted answer
    n_shared: int = 0  # leading tokens that other requests are likely to share
    turn_of: int | None = None  # id of the request that leads the group; None: a group of one
    multimodal: MultimodalInput | None = None  # images or audio of a prompt with placeholder tokens

    # Input of the model and its cached part.
    context: list[int] = field(init=False)  # prompt and output, without tokens dropped by context shifts
    n_computed: int = 0  # context tokens whose K and V are in the cache
    n_replay: int = 0  # computed tokens to recompute for the recurrent state after rejected drafts
    pages: list[int] = field(default_factory=list)
    n_published: int = 0  # pages in the prefix index
    n_filled: int = 0  # context tokens at the start; later tokens belong to the answer
    marks: set[int] = field(default_factory=set)  # token counts at which other requests may branch off
    digests: list[bytes] = field(default_factory=list)  # digests of the context's full pages, computed on demand
    n_hooked: int = 0  # tokens processed by the hooks

    # Generated output.
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # log-probabilities of the output, if requested
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # from the second token on
    text: str = ""  # text of the detokenized tokens (`write`)
    unwritten: list[int] = field(default_factory=list)  # tokens to detokenize when their text is needed
    finish_reason: FinishReason | None = None
    is_unwanted: bool = False  # cancelled by the client; a run with only such requests may stop
    stop_reason: str | int | None = None  # stop string or token that ended the answer; "timeout" after the deadline
    error: Exception | None = None
    prefix: PrefixReport | None = None  # prefix cache lookup at the first start
    needs_full_logits: bool = False  # the sampler needs full logits, which async scheduling has overwritten
    async_from: int = 0  # output tokens before async scheduling resumes after a mispredicted token
    async_pause: int = 4  # output tokens of the latest pause
    n_preemptions: int = 0
    n_shifts: int = 0
    n_drafted: int = 0  # draft tokens
    n_accepted: int = 0  # accepted draft tokens
    n_draft_pauses: int = 0  # steps for which drafting was paused
    draft_pause: str | None = None  # reason for the latest pause

    reports_progress: bool = False  # emit a chunk after each prefill step

    # Output to include in the next chunk.
    unread: str = ""
    n_read: int = 0  # output tokens whose log-probabilities have been emitted

    def __post_init__(self) -> None:
        self.context = list(self.prompt)
        self._row = np.empty(0, np.int32)

    @property
    def group(self) -> int:
        """Group number: the scheduler admits groups round-robin."""
        return self.id if self.turn_of is None else self.turn_of

    @property
    def given(self) -> tuple[int, ...]:
        """Prompt from the client; for an encoder-decoder model, the encoder's prompt."""
        return self.prompt if self.multimodal is None or not self.multimodal.n_source else self.multimodal.source_ids

    @property
    def is_replaying(self) -> bool:
        """True while replay tokens are left."""
        return len(self.output) < len(self.replay_tokens)

    @property
    def forced_tokens(self) -> Sequence[int]:
        """Next answer tokens that are known in advance: replay tokens, or tokens forced by the sampler."""
        return self.replay_tokens[len(self.output) :] if self.is_replaying else self.sampler.forced

    @property
    def n_missing(self) -> int:
        """Number of tokens to compute before the next one can be sampled; 1 during decoding."""
        return len(self.context) - self.n_computed

    @property
    def n_open(self) -> int:
        """Number of missing tokens that can be computed, up to the first missing embedding."""
        n = len(self.context) - self.n_computed
        return (
            n
            if self.multimodal is None
            else self.multimodal.computable_end(self.n_computed, self.n_computed + n) - self.n_computed
        )

    @property
    def n_unscored(self) -> int:
        """Number of prompt tokens without their requested log-probability."""
        if self.params.prompt_logprobs is None:
            return 0
        return len(self.prompt) - 1 - len(self.prompt_logprobs)

    @property
    def n_reusable(self) -> int:
        """Maximum number of tokens to take from the cache: all but the last, and no rows that must be computed."""
        most = len(self.context) - 1
        if self.n_unscored:
            most = len(self.prompt_logprobs)
        return min(most, self.n_hooked) if self.hooks else most

    @property
    def page_row(self) -> npt.NDArray[np.int32]:
        """Pages as a row of the batch's page table."""
        if len(self._row) != len(self.pages):
            self._row = np.array(self.pages, np.int32)
        return self._row

    def digests_to(self, n_pages: int) -> list[bytes]:
        """Return the digests of the first `n_pages` pages of the context, which must be full."""
        for page in range(len(self.digests), n_pages):
            tokens, rows = self.named(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
            self.digests.append(page_digest(self.digests[-1] if self.digests else self.salt, tokens, rows))
        return self.digests[:n_pages]

    def named(self, first: int, last: int) -> tuple[Sequence[int], bytes]:
        """Return context tokens for the prefix cache, and bytes that identify embedding rows among them."""
        tokens = self.context[first:last]
        return (tokens, b"") if self.multimodal is None else self.multimodal.cache_tokens(tokens, first)

    def drop_pages(self) -> list[int]:
        """Remove and return all pages. The complete context is then recomputed."""
        pages, self.pages = self.pages, []
        self._row = np.empty(0, np.int32)
        self.n_computed = self.n_published = 0
        return pages

    def shift(self, n_keep: int) -> None:
        """Drop the older half of the tokens after the first `n_keep`. The pages must have been released."""
        n_dropped = (len(self.context) - n_keep) // 2
        del self.context[n_keep : n_keep + n_dropped]
        del self.digests[n_keep // PAGE_SIZE :]
        self.n_shifts += 1

    def write(self) -> bool:
        """Detokenize new tokens; return True at a stop string.

        Requests with stop strings need this call after each token.
        """
        for token in self.unwritten:
            text, stopped = self.stop.push(self.detokenizer.push(token))
            self.show(text)
            if stopped:
                self.unwritten.clear()
                return True
        self.unwritten.clear()
        return False

    def show(self, text: str) -> None:
        """Append text to the answer."""
        self.text += text
        self.unread += text

    def take_unread(self) -> str:
        """Return the text generated since the last call."""
        self.write()
        text, self.unread = self.unread, ""
        return text

    def take_logprobs(self) -> Sequence[TokenLogprob]:
        """Return the log-probabilities added since the last call."""
        taken = self.logprobs[self.n_read :]
        self.n_read = len(self.logprobs)
        return taken
