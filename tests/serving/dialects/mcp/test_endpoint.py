"""/mcp by the official client: models of this server as tools of another program."""

import asyncio
import json

import pytest

from tests.cases.later import Later
from tests.cases.texts import write_readers
from tests.serving.pages.conftest import served
from woolly import LLM
from woolly.machine.optional_packages import requirement
from woolly.serving import Settings, create_app
from woolly.serving.dialects.mcp import endpoint
from woolly.serving.dialects.mcp.page_tools import PageTools

mcp = Later("mcp")  # over a second


@pytest.fixture(scope="module")
def url(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mcp")
    settings = Settings(
        models_dir=tiny_model.parent, sessions_file=folder / "s.db", threads=1, n_predict=8, temp=0, ctx_size=256
    )
    with served(create_app(settings)) as url:
        yield f"{url}/mcp"


def called(url, name, arguments, mode="auto"):
    async def call():
        async with mcp.Client(url, mode=mode) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(call())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_are_listed_and_answer(url, mode):
    async def run():
        async with mcp.Client(url, mode=mode) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == [
                "generate",
                "chat",
                "embed",
                "rerank",
                "count_tokens",
                "list_models",
            ]
            assert "prompt" in tools[0].input_schema["properties"]
            answer = await client.call_tool("generate", {"prompt": "hi", "system": "short", "max_tokens": 5})
            models = await client.call_tool("list_models")
            return answer, models

    answer, models = asyncio.run(run())
    assert not answer.is_error
    assert answer.content[0].text
    listed = models.structured_content["models"]
    assert json.loads(models.content[0].text) == {"models": listed}
    assert listed[0]["name"]


def test_answer_follows_its_schema(url):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "?"},
    ]
    answer = called(url, "chat", {"messages": messages, "json_schema": schema, "max_tokens": 40})
    assert isinstance(json.loads(answer.content[0].text)["ok"], bool)


def test_embed_and_rerank_tools(tmp_path_factory):
    folder = write_readers(tmp_path_factory.mktemp("readers"), "embedder", "ranker")
    settings = Settings(models_dir=folder, sessions_file=folder / "s.db", threads=1)
    with served(create_app(settings)) as url:
        vectors = called(f"{url}/mcp", "embed", {"texts": ["one", "two"]}).structured_content["vectors"]
        assert len(vectors) == 2
        assert abs(sum(number**2 for number in vectors[0]) - 1) < 1e-4
        asked = {"query": "sheep", "documents": ["wool", "steel", "grass"], "top_n": 2}
        results = called(f"{url}/mcp", "rerank", asked).structured_content["results"]
        assert results[0]["score"] >= results[1]["score"]
        assert results[0]["document"] == asked["documents"][results[0]["index"]]


def test_tokens_are_counted(url):
    counted = called(url, "count_tokens", {"text": "hello there"}).structured_content
    assert 0 < counted["text_tokens"] < counted["message_tokens"] < counted["context"] == 256


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("generate", {"prompt": "x " * 2000}, "the context holds 256"),
        ("generate", {"prompt": "x", "max_tokens": 0}, "max_tokens: input should be greater"),
        ("generate", {}, "prompt: field required"),
        ("generate", {"prompt": "x", "tempreature": 1}, "tempreature"),
        ("generate", {"prompt": "x", "json_schema": {"type": "nonsense"}}, "Invalid type: nonsense"),
        ("nothing", {}, "available: generate, chat"),
    ],
)
def test_error_is_a_result_with_the_reason(url, name, arguments, expected):
    result = called(url, name, arguments)
    assert result.is_error
    assert expected in result.content[0].text


def test_key_is_required_if_the_server_has_one(app_with):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    with app_with(api_key=("k",)) as client:
        assert client.post("/mcp", json=body, headers=accept).status_code == 401
        reply = client.post("/mcp", json=body, headers={**accept, "authorization": "Bearer k"})
        assert "count_tokens" in reply.text
        # A stream of events that never come would hold its connection for ever.
        assert client.get("/mcp", headers={"authorization": "Bearer k"}).status_code == 405


def test_tokens_are_counted_off_the_event_loop(url, monkeypatch):
    tokenize, loops = LLM.tokenize, []

    def watched(self, *args, **options):
        loops.append(asyncio._get_running_loop())  # that of this thread
        return tokenize(self, *args, **options)

    monkeypatch.setattr(LLM, "tokenize", watched)
    called(url, "count_tokens", {"text": "hello"})
    assert len(loops) >= 2 and not any(loops)


def test_unusable_package_is_rejected_and_the_servers_still_end(app_with, monkeypatch):
    def fail(_):
        raise ImportError("cannot import name 'Server'")

    ended = []

    async def close(self):
        ended.append(self)

    monkeypatch.setattr(endpoint, "_make_manager", fail)
    monkeypatch.setattr(PageTools, "close", close)
    with app_with() as client:
        for _ in range(2):
            reply = client.post("/mcp", json={})
            assert reply.status_code == 501
            assert f"install {requirement('mcp')} on the server" in reply.json()["error"]["message"]
    assert len(ended) == 1


def test_endpoint_that_fails_at_its_end_leaves_no_servers(app_with, monkeypatch):
    ended = []

    async def fail(self):
        raise OSError("no")

    async def close(self):
        ended.append(self)

    monkeypatch.setattr(endpoint.Endpoint, "close", fail)
    monkeypatch.setattr(PageTools, "close", close)
    with pytest.raises(OSError, match="no"), app_with():
        pass
    assert len(ended) == 1


def test_missing_package_error_says_how_to_get_it(app_with, monkeypatch):
    monkeypatch.setattr(endpoint, "find_spec", lambda name: None)
    with app_with() as client:
        reply = client.post("/mcp", json={})
    assert reply.status_code == 501
    assert f"install {requirement('mcp')} on the server" in reply.json()["error"]["message"]
