"""Entries with a window keep the pages that some request sees, and those at which requests are likely to continue."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.hybrid import HybridProgram
from tests.engine.test_snapshots import add, ask, finish, ids, parts
from woolly.cache.sliding_window import WindowPool
from woolly.engine import Engine
from woolly.plan import Paged

__all__ = ["parts"]  # a fixture

WINDOW = 100


@pytest.fixture
def engine_of(parts):
    plan, tokenizer = parts
    made = []

    def make(n_slots=0, **options):
        program = HybridProgram(plan, window=WINDOW, n_slots=n_slots)
        made.append(Engine(program, tokenizer, **{"ctx": 2048, "kv_tokens": 8192, "max_running": 4, **options}))
        return made[-1]

    yield make
    for engine in made:
        for pool in (engine.scheduler.pages, *filter(None, engine.scheduler.visible_pages.pools)):
            assert pool.n_free == pool.n_pages


def used(engine):
    (pool,) = engine.scheduler.visible_pages.pools
    return pool.n_pages - pool.n_free


def test_request_holds_its_window_and_the_rows_of_a_step(engine_of):
    engine = engine_of(chunk=64)
    request = add(engine, ids(1500), 40)
    most = 0
    while request.finish_reason is None:
        engine.step()
        most = max(most, used(engine))
    assert most <= -(-(WINDOW + 64) // 32) + 2
    assert engine.state.window.nbytes < 0.2 * engine.state.pages.nbytes


def test_next_turn_and_repeated_prompt_find_their_window(engine_of):
    engine = engine_of()
    text = ids(1000)
    for turn in range(6):
        request = ask(engine, text, 150)
        again = ask(engine, text, 150)
        assert again.output == request.output
        assert again.prefix.hit_tokens >= len(text) - 64
        if turn:
            assert request.prefix.hit_tokens >= 0.9 * len(text)
        text = [*text, *request.output, *ids(12, turn)]


def test_text_without_cached_pages_is_recomputed(engine_of):
    engine = engine_of()
    ask(engine, ids(1000), 2)
    middle = ask(engine, [*ids(1000)[:500], 3, 4, 5], 20)
    assert (middle.prefix.hit_tokens, middle.prefix.reason) == (0, "unsaved at token 480")
    # The second kept the boundary at which it left the text.
    assert ask(engine, [*ids(1000)[:500], 6, 7, 8], 20).prefix.hit_tokens == 480
    assert ask(engine_of(), [*ids(1000)[:500], 3, 4, 5], 20).output == middle.output


@pytest.mark.parametrize("n_slots", [0, 1])
def test_windows_and_states_survive_sharing_and_preemption(engine_of, n_slots):
    tight = engine_of(n_slots, ctx=512, kv_tokens=1280, chunk=48, max_running=3)
    assert tight.scheduler.visible_pages.pools[0].n_pages < tight.scheduler.pages.n_pages == 40
    requests = [add(tight, ids(200, 9)[: 40 * i] + ids(30, i), 100) for i in range(8)]
    for i in range(60):
        tight.step()
        if i % 9 == 8:
            tight.scheduler._preempt(tight.scheduler.running[-1])
    tight.cancel(requests[2])
    np.testing.assert_array_equal(tight.logits(ids(300)), engine_of(n_slots).logits(ids(300)))
    finish(tight)
    for i in (0, 1, 3, 4, 5, 6, 7):
        assert requests[i].output == ask(engine_of(n_slots), list(requests[i].prompt), 100).output


def test_context_of_gemma_3_12b_takes_the_memory_of_its_windows(parts):
    plan = replace(parts[0], state=tuple(Paged(8, 256, 256, window=1024 * (i % 6 != 5)) for i in range(48)))
    assert plan.windows == (1024,)
    layer = 2 * 8 * 256 * 2  # bytes of a token in f16
    # llama.cpp keeps a window and a step of 512 rows for each of the 40 layers with one.
    assert plan.context_bytes(32768, 2.0) <= (8 * 32768 + 40 * (1024 + 512)) * layer
    assert plan.context_bytes(1000, 2.0) == 48 * 1000 * layer
    assert plan.growth_bytes(2.0) == 8 * layer
    # Four contexts for four requests at once.
    assert WindowPool.size(1024, 4, 512, 4096) * 32 < 0.08 * 4 * 32768


@pytest.mark.parametrize("n_slots", [0, 1])
def test_skipped_prompts_hold_only_their_windows(engine_of, n_slots):
    options = {"ctx": 2048, "kv_tokens": 8192, "chunk": 512, "max_running": 4}
    engine = engine_of(n_slots, **options)
    (pool,) = engine.scheduler.visible_pages.pools
    random = np.random.RandomState(3)
    prompts = [ids(n, n) for n in random.randint(100, 1900, 16).tolist()]
    requests = []
    for priority, prompt in enumerate(prompts):  # each passes over the ones before, in the middle of their prompts
        requests.append(add(engine, prompt, 3, priority=priority % 7))
        engine.step()
        for request in engine.scheduler.running:
            begin, end = engine.scheduler.visible_pages._retained[request][pool]
            assert end - begin <= -(-WINDOW // 32) + 2
        if priority == 9:  # beside requests that wait
            assert len(engine.logits(ids(1200))) == 1200
    finish(engine)
    assert all(len(request.output) == 3 and request.error is None for request in requests)
    for i in (0, 5, 11):
        assert requests[i].output == ask(engine_of(n_slots), prompts[i], 3).output


def test_full_pool_rejects_before_it_changes():
    pool = WindowPool(32, 3, 8)
    pool.hold([0, 1])
    with pytest.raises(ValueError, match="requested 2 pages of window 32, but only 1 are free"):
        pool.hold([1, 2, 3])
    pool.release([0, 1], keep=True)
    assert pool.n_free == pool.n_pages
