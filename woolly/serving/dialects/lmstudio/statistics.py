"""Statistics of a reply: speed, model and runtime."""

from __future__ import annotations

from typing import Any

from woolly import __version__
from woolly.serving.generation.running_request import RunningRequest


def statistics_of(running: RunningRequest, finish_reason: str | None) -> dict[str, Any]:
    """Return the fields that LM Studio adds to OpenAI's reply. `finish_reason` is that of the first answer."""
    timings, info = running.timings(), running.model
    return {
        "stats": {
            "tokens_per_second": timings["predicted_per_second"],
            "time_to_first_token": timings["prompt_ms"] / 1000,
            "generation_time": timings["predicted_ms"] / 1000,
            "stop_reason": _stop_reason(running, finish_reason),
        },
        "model_info": {
            "arch": info.architecture,
            "quant": info.quantization,
            "format": "gguf",
            "context_length": info.context_length,
        },
        "runtime": {"name": "woolly", "version": __version__, "supported_formats": ["gguf"]},
    }


def _stop_reason(running: RunningRequest, finish_reason: str | None) -> str:
    if finish_reason == "length":
        return "maxPredictedTokensReached"
    if finish_reason == "tool_calls":
        return "toolCalls"
    return "stopStringFound" if isinstance(running.requests[0].stop_reason, str) else "eosFound"
