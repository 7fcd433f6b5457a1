"""llama-server's metrics, added to the output of /metrics."""

from __future__ import annotations

from starlette.datastructures import State

from woolly.serving.generation.generator import Generator
from woolly.serving.observability.metrics import Stats

# Metric type and description by name.
_HELP = {
    "prompt_tokens_total": ("counter", "Computed prompt tokens."),
    "prompt_tokens_cached_total": ("counter", "Cached prompt tokens."),
    "prompt_seconds_total": ("counter", "Seconds from arrival to the first token."),
    "tokens_predicted_total": ("counter", "Generated tokens."),
    "tokens_predicted_seconds_total": ("counter", "Seconds from the first token of an answer to its last."),
    "n_decode_total": ("counter", "Engine steps."),
    "n_tokens_max": ("counter", "Maximum tokens of a prompt and its answer."),
    "spec_decode_num_draft_tokens_total": ("counter", "Draft tokens."),
    "spec_decode_num_accepted_tokens_total": ("counter", "Accepted draft tokens."),
    "spec_decode_num_drafts_total": ("counter", "Answers with draft tokens."),
    "prompt_tokens_seconds": ("gauge", "Prompt tokens per second since the last scrape."),
    "predicted_tokens_seconds": ("gauge", "Generated tokens per second since the last scrape."),
    "requests_processing": ("gauge", "Running answers."),
    "requests_deferred": ("gauge", "Waiting answers."),
    "n_busy_slots_per_decode": ("gauge", "Average answers per engine step."),
}


def metrics_text(state: State) -> str:
    """Return the metrics in Prometheus' text format. Rates are averages since the last call."""
    stats: Stats = state.stats
    generator: Generator = state.generator
    work, recent = stats.work, stats.take_recent()
    waiting = generator.admission.n_waiting
    values = {
        "prompt_tokens_total": work.prompt_tokens,
        "prompt_tokens_cached_total": work.cached_tokens,
        "prompt_seconds_total": work.prompt_seconds,
        "tokens_predicted_total": work.predicted_tokens,
        "tokens_predicted_seconds_total": work.predicted_seconds,
        "n_decode_total": work.steps,
        "n_tokens_max": work.max_request_tokens,
        "spec_decode_num_draft_tokens_total": work.drafted_tokens,
        "spec_decode_num_accepted_tokens_total": work.accepted_tokens,
        "spec_decode_num_drafts_total": work.drafted_answers,
        "prompt_tokens_seconds": _rate(recent.prompt_tokens, recent.prompt_seconds),
        "predicted_tokens_seconds": _rate(recent.predicted_tokens, recent.predicted_seconds),
        "requests_processing": max(0, generator.admission.n_open - waiting),
        "requests_deferred": waiting,
        "n_busy_slots_per_decode": _rate(work.predicted_tokens, work.steps),
    }
    lines = []
    for name, value in values.items():
        kind, about = _HELP[name]
        lines += [f"# HELP llamacpp:{name} {about}", f"# TYPE llamacpp:{name} {kind}", f"llamacpp:{name} {value:g}"]
    return "\n".join(lines) + "\n"


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
