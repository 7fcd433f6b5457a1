"""/v1/chat/completions: a conversation and its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from woolly.serving.generation import Running
from woolly.serving.openai.answer import Answer
from woolly.serving.openai.envelope import Envelope, timings_of, usage_of
from woolly.serving.openai.layout import open_chat
from woolly.serving.openai.replies import ChatReply
from woolly.serving.openai.schema import ChatRequest
from woolly.serving.openai.stream import client_of, json_reply, sse

__all__ = ["chat_completions", "router"]

router = APIRouter()


@router.post("/v1/chat/completions", responses={200: {"model": ChatReply}}, response_model=None)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation; with `stream`, by server-sent events."""
    state = request.app.state
    body.check()
    async with AsyncExitStack() as held:
        place = held.enter_context(state.generator.place(body.n or 1))
        layout, running = await open_chat(held, state, body, place, client_of(request))
        answers = [layout.answer(running) for _ in range(layout.generation.params.n)]
        if body.stream:
            return sse(request, _chunks(body, running, answers), held.pop_all())
        return json_reply(await _reply(running, answers))


async def _reply(running: Running, answers: Sequence[Answer]) -> dict[str, Any]:
    async for chunk in running:
        answers[chunk.index].push(chunk)
    envelope = Envelope("chatcmpl", "chat.completion", running.model.name)
    choices = [answer.choice(index) for index, answer in enumerate(answers)]
    return envelope.around(choices, usage=usage_of([running]), timings=timings_of([running]))


async def _chunks(body: ChatRequest, running: Running, answers: Sequence[Answer]) -> AsyncIterator[dict[str, Any]]:
    envelope = Envelope("chatcmpl", "chat.completion.chunk", running.model.name)
    # Where usage is asked for, OpenAI puts a null into every chunk but the last.
    always: dict[str, Any] = {"usage": None} if body.includes_usage else {}

    def chunk_of(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        timed = {"timings": timings_of([running])} if body.timings_per_token else {}
        return envelope.around([choice], **always, **timed)

    for index in range(len(answers)):
        yield chunk_of(index, {"role": "assistant", "content": "", "refusal": None})
    n_open = len(answers)
    async for chunk in running:
        index, answer = chunk.index, answers[chunk.index]
        for delta in answer.push(chunk):
            yield chunk_of(index, delta, logprobs=_some(answer.take_logprobs()))
        if chunk.finish_reason is not None:
            n_open -= 1
            last = chunk_of(index, {}, logprobs=_some(answer.take_logprobs()), finish_reason=answer.finish_reason)
            if n_open == 0:
                last["timings"] = timings_of([running])
            yield last
    if body.includes_usage:
        yield envelope.around([], usage=usage_of([running]), timings=timings_of([running]))


def _some(logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Log-probabilities where there are any: one delta of several carries those of all."""
    return logprobs if logprobs is not None and logprobs["content"] else None
