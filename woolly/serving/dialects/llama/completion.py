"""POST /completion and /completions of llama-server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from woolly.chat import ChatFormat
from woolly.engine import Chunk, Completion
from woolly.sampling import SamplingParams, TokenLogprob
from woolly.serving.dialects.llama.media_markers import MarkedPrompt, marked_layout
from woolly.serving.dialects.llama.parameters import CompletionBody, generation_settings, prompts_of
from woolly.serving.dialects.reply import stream_reply
from woolly.serving.errors import ApiError
from woolly.serving.gate.request_id import client_of, owner_of
from woolly.serving.generation.admission import Admitted
from woolly.serving.generation.generator import GenerationRequest, Generator
from woolly.serving.generation.running_request import RunningRequest
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter
from woolly.serving.sse import sse_event
from woolly.tokens import Tokenizer

router = APIRouter()

_TEXTS = {"prompt", "input_prefix", "input_suffix", "input_extra"}  # fields of the prompt


@router.post("/completion", summary="Complete a prompt (llama-server)")
@router.post("/completions", summary="Complete a prompt (llama-server)")
async def complete(body: CompletionBody, request: Request) -> Response:
    """Complete a prompt.

    For several prompts, or with n_cmpl, the reply is a list of replies. `stream` selects server-sent events.
    """
    return await answer(body, request)


async def answer(
    body: CompletionBody, request: Request, laid_out: Callable[[Tokenizer], Sequence[int]] | None = None
) -> Response:
    """Return the reply of /completion; `laid_out` returns the prompt's token ids if the body has no prompt."""
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    params = body.to_params(await generator.defaults_for(body.model, is_text=True))
    prompts, many = prompts_of(body) if laid_out is None else ([laid_out], False)
    if body.stream and many:
        raise ApiError(
            400, "invalid_request", "several prompts cannot be streamed; send one prompt per request", param="stream"
        )
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit(params.n, n_prompts=len(prompts)))
        slot = await stack.enter_async_context(models.use(body.model))
        generations = [await _generation(prompt, body, params, request, slot) for prompt in prompts]
        if body.stream:
            dialect = request.app.state.dialects.of(request.url.path)
            running = await stack.enter_async_context(generator.open(generations[0], admitted, slot))
            return stream_reply(dialect, _events(running, body, params, request), stack.pop_all())
        replies = await _gather(request, generations, (admitted, slot), body, params)
    return JSONResponse(replies if many or params.n > 1 else replies[0])


async def _generation(
    prompt: str | Sequence[int | str] | MarkedPrompt | Callable[[Tokenizer], Sequence[int]],
    body: CompletionBody,
    params: SamplingParams,
    request: Request,
    slot: ModelSlot,
) -> GenerationRequest:
    """Return the request for one prompt. Strings of a mixed prompt are tokenized; only the first may get BOS."""
    whole: str | tuple[int, ...] | ChatFormat
    if isinstance(prompt, str):
        whole = prompt
    elif isinstance(prompt, MarkedPrompt):
        generator: Generator = request.app.state.generator
        modalities = generator.load_modalities(slot.model)
        whole = await run_in_thread(marked_layout, prompt, params, modalities, pool=generator.media_pool)
    elif not callable(prompt) and all(isinstance(part, int) for part in prompt):
        whole = tuple(part for part in prompt if isinstance(part, int))
    else:
        generator = request.app.state.generator
        make = prompt if callable(prompt) else partial(_ids, prompt)
        llm = slot.model
        generator.check_characters(llm, body.model_dump(include=_TEXTS).values() if callable(prompt) else prompt)
        whole = tuple(await run_in_thread(make, llm.tokenizer))
    return GenerationRequest(
        model=body.model,
        prompt=whole,
        params=params,
        score_only=body.limit == 0,
        reports_progress=body.stream and bool(body.return_progress),
        client=client_of(request),
        owner=owner_of(request),
        id_slot=body.id_slot,
    )


def _ids(parts: Sequence[int | str], tokenizer: Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for i, part in enumerate(parts):
        ids += [part] if isinstance(part, int) else tokenizer.encode(part, add_special=i == 0)
    return tuple(ids)


async def _gather(
    request: Request,
    generations: Sequence[GenerationRequest],
    admitted: tuple[Admitted, ModelSlot],
    body: CompletionBody,
    params: SamplingParams,
) -> list[dict[str, Any]]:
    """Run all requests concurrently; the first failure cancels the others."""
    generator: Generator = request.app.state.generator

    async def one(index: int, generation: GenerationRequest) -> list[dict[str, Any]]:
        async with generator.open(generation, *admitted) as running:
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
    running: RunningRequest, body: CompletionBody, params: SamplingParams, request: Request
) -> AsyncIterator[bytes]:
    n_predicted = [0] * params.n
    async for chunk in running:
        n_predicted[chunk.index] += len(chunk.logprobs)
        if chunk.n_computed is not None:
            for done, timings in running.advance(chunk.n_computed):
                timed = {"timings": timings} if body.timings_per_token else {}
                yield sse_event({**_part(running, Chunk("", index=chunk.index), 0), "prompt_progress": done, **timed})
        if chunk.text or chunk.logprobs:
            part = _part(running, chunk, n_predicted[chunk.index])
            if body.timings_per_token:
                part["timings"] = running.timings()
            if body.n_probs:
                part["completion_probabilities"] = _probabilities(chunk.logprobs, running.tokenizer, params)
            yield sse_event(part)
    completion = await running.completion()
    n_ctx = await _context(request, running)
    for i, choice in enumerate(completion.choices):
        # the text has already been sent
        yield sse_event({**_final(running, choice, body, params, i, n_ctx), "content": "", "tokens": []})


def _part(running: RunningRequest, chunk: Chunk, n_predicted: int) -> dict[str, Any]:
    """Return the fields of a stream chunk."""
    return {
        "index": chunk.index,
        "content": chunk.text,
        "tokens": [token.token for token in chunk.logprobs],
        "stop": False,
        "id_slot": running.id_slot,
        "tokens_predicted": n_predicted,
        "tokens_evaluated": running.n_prompt,
    }


async def _context(request: Request, running: RunningRequest) -> int:
    """Return the context size of the loaded model in tokens."""
    models: ModelManager = request.app.state.models
    return (await models.get(running.model.name)).context_length


def _final(
    running: RunningRequest, choice: Completion, body: CompletionBody, params: SamplingParams, index: int, n_ctx: int
) -> dict[str, Any]:
    usage = running.usage()
    n_total = choice.n_prompt_tokens + len(choice.token_ids)
    reply: dict[str, Any] = {
        "index": index,
        "content": choice.text,
        "tokens": list(choice.token_ids) if body.return_tokens else [],
        "id_slot": running.id_slot,
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
            **_never(running, params),
        ),
        "prompt": running.prompt_pieces,
        "has_new_line": "\n" in choice.text,
        "truncated": choice.finish_reason == "length" and n_total >= n_ctx,
        "stop_type": _stop_type(choice),
        "stopping_word": choice.stop_reason if isinstance(choice.stop_reason, str) else "",
        "tokens_cached": usage["cached_tokens"],
        "timings": running.timings(),
    }
    if body.n_probs and not body.stream:
        reply["completion_probabilities"] = _probabilities(choice.logprobs or (), running.tokenizer, params)
    return _fields(reply, body.response_fields) if body.response_fields else reply


def _never(running: RunningRequest, params: SamplingParams) -> dict[str, Any]:
    """Return the logit biases, including end tokens with `ignore_eos`, as llama-server shows them."""
    if not params.ignore_eos:
        return {}
    own = generation_settings(params, limit=None)["logit_bias"]
    return {"logit_bias": own + [{"token": token, "bias": None} for token in sorted(running.tokenizer.stop_ids)]}


def _stop_type(choice: Completion) -> str:
    if choice.finish_reason == "length":
        return "limit"
    return "word" if isinstance(choice.stop_reason, str) else "eos"


def _probabilities(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, params: SamplingParams
) -> list[dict[str, Any]]:
    """Return llama-server's entries: probabilities after the samplers, or log-probabilities before them."""
    is_post = params.post_sampling_probs
    return [
        {
            **_token(tokenizer, entry.token, entry.logprob, is_post),
            "top_probs" if is_post else "top_logprobs": [
                _token(tokenizer, token, logprob, is_post) for token, logprob in entry.top
            ],
        }
        for entry in logprobs
    ]


def _token(tokenizer: Tokenizer, token: int, logprob: float, is_post: bool) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    # A forbidden token has a log-probability of -inf, which JSON cannot represent.
    how_likely = {"prob": math.exp(logprob)} if is_post else {"logprob": max(logprob, -3.4e38)}
    return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data), **how_likely}


def _fields(reply: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Return the requested fields. A path with slashes selects a nested field."""
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
