"""LLM.chat tells reasoning and calls from text, whole, streamed and for asyncio."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, AsyncLLM, Completion, RequestError, SamplingParams

TEMPLATE = (
    "{{ tools }}<tool_call>{# <think> #}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}"
)
HI = [{"role": "user", "content": "hi"}]
PAINT = {
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {"color": {"enum": ["red"]}},
        "required": ["color"],
        "additionalProperties": False,
    },
}
RED = '<tool_call>\n{"name": "paint", "arguments": {"color": "red"}}\n</tool_call>'
ANSWER = f"<think>Hm.</think>Yes.\n{RED}\n{RED}"
FIXED = SamplingParams(choice=(ANSWER,), max_tokens=300)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, ctx=512, threads=1, chat_template=TEMPLATE) as llm:
        yield llm


def parts(answer):
    return answer.text, answer.reasoning, [(call.name, call.arguments) for call in answer.tool_calls]


WANTED = ("Yes.", "Hm.", [("paint", '{"color": "red"}')] * 2)


def test_answer_has_text_reasoning_and_calls(llm):
    answer = llm.chat(HI, FIXED, tools=[PAINT])
    assert isinstance(answer, Completion) and str(answer) == "Yes."
    assert parts(answer) == WANTED
    assert len(llm.chat(HI, FIXED, tools=[PAINT], parallel_tool_calls=False).tool_calls) == 1


def test_chunks_have_the_same_parts_and_ids(llm):
    stream = llm.chat(HI, FIXED, tools=[PAINT], stream=True)
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == "Yes."
    assert "".join(chunk.reasoning for chunk in chunks) == "Hm."
    assert "".join(chunk.raw for chunk in chunks) == ANSWER
    calls = [call for chunk in chunks for call in chunk.tool_calls]
    assert calls == list(stream.completion.tool_calls) and parts(stream.completion) == WANTED
    usage = chunks[-1].events[-1].usage
    assert usage.n_prompt == stream.completion.n_prompt_tokens and usage.n_answer == len(stream.completion.token_ids)


def test_stream_closed_early_keeps_its_partial_answer(llm):
    stream = llm.chat(HI, FIXED, tools=[PAINT], stream=True)
    next(stream)
    stream.close()
    assert ANSWER.startswith("<think>" + stream.completion.reasoning)


def test_async_chat_gives_the_same(path):
    async def main():
        async with AsyncLLM(path, ctx=512, threads=1, chat_template=TEMPLATE) as llm:
            assert parts(await llm.chat(HI, FIXED, tools=[PAINT])) == WANTED
            chunks = [chunk async for chunk in llm.stream_chat(HI, FIXED, tools=[PAINT])]
            assert "".join(chunk.text for chunk in chunks) == "Yes."
            assert [call.name for chunk in chunks for call in chunk.tool_calls] == ["paint", "paint"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_required_tool_is_called(path):
    with LLM(path, ctx=512, threads=1) as llm:  # ChatML, which knows neither tools nor reasoning
        answer = llm.chat(HI, SamplingParams(seed=1, max_tokens=200), tools=[PAINT], tool_choice="paint")
    (call,) = answer.tool_calls
    assert call.name == "paint" and json.loads(call.arguments) == {"color": "red"}


def test_without_tools_calls_are_text_and_reasoning_can_stay_in_it(llm):
    assert llm.chat(HI, FIXED).text == f"Yes.\n{RED}\n{RED}"
    assert llm.chat(HI, FIXED, split_reasoning=False).text == ANSWER


def test_n_answers_are_parsed_separately(llm):
    even = SamplingParams(temperature=1e4, samplers=("temperature",), n=8, seed=3, max_tokens=300)
    params = replace(even, choice=(ANSWER, "<think>No.</think>Never."))
    answer = llm.chat(HI, params, tools=[PAINT])
    assert {parts(one)[0] for one in answer.choices} == {"Yes.", "Never."}


def test_unknown_option_is_rejected_by_name(llm):
    with pytest.raises(TypeError, match="toolz"):
        llm.chat(HI, toolz=[])
    with pytest.raises(RequestError, match="tool_choice"):
        llm.chat(HI, tools=[PAINT], tool_choice="draw")


@pytest.mark.parametrize("wrong", [{"pattern": "(?<=x)a"}, {"type": "string", "format": "idn-hostname"}])
def test_schema_error_of_the_grammar_engine_names_the_tool(llm, wrong):
    draw = {"type": "object", "properties": {"line": wrong}, "required": ["line"]}
    tools = [PAINT, {"type": "function", "function": {"name": "draw", "parameters": draw}}]
    with pytest.raises(RequestError, match=r"the arguments of the tool 'draw': .*(look-around|idn-hostname)") as caught:
        llm.chat(HI, tools=tools, tool_choice="required")
    assert caught.value.field == "tools"
