"""The Engine: a step is schedule, run, settle."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from woolly.engine.pages import PageAllocator
from woolly.engine.params import SamplingParams
from woolly.engine.sampler import Sampler
from woolly.engine.scheduler import Scheduler
from woolly.engine.sequence import FinishReason, Sequence
from woolly.engine.stop import StopMatcher
from woolly.errors import ModelError, RequestError
from woolly.runtime import Batch, Program, pages_for
from woolly.text import StreamDetokenizer, Tokenizer

__all__ = ["Engine"]


class Engine:
    """Runs requests over one program. Not thread-safe: one thread owns it."""

    def __init__(
        self, program: Program, tokenizer: Tokenizer, *, ctx: int, chunk: int | None = None, max_running: int = 16
    ) -> None:
        self.program = program
        self.tokenizer = tokenizer
        self.ctx = ctx
        n_pages = pages_for(ctx)
        self.state = program.new_state(n_pages)
        self.scheduler = Scheduler(PageAllocator(n_pages), chunk=chunk or program.max_rows, max_running=max_running)

    def prepare(self, prompt: Seq[int], params: SamplingParams) -> Sequence:
        """A request that is not queued yet; one that cannot fit is refused with both numbers."""
        self.check_tokens(prompt)
        room = self.ctx - len(prompt)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens (a chat template's included), but the context holds {self.ctx}"
                " and at least one must be left for the answer; shorten it, or raise ctx where the model allows"
            )
        if params.max_tokens is not None and params.max_tokens > room:
            raise RequestError(
                f"the prompt's {len(prompt)} tokens and max_tokens={params.max_tokens} exceed the context of {self.ctx}"
            )
        return Sequence(
            prompt=prompt,
            params=params,
            sampler=Sampler(params),
            detokenizer=StreamDetokenizer(self.tokenizer, strip_prefix=False),
            stop=StopMatcher(params.stop),
            max_tokens=room if params.max_tokens is None else params.max_tokens,
        )

    def add(self, sequence: Sequence) -> Sequence:
        """Queues a prepared request."""
        self.scheduler.waiting.append(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """One step for all; gives the sequences that got a token. Their text waits in each one's `unread`."""
        work = self.scheduler.schedule()
        if not work:
            return []
        # Only a sequence that has nothing more to put into the cache needs logits.
        ends = np.cumsum([len(tokens) for _, tokens in work]) - 1
        ready = [
            (s, int(end))
            for (s, tokens), end in zip(work, ends, strict=True)
            if s.n_computed + len(tokens) == s.n_tokens
        ]
        batch = Batch.of([(tokens, s.n_computed, s.pages) for s, tokens in work], [end for _, end in ready])
        logits = self.program.run(batch, self.state)
        for sequence, tokens in work:
            sequence.n_computed += len(tokens)
        for (sequence, _), row in zip(ready, logits, strict=True):
            self._settle(sequence, row)
        return [sequence for sequence, _ in ready]

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence that has not finished and frees its pages."""
        if sequence.finish_reason is None:
            self._finish(sequence, "cancelled")

    def logits(self, ids: Seq[int]) -> npt.NDArray[np.float32]:
        """Logits after each of the ids, float32 [len(ids), n_vocab]."""
        self.check_tokens(ids)
        if len(ids) > self.ctx:
            raise RequestError(f"{len(ids)} tokens exceed the context of {self.ctx}; raise ctx")
        allocator = self.scheduler.pages
        if pages_for(len(ids)) > allocator.n_free:
            raise RequestError("the cache is in use by running requests; ask for logits when they are done")
        pages = allocator.take(pages_for(len(ids)))
        chunk = self.scheduler.chunk
        out = np.empty((len(ids), self.program.plan.n_vocab), np.float32)
        try:
            for first in range(0, len(ids), chunk):
                tokens = ids[first : first + chunk]
                batch = Batch.of([(tokens, first, pages)], range(len(tokens)))
                out[first : first + chunk] = self.program.run(batch, self.state)
        finally:
            allocator.give_back(pages)
        return out

    def check_tokens(self, ids: Seq[int]) -> None:
        """Refuses an empty prompt and ids outside the vocabulary."""
        n_vocab = self.program.plan.n_vocab
        if len(ids) == 0:
            raise RequestError("the prompt is empty; at least one token is needed")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < n_vocab:
                raise RequestError(f"token {token!r} is not an id of this vocabulary (0 to {n_vocab - 1})")

    def _settle(self, sequence: Sequence, logits: npt.NDArray[np.float32]) -> None:
        """Chooses a token, turns it into text, and sees whether the sequence is done."""
        try:
            token = sequence.sampler.choose(logits)
        except ModelError:
            self._finish(sequence, "error")
            raise
        sequence.output.append(token)
        if token in self.tokenizer.stop_ids and not sequence.params.ignore_eos:
            self._finish(sequence, "stop")
            return
        text, stopped = sequence.stop.push(sequence.detokenizer.push(token))
        sequence.show(text)
        if stopped:
            self._finish(sequence, "stop", flush=False)
        elif len(sequence.output) == sequence.max_tokens:
            self._finish(sequence, "length")

    def _finish(self, sequence: Sequence, reason: FinishReason, *, flush: bool = True) -> None:
        if flush:
            text, stopped = sequence.stop.push(sequence.detokenizer.finish())
            sequence.show(text if stopped else text + sequence.stop.finish())
            reason = "stop" if stopped and reason == "length" else reason
        sequence.finish_reason = reason
        self.scheduler.release(sequence)
