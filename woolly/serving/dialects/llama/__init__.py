"""llama-server's native API."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.datastructures import State

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.completions import chat as completions
from woolly.serving.dialects.llama import (
    chat,
    completion,
    embeddings,
    infill,
    lora,
    metrics,
    model_events,
    models,
    predict,
    props,
    slots,
    streams,
    tokens,
    vllm,
)
from woolly.serving.errors import ApiError, error_body
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "Llama"]


class Llama(ChatDialect):
    """llama-server's API. Also formats the errors of paths that belong to no other dialect."""

    name = "llama-server"
    prefix = ""
    takes_any_type = True
    health = {  # noqa: RUF012 - a constant of the class
        "/health": "health",
        "/v1/health": "health",
        "/health/ready": "ready",
        "/health/live": "live",
        "/ping": "live",  # route of vLLM
    }
    metrics = ("/metrics",)
    polled = ("/slots",)
    fields = completions.FIELDS

    def __init__(self) -> None:
        self.router = APIRouter(tags=["llama-server"])
        for part in (chat, completion, embeddings, infill, lora, models, model_events, predict, props, slots, streams):
            self.router.include_router(part.router)
        for part in (tokens, vllm):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return OpenAI's error object; a prompt that is too long has llama-server's own type."""
        body = error_body(error)
        if error.code == "context_length_exceeded" and error.exceeds is not None:
            n_prompt, n_ctx = error.exceeds
            body["error"] |= {
                "type": "exceed_context_size_error",
                "message": f"{body['error']['message']}; it exceeds the available context size ({n_ctx} tokens)",
                "n_prompt_tokens": n_prompt,
                "n_ctx": n_ctx,
            }
        elif error.status == 501:
            body["error"]["type"] = "not_supported_error"
        return body

    def more_metrics(self, state: State) -> str:
        """Return llama-server's metrics."""
        return metrics.metrics_text(state)

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        return completions.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a chat.completion."""
        return await completions.full_reply(chunks, head)


DIALECT = Llama()
