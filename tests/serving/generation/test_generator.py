"""The Generator: what a request costs others when it ends, fails, or is not read."""

import asyncio
import time
from dataclasses import replace

import pytest

from woolly import SamplingParams
from woolly.errors import RequestError
from woolly.serving import GenerationRequest, Generator, ModelManager, Settings
from woolly.serving.dialects.sampling_parameters import Sampling
from woolly.serving.errors import ApiError
from woolly.serving.observability.metrics import Stats

LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)


def with_generator(tiny_model, story, **settings):
    async def run():
        given = Settings(model=str(tiny_model), ctx_size=512, threads=1, **settings)
        models = ModelManager(given)
        generator = Generator(given, models, Stats())
        try:
            await story(generator, models)
        finally:
            await models.close()

    asyncio.run(run())


def test_leaving_early_frees_the_pages_within_one_step(tiny_model, brake):
    async def story(generator, models):
        async with models.use(None) as slot:
            pages = slot.model.engine.scheduler.pages
            free = pages.n_free
            async with generator.open(GenerationRequest(LONG, prompt="sheep")) as running:
                await anext(running)
                assert pages.n_free < free
            # `call` waits for the step under way.
            assert slot.model.driver.call(lambda engine: (engine.scheduler.pages.n_free, engine.is_idle)) == (
                free,
                True,
            )
        assert generator.running == () and generator.admission.n_open == 0

    with_generator(tiny_model, story)


def test_late_reader_finds_all_chunks_and_delays_nobody(tiny_model):
    async def story(generator, models):
        async with generator.open(GenerationRequest(LONG, prompt="sheep")) as slow:
            async with generator.open(GenerationRequest(LONG, prompt="sheep")) as quick:
                whole = (await quick.completion()).text
            await asyncio.sleep(0.1)
            assert "".join([chunk.text async for chunk in slow]) == whole

    with_generator(tiny_model, story)


def test_n_answers_are_interleaved_and_counted(tiny_model):
    async def story(generator, models):
        params = SamplingParams(max_tokens=5, n=3, seed=1, ignore_eos=True)
        async with generator.open(GenerationRequest(params, prompt="sheep")) as running:
            completion = await running.completion()
            usage, timings = running.usage(), running.timings()
        assert len(completion.choices) == 3
        assert usage["completion_tokens"] == 15
        assert usage["total_tokens"] == usage["prompt_tokens"] + 15
        assert timings["predicted_n"] == 15 and timings["prompt_ms"] > 0 and timings["predicted_per_second"] > 0

    with_generator(tiny_model, story)


def test_stalled_answer_is_a_504(tiny_model, monkeypatch):
    """Time alone ends none: the first answer takes longer than the limit, but each of its tokens less."""
    clock, passed = time.monotonic, [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock() + passed[0])

    def slow(ids, logits):
        if len(ids) < 30:
            passed[0] += 2.0
            return
        for _ in range(60):  # three seconds in which the server looks several times
            passed[0] += 1.0
            time.sleep(0.05)

    async def story(generator, models):
        await models.load(models.main)
        slowly = replace(LONG, logits_processors=(slow,))
        async with generator.open(GenerationRequest(replace(slowly, max_tokens=20), prompt="sheep")) as running:
            assert (await running.completion()).finish_reason == "length"
        with pytest.raises(ApiError) as caught:
            async with generator.open(GenerationRequest(slowly, prompt="sheep")) as running:
                await running.completion()
        assert (caught.value.status, caught.value.code) == (504, "request_timeout")

    with_generator(tiny_model, story, request_timeout=8)


def test_engine_error_fails_only_one_request(tiny_model):
    def broken(ids, logits):
        raise ZeroDivisionError

    async def story(generator, models):
        fault = SamplingParams(max_tokens=5, logits_processors=(broken,))
        async with generator.open(GenerationRequest(LONG, prompt="sheep")) as sound:
            with pytest.raises(Exception, match="ZeroDivisionError"):
                async with generator.open(GenerationRequest(fault, prompt="sheep")) as running:
                    await running.completion()
            assert len((await sound.completion()).token_ids) == 400

    with_generator(tiny_model, story)


def test_step_error_fails_its_requests_and_the_server_continues(tiny_model):
    async def story(generator, models):
        async with models.use(None) as slot:
            run = slot.model.engine.program.run
            slot.model.engine.program.run = None  # what native code that breaks looks like from here
            with pytest.raises(TypeError):
                async with generator.open(GenerationRequest(LONG, prompt="sheep")) as running:
                    await running.completion()
            slot.model.engine.program.run = run
        async with generator.open(GenerationRequest(LONG, prompt="sheep")) as running:
            assert len((await running.completion()).token_ids) == 400

    with_generator(tiny_model, story)


def test_stopping_notifies_the_readers(tiny_model, brake):
    async def story(generator, models):
        async with generator.open(GenerationRequest(LONG, prompt="sheep")) as running:
            await anext(running)
            generator.stop()
            with pytest.raises(ApiError) as caught:
                async for _ in running:
                    pass
        assert (caught.value.status, caught.value.code) == (503, "answer_cancelled")

    with_generator(tiny_model, story)


def test_unloading_waits_for_answers_and_then_cancels_them(tiny_model, brake):
    async def story(generator, models):
        async with generator.open(GenerationRequest(LONG, prompt="sheep")) as running:
            await anext(running)
            await asyncio.wait_for(models.unload(models.main), 60)  # the answer alone would take longer
            with pytest.raises(ApiError):
                async for _ in running:
                    pass

    with_generator(tiny_model, story, grace=0.01)


def test_model_unloaded_during_prompt_layout_is_a_503_with_retry_after(tiny_model, monkeypatch):
    async def story(generator, models):
        loop = asyncio.get_running_loop()
        prepare = generator._prepare

        def free_first(llm, generation):
            asyncio.run_coroutine_threadsafe(models.unload(models.main), loop).result(60)
            return prepare(llm, generation)

        monkeypatch.setattr(generator, "_prepare", free_first)
        async with models.use(None) as slot:
            for _ in range(2):  # the second finds it gone before anything is laid out
                with pytest.raises(ApiError) as caught:
                    async with generator.open(GenerationRequest(LONG, prompt="sheep"), slot=slot):
                        pass
                assert (caught.value.status, caught.value.code) == (503, "answer_cancelled")
                assert caught.value.headers["Retry-After"] == "5"

    with_generator(tiny_model, story, grace=0.01)


def test_invalid_request_is_rejected_while_its_model_loads(tiny_model):
    async def story(generator, models):
        with pytest.raises(RequestError, match="token"):
            async with generator.open(GenerationRequest(LONG, prompt=(10**6,))):
                pass

    with_generator(tiny_model, story)


def test_server_defaults_fill_missing_fields():
    defaults = Settings(temp=0.3, top_k=7, n_predict=11, seed=5).defaults()
    params = Sampling().params(defaults)
    assert (params.temperature, params.top_k, params.max_tokens, params.seed) == (0.3, 7, 11, 5)
    params = Sampling(temperature=0.0, seed=-1, stop="x", logit_bias={"5": -1.0, "a": False}).params(defaults, n=2)
    assert (params.temperature, params.seed, params.n, params.stop) == (0.0, None, 2, ("x",))
    assert params.logit_bias == {5: -1.0, "a": float("-inf")}
    assert Sampling(mirostat=2).params(defaults).max_tokens == 11
    assert Sampling(cache_prompt=False).params(defaults) == Sampling().params(defaults)
