"""Speculation: selects requests for drafting and sets their draft lengths."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from woolly.engine import drafts
from woolly.engine.drafts.draft_cost import DraftCost
from woolly.engine.drafts.proposer import DraftLength, Proposer
from woolly.engine.drafts.speculation_budget import SpeculationBudget

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.engine.step.runner import Runner
    from woolly.engine.step.scheduler import Scheduler
    from woolly.engine.step.scheduler_output import SchedulerOutput, Span

_FIRST_GUESSES = 2  # maximum draft length before a request's first accepted draft token


class Speculation:
    """Adds draft tokens to a step and adapts draft lengths to the acceptance rate."""

    def __init__(self, draft: Proposer | None, most: int, ctx: int, scheduler: Scheduler, runner: Runner) -> None:
        """`most` is the maximum draft length; without a `draft` proposer there are no drafts.

        `runner.meanwhile` is called before a draft model runs.
        """
        self.draft = draft
        self._scheduler = scheduler
        self._runner = runner
        self._max_tokens = most
        self._ctx = ctx
        has_replay = scheduler.snapshots is not None
        self._worth = DraftLength.WORTH_WITH_REPLAY if has_replay else DraftLength.WORTH
        self._lengths: dict[Request, DraftLength] = {}
        self._cost = DraftCost()
        self._budget = SpeculationBudget(self._worth)
        self._accepted: dict[Request, int] = {}  # accepted draft tokens in the current step
        if draft is not None and isinstance(draft, drafts.DraftModelProposer):
            draft.budget = self._budget

    def add_to(self, scheduled: SchedulerOutput) -> None:
        """Add drafts to decoding requests while rows are free and drafts pay off."""
        if self.draft is None:
            return
        scheduler = self._scheduler
        if _has_answers_alone(scheduled) and self._cost.is_due(len(scheduled.spans)):
            return
        cost = self._cost.share(len(scheduled.spans))
        left = scheduler.rows_for_drafts(scheduled)
        wanted: list[tuple[Span, int]] = []
        for span in scheduled.spans:
            request = span.request
            if span.n_tokens > 1 or not span.is_complete or request.hooks or request.forced_tokens:
                continue
            room = self._ctx - len(request.context) - 1
            if request.max_tokens is not None:
                room = min(room, request.max_tokens - len(request.output) - 1)
            if not self._budget.may_draft(request):
                _pause(request, "guessing took longer than it saved")
                continue
            if (length := self._lengths.get(request)) is None:
                length = self._lengths[request] = DraftLength(
                    self._max_tokens, self._worth, self._budget.acceptance_rate
                )
            if (n := length.next(cost)) == 0:
                _pause(request, length.pause_reason(cost))
            n = min(room, left, n, self._max_tokens if request.n_accepted else _FIRST_GUESSES)
            if n > 0 and scheduler.room_for(request, n):  # an MTP block also writes to the pages
                wanted.append((span, n))
                left -= n
        if not wanted:
            return
        if not isinstance(self.draft, drafts.PromptLookupProposer):
            self._runner.meanwhile()
        begin = time.perf_counter()
        guesses = self.draft.propose([(span.request, n) for span, n in wanted])
        seconds = time.perf_counter() - begin
        if isinstance(self.draft, drafts.DraftModelProposer):
            seconds -= self.draft.read_seconds
        n_guesses = sum(map(len, guesses))
        is_settled = self._cost.is_settled(len(scheduled.spans))  # warm-up time is not charged to the request
        self._cost.guessed(n_guesses, seconds)
        for (span, _), tokens in zip(wanted, guesses, strict=True):
            if tokens:
                span.add(tokens)
                self._budget.spend(span.request, seconds * len(tokens) / n_guesses if is_settled else 0.0)

    def ran(self, scheduled: SchedulerOutput) -> None:
        """Give the results of the sampled step to the proposer and record the time of the step."""
        if self.draft is not None and scheduled.spans:
            self._account(scheduled)
        if self.draft is not None and isinstance(self.draft, drafts.MtpProposer):
            self.draft.settled()

    def observe(self, request: Request, n_drafted: int, n_accepted: int) -> None:
        """Record the number of accepted tokens in a draft."""
        if n_drafted:
            request.n_drafted += n_drafted
            request.n_accepted += n_accepted
            if request in self._lengths:
                self._lengths[request].observe(n_drafted, n_accepted)
                self._budget.record(request, n_drafted, n_accepted)
                self._accepted[request] = n_accepted

    def forget(self, request: Request) -> None:
        """Drop the state of a finished request."""
        self._lengths.pop(request, None)
        self._accepted.pop(request, None)
        self._budget.forget(request)
        if self.draft is not None:
            self.draft.forget(request)

    def _account(self, scheduled: SchedulerOutput) -> None:
        """Record the time of a step, and the cost and gain of its draft tokens."""
        alive = [span.request for span in scheduled.spans if span.request.finish_reason is None]
        self._budget.add_step_time(alive, scheduled.seconds)
        accepted, self._accepted = self._accepted, {}
        if not _has_answers_alone(scheduled):
            return
        n_answers, n_guesses = len(scheduled.spans), sum(len(span.drafts) for span in scheduled.spans)
        if n_guesses and (plain := self._cost.plain(n_answers)) is not None and self._cost.is_settled(n_answers):
            self._budget.plain_seconds = plain
            row = (scheduled.seconds - plain) / n_guesses
            for span in scheduled.spans:
                if span.drafts and span.request.finish_reason is None:
                    spared = accepted.get(span.request, 0) * plain / n_answers
                    self._budget.spend(span.request, row * len(span.drafts) - spared)
        self._cost.stepped(n_answers, n_guesses, scheduled.seconds)


def _pause(request: Request, reason: str) -> None:
    request.n_draft_pauses += 1
    request.draft_pause = reason


def _has_answers_alone(scheduled: SchedulerOutput) -> bool:
    """Return True if a step only decodes and has no forced tokens."""
    return all(span.n_tokens == 1 and span.is_complete and not span.request.forced_tokens for span in scheduled.spans)
