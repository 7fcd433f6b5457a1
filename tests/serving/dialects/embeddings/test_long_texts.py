"""A text that no context can hold is refused before it is tokenized, on every route that takes text."""

import asyncio
import threading

import pytest

from woolly.llm.pooling import given_up
from woolly.llm.text_ids import BatchTokenizer
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.tokens.tokenizer import Tokenizer

LONG = "a " * 400_000  # characters; the models take 512 tokens
SAID = [{"role": "user", "content": LONG}]
TOOL = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {"type": "object"}}}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}

ROUTES = [
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": ["a", LONG]}),
    ("/v1/completions", {"prompt": "a", "suffix": LONG}),
    ("/v1/chat/completions", {"messages": SAID}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/responses", {"input": "a", "instructions": LONG}),
    ("/v1/responses/input_tokens", {"input": LONG}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 1}),
    ("/v1/messages/count_tokens", {"messages": SAID}),
    ("/completion", {"prompt": LONG}),
    ("/completion", {"prompt": [1, LONG]}),
    ("/infill", {"input_prefix": LONG, "input_suffix": "b"}),
    ("/infill", {"input_prefix": "b", "input_suffix": "b", "input_extra": [{"text": LONG, "filename": "x"}]}),
    ("/tokenize", {"content": LONG}),
    ("/tokenize", {"prompt": LONG}),
    ("/tokenize", {"messages": SAID}),
    ("/apply-template", {"messages": SAID}),
    ("/chat/completions/input_tokens", {"messages": SAID}),
    ("/api/generate", {"prompt": LONG}),
    ("/api/chat", {"messages": SAID}),
    ("/api/v1/inference/complete", {"prompt": LONG}),
    ("/api/v1/inference/stream", {"messages": SAID}),
    ("/v1/embeddings", {"model": "embedder", "input": ["a", LONG]}),
    ("/embedding", {"model": "embedder", "content": LONG}),
    ("/embeddings", {"model": "embedder", "content": LONG}),
    ("/api/embed", {"model": "embedder", "input": LONG, "truncate": False}),
    ("/api/embeddings", {"model": "embedder", "prompt": LONG}),
    ("/v2/embed", {"model": "embedder", "texts": [LONG], "truncate": "NONE"}),
    ("/v1/rerank", {"model": "ranker", "query": LONG, "documents": ["a"] * 50}),
    ("/v1/rerank", {"model": "ranker", "query": LONG, "documents": ["a"] * 50, "truncate": True}),
    ("/v1/rerank", {"model": "judge", "query": LONG, "documents": ["a"] * 50, "max_tokens_per_doc": 3}),
    ("/v1/rerank", {"model": "ranker", "query": "a", "documents": ["a", LONG]}),
    ("/v2/rerank", {"model": "judge", "query": "a", "documents": [LONG], "max_tokens_per_doc": None}),
    ("/v1/score", {"model": "ranker", "text_1": "a", "text_2": LONG}),
    ("/v1/score", {"model": "embedder", "text_1": LONG, "text_2": "a"}),
    ("/v1/classify", {"model": "classifier", "input": [LONG]}),
    ("/mcp", {**CALL, "params": {"name": "count_tokens", "arguments": {"text": LONG}}}),
    ("/mcp", {**CALL, "params": {"name": "generate", "arguments": {"prompt": LONG}}}),
    ("/mcp", {**CALL, "params": {"name": "embed", "arguments": {"model": "embedder", "texts": [LONG]}}}),
]


@pytest.fixture
def longest(monkeypatch):
    """Characters of the longest text that was tokenized."""
    lengths, plain = [0], Tokenizer.encode

    def encode(self, text, *given, **options):
        lengths.append(len(text))
        return plain(self, text, *given, **options)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    return lambda: max(lengths)


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[f"{path} {', '.join(body)}" for path, body in ROUTES])
def test_text_beyond_any_context_is_rejected_untokenized(client, longest, path, body):
    reply = client.post(path, json=body, headers={"Accept": "application/json, text/event-stream"})
    if path == "/mcp":
        assert reply.status_code == 200 and '"isError":true' in reply.text.replace(" ", ""), reply.text[:300]
    else:
        assert reply.status_code == 400, reply.text[:300]
    assert longest() < len(LONG)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "embedder", "input": LONG, "truncate": True}),
        ("/api/embed", {"model": "embedder", "input": LONG, "truncate": True}),
        ("/v1/rerank", {"model": "ranker", "query": "a", "documents": [LONG], "truncate": True}),
        ("/v1/rerank", {"model": "judge", "query": "a", "documents": [LONG], "max_tokens_per_doc": 9}),
        ("/v1/classify", {"model": "classifier", "input": [LONG], "truncate": True}),
    ],
)
def test_truncated_text_is_tokenized_only_as_far_as_needed(client, longest, path, body):
    short = {name: [LONG[:2000]] if value == [LONG] else value for name, value in body.items()}
    short = {name: LONG[:2000] if value == LONG else value for name, value in short.items()}
    whole, part = client.post(path, json=body), client.post(path, json=short)
    assert whole.status_code == 200 and longest() <= 512 * 256 + 100
    for name in ("data", "embeddings", "results"):
        assert whole.json().get(name) == part.json().get(name)


@pytest.mark.parametrize("model", ["ranker", "judge"])
def test_query_is_tokenized_once(client, monkeypatch, model):
    heads, plain = [], BatchTokenizer._head

    def head(self, query):
        before = len(self._heads)
        found = plain(self, query)
        heads.append(len(self._heads) - before)
        return found

    monkeypatch.setattr(BatchTokenizer, "_head", head)
    body = {"model": model, "query": "which sheep", "documents": [f"sheep {i}" for i in range(20)]}
    assert client.post("/v1/rerank", json=body).status_code == 200
    assert heads == [1] + [0] * 19


def test_preparation_stops_when_the_client_leaves(readers):
    from woolly import LLM
    from woolly.errors import RequestError

    is_begun, made = threading.Event(), []
    with LLM(readers / "embedder.gguf", threads=1) as llm:
        plain = Tokenizer.encode

        class Slow(type(llm.tokenizer)):
            def encode(self, text, *given, **options):
                made.append(text)
                is_begun.set()
                gone.wait(60)
                return plain(self, text, *given, **options)

        gone = threading.Event()
        llm.tokenizer.__class__ = Slow

        async def leave():
            given_up.set(gone.is_set)
            work = asyncio.ensure_future(run_in_thread(llm.prepare_embedding, ["a"] * 100, on_cancel=gone.set))
            while not is_begun.is_set():
                await asyncio.sleep(0.01)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

        asyncio.run(leave())
        assert len(made) == 1
        with pytest.raises(RequestError, match="the client disconnected"):
            given_up.set(lambda: True)
            llm.prepare_embedding(["a"])
        given_up.set(lambda: False)
