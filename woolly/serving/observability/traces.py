"""OpenTelemetry spans and histograms of model requests (--otlp-endpoint).

The semantic conventions for generative AI are still in development, so this module uses few of them and creates the
span when the request has ended. Spans contain no texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from starlette.datastructures import Headers

from woolly.errors import RequestError

# Operation by path suffix.
_OPERATIONS = {
    "/chat/completions": "chat",
    "/messages": "chat",
    "/responses": "chat",
    "/api/chat": "chat",
    ":generateContent": "chat",
    ":streamGenerateContent": "chat",
    "/completions": "text_completion",
    "/completion": "text_completion",
    "/api/generate": "text_completion",
    "/embeddings": "embeddings",
    "/embedding": "embeddings",
    "/api/embed": "embeddings",
    "/v2/embed": "embeddings",
}
_METRICS = {
    "gen_ai.server.request.duration": "Time to the end of the answer.",
    "gen_ai.server.time_to_first_token": "Time to first token.",
    "gen_ai.server.time_per_output_token": "Time per token after the first.",
}
_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class Traces:
    """Creates spans and metrics of finished requests. Use this class only on the event loop thread."""

    def __init__(self, tracer: Any, meter: Any, extract: Callable[[dict[str, str]], Any], error: Any) -> None:
        """`tracer` and `meter` are OpenTelemetry's.

        `extract` reads the parent span from headers; `error` is an error status.
        """
        self._tracer = tracer
        self._extract = extract
        self._error = error
        self._histograms = {name: meter.create_histogram(name, "s", help) for name, help in _METRICS.items()}

    def add(self, scope: Mapping[str, Any], state: MutableMapping[str, Any], status: int, ms: float) -> None:
        """Create the span of a finished model request."""
        path = scope["path"]
        operation = next((name for end, name in _OPERATIONS.items() if path.endswith(end)), None)
        if operation is None or "json" not in state:
            return
        answers: list[dict[str, Any]] = state["answers"]
        body = state["json"] if isinstance(state["json"], Mapping) else {}
        wanted = str(body.get("model") or (answers[0]["model"] if answers else ""))[:200]
        labels = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "woolly", "gen_ai.request.model": wanted}
        fields: dict[str, Any] = {**labels, "http.response.status_code": status, "woolly.request.id": state["id"]}
        if answers:
            fields |= _of_answers(answers)
        if status >= 400:
            fields["error.type"] = str(status)
        begun = time.time_ns() - int(ms * 1e6)
        parent = self._extract(dict(Headers(scope=scope)))  # type: ignore[arg-type]
        name = f"{operation} {wanted}".strip()
        span = self._tracer.start_span(name, context=parent, start_time=begun, attributes=fields)
        if answers and answers[0]["completion_tokens"]:
            span.add_event("gen_ai.first_token", timestamp=begun + int(answers[0]["prompt_ms"] * 1e6))
        if status >= 500:
            span.set_status(self._error)
        span.end(begun + int(ms * 1e6))
        self._measure(labels, answers, ms)

    def _measure(self, labels: dict[str, str], answers: list[dict[str, Any]], ms: float) -> None:
        """Update the histograms. The requested model name is not a label, because clients choose it."""
        model = {"gen_ai.response.model": answers[0]["model"]} if answers else {}
        given = {name: value for name, value in labels.items() if name != "gen_ai.request.model"} | model
        durations, firsts, tokens = self._histograms.values()
        durations.record(ms / 1000, given)
        for answer in answers:
            if answer["completion_tokens"]:
                firsts.record(answer["prompt_ms"] / 1000, given)
            if answer["completion_tokens"] > len(answer["reasons"]):
                tokens.record(answer["predicted_per_token_ms"] / 1000, given)


def _of_answers(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of a request's answers as span attributes."""
    return {
        "gen_ai.response.model": answers[0]["model"],
        "gen_ai.usage.input_tokens": sum(one["prompt_tokens"] for one in answers),
        "gen_ai.usage.output_tokens": sum(one["completion_tokens"] for one in answers),
        "gen_ai.usage.cache_read.input_tokens": sum(one["cached_tokens"] for one in answers),
        "gen_ai.response.finish_reasons": [reason for one in answers for reason in one["reasons"]],
    }


def check_telemetry(endpoint: str | None) -> None:
    """Raise RequestError for an invalid endpoint, or if OpenTelemetry is not installed."""
    if endpoint is None:
        return
    if not endpoint.startswith(("http://", "https://")):
        raise RequestError(
            f"otlp_endpoint is {endpoint[:100]!r}; expected an address such as http://127.0.0.1:4318",
            field="otlp_endpoint",
        )
    try:
        for name in _PACKAGES:
            import_module(name)
    except ImportError:
        raise RequestError(
            "otlp_endpoint needs OpenTelemetry, which is not installed: pip install 'woolly-llm[otel]'",
            field="otlp_endpoint",
        ) from None


def open_traces(endpoint: str, version: str) -> tuple[Traces, Callable[[], None]]:
    """Return traces that are exported with OTLP over HTTP, and a function that flushes and closes the exporter."""
    sdk, exporter = "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"
    resource = import_module(f"{sdk}.resources").Resource.create({"service.name": "woolly", "service.version": version})
    spans = import_module(f"{sdk}.trace").TracerProvider(resource=resource, shutdown_on_exit=False)
    base = endpoint.rstrip("/")
    sender = import_module(f"{exporter}.trace_exporter").OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=5)
    spans.add_span_processor(import_module(f"{sdk}.trace.export").BatchSpanProcessor(sender))
    figures = import_module(f"{exporter}.metric_exporter").OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=5)
    reader = import_module(f"{sdk}.metrics.export").PeriodicExportingMetricReader(figures)
    meters = import_module(f"{sdk}.metrics").MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    propagator = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
    error = import_module("opentelemetry.trace").StatusCode.ERROR

    def end() -> None:
        spans.shutdown()
        meters.shutdown(timeout_millis=5000)

    made = Traces(spans.get_tracer("woolly"), meters.get_meter("woolly"), propagator.extract, error)
    return made, end
