"""The Engine: a step is schedule, run, settle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from woolly.engine.callbacks import call_hook
from woolly.engine.draft import Draft, DraftLength
from woolly.engine.logprobs import log_probabilities
from woolly.engine.pages import PagePool
from woolly.engine.params import SamplingParams
from woolly.engine.prefix import PrefixStats
from woolly.engine.request import RequestMaker
from woolly.engine.scheduler import Scheduler
from woolly.engine.sequence import FinishReason, Hook, Sequence
from woolly.engine.steps import find_step, running_plan
from woolly.engine.work import Work, assemble
from woolly.errors import CallbackError, RequestError
from woolly.runtime import Batch, CancelledRun, Program, pages_for
from woolly.text import Tokenizer

__all__ = ["Engine"]

Float32 = npt.NDArray[np.float32]


class Engine:
    """Runs requests over one program. Not thread-safe: one thread at a time may call it."""

    def __init__(
        self,
        program: Program,
        tokenizer: Tokenizer,
        *,
        ctx: int,
        kv_tokens: int | None = None,
        chunk: int | None = None,
        max_running: int = 16,
        draft: Draft | None = None,
        draft_tokens: int = 8,
    ) -> None:
        """`ctx` bounds one request, `kv_tokens` is what the cache holds for all (None: one context).

        `chunk` bounds the rows of a step, `max_running` the sequences that run at once, `draft_tokens` the guesses of
        `draft` that are checked in one step for one sequence.
        """
        self.program = program
        self.tokenizer = tokenizer
        self.ctx = ctx
        if kv_tokens is not None and kv_tokens < ctx:
            raise RequestError(f"kv_tokens is {kv_tokens}, but one request may take a context of {ctx}; at least that")
        pool = PagePool(pages_for(ctx if kv_tokens is None else kv_tokens))
        self.state = program.new_state(pool.n_pages)
        chunk = min(chunk or program.max_rows, program.max_rows)
        self.scheduler = Scheduler(pool, chunk=chunk, max_running=max_running)
        self._requests = RequestMaker(tokenizer, program, ctx)
        self._draft = draft
        self._draft_tokens = draft_tokens
        self._lengths: dict[Sequence, DraftLength] = {}
        self._timed: set[Sequence] = set()
        self._stepping = False
        self._to_cancel: list[Sequence] = []
        self._computing: tuple[Sequence, ...] = ()  # in the run under way
        self._is_aborted = False

    def prepare(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        index: int = 0,
        priority: int = 0,
        timeout: float | None = None,
        hooks: Mapping[str | int, Hook] | None = None,
        score_only: bool = False,
    ) -> Sequence:
        """A request that is not queued yet; one that cannot fit is refused with both numbers.

        `index` says which of `params.n` answers this is. `timeout` counts from here, in seconds. `hooks` read values
        at named steps (steps.py). With `score_only` nothing is generated.
        """
        return self._requests.make(
            prompt, params, index=index, priority=priority, timeout=timeout, hooks=hooks, score_only=score_only
        )

    def add(self, sequence: Sequence) -> Sequence:
        """Queues a prepared request."""
        self.scheduler.add(sequence)
        if sequence.deadline is not None:
            self._timed.add(sequence)
        return sequence

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self.scheduler.running and not self.scheduler.waiting

    def step(self) -> list[Sequence]:
        """One step for all; gives the sequences that got a token or ended. Text waits in each one's `unread`."""
        self._stepping = True
        try:
            touched = self._expire()
            if work := self.scheduler.schedule():
                self._guess(work)
                logits = self._run(work)
                if logits is not None:
                    touched += self._settle(work, logits)
        finally:
            self._stepping = False
            cancelled, self._to_cancel = self._to_cancel, []
            for sequence in cancelled:
                self.cancel(sequence)
        return touched + [sequence for sequence in cancelled if sequence not in touched]

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence that has not finished and frees its pages; from within a step, at its end."""
        if self._stepping:
            self._to_cancel.append(sequence)
        elif sequence.finish_reason is None:
            self._finish(sequence, "cancelled")

    def abandon(self) -> None:
        """Stops the run under way where none of its sequences is wanted any more. From any thread."""
        computing = self._computing
        if computing and all(sequence.is_unwanted for sequence in computing):
            self.program.cancel()

    def abort(self) -> None:
        """Stops the run under way, and every later one: all is to end. From any thread."""
        self._is_aborted = True
        self.program.cancel()

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """Ends a sequence with an error of its own."""
        sequence.error = error
        self._finish(sequence, "error")

    def prefix_stats(self) -> PrefixStats:
        """Figures of prefix reuse."""
        return self.scheduler.pages.index.stats()

    def logits(self, ids: Seq[int]) -> Float32:
        """Logits after each of the ids, float32 [len(ids), n_vocab]."""
        return self._read(ids, None)

    def hidden(self, ids: Seq[int], step: str | int) -> Float32:
        """What a named step makes of each of the ids, float32 [len(ids), width]."""
        return self._read(ids, find_step(running_plan(self.program), step))

    def _read(self, ids: Seq[int], step: int | None) -> Float32:
        """The value of one step (None: the last) for every token, over pages of its own."""
        self._requests.check_tokens(ids)
        if len(ids) > self.ctx:
            raise RequestError(f"{len(ids)} tokens exceed the context of {self.ctx}; raise ctx")
        pages = self.scheduler.claim(pages_for(len(ids)))
        chunk = self.scheduler.chunk
        parts = []
        try:
            for first in range(0, len(ids), chunk):
                tokens = ids[first : first + chunk]
                batch = Batch.of([(tokens, first, pages)], range(len(tokens)))
                last = None if step is None else step + 1
                parts.append(self.program.run(batch, self.state, 0, last).copy())
        finally:
            self.scheduler.pages.give_back(pages)
        return np.concatenate(parts)

    def _expire(self) -> list[Sequence]:
        """Ends what has missed its deadline."""
        if not self._timed:
            return []
        now = time.monotonic()
        late = [s for s in self._timed if s.deadline is not None and s.deadline <= now]
        for sequence in late:
            sequence.stop_reason = "timeout"
            self._finish(sequence, "cancelled")
        return late

    def _guess(self, work: list[Work]) -> None:
        """Gives sequences that answer drafts to check, as far as rows are left and guesses are worth it."""
        if self._draft is None:
            return
        left = self.scheduler.chunk - sum(item.n_rows for item in work)
        wanted: list[tuple[Work, int]] = []
        for item in work:
            sequence = item.sequence
            if item.n_tokens > 1 or not item.is_complete or sequence.hooks:
                continue
            room = self.ctx - len(sequence.context) - 1
            if sequence.max_tokens is not None:
                room = min(room, sequence.max_tokens - len(sequence.output) - 1)
            length = self._lengths.setdefault(sequence, DraftLength(self._draft_tokens))
            n = min(room, left, length.next())
            if n > 0:
                wanted.append((item, n))
                left -= n
        if not wanted:
            return
        guesses = self._draft.propose([(item.sequence, n) for item, n in wanted])
        for (item, _), tokens in zip(wanted, guesses, strict=True):
            if tokens and self.scheduler.room_for(item.sequence, len(tokens)):
                item.drafts = tokens

    def _run(self, work: list[Work]) -> Float32 | None:
        """One run of the program, with halts where hooks want to read; None where it was not wanted to its end."""
        batch = assemble(work)
        halts = sorted({step for item in work for step in item.sequence.hooks})
        self._computing = tuple(item.sequence for item in work)
        try:
            while not (self._is_aborted or all(sequence.is_unwanted for sequence in self._computing)):
                try:
                    first = 0
                    while halts:
                        value = self.program.run(batch, self.state, first, halts[0] + 1)
                        first = halts[0] + 1
                        self._call_hooks(work, batch, halts.pop(0), value)
                    return self.program.run(batch, self.state, first)
                except CancelledRun:
                    pass  # for some of them, it was meant for the run before: again, without the hooks that have read
            return None
        finally:
            self._computing = ()

    def _call_hooks(self, work: list[Work], batch: Batch, step: int, value: Float32) -> None:
        for item, row in zip(work, batch.offsets.tolist(), strict=False):
            sequence = item.sequence
            # Rows that are computed again after a preemption were read before.
            skip = max(0, sequence.n_hooked - sequence.n_computed)
            positions = np.arange(sequence.n_computed + skip, sequence.n_computed + item.n_rows, dtype=np.int32)
            for hook in sequence.hooks.get(step, ()):
                if sequence.error is None and len(positions):
                    try:
                        call_hook(hook, step, positions, value[row + skip : row + item.n_rows].copy())
                    except CallbackError as error:
                        sequence.error = error

    def _settle(self, work: list[Work], logits: Float32) -> list[Sequence]:
        """Chooses tokens, turns them into text, and sees which sequences are done."""
        touched = []
        end = 0
        for item in work:
            begin, end = end, end + item.n_outputs
            sequence = item.sequence
            complete, first = item.is_complete, sequence.n_computed
            try:
                sequence.n_computed += item.n_tokens
                sequence.n_hooked = max(sequence.n_hooked, sequence.n_computed)
                if sequence.error is not None:
                    raise sequence.error
                if sequence.n_unscored:
                    self._score(sequence, first, logits[begin:end])
                if complete:
                    self._accept(sequence, logits[end - 1 - len(item.drafts) : end], item.drafts)
            except Exception as error:
                # A fault of one request, such as its own callback's, is no reason for others to fail.
                self.fail(sequence, error)
            except BaseException as error:
                # Where this one stands is not known. Those before are settled, those after are as they were.
                self.fail(sequence, RequestError(f"the choice of a token was interrupted by {error!r}"))
                raise
            if sequence.finish_reason is None:
                self.scheduler.settle(sequence)
                self._shift_if_full(sequence)
            if complete or sequence.finish_reason is not None:
                touched.append(sequence)
        return touched

    def _score(self, sequence: Sequence, first: int, rows: Float32) -> None:
        """The row of a token tells how likely the next one was."""
        n_top = sequence.params.prompt_logprobs or 0
        end = min(first + len(rows), len(sequence.prompt) - 1)
        for position in range(len(sequence.prompt_logprobs), end):
            following = sequence.prompt[position + 1]
            sequence.prompt_logprobs.append(log_probabilities(rows[position - first], following, n_top))

    def _accept(self, sequence: Sequence, rows: Float32, drafts: Seq[int]) -> None:
        """Chooses a token of each row, as long as the one before was guessed right."""
        if sequence.max_tokens == 0:
            self._finish(sequence, "length")
            return
        n_accepted = 0
        for row, draft in zip(rows, (*drafts, None), strict=True):
            choice = sequence.sampler.next(row)
            sequence.context.append(choice.token)
            sequence.output.append(choice.token)
            if choice.logprob is not None:
                sequence.logprobs.append(choice.logprob)
            right = choice.token == draft
            if right:
                n_accepted += 1
            self._show(sequence, choice.token)
            if not right or sequence.finish_reason is not None:
                break
            sequence.n_computed += 1  # the guess is in the cache
        if drafts:
            sequence.n_drafted += len(drafts)
            sequence.n_accepted += n_accepted
            if sequence in self._lengths:
                self._lengths[sequence].saw(len(drafts), n_accepted)

    def _show(self, sequence: Sequence, token: int) -> None:
        """Turns a token into text, and finishes the sequence where it ends there."""
        if token in sequence.stop_ids:
            sequence.stop_reason = token
            self._finish(sequence, "stop")
            return
        text, stopped = sequence.stop.push(sequence.detokenizer.push(token))
        sequence.show(text)
        if stopped:
            sequence.stop_reason = sequence.stop.found
            self._finish(sequence, "stop", flush=False)
        elif len(sequence.output) == sequence.max_tokens:
            self._finish(sequence, "length")

    def _shift_if_full(self, sequence: Sequence) -> None:
        """Where it was asked for, a context that is full loses its older half and is computed again."""
        if sequence.params.context_shift and len(sequence.context) >= self.ctx:
            n_keep = sequence.params.n_keep
            self.scheduler.restart(sequence)
            sequence.shift(len(sequence.prompt) if n_keep < 0 else n_keep)

    def _finish(self, sequence: Sequence, reason: FinishReason, *, flush: bool = True) -> None:
        if flush:
            text, stopped = sequence.stop.push(sequence.detokenizer.finish())
            sequence.show(text if stopped else text + sequence.stop.finish())
            if stopped and reason == "length":
                reason, sequence.stop_reason = "stop", sequence.stop.found
        sequence.finish_reason = reason
        self._timed.discard(sequence)
        self._lengths.pop(sequence, None)
        if self._draft is not None:
            self._draft.forget(sequence)
        self.scheduler.release(sequence)
