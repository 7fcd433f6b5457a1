"""POST /completion and /completions: llama-server's own completion, whole or streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from woolly.engine import Completion, SamplingParams, TokenLogprob
from woolly.serving.admission import Place
from woolly.serving.errors import ApiError
from woolly.serving.events import event, stream_of
from woolly.serving.generation import Generation, Generator, Running
from woolly.serving.holding import run_held
from woolly.serving.llama.parameters import CompletionBody, generation_settings, prompts_of
from woolly.serving.models import Loaded, ModelManager
from woolly.text import Tokenizer

__all__ = ["answer", "complete", "router"]

router = APIRouter()

_TEXTS = {"prompt", "input_prefix", "input_suffix", "input_extra"}  # what a prompt may be laid out from


@router.post("/completion", summary="Continue a prompt, as llama-server does")
@router.post("/completions", summary="Continue a prompt, as llama-server does")
async def complete(body: CompletionBody, request: Request) -> Response:
    """The reply is an object; a list of prompts, or n_cmpl, gives a list of them. `stream` sends server-sent events."""
    return await answer(body, request)


async def answer(
    body: CompletionBody, request: Request, laid_out: Callable[[Tokenizer], Sequence[int]] | None = None
) -> Response:
    """What /completion replies; `laid_out` makes the prompt's ids, where it is none of the body's own."""
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    params = body.to_params(generator.defaults)
    prompts, many = prompts_of(body) if laid_out is None else ([laid_out], False)
    if body.stream and many:
        raise ApiError(
            400, "invalid_request", "several prompts cannot be streamed; send them one by one", param="stream"
        )
    async with AsyncExitStack() as held:
        place = held.enter_context(generator.place(params.n, n_prompts=len(prompts)))
        slot = await held.enter_async_context(models.use(body.model))
        generations = [await _generation(prompt, body, params, request, slot) for prompt in prompts]
        if body.stream:
            running = await held.enter_async_context(generator.open(generations[0], place, slot))
            return stream_of(request, _events(running, body, params, request), held.pop_all())
        replies = await _gather(request, generations, (place, slot), body, params)
    return JSONResponse(replies if many or params.n > 1 else replies[0])


async def _generation(
    prompt: str | Sequence[int | str] | Callable[[Tokenizer], Sequence[int]],
    body: CompletionBody,
    params: SamplingParams,
    request: Request,
    slot: Loaded,
) -> Generation:
    """Of a mixed prompt the texts are made ids; only the first of them may get BOS."""
    whole: str | tuple[int, ...]
    if isinstance(prompt, str):
        whole = prompt
    elif not callable(prompt) and all(isinstance(part, int) for part in prompt):
        whole = tuple(part for part in prompt if isinstance(part, int))
    else:
        generator: Generator = request.app.state.generator
        make = prompt if callable(prompt) else partial(_ids, prompt)
        llm = slot.model
        generator.check_characters(llm, body.model_dump(include=_TEXTS).values() if callable(prompt) else prompt)
        whole = tuple(await run_held(make, llm.tokenizer))
    return Generation(
        model=body.model,
        prompt=whole,
        params=params,
        score_only=body.limit == 0,
        client=getattr(request.state, "client", ""),
    )


def _ids(parts: Sequence[int | str], tokenizer: Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for i, part in enumerate(parts):
        ids += [part] if isinstance(part, int) else tokenizer.encode(part, add_special=i == 0)
    return tuple(ids)


async def _gather(
    request: Request,
    generations: Sequence[Generation],
    held: tuple[Place, Loaded],
    body: CompletionBody,
    params: SamplingParams,
) -> list[dict[str, Any]]:
    """All at once; the first that fails ends the others."""
    generator: Generator = request.app.state.generator

    async def one(index: int, generation: Generation) -> list[dict[str, Any]]:
        async with generator.open(generation, *held) as running:
            completion = await running.completion()
            n_ctx = await _context(request, running)
            return [
                _final(running, choice, body, params, index * params.n + i, n_ctx)
                for i, choice in enumerate(completion.choices)
            ]

    tasks = [asyncio.ensure_future(one(i, generation)) for i, generation in enumerate(generations)]
    try:
        return [reply for replies in await asyncio.gather(*tasks) for reply in replies]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _events(
    running: Running, body: CompletionBody, params: SamplingParams, request: Request
) -> AsyncIterator[bytes]:
    n_predicted = [0] * params.n
    async for chunk in running:
        n_predicted[chunk.index] += len(chunk.logprobs)
        if chunk.text or chunk.logprobs:
            part: dict[str, Any] = {
                "index": chunk.index,
                "content": chunk.text,
                "tokens": [token.token for token in chunk.logprobs],
                "stop": False,
                "id_slot": 0,
                "tokens_predicted": n_predicted[chunk.index],
                "tokens_evaluated": len(running.prompt_ids),
            }
            if body.timings_per_token:
                part["timings"] = running.timings()
            if body.n_probs:
                part["completion_probabilities"] = _probabilities(chunk.logprobs, running.tokenizer)
            yield event(part)
    completion = await running.completion()
    n_ctx = await _context(request, running)
    for i, choice in enumerate(completion.choices):
        # The text has been sent, piece by piece.
        yield event({**_final(running, choice, body, params, i, n_ctx), "content": "", "tokens": []})


async def _context(request: Request, running: Running) -> int:
    """Tokens that one request may take, as the model is loaded."""
    models: ModelManager = request.app.state.models
    return (await models.get(running.model.name)).context_length


def _final(
    running: Running, choice: Completion, body: CompletionBody, params: SamplingParams, index: int, n_ctx: int
) -> dict[str, Any]:
    usage = running.usage()
    n_total = choice.n_prompt_tokens + len(choice.token_ids)
    reply: dict[str, Any] = {
        "index": index,
        "content": choice.text,
        "tokens": list(choice.token_ids) if body.return_tokens else [],
        "id_slot": 0,
        "stop": True,
        "model": running.model.name,
        "tokens_predicted": len(choice.token_ids),
        "tokens_evaluated": choice.n_prompt_tokens,
        "generation_settings": generation_settings(
            params,
            limit=body.limit if params.max_tokens is None else params.max_tokens,
            stream=body.stream,
            n_probs=body.n_probs,
            timings_per_token=body.timings_per_token,
            n_ctx=n_ctx,
            model=running.model.name,
        ),
        "prompt": running.prompt_text,
        "has_new_line": "\n" in choice.text,
        "truncated": choice.finish_reason == "length" and n_total >= n_ctx,
        "stop_type": _stop_type(choice),
        "stopping_word": choice.stop_reason if isinstance(choice.stop_reason, str) else "",
        "tokens_cached": usage["cached_tokens"],
        "timings": running.timings(),
    }
    if body.n_probs and not body.stream:
        reply["completion_probabilities"] = _probabilities(choice.logprobs or (), running.tokenizer)
    return _fields(reply, body.response_fields) if body.response_fields else reply


def _stop_type(choice: Completion) -> str:
    if choice.finish_reason == "length":
        return "limit"
    return "word" if isinstance(choice.stop_reason, str) else "eos"


def _probabilities(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {
            **_token(tokenizer, entry.token, entry.logprob),
            "top_logprobs": [_token(tokenizer, token, logprob) for token, logprob in entry.top],
        }
        for entry in logprobs
    ]


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    # A token that was forbidden has a logarithm of -inf, which JSON cannot say.
    return {
        "id": token,
        "token": data.decode("utf-8", "replace"),
        "bytes": list(data),
        "logprob": max(logprob, -3.4e38),
    }


def _fields(reply: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """The fields that are wanted; one with a slash is taken out of the object that it lies in."""
    found: dict[str, Any] = {}
    for path in wanted:
        value: Any = reply
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            found[path] = json.loads(json.dumps(value))
    return found
