"""Budget of drafts: little is lost to drafts that are wrong, and a cold start silences none that are right."""

from unittest.mock import Mock

import pytest

from woolly.engine.drafts.draft_cost import DraftCost
from woolly.engine.drafts.proposer import DraftLength
from woolly.engine.drafts.speculation_budget import SpeculationBudget


def answer_with_drafts(n_tokens, is_right, *, cold=10.0, n_context=40):
    """Return the share of an answer's tokens that came from drafts, of a new process: a guess takes a third of a step.

    The first time of each kind of work is `cold` times as long.
    """
    cost, budget, request = DraftCost(), SpeculationBudget(0.5), Mock()
    length, n_out, n_drafted, seen = DraftLength(8), 0, 0, set()

    def seconds(kind, value):
        is_first = kind not in seen
        seen.add(kind)
        return value * (cold if is_first else 1.0)

    def spend(value, is_settled):
        if is_settled:
            budget.spend(request, value)

    while n_out < n_tokens:
        n = 0
        if not cost.is_due(1) and budget.may_draft(request):
            n = min(length.next(cost.share(1)), 8 if budget._of(request).n_accepted else 2)
        if n:
            if not budget._of(request).n_checked:
                budget.spend_prefill(request, min(n_context, 32), seconds("prefill", 0.05 * n_context))
            is_settled, taken = cost.is_settled(1), seconds("guess", n / 3)
            cost.guessed(n, taken)
            spend(taken, is_settled)
        step = seconds("step", 1.0) + (seconds("rows", 0.05 * n) if n else 0.0)
        right = [is_right(n_out + i) for i in range(n)]
        n_accepted = (*right, False).index(False)
        if n:
            length.observe(n, n_accepted)
            budget.record(request, n, n_accepted)
            plain = cost.plain(1)
            budget.plain_seconds = plain
            spend(step - plain - n_accepted * plain, cost.is_settled(1))
        budget.add_step_time([request], step)
        cost.stepped(1, n, step)
        n_out += n_accepted + 1
        n_drafted += n_accepted
    return n_drafted / n_out


def test_cold_start_does_not_stop_a_correct_draft():
    assert answer_with_drafts(120, lambda _: True) > 0.5
    assert answer_with_drafts(120, lambda i: i % 5 > 0) > 0.3


def test_wrong_draft_ends_with_its_first_tokens():
    assert answer_with_drafts(120, lambda _: False) == 0.0


def test_speculation_costs_at_most_two_percent_plus_what_it_saved():
    budget, request, later = SpeculationBudget(0.5), Mock(), Mock()
    assert budget.is_trial(request) and budget.max_prefill_tokens(request) == 32  # on trust: guesses usually come true
    budget.spend_prefill(request, 64, 0.064)
    budget.record(request, 2, 0)
    assert not budget.may_draft(request) and budget.max_prefill_tokens(request) == 0
    budget.add_step_time([request], 10.0)
    assert budget.available_seconds(request) == pytest.approx(0.2 - 0.064) and budget.max_prefill_tokens(request) == 136
    budget.spend(request, -0.3)  # that is what guesses spared
    assert budget.max_prefill_tokens(request) == 436
    budget.forget(request)
    assert budget.available_seconds(later) == 0.0  # what another gained is lent when a guess came true
    budget.record(later, 1, 1)
    assert budget.available_seconds(later) == pytest.approx(0.25 * (0.3 - 0.064))
    for _ in range(8):
        budget.record(later, 1, 0)
    assert not budget.may_draft(Mock())  # nor is a guess made on trust while hardly one comes true
