"""Ollama's own SDK against the server: its types read the replies, whole and streamed."""

import contextlib
import re

import ollama
import pytest

HI = [{"role": "user", "content": "hi"}]
PAINT = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paints.",
        "parameters": {
            "type": "object",
            "properties": {"color": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["color"],
        },
    },
}
RED = '<tool_call>\n{"name": "paint", "arguments": {"color": "red"}}\n</tool_call>'


@pytest.fixture
def client(scripted):
    with connected(scripted) as client:
        yield client


@contextlib.contextmanager
def connected(server):
    client = ollama.Client(host=server.url)
    with contextlib.closing(client._client):
        yield client


def both(ask, **fields):
    """The whole reply and the lines of a stream, after a check that they say the same."""
    fields = {"model": "tiny", "options": {"num_predict": 200}, **fields}
    whole, lines = ask(**fields), list(ask(**fields, stream=True))
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (whole.done_reason, whole.eval_count) == (lines[-1].done_reason, lines[-1].eval_count)
    if isinstance(whole, ollama.ChatResponse):
        assert whole.message.content == "".join(line.message.content for line in lines)
        assert (whole.message.thinking or "") == "".join(line.message.thinking or "" for line in lines)
        calls = [call.function for line in lines for call in line.message.tool_calls or ()]
        assert [call.function for call in whole.message.tool_calls or ()] == calls
    else:
        assert whole.response == "".join(line.response for line in lines)
    return whole


def test_chat(client, scripted):
    scripted.says("<think>Hm.</think>Hello there.")
    reply = both(client.chat, messages=[{"role": "system", "content": "Be brief."}, *HI], think=True)
    assert (reply.message.content, reply.message.thinking) == ("Hello there.", "Hm.")
    assert (reply.model, reply.done_reason, reply.message.role) == ("tiny", "stop", "assistant")
    assert reply.total_duration >= reply.prompt_eval_duration > 0 and reply.prompt_eval_count > 0


def test_tool_calls_arrive_complete_and_can_be_sent_back(client, scripted):
    scripted.says(f"Yes.\n{RED}\n{RED}")
    reply = both(client.chat, messages=HI, tools=[PAINT])
    assert [call.function.arguments for call in reply.message.tool_calls] == [{"color": "red"}] * 2
    scripted.says("Done.")
    result = {"role": "tool", "content": "painted", "tool_name": "paint"}
    again = both(client.chat, messages=[*HI, reply.message, result], tools=[PAINT])
    assert again.message.content == "Done."


def test_format_is_enforced(thoughtless):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    with connected(thoughtless) as client:
        reply = both(client.chat, messages=HI, format=schema)
        assert reply.message.content.replace(" ", "").strip() in ('{"n":1}', '{"n":2}')
        reply = client.generate(model="tiny", prompt="hi", format="json", options={"num_predict": 3})
        assert reply.response.strip().startswith("{")


def test_generate(client, scripted):
    scripted.says("one two three")
    assert both(client.generate, prompt="count", system="Be brief.").response == "one two three"
    stopped = both(client.generate, prompt="count", raw=True, options={"stop": ["two"], "top_k": 40.0, "seed": 1})
    assert (stopped.response, stopped.done_reason) == ("one ", "stop")
    cut = both(client.generate, prompt="count", options={"num_predict": 3, "num_ctx": 4096, "repeat_penalty": 1.1})
    assert (cut.eval_count, cut.done_reason) == (3, "length")


def test_models(client):
    assert [model.model for model in client.list().models] == ["tiny:latest"]
    assert client.generate(model="tiny:latest", prompt="hi", options={"num_predict": 1}).model == "tiny:latest"
    with pytest.raises(ollama.ResponseError, match=r"'llama3\.2' not found"):
        client.generate(model="llama3.2", prompt="hi", options={"num_predict": 1})
    (loaded,) = client.ps().models
    assert loaded.model == "tiny:latest" and loaded.context_length == 65536 and loaded.expires_at.year == 9999
    shown = client.show("tiny")
    assert shown.details.family == "llama" and shown.modelinfo["llama.context_length"] == 65536
    assert {"completion", "tools", "thinking"} == set(shown.capabilities)
    assert shown.modelinfo["tokenizer.ggml.tokens"] == []


def test_request_without_a_prompt_loads_and_unloads(client):
    assert client.generate(model="tiny").done_reason == "load"
    assert client.chat(model="tiny", messages=[], keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    assert client.chat(model="tiny", messages=[]).done_reason == "load"


def test_pulling_a_local_model_returns_immediately(client):
    assert client.pull("tiny").status == "success"
    assert [step.status for step in client.pull("tiny:latest", stream=True)][-1] == "success"


@pytest.mark.parametrize(
    ("call", "status", "says"),
    [
        (lambda c: c.show("none"), 404, "model 'none' not found"),
        (lambda c: c.chat(model="tiny", messages=[{**HI[0], "images": [b"x"]}]), 400, "does not support images"),
        (lambda c: c.generate(model="tiny", prompt="hi", images=[b"x"]), 400, "does not support images"),
        (lambda c: c.generate(model="tiny", prompt="hi", template="{{ .Prompt }}"), 400, "template"),
        (lambda c: c.generate(model="tiny", prompt="hi", options={"top_p": 2}), 400, "top_p"),
        (lambda c: c.generate(model="tiny", prompt="hi", suffix="x"), 400, "no fill-in-the-middle (FIM) tokens"),
        (lambda c: c.generate(model="tiny", prompt="hi " * 40000), 400, "input length exceeds the context length"),
        (lambda c: c.embed(model="tiny", input="hi"), 400, "tiny cannot embed texts"),
        (lambda c: c.embeddings(model="tiny", prompt="hi"), 400, "tiny cannot embed texts"),
        (lambda c: c.pull("smollm2"), 403, "--allow-pull"),
        (lambda c: c.delete("tiny"), 403, "--allow-changes"),
        (lambda c: c.copy("tiny", "other"), 403, "--allow-changes"),
        (lambda c: c.create("other", from_="tiny"), 403, "--allow-changes"),
        (lambda c: c.push("tiny"), 403, "uploading models is not supported"),
    ],
)
def test_errors_are_strings(client, call, status, says):
    with pytest.raises(ollama.ResponseError, match=re.escape(says)) as caught:
        call(client)
    assert caught.value.status_code == status
