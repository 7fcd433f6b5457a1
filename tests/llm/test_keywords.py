"""Calls take sampling options by keyword, a text as a conversation, lists of conversations, and pydantic classes."""

import asyncio
import json
import pickle
import re
from dataclasses import fields, replace

import pytest
from pydantic import BaseModel, ConfigDict, Field

from woolly import LLM, AsyncLLM, RequestError, SamplingParams, TemplateError, _native
from woolly.llm.model_options import rows_of
from woolly.llm.unsupported_calls import PEER_CALLS
from woolly.runtime import KV_TYPES
from woolly.sampling.params import SamplingOptions

HI = [{"role": "user", "content": "hi"}]
BYE = [{"role": "user", "content": "bye"}]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")

    x: int = Field(ge=0, le=9)
    y: int = Field(ge=0, le=9)


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, ctx=256, threads=1) as llm:
        yield llm


def test_sampling_options_are_keywords_over_params(llm):
    wanted = llm.generate("a", replace(GREEDY, max_tokens=3))
    assert llm.generate("a", temperature=0, max_tokens=3, ignore_eos=True).token_ids == wanted.token_ids
    assert llm.generate("a", GREEDY, max_tokens=3).token_ids == wanted.token_ids
    many = llm.generate(["a", "b"], [GREEDY, replace(GREEDY, temperature=1, seed=1)], max_tokens=3)
    assert [len(answer.token_ids) for answer in many] == [3, 3]
    stream = llm.generate("a", GREEDY, max_tokens=3, stream=True)
    assert "".join(map(str, stream)) == wanted.text
    assert llm.chat(HI, max_tokens=2, ignore_eos=True).finish_reason == "length"
    with pytest.raises(RequestError, match="max_tokens is 0"):
        llm.chat(HI, max_tokens=0)


def test_keywords_of_other_libraries_suggest_ours(llm):
    for call in (lambda: llm("hi"), lambda: AsyncLLM.__call__(AsyncLLM.__new__(AsyncLLM), "hi", max_tokens=3)):
        with pytest.raises(RequestError, match=r"use llm\.generate\(prompt\) or llm\.chat"):
            call()
    with pytest.raises(AttributeError, match=r"no attribute 'create_chat_completion'; use llm\.chat\(messages\)"):
        llm.create_chat_completion(messages=HI)
    with pytest.raises(AttributeError, match=r"^'LLM' object has no attribute 'wool'$"):
        llm.wool  # noqa: B018
    assert not any(name in dir(LLM) for name in PEER_CALLS)  # a method that exists is not a foreign one
    with pytest.raises(RequestError, match=r"LLM got an unexpected argument 'model_path'; did you mean model\?"):
        LLM(model_path="x.gguf")


def test_type_checkers_see_the_fields_of_sampling_params():
    assert [*SamplingOptions.__annotations__] == [field.name for field in fields(SamplingParams)]
    for field in fields(SamplingParams):
        own = "".join(field.type.split())
        if own.startswith("tuple["):  # any sequence is accepted
            own = own.replace("tuple[", "Sequence[").removesuffix(",...]") + "]"
        assert "".join(SamplingOptions.__annotations__[field.name].__forward_arg__.split()) == own


def test_server_methods_are_hidden_from_completion(llm):
    shown = [name for name in dir(llm) if not name.startswith("_")]
    assert {"chat", "generate", "embed", "tokenize", "close", "ctx", "path"} <= set(shown)
    assert not any(name.startswith("prepare") or name in ("driver", "keeps_shared") for name in shown)
    assert len(shown) < 40, shown


def test_pickling_an_open_model_says_what_to_do(llm):
    with pytest.raises(
        TypeError, match=r"LLM objects cannot be pickled or copied; open the model in each process: LLM\(path\)"
    ):
        pickle.dumps(llm)


def test_parsed_is_an_instance_of_the_class(llm):
    answer = llm.chat(HI, schema=Point, max_tokens=60, seed=1)
    assert answer.parsed == Point.model_validate_json(answer.text)
    assert llm.chat(HI, schema=Point, max_tokens=1).parsed is None  # cut
    assert llm.chat(HI, schema=Point.model_json_schema(), max_tokens=60, seed=1).parsed is None
    stream = llm.chat(HI, schema=Point, max_tokens=60, seed=1, stream=True)
    text = "".join(chunk.text for chunk in stream)
    assert stream.completion.parsed == Point.model_validate_json(text)
    assert pickle.loads(pickle.dumps(answer)) == answer


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("repetition_penalty", "repeat_penalty"),
        ("max_new_tokens", "max_tokens"),
        ("temprature", "temperature"),
        ("guided_json", "json_schema"),
    ],
)
def test_unknown_sampling_option_error_suggests_the_right_one(llm, name, near):
    for call in (SamplingParams, lambda **options: llm.generate("a", **options)):
        for kind in (TypeError, RequestError):
            with pytest.raises(kind, match=f"got an unexpected argument '{name}'; did you mean {near}[?]") as caught:
                call(**{name: 1})
        assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("n_ctx", "ctx"),
        ("max_model_len", "ctx"),
        ("n_threads", "threads"),
        ("thread", "threads"),
        ("n_gpu_layers", "gpu_layers"),
    ],
)
def test_unknown_model_option_error_suggests_the_right_one(tiny_model, name, near):
    for kind in (LLM, AsyncLLM):
        with pytest.raises(TypeError, match=f"LLM got an unexpected argument '{name}'; did you mean {near}[?]"):
            kind(tiny_model, **{name: 1})
    with pytest.raises(
        RequestError,
        match="LLM got an unexpected argument 'wool'; expected one of model, backend, device, threads, ctx",
    ):
        LLM(tiny_model, wool=1)


def test_unknown_chat_option_error_suggests_the_right_one(llm):
    with pytest.raises(
        RequestError, match="chat got an unexpected argument 'chat_template_kwargs'; did you mean variables"
    ):
        llm.chat(HI, chat_template_kwargs={})
    with pytest.raises(RequestError, match="chat got an unexpected argument 'zzz'; see help"):
        llm.chat(HI, zzz=1)


def test_subclass_may_have_its_own_options(tiny_model):
    class Mine(LLM):
        def __init__(self, model, mood):
            super().__init__(model, ctx=64)
            self.mood = mood

    with Mine(tiny_model, mood="good") as mine:
        assert mine.mood == "good"
    assert pickle.loads(pickle.dumps(GREEDY)) == GREEDY


def test_string_is_one_user_message(llm):
    assert llm.chat("hi", GREEDY).token_ids == llm.chat(HI, GREEDY).token_ids


def test_list_of_conversations_gives_a_list_of_answers(llm):
    alone = [llm.chat(one, GREEDY).token_ids for one in (HI, BYE)]
    assert [one.token_ids for one in llm.chat([HI, BYE], GREEDY)] == alone
    assert [one.token_ids for one in llm.chat(["hi", BYE], GREEDY)] == alone
    short = llm.chat([HI, BYE], [GREEDY, replace(GREEDY, max_tokens=2)], split_reasoning=False)
    assert [len(one.token_ids) for one in short] == [6, 2]
    with pytest.raises(TemplateError, match="conversation 1: message 1 needs a 'role'"):
        llm.chat([HI, [{"content": "x"}]])
    with pytest.raises(TemplateError, match="conversation 1: message 1 of role 'user' needs a 'content'"):
        llm.chat([HI, [{"role": "user"}]])
    with pytest.raises(RequestError, match="conversation 0: the prompt"):
        llm.chat(["x" * 500, HI])
    with pytest.raises(RequestError, match="streaming takes one conversation"):
        llm.chat([HI, BYE], stream=True)
    with pytest.raises(RequestError, match="got 3 params for 2"):
        llm.chat([HI, BYE], [GREEDY] * 3)


def test_failed_answer_of_a_list_carries_its_error(llm):
    def fails(ids, logits):
        raise ValueError("no")

    good, bad = llm.chat([HI, BYE], [GREEDY, replace(GREEDY, logits_processors=(fails,))])
    assert good.error is None and len(good.token_ids) == 6 and "no" in str(bad.error)


def test_async_llm_takes_the_same_keywords(tiny_model, llm):
    async def main():
        async with AsyncLLM(tiny_model, ctx=256, threads=1) as model:
            answers = await model.chat([HI, "bye"], GREEDY, max_tokens=4)
            assert [one.token_ids for one in answers] == [one.token_ids[:4] for one in llm.chat([HI, BYE], GREEDY)]
            assert (await model.chat("hi", GREEDY)).text == llm.chat(HI, GREEDY).text
            assert "".join([str(c) async for c in model.stream_chat("hi", GREEDY)]) == llm.chat(HI, GREEDY).text
            with pytest.raises(TypeError, match="use its method stream_chat"):
                await model.chat("hi", stream=True)
            with pytest.raises(RequestError, match="streaming takes one conversation"):
                await anext(model.stream_chat([HI, BYE]))

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("name", ["schema", "json_schema"])
def test_pydantic_class_is_a_schema(llm, name):
    answer = llm.chat(HI, seed=1, max_tokens=60, **{name: Point})
    assert 0 <= Point.model_validate_json(answer.text).x <= 9
    assert SamplingParams(json_schema=Point) == SamplingParams(json_schema=Point.model_json_schema())
    with pytest.raises(RequestError, match="or a pydantic class"):
        SamplingParams(json_schema=int)


def test_tool_takes_a_pydantic_class(tiny_model):
    tool = {"name": "go", "parameters": Point}
    with LLM(tiny_model, ctx=512, threads=1) as llm:
        answer = llm.chat(HI, tools=[tool], tool_choice="go", seed=1, max_tokens=90)
    Point(**json.loads(answer.tool_calls[0].arguments))


def test_cache_types_have_the_sizes_of_the_cpu_backend():
    assert {name: _native.kv_value_bytes(name) * 8 for name in KV_TYPES} == {n: kv.bits for n, kv in KV_TYPES.items()}
    with pytest.raises(ValueError, match="KV type 'q4_9' is unknown; choose one of: f32, f16, q8_0, q4"):
        _native.kv_value_bytes("q4_9")


def test_cache_help_names_its_types():
    row = rows_of()["kv_type"]
    assert row.setting is not None
    for text in (row.help, row.setting.help):
        assert set(re.findall(r"\w+", text)) >= set(KV_TYPES)
