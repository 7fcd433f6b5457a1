"""Adapters that come and go while a model answers: nobody else's bits change."""

from dataclasses import replace
from threading import Event, Thread

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.engine.test_adapters import PARAMS, PROMPT, lora, write_lora
from woolly import LLM, GGUFError, RequestError
from woolly.engine import Engine
from woolly.engine.loading import memory_estimate
from woolly.engine.loading.adapters import AdapterSet, open_adapter
from woolly.llm import bit_identity


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


def test_live_adapters_answer_like_adapters_at_load(files, expected):
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
        with pytest.raises(RequestError, match="unknown adapter 'first'; expected one of second"):
            answer(llm, {"first": 1.0})


def test_running_requests_keep_their_bits(files, expected):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        one, other = (llm.generate(PROMPT, PARAMS, stream=True, adapters=wanted) for wanted in ({"first": 1.0}, {}))
        for stream in (one, other):
            next(stream)
        llm.add_adapter(named["second"])
        llm.remove_adapter("first")  # which a request uses: it goes on with it
        assert llm.adapters == ("second",)
        with pytest.raises(RequestError, match="unknown adapter 'first'"):
            answer(llm, {"first": 1.0})
        for stream, wanted in ((one, {"first": 1.0}), (other, {})):
            assert [*stream][-1].finish_reason == "length"
            assert stream.completion.token_ids == expected[repr(wanted)][0]
        assert answer(llm) == expected[repr({"second": 1.0})]
        llm.remove_adapter("second")  # and the number of the first is free by now
        assert not llm.driver.engine.adapters.adapters and answer(llm) == expected["{}"]


def test_adapter_in_use_is_removed_when_the_next_one_comes(files, expected, monkeypatch):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "used_adapters", lambda engine: {0})  # as if a request ran with it
            llm.remove_adapter("first")
            (gone,) = llm.driver.engine.adapters.adapters
            other = open_adapter("second", named["second"], llm.plan)
            with other.file, pytest.raises(RequestError, match="running requests use the current adapters"):
                llm.driver.call(lambda engine: engine.swap(engine.program, AdapterSet.whole([other])))
        llm.add_adapter(named["second"])
        assert [one.name for one in llm.driver.engine.adapters.adapters] == ["second"]
        with pytest.raises(GGUFError, match="closed"):
            next(iter(gone.file.tensors.values())).dequantize()
        assert answer(llm) == expected[repr({"second": 1.0})]


def test_weights_are_not_prepared_twice_without_enough_memory(files, monkeypatch):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        with monkeypatch.context() as patched:
            patched.setattr(memory_estimate, "available_memory", lambda: 1)
            with pytest.raises(
                RequestError, match=r"needs about .* GB for a second copy of its weights, but only 0.00 GB"
            ) as caught:
                llm.add_adapter(named["second"])
            assert caught.value.code == "insufficient_memory" and llm.adapters == ("first",)
            llm.remove_adapter("first")
            assert not llm.adapters and llm.driver.engine.adapters.adapters  # it leaves with the next change
        llm.add_adapter(named["second"])
        assert len(llm.driver.engine.adapters.adapters) == 1


def test_request_for_an_adapter_removed_before_queueing_is_rejected(files):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        (group,) = llm.prepare(PROMPT, PARAMS, adapters={"first": 1.0})
        llm.remove_adapter("first")
        llm.add_adapter(named["second"])
        (found,) = llm.driver.complete([group])
        with pytest.raises(RequestError, match="the adapters were changed"):
            found.checked()


def test_invalid_adapters_give_a_one_line_error(files, tmp_path):
    model, named = files
    with LLM(model, ctx=256) as llm:
        llm.add_adapter(named["first"])
        for call, sentence in [
            (lambda: llm.add_adapter(named["first"]), "adapter 'first' already exists"),
            (lambda: llm.add_adapter(named["second"], scale=float("nan")), "expected a number"),
            (lambda: llm.remove_adapter("third"), "unknown adapter 'third'; expected one of first"),
            (lambda: llm.scale_adapters({"third": 1.0}), "unknown adapter 'third'"),
        ]:
            with pytest.raises(RequestError, match=sentence):
                call()
        # As a model on a GPU, in stages, or on replicas is held.
        llm._loaded[0] = replace(llm._loaded[0], compile=None)
        with pytest.raises(RequestError, match="only be changed on the CPU in a single process"):
            llm.add_adapter(named["second"])


def in_thread(function):
    """Starts a thread and returns it with a list, which has what came of the function at its end."""
    results = []

    def run():
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = Thread(target=run)
    thread.start()
    return thread, results


def held_compiling(llm):
    """Returns an event that is set when the model is compiled with other adapters, and one that lets that go on."""
    begun, goes_on = Event(), Event()
    plain = llm._loaded[0].compile

    def compile(adapters):
        begun.set()
        assert goes_on.wait(60)
        return plain(adapters)

    llm._loaded[0] = replace(llm._loaded[0], compile=compile)
    return begun, goes_on


def test_model_closed_while_adding_an_adapter_says_so(files):
    model, named = files
    llm = LLM(model, ctx=256)
    begun, goes_on = held_compiling(llm)
    adding, added = in_thread(lambda: llm.add_adapter(named["first"]))
    assert begun.wait(60)
    closing, _ = in_thread(llm.close)
    while not llm.is_closed:
        closing.join(0.01)
    assert llm._loaded  # what is compiled is of this file
    goes_on.set()
    adding.join(60)
    closing.join(60)
    assert isinstance(added[0], RequestError) and "closed" in str(added[0]) and not llm._loaded


def test_identity_belongs_to_one_program_and_its_files(files, monkeypatch):
    model, named = files
    begun, goes_on = Event(), Event()
    plain = bit_identity._digest

    def digest(files):
        begun.set()
        assert goes_on.wait(60)
        return plain(files)

    with LLM(model, ctx=256) as llm:
        monkeypatch.setattr(bit_identity, "_digest", digest)
        asking, asked = in_thread(llm.identity)
        assert begun.wait(60)
        adding, added = in_thread(lambda: llm.add_adapter(named["first"]))
        adding.join(0.2)
        goes_on.set()
        asking.join(60)
        adding.join(60)
        with LLM(model, ctx=256) as other:
            assert asked == [other.identity()] and added == ["first"]
        assert llm.identity() != asked[0]
