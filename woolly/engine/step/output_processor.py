"""OutputProcessor: samples tokens from the rows of a step, and continues or finishes each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from woolly.engine.step.deferred_rows import DeferredRows
from woolly.engine.step.request_timeouts import RequestTimeouts
from woolly.engine.step.token_sampling import accept_drafts, append_tokens, sample_token, score_prompt
from woolly.errors import RequestError
from woolly.runtime import OverwrittenRows

if TYPE_CHECKING:
    from woolly.engine.drafts.speculation import Speculation
    from woolly.engine.request import FinishReason, Request
    from woolly.engine.step.output_rows import Rows
    from woolly.engine.step.runner import Runner
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.scheduler_output import SchedulerOutput, Span
    from woolly.sampling.top_logits import Row


class OutputProcessor:
    """Samples tokens and finishes requests. Only this class finishes requests."""

    def __init__(self, scheduler: Scheduler, runner: Runner, speculation: Speculation, ctx: int) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._speculation = speculation
        self._ctx = ctx
        self._deferred = DeferredRows()
        self._timeouts = RequestTimeouts()
        self._changed: list[Request] = []  # changed in the current step
        self._is_stepping = False
        self._to_cancel: list[Request] = []

    def add(self, request: Request) -> None:
        """Track the deadline of a queued request."""
        self._timeouts.add(request)

    def begin(self) -> None:
        """Begin a step: end requests past their deadline, and sample from deferred rows."""
        self._is_stepping = True
        if has_deferred := self._deferred.begin_step():
            self._runner.meanwhile()  # slow grammars must not delay other host work
        for request in self._timeouts.passed():
            request.stop_reason = "timeout"
            self._finish(request, "cancelled")
            self._changed.append(request)
        if has_deferred:
            self._settle_deferred()

    def end(self) -> list[Request]:
        """Finish a step: apply pending cancellations and return all requests that changed."""
        self._is_stepping = False
        changed, self._changed = self._changed, []
        if self._to_cancel:
            cancelled, self._to_cancel = self._to_cancel, []
            for request in cancelled:
                self.cancel(request)
            changed += [request for request in cancelled if request not in changed]
        return changed

    def cancel(self, request: Request) -> None:
        """Cancel a request and free its pages. A cancellation during a step takes effect at the end of the step."""
        if self._is_stepping:
            self._to_cancel.append(request)
        elif request.finish_reason is None:
            self._finish(request, "cancelled")

    def fail(self, request: Request, error: Exception) -> None:
        """Finish a request with an error."""
        request.error = error
        self._finish(request, "error")

    def fail_all(self, requests: Iterable[Request], error: Exception) -> None:
        """Finish requests with an error during a step."""
        for request in requests:
            self.fail(request, error)
            self._changed.append(request)

    def settle(self, scheduled: SchedulerOutput, rows: Rows) -> None:
        """Sample a token for each fully computed request, and finish requests that are done."""
        rows.choose(scheduled.samplers())
        end = 0
        for span in scheduled.spans:
            request, is_deferred = span.request, False
            begin, end = end, end + span.n_outputs  # output rows of the span
            try:
                is_deferred = self._settle_one(span, rows, begin, end)
            except OverwrittenRows:  # recompute the span, without other requests
                request.n_computed, request.needs_full_logits, is_deferred = span.first, True, True
            except BaseException as error:
                self._failed(request, error)
            if request.finish_reason is None:
                self._continue_request(request, not is_deferred)
            is_progress = request.reports_progress and not request.output
            if (span.is_complete and not is_deferred) or is_progress or request.finish_reason is not None:
                self._changed.append(request)

    def extend(self, request: Request, tokens: Sequence[int]) -> None:
        """Append the tokens of a finished block of a diffusion model."""
        try:
            end = append_tokens(request, tokens)
        except Exception as error:
            self.fail(request, error)
        else:
            if end is not None:
                self._finish(request, end.reason, flush=end.flush)
        self._changed.append(request)

    def _settle_one(self, span: Span, computed: Rows, begin: int, end: int) -> bool:
        """Settle the rows of a request; return True if they are deferred to a later step."""
        request, drafts = span.request, span.drafts
        first = request.n_computed
        request.n_computed += span.n_tokens
        if request.hooks:
            request.n_hooked = max(request.n_hooked, request.n_computed)
        if request.error is not None:
            raise request.error
        if request.n_unscored:
            score_prompt(request, first, computed.whole(begin, end))
        if not span.is_complete:
            return False
        rows = [computed.row(i) for i in range(end - 1 - len(drafts), end)] if drafts else (computed.row(end - 1),)
        if request.sampler.constraint is None:
            self._accept(request, rows, drafts)
            return False
        if self._deferred.must_wait(request):
            self._deferred.defer(request, rows, drafts)
            return True
        with self._deferred.timed():
            self._accept(request, rows, drafts)
        return False

    def _settle_deferred(self) -> None:
        """Sample from rows deferred by earlier steps."""
        for request, rows, drafts in self._deferred.take():
            try:
                with self._deferred.timed():
                    self._accept(request, rows, drafts)
            except BaseException as error:
                self._failed(request, error)
            if request.finish_reason is None:
                self._continue_request(request)
            self._changed.append(request)

    def _accept(self, request: Request, rows: Sequence[Row], drafts: Sequence[int]) -> None:
        """Sample tokens, and finish the request at a stop token or limit."""
        if not drafts:
            end = sample_token(request, rows[0])
        else:
            n_before, is_forced = len(request.context), bool(request.forced_tokens)
            n_accepted, end = accept_drafts(request, rows, drafts)
            # K and V of accepted drafts are in the cache. The last token is computed in the next step.
            request.n_computed += max(0, len(request.context) - n_before - 1)
            if not is_forced:
                self._speculation.observe(request, len(drafts), n_accepted)
        if end is not None:
            self._finish(request, end.reason, flush=end.flush)

    def _failed(self, request: Request, error: BaseException) -> None:
        """Fail a request without affecting others, for example after an exception in its callback."""
        if not isinstance(error, Exception):
            # The state of this request is unknown. Earlier requests are settled; later requests are unchanged.
            self.fail(request, RequestError(f"sampling was interrupted by {error!r}"))
            raise error
        self.fail(request, error)

    def _continue_request(self, request: Request, is_decided: bool = True) -> None:
        self._scheduler.advance(request, is_decided)
        if request.params.context_shift and len(request.context) >= self._ctx:
            # Context shift: drop the older half of the context and recompute the rest.
            n_keep = request.params.n_keep
            self._scheduler.restart(request)
            request.shift(len(request.prompt) if n_keep < 0 else n_keep)

    def _finish(self, request: Request, reason: FinishReason, *, flush: bool = True) -> None:
        request.write()
        if flush:
            text, stopped = request.stop.push(request.detokenizer.finish())
            request.show(text if stopped else text + request.stop.finish())
            if stopped and reason == "length":
                reason, request.stop_reason = "stop", request.stop.found
        request.finish_reason = reason
        self._timeouts.forget(request)
        self._deferred.forget(request)
        self._speculation.forget(request)
        self._scheduler.release(request)
        if request.multimodal is not None:
            request.multimodal.embeddings.clear()
