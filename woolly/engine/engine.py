"""Engine: schedules, runs and settles steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine import drafts, multimodal
from woolly.engine.drafts.forced_tokens import add_forced_tokens
from woolly.engine.drafts.speculation import Speculation
from woolly.engine.input_processor import InputProcessor, check_decoder_only, context_exceeded
from woolly.engine.loading.adapters import AdapterSet
from woolly.engine.loading.step_names import find_step
from woolly.engine.pooling import PoolingRunner
from woolly.engine.request_options import RequestOptions
from woolly.engine.state.kv_cache_config import KVCacheConfig
from woolly.engine.step.async_runner import new_runner
from woolly.engine.step.output_processor import OutputProcessor
from woolly.engine.step.scheduler import Scheduler
from woolly.errors import RequestError
from woolly.runtime import LostState, PortableState, Program, State

if TYPE_CHECKING:
    from woolly.cache.disk_tier import DiskStats
    from woolly.cache.page_folder import PageFolder
    from woolly.cache.prefix import PrefixStats
    from woolly.engine.diffusion import DiffusionRunner
    from woolly.engine.drafts.proposer import Proposer
    from woolly.engine.request import Request
    from woolly.engine.step.adaptive_batch_size import AdaptiveBatchSize
    from woolly.engine.step.output_rows import Rows
    from woolly.engine.step.scheduler_output import SchedulerOutput
    from woolly.multimodal import Prompt
    from woolly.sampling.params import SamplingParams
    from woolly.tokens import Tokenizer

Float32 = npt.NDArray[np.float32]

_USUAL = RequestOptions()


class Engine:
    """Runs requests on a program. Not thread-safe: only one thread may call it at a time."""

    def __init__(
        self,
        program: Program,
        tokenizer: Tokenizer,
        *,
        ctx: int,
        ctx_limit: int | None = None,
        kv_tokens: int | None = None,
        chunk: int | None = None,
        max_running: int = 16,
        batch_size: AdaptiveBatchSize | None = None,
        itl_target: float | None = None,
        n_snapshots: int = 16,
        draft: Proposer | None = None,
        draft_tokens: int = 8,
        check_file: Callable[[], None] | None = None,
        adapters: AdapterSet | None = None,
        disk: PageFolder | None = None,
        compute_rate: float = 0.0,
        salt: bytes = b"",
        tower: multimodal.Tower | None = None,
        source: multimodal.Source | None = None,
    ) -> None:
        """`ctx` limits the context of a request; `kv_tokens` is the size of the shared cache (None: one context).

        `ctx_limit` is the model's maximum (None: `ctx`). `chunk` bounds the rows of a step, and `max_running` the
        concurrent requests. `batch_size` overrides `max_running`, unless memory only suffices for `max_running`.
        `itl_target` is the target inter-token latency of running requests in seconds while prompts are computed.
        `n_snapshots` bounds the saved recurrent states, `draft_tokens` the draft tokens per request and step.
        `check_file` raises if the weights have changed. `adapters` are the adapters in the program's plan. `disk`
        stores evicted pages if the state can be copied (`has_disk`). `compute_rate` is the initial estimate of the
        prefill rate in tokens per second. `salt` is prepended to the salt of each request. With a `tower`, prompts may
        have images (`Prompt`), provided that the program's plan takes embeddings (`inject_embeddings`). `source` is the
        encoder of an encoder-decoder model.
        """
        self.program = program
        self.tokenizer = tokenizer
        self.ctx = ctx
        chunk = min(chunk or program.max_rows, program.max_rows)
        most = max_running if batch_size is None else batch_size.most
        n_drafts = 0 if draft is None else draft_tokens
        new_config = partial(KVCacheConfig.of, program, ctx, kv_tokens, chunk=chunk, n_snapshots=n_snapshots)
        config = new_config(max_running=most, n_drafts=n_drafts)
        try:
            state = config.new_state(program)
        except RequestError:
            if most <= max_running:  # the caller asked for this size
                raise
            most, batch_size = max_running, None
            config = new_config(max_running=most, n_drafts=n_drafts)
            state = config.new_state(program)
        pages, slots, visible_pages = config.new_pools(program.plan)
        if draft is not None and isinstance(draft, drafts.AssistantProposer):
            draft.borrow(state, visible_pages.tables)
        elif draft is not None and isinstance(draft, drafts.MtpProposer):
            draft.attach(config.n_pages)
        self.scheduler = Scheduler(pages, slots, visible_pages, chunk=chunk, max_running=most)
        self.scheduler.batch_size = batch_size or self.scheduler.batch_size
        self.scheduler.prefill_budget.itl_target = itl_target
        if disk is not None and isinstance(state, PortableState) and state.is_portable:
            from woolly.cache.disk_tier import DiskTier

            self.scheduler.tier = DiskTier(disk, state, pages, slots, compute_rate, visible_pages.pools)
        self.diffusion: DiffusionRunner | None = None
        if (model := program.plan.diffusion) is not None:
            if draft is not None:
                raise RequestError(
                    "speculative decoding is not supported for diffusion language models; open the model without it",
                    field="speculation",
                )
            from woolly.engine import diffusion  # few models need it

            self.diffusion = diffusion.DiffusionRunner(
                program, state, model, n_pages=config.n_pages, check_file=check_file
            )
        self.pooling = PoolingRunner(program, ctx, chunk, check_file)
        self.runner = new_runner(program, state, self.scheduler, self.pooling, ctx, draft, check_file)
        self._input_processor = InputProcessor(
            tokenizer,
            program,
            ctx,
            ctx_limit or ctx,
            adapters or AdapterSet(),
            salt,
            tower=tower,
            max_rows=chunk - self.scheduler.max_running,
            source=source,
        )
        maker = tower or source
        self.encoder_scheduler = None if maker is None else multimodal.EncoderScheduler(maker, check_file)
        self._speculation = Speculation(draft, draft_tokens, ctx, self.scheduler, self.runner)
        self._output_processor = OutputProcessor(self.scheduler, self.runner, self._speculation, ctx)
        self.n_steps = 0  # number of steps with work

    def __repr__(self) -> str:
        return f"Engine(ctx={self.ctx}, {self.scheduler!r})"

    def step(self) -> list[Request]:
        """Run a step and return the requests that got a token or ended; `take_unread` returns their text."""
        try:
            self._output_processor.begin()
            scheduled = self.schedule()
            rows = self.run(scheduled)
            self.settle(scheduled, rows)
        finally:
            changed = self._output_processor.end()
        return changed

    def schedule(self) -> SchedulerOutput:
        """Return the rows and drafts of the next step; empty if no request can continue."""
        if self.encoder_scheduler is not None:
            self.encoder_scheduler.attach(self.scheduler.running)
        scheduled = self.scheduler.schedule()
        if scheduled.spans:
            add_forced_tokens(scheduled, self.scheduler, self.ctx)
            self._speculation.add_to(scheduled)
        return scheduled

    def run(self, scheduled: SchedulerOutput) -> Rows | None:
        """Compute a step and return its output rows, or None if there is no work or the step was interrupted."""
        if not scheduled.spans:
            self.runner.meanwhile()
            self.scheduler.wait()
            return None
        self.n_steps += 1
        begin = time.perf_counter()
        try:
            return self.runner.run(scheduled)
        except LostState:
            self.scheduler.lose_all()
            return None
        finally:
            scheduled.seconds = time.perf_counter() - begin

    def settle(self, scheduled: SchedulerOutput, rows: Rows | None) -> None:
        """Sample tokens from the rows, then run the disk tier, pooling jobs and the encoder."""
        if rows is not None:
            self.scheduler.ran(scheduled)
            self._output_processor.settle(scheduled, rows)
            self._speculation.ran(scheduled)
        if self.scheduler.tier is not None:
            self.scheduler.tier.work()
        self.pooling.turn()
        if self.diffusion is not None:
            for request, tokens in self.diffusion.turn():
                self._output_processor.extend(request, tokens)
        self._run_encoder()

    def _run_encoder(self) -> None:
        """Run a slice of the encoder for running requests. An error ends all requests that wait for the encoder."""
        if self.encoder_scheduler is None:
            return
        try:
            self.encoder_scheduler.step(self.scheduler.running)
        except Exception as error:
            waiting = [
                r
                for r in self.scheduler.running
                if r.multimodal is not None and r.multimodal.next_missing(r.n_computed)
            ]
            self._output_processor.fail_all(waiting, error)

    def new_request(
        self, prompt: Sequence[int] | Prompt, params: SamplingParams, options: RequestOptions = _USUAL
    ) -> Request:
        """Return a request without queueing it; raise RequestError if it does not fit the context."""
        return self._input_processor.new_request(prompt, params, options)

    def add(self, request: Request) -> Request:
        """Queue a request. It ends with an error if its adapters or its plan were removed."""
        adapters, plan = self._input_processor.adapters, self.program.running_plan
        is_known = adapters.knows(request.adapters, request.adapter_digests) and request.hooked in (None, plan)
        request.adapters = adapters.fitted(request.adapters)
        error: Exception | None = None
        try:
            (self.diffusion or self.scheduler).add(request)
        except Exception as caught:
            error = caught
        self._output_processor.add(request)
        if error is not None:
            self.fail(request, error)
        elif not is_known:
            self.fail(request, RequestError("the adapters were changed; send the request again", field="adapters"))
        return request

    @property
    def requests(self) -> Sequence[Request]:
        """All unfinished requests."""
        return (*self.scheduler.requests, *(() if self.diffusion is None else self.diffusion.requests))

    @property
    def adapters(self) -> AdapterSet:
        """Adapters available to requests."""
        return self._input_processor.adapters

    def name_adapters(self, adapters: AdapterSet) -> None:
        """Set the adapters available to new requests, and their default scales."""
        self._input_processor.swap(self.program, adapters)

    def used_adapters(self) -> set[int]:
        """Return the numbers of the adapters that queued or running requests use."""
        return {i for request in self.requests for i, scale in enumerate(request.adapters) if scale}

    def swap(self, program: Program, adapters: AdapterSet) -> None:
        """Switch to a program of the same model with other adapters; cache and requests are preserved.

        Every program of a model can use the same state. Raise RequestError (`busy`) if requests or pooling jobs refer
        to steps of the old plan, or if a request uses a missing adapter.
        """
        kept, own = adapters.adapters, self.adapters.adapters
        used = {i for i in self.used_adapters() if i >= len(kept) or kept[i] is not own[i]}
        if used or not self.pooling.is_idle or any(request.hooks for request in self.requests):
            raise RequestError("running requests use the current adapters; try again after they end", code="busy")
        for request in self.requests:
            request.adapters = adapters.fitted(request.adapters)
        self.program = program
        self.runner.swap(program)
        self.pooling.swap(program)
        if self.diffusion is not None:
            self.diffusion.swap(program)
        if self.draft is not None and isinstance(self.draft, drafts.MtpProposer):
            self.draft.swap(program)
        self._input_processor.swap(program, adapters)

    def cancel(self, request: Request) -> None:
        """End an unfinished request and free its pages; during a step, at the end of the step."""
        self._output_processor.cancel(request)

    def fail(self, request: Request, error: Exception) -> None:
        """End a request with an error."""
        self._output_processor.fail(request, error)

    def abandon(self) -> None:
        """Stop the current run if all of its requests are cancelled. Any thread may call it."""
        self.runner.abandon()
        if self.diffusion is not None:
            self.diffusion.abandon()
        if self.encoder_scheduler is not None:
            self.encoder_scheduler.abandon()

    def abort(self) -> None:
        """Stop the current run and prevent later runs. Any thread may call it."""
        self.pooling.abort()
        if self.diffusion is not None:
            self.diffusion.abort()
        if self.encoder_scheduler is not None:
            self.encoder_scheduler.abort()
        self.runner.abort()

    @property
    def state(self) -> State:
        """KV cache and recurrent state of all requests."""
        return self.runner.state

    @property
    def draft(self) -> Proposer | None:
        """Proposer of draft tokens; None if speculation is off."""
        return self._speculation.draft

    @property
    def is_idle(self) -> bool:
        """True if there are no requests and no pooling jobs."""
        is_idle = self.diffusion is None or self.diffusion.is_idle
        return is_idle and not self.scheduler.running and not self.scheduler.waiting and self.pooling.is_idle

    def forget(self, tokens: Sequence[int], salt: bytes = b"", digests: Sequence[bytes] | None = None) -> int:
        """Remove the unused pages of a prompt from the prefix index and from disk; return their number.

        If the prompt has images, `digests` of its pages are required.
        """
        return self.scheduler.forget(tokens, salt, digests)

    def prefix_stats(self) -> PrefixStats:
        """Return counts of prefix reuse since the start."""
        return self.scheduler.pages.index.stats()

    @property
    def has_disk(self) -> bool:
        """True if evicted pages are stored on disk."""
        return self.scheduler.tier is not None

    @property
    def keeps_shared(self) -> bool:
        """True if `Request.n_shared` has an effect on the cache."""
        scheduler = self.scheduler
        return scheduler.tier is not None or scheduler.snapshots is not None or scheduler.visible_pages.is_bounded

    def disk_stats(self) -> DiskStats | None:
        """Return counts of the disk tier since the start, or None if there is no disk tier."""
        return None if self.scheduler.tier is None else self.scheduler.tier.stats()

    def close(self) -> None:
        """Write pages to disk. All requests must have ended."""
        if self.scheduler.tier is not None:
            self.scheduler.tier.flush()

    def logits(self, ids: Sequence[int]) -> Float32:
        """Return the logits after each token, float32 [len(ids), n_vocab]."""
        self._input_processor.check_generative()
        return self._read(ids, None)

    def hidden(self, ids: Sequence[int], step: str | int) -> Float32:
        """Return the output of a named step for each token, float32 [len(ids), width]."""
        return self._read(ids, find_step(self.program, step))

    def _read(self, ids: Sequence[int], step: int | None) -> Float32:
        """Return the output of a step (None: the last) for every token, computed on unused pages."""
        check_decoder_only(self.program.plan)
        self._input_processor.check_tokens(ids)
        if len(ids) > self.ctx:
            raise context_exceeded(len(ids), self.ctx)
        while True:
            try:
                return self.runner.read(ids, step)
            except LostState:
                self.scheduler.lose_all()
