"""SchedulerOutput: the work of a step, with a span of rows per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.sampling.sampler import Sampler


class Span:
    """Rows of a request: context tokens, then draft tokens.

    Tokens to recompute for the recurrent state after rejected drafts come first.
    """

    __slots__ = ("drafts", "first", "is_complete", "n_again", "n_outputs", "n_tokens", "request")

    def __init__(self, request: Request, n_tokens: int, drafts: Sequence[int] = ()) -> None:
        self.request = request
        self.n_tokens = n_tokens  # context tokens from n_computed on
        self.drafts: Sequence[int] = ()
        self.n_again = request.n_replay
        self.first = request.n_computed - self.n_again  # position of the first row
        # True if the step computes everything needed to sample the next token.
        self.is_complete = n_tokens == len(request.context) - request.n_computed
        # trailing rows whose logits are needed
        self.n_outputs = n_tokens if request.n_unscored else 1 if self.is_complete else 0
        if drafts:
            self.add(drafts)

    def add(self, drafts: Sequence[int]) -> None:
        """Add drafts to a span without drafts."""
        self.drafts = drafts
        self.n_outputs += len(drafts) if self.n_outputs else 0

    @property
    def n_rows(self) -> int:
        """Number of rows in the batch."""
        return self.n_again + self.n_tokens + len(self.drafts)


class SchedulerOutput:
    """Work of a step. It is scheduled, extended with drafts, run, and settled by the output processor."""

    __slots__ = ("seconds", "spans")

    def __init__(self, spans: list[Span]) -> None:
        self.spans = spans  # in row order; a runner removes spans that it did not compute
        self.seconds = 0.0  # run time

    @property
    def requests(self) -> list[Request]:
        """Requests of the spans."""
        return [span.request for span in self.spans]

    @property
    def n_rows(self) -> int:
        """Number of rows in the batch."""
        return sum(span.n_rows for span in self.spans)

    def samplers(self) -> list[Sampler | None]:
        """Return the sampler of each output row that is always sampled, and None for other rows."""
        samplers: list[Sampler | None] = []
        for span in self.spans:
            if span.n_outputs == 1 and span.is_complete:
                samplers.append(span.request.sampler)
            elif span.n_outputs:
                samplers += [None] * span.n_outputs
                if span.is_complete:
                    samplers[-1 - len(span.drafts)] = span.request.sampler
        return samplers
