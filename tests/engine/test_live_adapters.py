"""Adapters that come and go while a model answers: nobody else's bits change."""

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.engine.test_adapters import PARAMS, PROMPT, lora, write_lora
from woolly import LLM, RequestError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    named = {name: write_lora(folder / f"{name}.gguf", lora(seed)) for seed, name in enumerate(("first", "second"))}
    return write_tiny(TINY["llama"], folder / "tiny.gguf"), named


def answer(llm, adapters=None):
    found = llm.generate(PROMPT, PARAMS, adapters=adapters, logprobs=3)
    return found.token_ids, found.logprobs


@pytest.fixture(scope="module")
def expected(files):
    """Answers of a model that was opened with both."""
    model, named = files
    with LLM(model, ctx=256, adapters=named) as llm:
        wanted = ({}, {"first": 1.0}, {"second": 1.0}, {"first": 1.0, "second": 1.0}, {"second": 0.5})
        return {repr(one): answer(llm, one) for one in wanted}


def test_answers_are_those_of_a_model_that_was_opened_with_the_adapters(files, expected):
    model, named = files
    with LLM(model, ctx=256) as llm:
        none = answer(llm)
        assert llm.add_adapter(named["first"]) == "first" and llm.adapters == ("first",)
        assert answer(llm) == expected[repr({"first": 1.0})] != none
        assert answer(llm, {}) == none
        assert none == expected["{}"]
        llm.add_adapter(named["second"], "other", scale=0.0)
        assert answer(llm) == expected[repr({"first": 1.0})]
        assert answer(llm, {"first": 1.0, "other": 1.0}) == expected[repr({"first": 1.0, "second": 1.0})]
        llm.remove_adapter("first")
        assert llm.adapters == ("other",) and llm.adapter_scales == {"other": 0.0}
        assert answer(llm) == none
        # Its number is free, and what was cached under it is not taken for that of the next one.
        llm.remove_adapter("other")
        llm.add_adapter(named["second"])
        assert answer(llm) == expected[repr({"second": 1.0})]
        llm.scale_adapters({"second": 0.5})
        assert answer(llm) == expected[repr({"second": 0.5})]
        with pytest.raises(RequestError, match="there is no adapter 'first'; there are second"):
            answer(llm, {"first": 1.0})


def test_requests_that_run_keep_their_bits(files, expected):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        one, other = (llm.generate(PROMPT, PARAMS, stream=True, adapters=wanted) for wanted in ({"first": 1.0}, {}))
        for stream in (one, other):
            next(stream)
        llm.add_adapter(named["second"])
        llm.remove_adapter("first")  # which a request uses: it goes on with it
        assert llm.adapters == ("second",)
        with pytest.raises(RequestError, match="there is no adapter 'first'"):
            answer(llm, {"first": 1.0})
        for stream, wanted in ((one, {"first": 1.0}), (other, {})):
            assert [*stream][-1].finish_reason == "length"
            assert stream.completion.token_ids == expected[repr(wanted)][0]
        assert answer(llm) == expected[repr({"second": 1.0})]
        llm.remove_adapter("second")  # and the number of the first is free by now
        assert not llm.driver.engine.adapters.adapters and answer(llm) == expected["{}"]


def test_a_request_for_an_adapter_that_went_before_it_was_queued_is_refused(files):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        (group,) = llm.prepare(PROMPT, PARAMS, adapters={"first": 1.0})
        llm.remove_adapter("first")
        llm.add_adapter(named["second"])
        (found,) = llm.driver.complete([group])
        with pytest.raises(RequestError, match="adapters were changed meanwhile"):
            found.checked()


def test_what_cannot_be_is_one_sentence(files, tmp_path):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        for call, sentence in [
            (lambda: llm.add_adapter(named["first"]), "there is an adapter 'first' already"),
            (lambda: llm.add_adapter(named["second"], scale=float("nan")), "a number was expected"),
            (lambda: llm.remove_adapter("third"), "there is no adapter 'third'; there are first"),
            (lambda: llm.scale_adapters({"third": 1.0}), "there is no adapter 'third'"),
        ]:
            with pytest.raises(RequestError, match=sentence):
                call()
