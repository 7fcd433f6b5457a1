"""A dialect is a folder and a line: the one of docs/make/add-a-dialect.md answers, streams and has its own errors."""

import asyncio
import json

import pytest
from fastapi.testclient import TestClient

from tests.docs.blocks import blocks_of
from woolly.serving import Settings, create_app
from woolly.serving.dialect import Dialects
from woolly.serving.dialects.reply import stream_reply
from woolly.serving.lifecycle.app import DIALECTS


@pytest.fixture(scope="module")
def plain():
    (block,) = (block for block in blocks_of("docs/make/add-a-dialect.md") if block.language == "python")
    names = {"__name__": "plain"}
    exec(block.text, names)
    return names["DIALECT"]


@pytest.fixture
def client(plain, tiny_model, tmp_path):
    settings = Settings(
        model=str(tiny_model), ctx_size=128, threads=1, temp=0, n_predict=8, sessions_file=tmp_path / "sessions.db"
    )
    with TestClient(create_app(settings, (*DIALECTS, plain))) as client:
        yield client


def test_answers_and_streams_match_another_dialect(client):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert client.post("/plain/chat", json={"say": "hi"}).json() == {"model": "tiny", "reply": answer}
    stream = client.post("/plain/chat", json={"say": "hi", "stream": True})
    assert stream.headers["content-type"].startswith("application/x-ndjson")
    assert "".join(json.loads(line)["reply"] for line in stream.text.splitlines()) == answer


def test_errors_have_the_format_of_the_dialect_and_name_the_sent_field(client):
    reply = client.post("/plain/chat", json={"say": "x" * 500})
    assert reply.status_code == 400 and reply.json()["wrong"] == "say"
    assert client.post("/plain/chat", json={}).json()["wrong"] == "say"
    assert set(client.get("/plain/nowhere").json()) == {"wrong", "why"}
    assert set(client.post("/plain/chat", content=b"{").json()) == {"wrong", "why"}
    assert "type" in client.get("/v1/nowhere").json()["error"]
    assert "suggestion" in client.get("/api/v1/nowhere").json()["error"]


def test_failed_stream_ends_with_an_error_in_the_dialect_format(plain, caplog):
    class Held:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            return None

    async def frames():
        yield b"first\n"
        raise ZeroDivisionError

    async def read():
        return [frame async for frame in stream_reply(plain, frames(), Held()).body_iterator]

    first, last = asyncio.run(read())
    assert first == b"first\n" and "why" in json.loads(last)
    (line,) = [record for record in caplog.records if record.getMessage() == "stream failed"]
    assert line.exc_info[0] is ZeroDivisionError  # the client is told that the log has the reason


def test_longest_prefix_selects_the_dialect(plain):
    dialects = Dialects((*DIALECTS, plain))
    named = {path: dialects.of(path).name for path in ("/v1/models", "/api/v1", "/api/v1/ws", "/plain/x", "/", "/v1x")}
    assert list(named.values()) == ["openai", "ole", "ole", "plain", "llama-server", "llama-server"]
