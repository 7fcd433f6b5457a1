"""Marks that a vocabulary has as control tokens are read, and never shown."""

import asyncio
import json

import httpx
import numpy as np
import pytest

from tests.cases import tiny
from woolly.serving import Settings, create_app

TEMPLATE = "{{ tools }} [TOOL_CALLS] [ARGS] [THINK]{% for message in messages %}{{ message.content }}{% endfor %}"
MARKS = ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"properties": {"color": {"enum": ["red"]}}}}}


@pytest.fixture
def model(tmp_path, monkeypatch):
    vocabulary = tiny.byte_vocabulary()
    tokens = vocabulary["tokenizer.ggml.tokens"]
    assert all(kind == 3 for kind in np.asarray(vocabulary["tokenizer.ggml.token_type"])[-len(MARKS) :])
    tokens[-len(MARKS) :] = MARKS
    monkeypatch.setattr(tiny, "byte_vocabulary", lambda: vocabulary)
    return tiny.write_tiny(tiny.TINY["llama"], tmp_path / "tiny.gguf"), {mark: tokens.index(mark) for mark in MARKS}


def ask(path, **fields):
    settings = Settings(model=str(path), chat_template=TEMPLATE, ctx_size=256, threads=1)

    async def main():
        app = create_app(settings)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client,
        ):
            body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "max_tokens": 100, **fields}
            reply = await client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()["choices"][0]

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_control_tokens_separate_reasoning_text_and_calls(model):
    path, ids = model
    at = {mark: f"<[{token}]>" for mark, token in ids.items()}
    lark = (
        f'start: {at["[THINK]"]} "hm" {at["[/THINK]"]} "Yes." {at["[TOOL_CALLS]"]} "paint" {at["[ARGS]"]} '
        + json.dumps('{"color": "red"}')
    )
    choice = ask(path, lark=lark, logprobs=True)
    message = choice["message"]
    assert message["reasoning_content"] == "hm"
    assert message["content"] == "Yes."
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "paint", "arguments": '{"color": "red"}'}
    assert len(call["id"]) == 9
    tokens = "".join(token["token"] for token in choice["logprobs"]["content"])
    assert tokens == '[THINK]hm[/THINK]Yes.[TOOL_CALLS]paint[ARGS]{"color": "red"}'
