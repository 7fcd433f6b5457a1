"""Memory of large bodies after the reply, with the collector off: no reference cycle may keep them."""

import asyncio
import base64
import functools
import gc
import json
import tracemalloc

import pytest

TEXT = "x" * 1_000_000
N = 12
IMAGE = base64.b64encode(b"\x89PNG" + bytes(700_000)).decode()

BODIES = {
    "accepted": ("/v1/completions", {"prompt": "a", "max_tokens": 1, "user": TEXT}),
    "accepted, with an unknown field": ("/v1/completions", {"prompt": "a", "max_tokens": 1, "foo": 1, "user": TEXT}),
    "accepted, with a renamed field": (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 1, "repetition_penalty": 1.1, "user": TEXT},
    ),
    "a field of another type": ("/v1/chat/completions", {"messages": [], "format": 1, "user": TEXT}),
    "a schema that is rejected": (
        "/v1/completions",
        {"prompt": "a", "max_tokens": 1, "json_schema": {"type": "object", "not": {"enum": [TEXT]}}},
    ),
    "an image for a text model": (
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}],
                }
            ]
        },
    ),
    "accepted by Responses": ("/v1/responses", {"input": "a", "max_output_tokens": 1, "store": False, "user": TEXT}),
    "a Responses tool of another type": ("/v1/responses", {"input": "a", "tools": 5, "user": TEXT}),
    "an Anthropic limit of another type": (
        "/v1/messages",
        {"model": "m", "messages": [], "max_tokens": "y", "metadata": {"user_id": TEXT}},
    ),
    "an Anthropic image for a text model": (
        "/v1/messages",
        {
            "model": "m",
            "max_tokens": 1,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
                    ],
                }
            ],
        },
    ),
    "accepted by Ollama": ("/api/generate", {"model": "tiny", "prompt": "a", "options": {"num_predict": 1}, "x": TEXT}),
    "an Ollama image for a text model": (
        "/api/chat",
        {"model": "tiny", "messages": [{"role": "user", "content": "a", "images": [IMAGE]}]},
    ),
    "accepted by Ole": ("/api/v1/inference/complete", {"prompt": "a", "max_tokens": 1, "foo": TEXT}),
    "accepted by Gemini": (
        "/v1beta/models/tiny:generateContent",
        {"contents": [{"parts": [{"text": "a"}]}], "generationConfig": {"maxOutputTokens": 1}, "foo": TEXT},
    ),
    "embeddings of a text model": ("/v1/embeddings", {"input": "a", "user": TEXT}),
    "a body of invalid JSON": ("/v1/chat/completions", {"messages": TEXT}),
    "a prompt beyond the context": ("/v1/completions", {"prompt": "word " * 200_000}),
    "an unknown model": ("/v1/completions", {"prompt": TEXT, "model": "nobody/nothing"}),
    "an unknown route": ("/v1/nothing", {"prompt": TEXT}),
    "a grammar that is wrong": ("/completion", {"prompt": "a", "grammar": "root ::= " + TEXT}),
}


async def post(app, path, raw):
    """Send one request to the app itself: HTTP clients keep bodies in cycles of their own."""
    parts = [{"type": "http.request", "body": raw, "more_body": False}]
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
    statuses = []

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize("case", BODIES)
def test_no_body_outlives_its_reply(case, app_with):
    path, body = BODIES[case]
    raw = json.dumps(body).encode()
    with app_with() as client:
        send = functools.partial(client.portal.call, post, client.app, path, raw)
        status = send()  # what stays after the first: compiled patterns, caches
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(N):
                assert send() == status == (200 if "accepted" in case else status)
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 4 * len(TEXT), f"{kept / len(TEXT):.1f} bodies of {N} are kept"
