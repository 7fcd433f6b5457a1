"""llama-server's metrics, under its names, next to Woolly's at /metrics."""

from __future__ import annotations

from starlette.datastructures import State

from woolly.serving.generation.generator import Generator
from woolly.serving.observability.metrics import Stats

# Metric type and description by name.
_HELP = {
    "prompt_tokens_total": ("counter", "Tokens of prompts that were computed."),
    "prompt_tokens_cached_total": ("counter", "Tokens of prompts that the cache held."),
    "prompt_seconds_total": ("counter", "Seconds from arrival to the first token."),
    "tokens_predicted_total": ("counter", "Tokens of answers."),
    "tokens_predicted_seconds_total": ("counter", "Seconds from the first token of an answer to its last."),
    "n_decode_total": ("counter", "Steps of the engine that took part in answers."),
    "n_tokens_max": ("counter", "Most tokens of one prompt and its answer."),
    "spec_decode_num_draft_tokens_total": ("counter", "Tokens that were guessed ahead."),
    "spec_decode_num_accepted_tokens_total": ("counter", "Guessed tokens that were right."),
    "spec_decode_num_drafts_total": ("counter", "Answers for which tokens were guessed."),
    "prompt_tokens_seconds": ("gauge", "Tokens of prompts per second since the last reading."),
    "predicted_tokens_seconds": ("gauge", "Tokens of answers per second since the last reading."),
    "requests_processing": ("gauge", "Answers that run."),
    "requests_deferred": ("gauge", "Answers that wait."),
    "n_busy_slots_per_decode": ("gauge", "Answers per step of the engine, on average."),
}


def metrics_text(state: State) -> str:
    """Return the metrics in Prometheus' text format; rates are since the last call."""
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
