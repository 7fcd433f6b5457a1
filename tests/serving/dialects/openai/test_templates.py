"""The template determines how answers are parsed: calls of every format, and reasoning, complete and streamed."""

import asyncio
import json

import httpx
import pytest

from woolly.serving import Settings, create_app

TURNS = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "hermes": "{{ tools }} <tool_call></tool_call>" + TURNS,
    "llama3": "{{ tools }} <|python_tag|>" + TURNS,
    "mistral": "{{ tools }} [TOOL_CALLS]" + TURNS,
    "mistral_named": "{{ tools }} [TOOL_CALLS][ARGS]" + TURNS,
    "granite": "{{ tools }} <|tool_call|>" + TURNS,
    "generic": TURNS,
    "thinking": "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}" + TURNS + "{# <think> #}",
    "open": TURNS + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}",
}
COLOR = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"color": {"enum": ["red", "blue"]}},
            "required": ["color"],
            "additionalProperties": False,
        },
    },
}
RED = '{"name": "paint", "arguments": {"color": "red"}}'
ANSWERS = {
    "hermes": f"Yes.\n<tool_call>\n{RED}\n</tool_call>\n<tool_call>\n{RED}\n</tool_call>",
    "llama3": f"{RED.replace('arguments', 'parameters')}; {RED.replace('arguments', 'parameters')}",
    "mistral": f"Yes. [TOOL_CALLS][{RED}, {RED}]",
    "mistral_named": 'Yes. [TOOL_CALLS]paint[ARGS]{"color": "red"}[TOOL_CALLS]paint[ARGS]{"color": "red"}',
    "granite": f"Yes. <|tool_call|>[{RED}, {RED}]",
    "generic": f"{RED}\n{RED}",
}


@pytest.fixture
def ask(tiny_model):
    def ask(template, **fields):
        """The replies to a request as a whole and streamed, the latter put together again."""
        settings = Settings(model=str(tiny_model), chat_template=TEMPLATES[template], ctx_size=512, threads=1)

        async def main():
            app = create_app(settings)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client,
            ):
                body = {"messages": [{"role": "user", "content": "Paint!"}], "max_tokens": 200, "seed": 1, **fields}
                whole = (await client.post("/v1/chat/completions", json=body)).json()
                if "error" in whole:
                    return whole["error"]
                stream = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
                choice = whole["choices"][0]
                assert joined(stream) == plain(choice["message"], choice["finish_reason"])
                return choice

        return asyncio.run(asyncio.wait_for(main(), 60))

    return ask


def plain(message, reason):
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return message["content"] or "", message.get("reasoning_content") or "", calls, reason


def joined(stream):
    text, reasoning, calls, reason = "", "", [], None
    for line in stream.splitlines():
        if not line or line == "data: [DONE]":
            continue
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        delta, reason = choice["delta"], choice["finish_reason"]
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append((call["function"]["name"], ""))
            name, arguments = calls[call["index"]]
            calls[call["index"]] = name, arguments + call["function"]["arguments"]
    return text, reasoning, calls, reason


@pytest.mark.parametrize("format", sorted(ANSWERS))
def test_generated_calls_are_parsed(format, ask):
    choice = ask(format, tools=[COLOR], choice=[ANSWERS[format]])
    text, _, calls, reason = plain(choice["message"], choice["finish_reason"])
    assert text == ("Yes." if ANSWERS[format].startswith("Yes.") else "")
    assert calls == [("paint", '{"color": "red"}')] * 2
    assert reason == "tool_calls"
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


@pytest.mark.parametrize("format", sorted(ANSWERS))
def test_one_call_is_returned_without_parallel_calls(format, ask):
    choice = ask(format, tools=[COLOR], choice=[ANSWERS[format]], parallel_tool_calls=False)
    assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("format", sorted(ANSWERS))
def test_random_model_makes_the_required_call(format, ask):
    choice = ask(format, tools=[COLOR], tool_choice={"type": "function", "function": {"name": "paint"}})
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "paint"
    assert json.loads(call["function"]["arguments"])["color"] in ("red", "blue")
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("format", sorted(ANSWERS))
def test_calls_are_text_when_none_are_allowed(format, ask):
    choice = ask(format, tools=[COLOR], tool_choice="none", choice=[ANSWERS[format]])
    assert choice["message"]["content"] == ANSWERS[format]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_truncated_call_keeps_its_content(ask):
    choice = ask("hermes", tools=[COLOR], choice=[ANSWERS["hermes"]], max_tokens=50)
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length"
    assert '{"color": "red"}'.startswith(call["function"]["arguments"])


def test_reasoning_is_separated(ask):
    message = ask("thinking", choice=["<think>\nHm.\n</think>\n\nRed."])["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Red.")
    message = ask("open", choice=["Hm.\n</think>\n\nRed."])["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Red.")
    assert "reasoning_content" not in ask("thinking", choice=["Red."])["message"]


def test_reasoning_stays_in_the_text_on_request(ask):
    message = ask("thinking", choice=["<think>Hm.</think>Red."], reasoning_format="none")["message"]
    assert message["content"] == "<think>Hm.</think>Red."


def test_no_text_is_split_without_markers_in_the_template(ask):
    assert ask("generic", choice=["<think>Hm.</think>Red."])["message"]["content"] == "<think>Hm.</think>Red."


def test_template_switches_are_passed_or_rejected(ask):
    assert "message" in ask("thinking", chat_template_kwargs={"enable_thinking": False}, max_tokens=1)
    assert "message" in ask("thinking", reasoning_effort="none", max_tokens=1)
    assert "message" in ask("generic", chat_template_kwargs={"enable_thinking": False}, max_tokens=1)  # it never thinks
    assert "enable_thinking" in ask("generic", chat_template_kwargs={"enable_thinking": True})["message"]
    closed = ask("open", chat_template_kwargs={"enable_thinking": False}, choice=["Red."])["message"]
    assert closed["content"] == "Red." and "reasoning_content" not in closed  # the prompt ends with empty reasoning
    assert "message" in ask("generic", reasoning_effort="low", max_tokens=1)
    assert ask("thinking", chat_template_kwargs={"tools": []})["param"] == "chat_template_kwargs.tools"


def test_grammar_and_required_tools_exclude_each_other(ask):
    assert ask("hermes", tools=[COLOR], tool_choice="required", grammar='root ::= "x"')["param"] == "grammar"
    assert ask("hermes", response_format={"type": "json_object"}, grammar='root ::= "x"')["param"] == "grammar"


def test_unenforceable_schema_error_names_its_field(ask):
    wrong = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}
    assert ask("hermes", tools=[wrong])["param"] == "tools"
    # Without strict, nothing promises that the arguments follow it.
    wrong["function"]["strict"] = False
    assert "message" in ask("hermes", tools=[wrong], max_tokens=1)
    schema = {"name": "x", "schema": {"not": {}}}
    error = ask("hermes", response_format={"type": "json_schema", "json_schema": schema})
    assert error["param"] == "response_format"
