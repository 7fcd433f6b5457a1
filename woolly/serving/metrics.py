"""Stats: what the server did so far, for Prometheus and for /performance/stats."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Stats"]

_RECENT = 1024  # answers that the percentiles look back on

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Stats:
    """Counters since the start. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "woolly_http_requests", "HTTP requests by status class.", ["status"], registry=self.registry
        )
        self._answers = Counter("woolly_answers", "Answers by how they ended.", ["reason"], registry=self.registry)
        self._prompt = Counter("woolly_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self._cached = Counter(
            "woolly_prompt_tokens_cached", "Tokens of prompts that the cache held.", registry=self.registry
        )
        self._predicted = Counter("woolly_predicted_tokens", "Tokens of answers.", registry=self.registry)
        self._first = Histogram(
            "woolly_first_token_seconds", "From arrival to the first token.", buckets=_SECONDS, registry=self.registry
        )
        self._whole = Histogram(
            "woolly_answer_seconds", "From arrival to the end.", buckets=_SECONDS, registry=self.registry
        )
        self._refused = Counter("woolly_refused", "Requests refused, by code.", ["code"], registry=self.registry)
        self.recent: deque[dict[str, float]] = deque(maxlen=_RECENT)
        self.totals = {
            "requests": 0, "answers": 0, "errors": 0, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0,
        }  # fmt: skip

    def watch(self, name: str, help: str, read: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(name, help, registry=self.registry).set_function(read)

    def replied(self, status: int) -> None:
        """Counts a reply."""
        self.totals["requests"] += 1
        self._requests.labels(f"{status // 100}xx").inc()
        if status >= 500:
            self.totals["errors"] += 1

    def refused(self, code: str) -> None:
        """Counts a request that was not served."""
        self._refused.labels(code).inc()

    def answered(self, reasons: list[str], usage: dict[str, int], timings: dict[str, float]) -> None:
        """Counts a request that the engine had; `timings` as `Running.timings` gives them."""
        for reason in reasons:
            self._answers.labels(reason).inc()
        self.totals["answers"] += len(reasons)
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self.totals[name] += usage[name]
        self._prompt.inc(usage["prompt_tokens"])
        self._cached.inc(usage["cached_tokens"])
        self._predicted.inc(usage["completion_tokens"])
        if usage["completion_tokens"]:
            first, last = timings["prompt_ms"] / 1000, (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
            self._first.observe(first)
            self._whole.observe(last)
            self.recent.append(
                {
                    "first_token_s": first,
                    "answer_s": last,
                    "prompt_per_second": timings["prompt_per_second"],
                    "predicted_per_second": timings["predicted_per_second"],
                }
            )

    @property
    def seconds_per_answer(self) -> float:
        """What an answer took of late; a second where nothing is known."""
        taken = [one["answer_s"] for one in self.recent]
        return sum(taken) / len(taken) if taken else 1.0

    def snapshot(self) -> dict[str, Any]:
        """The figures as one mapping; times in milliseconds, of the last 1024 answers."""
        first = sorted(one["first_token_s"] for one in self.recent)
        return {
            "uptime_seconds": time.monotonic() - self.started,
            **self.totals,
            "first_token_ms": {f"p{share}": 1000 * _percentile(first, share) for share in (50, 95, 99)},
            "prompt_tokens_per_second": _mean([one["prompt_per_second"] for one in self.recent]),
            "predicted_tokens_per_second": _mean([one["predicted_per_second"] for one in self.recent]),
        }

    def text(self) -> bytes:
        """In Prometheus' words."""
        return generate_latest(self.registry)


def _percentile(values: list[float], share: int) -> float:
    return values[min(len(values) - 1, len(values) * share // 100)] if values else 0.0


def _mean(values: list[float]) -> float:
    known = [value for value in values if value > 0]
    return sum(known) / len(known) if known else 0.0
