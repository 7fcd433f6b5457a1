"""Resources of a request are held while work runs for it, and no longer."""

import asyncio
import os
import threading
import time

import httpx
import pytest

from woolly.chat.media import has_media
from woolly.serving import Settings, create_app
from woolly.serving.dialects.llama import tokens as tokens_module
from woolly.serving.gate import json_parser
from woolly.serving.generation import generator
from woolly.serving.generation.thread_pool import SharedTask, run_in_thread

HI = [{"role": "user", "content": "hi"}]


def with_app(tiny_model, tmp_path, story, **settings):
    """Runs a story with an app and a client of one event loop, the model loaded."""

    async def run():
        given = Settings(model=str(tiny_model), sessions_file=tmp_path / "sessions.db", threads=1, **settings)
        app = create_app(given)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=60)
        async with app.router.lifespan_context(app), client:
            await app.state.models.load(app.state.models.main)
            await story(app.state, client)

    asyncio.run(run())


async def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.005)


class Gate:
    """A function that waits until it is let go."""

    def __init__(self, function=lambda *_: None):
        self.function = function
        self.is_entered = threading.Event()
        self.is_open = threading.Event()

    def __call__(self, *args, **named):
        self.is_entered.set()
        assert self.is_open.wait(60)
        return self.function(*args, **named)


async def leaves_when_its_thread_is_done(gate, work, times=1):
    """However often it is told to."""
    await until(gate.is_entered.is_set)
    for _ in range(times):
        work.cancel()
        await asyncio.sleep(0.02)
        assert not work.done()
    gate.is_open.set()
    with pytest.raises(asyncio.CancelledError):
        await work


def test_cancelled_waiter_leaves_after_the_thread_even_if_cancelled_again():
    async def story():
        gate = Gate()
        await leaves_when_its_thread_is_done(gate, asyncio.create_task(run_in_thread(gate)), times=3)

    asyncio.run(story())


def test_held_work_returns_and_raises():
    assert asyncio.run(run_in_thread(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_in_thread(divmod, 7, 0))


def test_json_is_held_during_validation(monkeypatch):
    async def story():
        gate = Gate()
        monkeypatch.setattr(json_parser, "_parse", gate)
        work = asyncio.create_task(json_parser.parse_json(b" " * 100_000))
        await leaves_when_its_thread_is_done(gate, work)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/chat/completions", {"messages": HI}, "woolly.serving.generation.generator.format_chat"),
        ("/api/v1/inference/chat", {"messages": HI}, "woolly.serving.generation.generator.format_chat"),
        ("/v1/completions", {"prompt": "hi"}, "woolly.serving.generation.generator.Generator._prepare"),
        ("/completion", {"prompt": ["hi", 5]}, "woolly.serving.dialects.llama.completion._ids"),
        ("/tokenize", {"content": "hi"}, "woolly.serving.dialects.llama.tokens._tokens"),
        ("/apply-template", {"messages": HI}, "woolly.serving.dialects.llama.tokens.render_prompt"),
    ],
)
def test_disconnected_client_holds_its_model_and_slot_until_the_thread_ends(
    tiny_model, tmp_path, monkeypatch, path, body, where
):
    async def story(state, client):
        gate = Gate()
        monkeypatch.setattr(where, gate)
        (slot,) = state.models.loaded_models
        current_account = asyncio.create_task(client.post(path, json=body))
        await until(gate.is_entered.is_set)
        n_open = state.generator.admission.n_open
        current_account.cancel()
        await asyncio.sleep(0.05)
        try:
            assert slot.users == 1 and state.generator.admission.n_open == n_open
            assert state.bodies.n_held > 0 and not current_account.done()
        finally:
            gate.is_open.set()
        await asyncio.wait([current_account])
        assert slot.users == state.generator.admission.n_open == state.bodies.n_held == 0

    with_app(tiny_model, tmp_path, story)


def test_at_most_two_texts_are_processed_concurrently(tiny_model, tmp_path, monkeypatch):
    async def story(state, client):
        n_running = max_running = 0
        lock = threading.Lock()
        are_two = threading.Event()

        def count(llm, body):
            nonlocal n_running, max_running
            with lock:
                n_running += 1
                max_running = max(max_running, n_running)
                if n_running == 2:
                    are_two.set()
            assert are_two.wait(60)
            time.sleep(0.05)  # for a third, which must not come
            with lock:
                n_running -= 1
            return {"tokens": []}

        monkeypatch.setattr(tokens_module, "_tokens", count)
        replies = await asyncio.gather(*(client.post("/tokenize", json={"content": "hi"}) for _ in range(5)))
        assert {reply.status_code for reply in replies} == {200}
        assert max_running == 2

    with_app(tiny_model, tmp_path, story)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", lambda text: {"content": text}),
        ("/apply-template", lambda text: {"messages": [{"role": "user", "content": text}]}),
        ("/completion", lambda text: {"prompt": [5, text]}),
        ("/infill", lambda text: {"input_prefix": text, "input_suffix": ""}),
    ],
)
def test_text_beyond_any_context_is_rejected_before_processing(tiny_model, tmp_path, path, fields):
    async def story(state, client):
        reply = await client.post(path, json=fields("a" * (64 * 256 + 256)))
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded"), reply.text
        assert "characters" in error["message"]

    with_app(tiny_model, tmp_path, story, ctx_size=64)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_prompts_of_one_request_do_not_deadlock_with_an_unload(tiny_model, tmp_path, monkeypatch, path):
    async def story(state, client):
        (slot,) = state.models.loaded_models
        loop = asyncio.get_running_loop()
        prepare = state.generator._prepare
        unloading = []

        def unload_meanwhile(llm, generation):
            if not unloading:
                unloading.append(asyncio.run_coroutine_threadsafe(state.models.unload(state.models.main), loop))
                while slot.state != "unloading":
                    pass
            return prepare(llm, generation)

        monkeypatch.setattr(state.generator, "_prepare", unload_meanwhile)
        reply = await client.post(path, json={"prompt": ["one", "two", "three"], "max_tokens": 2})
        assert reply.status_code == 200, reply.text
        assert await asyncio.wrap_future(unloading[0])
        assert slot.llm is None

    with_app(tiny_model, tmp_path, story, grace=60, load_wait=30)


def test_shared_work_is_done_once_and_outlives_its_waiters():
    async def story():
        n, gate = 0, asyncio.Event()

        async def work():
            nonlocal n
            n += 1
            await gate.wait()
            return n

        shared = SharedTask(work)
        current_account = [asyncio.create_task(shared.get()) for _ in range(5)]
        await asyncio.sleep(0)
        current_account[0].cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*current_account[1:]) == [1] * 4
        assert await shared.get() == 2

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/api/v1/performance/stats", "woolly.serving.dialects.ole.performance.engine_stats"),
        ("/api/v1/sessions", "woolly.serving.dialects.ole.store.SessionStore.all"),
    ],
)
def test_many_status_requests_take_no_thread_from_generation(tiny_model, tmp_path, monkeypatch, path, where):
    async def story(state, client):
        gate = Gate(lambda *_: {} if "engine_stats" in where else [])
        monkeypatch.setattr(where, gate)
        looking = [asyncio.create_task(client.get(path)) for _ in range(40)]  # more than the pool has threads
        await until(gate.is_entered.is_set)
        try:
            body = {"messages": HI, "max_tokens": 1}
            reply = await asyncio.wait_for(client.post("/v1/chat/completions", json=body), 60)
            assert reply.status_code == 200, reply.text
        finally:
            gate.is_open.set()
        assert {reply.status_code for reply in await asyncio.gather(*looking)} == {200}

    with_app(tiny_model, tmp_path, story)


def test_conversations_with_images_delay_no_others(tiny_model, tmp_path, monkeypatch):
    gate, plain = threading.Event(), generator.format_chat

    def format_chat(chat, *given):
        if has_media(chat.messages):
            assert gate.wait(60)
        return plain(chat, *given)

    monkeypatch.setattr(generator, "format_chat", format_chat)
    shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]

    async def story(state, client):
        n_threads = min(32, (os.cpu_count() or 1) + 4)  # of asyncio's pool
        asked = [
            asyncio.ensure_future(client.post("/v1/chat/completions", json={"messages": shown, "max_tokens": 1}))
            for _ in range(n_threads)
        ]
        try:
            body = {"messages": HI, "max_tokens": 1}
            reply = await asyncio.wait_for(client.post("/v1/chat/completions", json=body), 60)
            assert reply.status_code == 200
        finally:
            gate.set()
        # The model sees none, which is said when a conversation is laid out.
        assert {reply.status_code for reply in await asyncio.gather(*asked)} == {400}

    with_app(tiny_model, tmp_path, story, parallel=64)
