"""Metrics with vLLM's names, for its dashboards (--metrics-names vllm)."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_LABEL = ["model_name"]


class VllmMetrics:
    """Counters and histograms of answers; EngineMetrics has the gauges."""

    def __init__(self, registry: CollectorRegistry, seconds: Sequence[float], token_seconds: Sequence[float]) -> None:
        def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"vllm:{name}", help, [*_LABEL, *labels], registry=registry)

        def histogram(name: str, help: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", help, _LABEL, buckets=tuple(buckets), registry=registry)

        self._prompt = counter("prompt_tokens", "Prompt tokens.")
        self._generated = counter("generation_tokens", "Generated tokens.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked up in the cache.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._ended = counter("request_success", "Answers by finish reason.", ["finished_reason"])
        self._first = histogram("time_to_first_token_seconds", "Time to first token.", seconds)
        self._whole = histogram("e2e_request_latency_seconds", "Time to the end of the answer.", seconds)
        self._token = histogram("inter_token_latency_seconds", "Time per token after the first.", token_seconds)
        self._each = histogram(
            "request_time_per_output_token_seconds", "Time per token after the first, per request.", token_seconds
        )
        self._older = histogram(
            "time_per_output_token_seconds", "Time per token after the first (older name).", token_seconds
        )
        self._queue = histogram("request_queue_time_seconds", "Time in the queue.", seconds)
        self._prefill = histogram("request_prefill_time_seconds", "Time from the queue to the first token.", seconds)
        self._decode = histogram("request_decode_time_seconds", "Time from the first to the last token.", seconds)
        self._longest = histogram("request_max_num_generation_tokens", "Tokens of the longest answer.", _TOKENS)
        self._prompts = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answers = histogram("request_generation_tokens", "Tokens of the answers to a prompt.", _TOKENS)

    def count_answer(
        self,
        model: str,
        reasons: Sequence[str],
        usage: dict[str, int],
        timings: dict[str, float],
        queued: float,
        longest: int,
    ) -> None:
        """Count a request, with the arguments of `Stats.count_answer`."""
        for reason in reasons:
            self._ended.labels(model, "abort" if reason in ("cancelled", "error") else reason).inc()
        n_prompt, n_answer = usage["prompt_tokens"], usage["completion_tokens"]
        self._prompt.labels(model).inc(n_prompt)
        self._generated.labels(model).inc(n_answer)
        self._queries.labels(model).inc(n_prompt)
        self._hits.labels(model).inc(usage["cached_tokens"])
        self._prompts.labels(model).observe(n_prompt)
        self._answers.labels(model).observe(n_answer)
        self._queue.labels(model).observe(queued)
        self._longest.labels(model).observe(longest)
        if n_answer:
            self._prefill.labels(model).observe(max(0.0, timings["prompt_ms"] / 1000 - queued))
            self._decode.labels(model).observe(timings["predicted_ms"] / 1000)
            self._first.labels(model).observe(timings["prompt_ms"] / 1000)
            self._whole.labels(model).observe((timings["prompt_ms"] + timings["predicted_ms"]) / 1000)
        if n_answer > len(reasons):
            self._token.labels(model).observe(timings["predicted_per_token_ms"] / 1000)
            self._each.labels(model).observe(timings["predicted_per_token_ms"] / 1000)
            self._older.labels(model).observe(timings["predicted_per_token_ms"] / 1000)
