"""Counters for Prometheus and /performance/stats."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric

from woolly.serving.observability.vllm_metrics import VllmMetrics

_RECENT = 1024  # answers included in the percentiles

# Buckets up to an hour, because the first token of a long prompt takes minutes on a CPU.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# The *_created series are half of all lines, and no dashboard shows them.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Answer:
    """Times and tokens of one request."""

    model: str
    first_token_s: float
    answer_s: float
    prompt_per_second: float
    predicted_per_second: float


@dataclass
class WorkCounters:
    """Totals of all answers."""

    prompt_tokens: int = 0  # without cached tokens
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    steps: int = 0  # engine steps
    max_request_tokens: int = 0  # maximum of prompt and answer tokens of one request
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_answers: int = 0

    def add(self, usage: dict[str, int], timings: dict[str, float], drafted: Sequence[tuple[int, int]]) -> None:
        """Add a request; `drafted` has the draft tokens and accepted tokens of each answer."""
        self.prompt_tokens += usage["prompt_tokens"] - usage["cached_tokens"]
        self.cached_tokens += usage["cached_tokens"]
        self.prompt_seconds += timings["prompt_ms"] / 1000
        self.predicted_tokens += usage["completion_tokens"]
        self.predicted_seconds += timings["predicted_ms"] / 1000
        self.max_request_tokens = max(self.max_request_tokens, usage["total_tokens"])
        self.drafted_tokens += sum(guessed for guessed, _ in drafted)
        self.accepted_tokens += sum(right for _, right in drafted)
        self.drafted_answers += sum(guessed > 0 for guessed, _ in drafted)


class Stats:
    """Counters since startup. Use this class only on the event loop thread."""

    def __init__(self, has_vllm_names: bool = False) -> None:
        self.started = time.monotonic()
        self.started_at = time.time()
        self.work = WorkCounters()  # since startup
        self._recent = WorkCounters()  # since `take_recent`
        self._steps: dict[int, int] = {}  # last seen step count by engine identity
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "woolly_http_requests", "HTTP requests by status class.", ["status"], registry=self.registry
        )
        # Model labels come from file names and the administrator's tables, never from clients.
        self._answers = Counter(
            "woolly_answers", "Answers by finish reason.", ["reason", "model"], registry=self.registry
        )
        self._prompt = Counter("woolly_prompt_tokens", "Prompt tokens.", ["model"], registry=self.registry)
        self._cached = Counter(
            "woolly_prompt_tokens_cached", "Cached prompt tokens.", ["model"], registry=self.registry
        )
        self._predicted = Counter("woolly_predicted_tokens", "Generated tokens.", ["model"], registry=self.registry)
        self._texts = Counter("woolly_texts", "Texts embedded, reranked or classified.", registry=self.registry)
        self._text_tokens = Counter(
            "woolly_text_tokens", "Tokens of embedded, reranked or classified texts.", registry=self.registry
        )
        self._first = self._histogram("woolly_first_token_seconds", "Time to first token.", _SECONDS)
        self._whole = self._histogram("woolly_answer_seconds", "Time to the end of the answer.", _SECONDS)
        self._token = self._histogram(
            "woolly_token_seconds", "Time per generated token after the first.", _TOKEN_SECONDS
        )
        self._vllm = VllmMetrics(self.registry, _SECONDS, _TOKEN_SECONDS) if has_vllm_names else None
        self._refused = Counter("woolly_refused", "Rejected requests by error code.", ["code"], registry=self.registry)
        # No labels with field names, because clients choose them.
        self._ignored = Counter("woolly_ignored_fields", "Ignored fields.", registry=self.registry)
        self._ahead = Counter(
            "woolly_read_ahead", "Read-ahead tasks by how they ended.", ["state"], registry=self.registry
        )
        self._ahead_tokens = Counter("woolly_read_ahead_tokens", "Tokens read ahead.", registry=self.registry)
        self.recent: deque[_Answer] = deque(maxlen=_RECENT)
        self.totals = {
            "requests": 0, "answers": 0, "errors": 0, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0,
        }  # fmt: skip

    def _histogram(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, help, ["model"], buckets=tuple(buckets), registry=self.registry)

    def watch(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Add a gauge that calls `read` at each scrape."""
        Gauge(name, help, registry=self.registry).set_function(read)

    def count_reply(self, status: int) -> None:
        """Count a reply by status class."""
        self.totals["requests"] += 1
        self._requests.labels(f"{status // 100}xx").inc()
        if status >= 500:
            self.totals["errors"] += 1

    def count_error(self, code: str) -> None:
        """Count a rejected request by error code."""
        self._refused.labels(code).inc()

    def count_ignored(self, n_fields: int) -> None:
        """Count ignored fields."""
        self._ignored.inc(n_fields)

    def count_pooling(self, n_texts: int, n_tokens: int, n_steps: int, seconds: float) -> None:
        """Count embedded, reranked or classified texts, computed in `n_steps` engine steps."""
        self._texts.inc(n_texts)
        self._text_tokens.inc(n_tokens)
        self.work.steps += n_steps
        for work in (self.work, self._recent):
            work.prompt_tokens += n_tokens
            work.prompt_seconds += seconds

    def count_read_ahead(self, state: str, n_tokens: int) -> None:
        """Count a read-ahead task; `state` tells how the task ended."""
        self._ahead.labels(state).inc()
        self._ahead_tokens.inc(n_tokens)

    def count_work(
        self,
        engine: int,
        n_steps: int,
        usage: dict[str, int],
        timings: dict[str, float],
        drafted: Sequence[tuple[int, int]],
    ) -> None:
        """Add the work of a request; `n_steps` is the total step count of the engine with this identity."""
        before = self._steps.get(engine, 0)
        # A lower count means that another engine has the same identity.
        self.work.steps += n_steps - before if n_steps >= before else n_steps
        self._steps[engine] = n_steps
        for work in (self.work, self._recent):
            work.add(usage, timings, drafted)

    def take_recent(self) -> WorkCounters:
        """Return the counters since the last call, and reset them."""
        recent, self._recent = self._recent, WorkCounters()
        return recent

    def count_answer(
        self,
        model: str,
        reasons: list[str],
        usage: dict[str, int],
        timings: dict[str, float],
        queued: float = 0.0,
        longest: int = 0,
    ) -> None:
        """Count a finished request; `timings` come from `RunningRequest.timings`.

        `queued` is the queue time in seconds, `longest` the token count of the longest answer.
        """
        for reason in reasons:
            self._answers.labels(reason, model).inc()
        self.totals["answers"] += len(reasons)
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self.totals[name] += usage[name]
        self._prompt.labels(model).inc(usage["prompt_tokens"])
        self._cached.labels(model).inc(usage["cached_tokens"])
        self._predicted.labels(model).inc(usage["completion_tokens"])
        if self._vllm is not None:
            self._vllm.count_answer(model, reasons, usage, timings, queued, longest)
        if usage["completion_tokens"] > len(reasons):
            self._token.labels(model).observe(timings["predicted_per_token_ms"] / 1000)
        if usage["completion_tokens"]:
            first, last = timings["prompt_ms"] / 1000, (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
            self._first.labels(model).observe(first)
            self._whole.labels(model).observe(last)
            self.recent.append(
                _Answer(model, first, last, timings["prompt_per_second"], timings["predicted_per_second"])
            )

    @property
    def seconds_per_answer(self) -> float:
        """Return the mean seconds of recent answers, or 1 if there are none."""
        taken = [one.answer_s for one in self.recent]
        return sum(taken) / len(taken) if taken else 1.0

    def snapshot(self, model: str | None = None) -> dict[str, Any]:
        """Return statistics in milliseconds over the last 1024 answers, optionally of one model."""
        recent = [one for one in self.recent if model in (None, one.model)]
        first = sorted(one.first_token_s for one in recent)
        return {
            "uptime_seconds": time.monotonic() - self.started,
            **self.totals,
            "first_token_ms": {f"p{share}": 1000 * _percentile(first, share) for share in (50, 95, 99)},
            "prompt_tokens_per_second": _mean([one.prompt_per_second for one in recent]),
            "predicted_tokens_per_second": _mean([one.predicted_per_second for one in recent]),
        }

    def text(self, models: Container[str] | None = None) -> bytes:
        """Return the metrics in Prometheus' text format, restricted to `models` if given."""
        shown: Any = self.registry if models is None else _Shown(self.registry, models)
        return generate_latest(shown)


class _Shown:
    """View of a registry restricted to some models."""

    def __init__(self, registry: CollectorRegistry, models: Container[str]) -> None:
        self._registry = registry
        self._models = models

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics with their visible samples."""
        for metric in self._registry.collect():
            metric.samples = [one for one in metric.samples if self._is_shown(one.labels)]
            yield metric

    def _is_shown(self, labels: Mapping[str, str]) -> bool:
        name = labels.get("model", labels.get("model_name"))
        return name is None or name in self._models


class DeviceMetrics:
    """Device of each model. `read` runs at each scrape and returns model, device and bytes (None for a CPU)."""

    def __init__(self, read: Callable[[], Iterable[tuple[str, str, int | None]]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration does not call `collect`."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield a metric with the device names, and one with the memory."""
        labels = ["model", "device"]
        info = GaugeMetricFamily("woolly_device_info", "Device of a model.", labels=labels)
        memory = GaugeMetricFamily("woolly_device_memory_bytes", "GPU memory of a model.", labels=labels)
        for model, device, n_bytes in self._read():
            info.add_metric([model, device], 1)
            if n_bytes is not None:
                memory.add_metric([model, device], n_bytes)
        yield info
        yield memory


@dataclass(frozen=True)
class EngineStats:
    """Snapshot of a model's engine."""

    model: str
    running: int  # running requests
    waiting: int
    pages: int  # pages of the KV cache
    pages_used: int


class EngineMetrics:
    """Cache use and running requests of each engine, read at each scrape."""

    def __init__(self, read: Callable[[], Iterable[EngineStats]], has_vllm_names: bool = False) -> None:
        self._read = read
        self._has_vllm_names = has_vllm_names

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration does not call `collect`."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of all models."""
        names = {
            "woolly_engine_running": "Running requests of a model.",
            "woolly_engine_waiting": "Waiting requests of a model.",
            "woolly_kv_cache_pages": "Pages of the KV cache.",
            "woolly_kv_cache_pages_used": "Pages of the KV cache in use.",
        }
        gauges = [GaugeMetricFamily(name, help, labels=["model"]) for name, help in names.items()]
        vllm = {
            "vllm:num_requests_running": "Running requests.",
            "vllm:num_requests_waiting": "Waiting requests.",
            "vllm:kv_cache_usage_perc": "KV cache usage, 0 to 1.",
            "vllm:gpu_cache_usage_perc": "KV cache usage, 0 to 1 (older name).",
        }
        theirs = [GaugeMetricFamily(name, help, labels=["model_name"]) for name, help in vllm.items()]
        for one in self._read():
            for gauge, value in zip(gauges, (one.running, one.waiting, one.pages, one.pages_used), strict=True):
                gauge.add_metric([one.model], value)
            fill = one.pages_used / one.pages if one.pages else 0.0
            for gauge, share in zip(theirs, (one.running, one.waiting, fill, fill), strict=True):
                gauge.add_metric([one.model], share)
        yield from gauges
        if self._has_vllm_names:
            yield from theirs


def _percentile(values: list[float], share: int) -> float:
    return values[min(len(values) - 1, len(values) * share // 100)] if values else 0.0


def _mean(values: list[float]) -> float:
    known = [value for value in values if value > 0]
    return sum(known) / len(known) if known else 0.0
