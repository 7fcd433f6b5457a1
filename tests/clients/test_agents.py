"""Requests of agents, with their fields and sizes: a call, its result, and a second turn from the cache."""

import json

import httpx
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from tests.clients import agents
from tests.clients.test_responses import events_of

CALL = "<tool_call>\n{}\n</tool_call>"


def ask(server, path, body):
    reply = httpx.post(server.url + path, json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply


def chat(server, body):
    """The message, the usage and the header of a chat completion, by the SDK's accumulator."""
    reply, state = ask(server, "/v1/chat/completions", body), ChatCompletionStreamState()
    frames = reply.text.strip().split("\n\n")
    assert frames[-1] == "data: [DONE]"
    for frame in frames[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate_json(frame.removeprefix("data: ")))
    done = state.get_final_completion()
    return done.choices[0], done.usage, reply.headers.get("x-woolly-ignored", "")


def makes_call(server, name, arguments, thought=""):
    server.says(thought + CALL.format(json.dumps({"name": name, "arguments": arguments})))


def is_cached(n_prompt, n_cached):
    return n_cached > 0.9 * n_prompt > 0


@pytest.mark.parametrize(("name", "shell"), [("OPENCODE", "bash"), ("QWEN", "run_shell_command"), ("CONTINUE", "Bash")])
def test_agents_of_chat_completions(scripted, name, shell):
    body = getattr(agents, name)
    makes_call(scripted, shell, {"command": "echo hi"}, "<think>I think.</think>")
    first, _, reported = chat(scripted, body)
    assert first.finish_reason == "tool_calls" and "gpt-9" in reported
    message = first.message.model_dump(include={"role", "content"}) | {"content": ""}
    (call,) = first.message.tool_calls
    message["tool_calls"] = [call.model_dump(include={"id", "type", "function"})]
    message["tool_calls"][0]["function"].pop("parsed_arguments", None)
    result = {"tool_call_id": call.id}
    if name != "CONTINUE":
        message["reasoning_content"] = "I think."
    if name == "QWEN":
        message["reasoning"] = "I think."
        result["content"] = [{"type": "text", "text": agents.filler(114)}]
    scripted.says("Done.")
    second, usage, reported = chat(scripted, agents.next_chat(body, message, **result))
    assert (second.message.content, second.finish_reason) == ("Done.", "stop")
    assert is_cached(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) and "messages" not in reported


def test_opencode_asks_for_a_title(scripted):
    scripted.says("A title")
    assert chat(scripted, agents.OPENCODE_TITLE)[0].message.content == "A title"


@pytest.mark.parametrize(("name", "shell"), [("CODEX", "exec_command"), ("COPILOT", "bash")])
def test_agents_of_responses(scripted, name, shell):
    body = getattr(agents, name)
    makes_call(scripted, shell, {"cmd": "echo hi"}, "<think>I think.</think>")
    events = events_of(ask(scripted, "/v1/responses", body).text)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in done] == ["reasoning", "function_call"] and done[0].encrypted_content
    scripted.says("Done.")
    output = [item.model_dump(exclude_none=True) for item in done]
    body = agents.next_response(body, output, repeats_thought=name == "COPILOT")
    last = events_of(ask(scripted, "/v1/responses", body).text)[-1]
    assert last.type == "response.completed" and last.response.output[0].content[0].text == "Done."
    usage = last.response.usage
    assert is_cached(usage.input_tokens, usage.input_tokens_details.cached_tokens)


def test_cline_uses_the_ollama_api(scripted):
    makes_call(scripted, "run_commands", {"commands": ["echo hi"]}, "<think>I think.</think>")
    asked = agents.CLINE | {"model": "tiny:latest"}  # Ollama knows the names of its models alone
    lines = [json.loads(line) for line in ask(scripted, "/api/chat", asked).text.splitlines()]
    (calls,) = (line["message"]["tool_calls"] for line in lines if line["message"].get("tool_calls"))
    call = {"type": "function", **calls[0]}
    message = {"role": "assistant", "content": "", "thinking": "I think.", "tool_calls": [call]}
    scripted.says("Done.")
    body = agents.next_chat(asked, message, tool_call_id=call["id"], tool_name="run_commands")
    *lines, last = (json.loads(line) for line in ask(scripted, "/api/chat", body).text.splitlines())
    assert "".join(line["message"]["content"] for line in lines) == "Done." and last["done_reason"] == "stop"
    assert is_cached(last["prompt_eval_count"], last["prompt_eval_cached_count"])
