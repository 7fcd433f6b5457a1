"""Recurrent state: moved from slot to slot, kept for later requests, and never lost, shared or spoiled."""

import numpy as np
import pytest

from tests.cases.hybrid import HybridProgram, Interrupted
from tests.cases.tiny import TINY, write_tiny
from woolly import SamplingParams
from woolly.engine import Engine, RequestOptions
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.tokens import Tokenizer


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("snapshots") / "tiny.gguf")) as file:
        yield trace(file), Tokenizer.from_metadata(file.metadata)


@pytest.fixture
def engine_of(parts):
    """Engines over programs of their own; at the end none may have lost a page or a slot."""
    plan, tokenizer = parts
    made = []

    def make(**options):
        made.append(Engine(HybridProgram(plan), tokenizer, **{"ctx": 512, "kv_tokens": 8192, **options}))
        return made[-1]

    yield make
    for engine in made:
        for request in engine.scheduler.requests:
            engine.cancel(request)
        assert_whole(engine)


def assert_whole(engine):
    pages, slots = engine.scheduler.pages, engine.scheduler.slots
    assert (pages.n_free, slots.n_free) == (pages.n_pages, slots.n_slots)
    assert engine.prefix_stats().snapshots == len(slots._idle)
    assert engine.scheduler.snapshots._n_keeping == 0


def params(n=12, **others):
    return SamplingParams(**{"temperature": 0, "max_tokens": n, "ignore_eos": True, **others})


def ids(n, seed=0):
    return np.random.RandomState(seed).randint(0, 256, n).tolist()


def add(engine, prompt, n=12, **options):
    return engine.add(engine.new_request(prompt, params(n), RequestOptions(**options)))


def finish(engine):
    for _ in range(5000):
        if engine.is_idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def ask(engine, prompt, n=12):
    request = add(engine, prompt, n)
    finish(engine)
    return request


def test_chat_of_ten_turns_computes_only_new_tokens(engine_of):
    engine = engine_of(ctx=4096)
    text = ids(300)
    for turn in range(10):
        request = ask(engine, text, 90)
        if turn:
            assert request.prefix.hit_tokens >= 0.9 * len(request.prompt)
        fresh = engine_of(ctx=4096)
        assert ask(fresh, text, 90).output == request.output
        text = [*request.prompt, *request.output, *ids(12, turn)]


def test_answers_to_one_prompt_continue_from_one_state(engine_of):
    engine = engine_of()
    first = add(engine, ids(200))
    others = [add(engine, ids(200), beside=first) for _ in range(5)]
    finish(engine)
    assert [other.prefix.hit_tokens for other in others] == [192] * 5
    assert {tuple(other.output) for other in others} == {tuple(first.output)}
    assert engine.program.n_rows < 200 + 6 * (8 + 12)


def test_concurrent_requests_share_their_prefix(engine_of):
    engine = engine_of(chunk=64)
    system = ids(160)
    requests = [add(engine, system + ids(40, seed)) for seed in range(1, 6)]
    finish(engine)
    assert [request.prefix.hit_tokens for request in requests] == [0] + [160] * 4


def test_third_request_finds_the_state_where_the_second_left_the_first(engine_of):
    engine = engine_of()
    system = ids(160)
    requests = [ask(engine, system + ids(90, seed)) for seed in range(1, 5)]
    assert [request.prefix.hit_tokens for request in requests] == [0, 0, 160, 160]
    assert [request.prefix.reason for request in requests] == ["cold", "unsaved at token 160"] + [
        "diverged at token 160"
    ] * 2


def test_prompt_with_replaced_last_tokens_is_found_up_to_the_page_before(engine_of):
    engine = engine_of()
    ask(engine, [*ids(190), 1, 2, 3, 4])  # a template's end that the next turn does not repeat
    assert ask(engine, [*ids(190), *ids(60, 5)]).prefix.hit_tokens == 160


def test_long_prompt_keeps_at_most_eight_intermediate_states(engine_of):
    engine = engine_of(ctx=40_000, kv_tokens=80_000)
    ask(engine, ids(35_000), 1)
    assert engine.prefix_stats().snapshots <= 9
    assert ask(engine, [*ids(35_000)[:12_500], 7, 7, 7], 1).prefix.hit_tokens == 2 * 6144


def test_answer_keeps_only_its_latest_state(engine_of):
    engine = engine_of()
    ask(engine, ids(40), 300)
    assert engine.prefix_stats().snapshots == 2  # after the prompt's full page, and after the answer's last one


def test_snapshots_are_evicted_for_slots_and_the_report_says_so(engine_of):
    engine = engine_of(max_running=1, n_snapshots=3)
    first = ids(100, 1)
    ask(engine, first)
    for seed in range(2, 8):
        ask(engine, ids(100, seed))
    again = ask(engine, first)
    assert (again.prefix.hit_tokens, again.prefix.reason) == (0, "evicted")
    assert len(engine.scheduler.slots._idle) <= engine.scheduler.slots.n_slots == 7


def test_evicted_page_drops_its_state(engine_of):
    engine = engine_of(ctx=128, kv_tokens=128, n_snapshots=40)
    for seed in range(6):
        ask(engine, ids(100, seed), 20)
        assert engine.prefix_stats().snapshots <= engine.prefix_stats().cached_pages <= 4
    assert ask(engine, ids(100, 0)).prefix.reason == "evicted"


def test_without_room_for_snapshots_everything_is_recomputed_correctly(engine_of):
    tight, wide = engine_of(max_running=2, n_snapshots=0), engine_of()
    for engine in (tight, wide):
        requests = [add(engine, ids(50, 1) + ids(30, seed), 60) for seed in range(6)]
        finish(engine)
    assert [r.output for r in requests] == [ask(tight, r.prompt, 60).output for r in requests]


def test_logits_are_computed_in_chunks_over_two_slots(engine_of):
    engine = engine_of(chunk=20, max_running=2, n_snapshots=0)
    requests = [add(engine, ids(50, seed), 60) for seed in range(2)]
    for _ in range(12):
        engine.step()
    np.testing.assert_array_equal(engine.logits(ids(130)), engine_of().logits(ids(130)))
    finish(engine)
    assert [r.output for r in requests] == [ask(engine_of(), r.prompt, 60).output for r in requests]


@pytest.mark.parametrize("n_steps", [1, 3, 8])
def test_interrupted_run_is_repeated_from_the_same_state(engine_of, n_steps):
    engine = engine_of(chunk=32)
    request = add(engine, ids(70), 40)
    for _ in range(n_steps):
        engine.step()
    engine.program.fails = [Interrupted(""), Interrupted("")]
    finish(engine)
    assert request.output == ask(engine_of(), ids(70), 40).output


def test_failed_run_leaves_no_state_behind(engine_of):
    engine = engine_of(chunk=64)
    request = add(engine, ids(100), 40)
    engine.program.fails = [RuntimeError("broken")]
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    engine.fail(request, RuntimeError("broken"))
    assert_whole(engine)
    assert engine.prefix_stats().snapshots == 0
    assert ask(engine, ids(100), 40).output == ask(engine_of(), ids(100), 40).output


def test_cancelled_and_shifted_requests_release_their_slots(engine_of):
    engine = engine_of(ctx=64)
    shifted = engine.add(engine.new_request(ids(20), params(150, context_shift=True, n_keep=5)))
    cancelled = add(engine, ids(40, 1), 20)
    for _ in range(5):
        engine.step()
    engine.cancel(cancelled)
    finish(engine)
    assert shifted.n_shifts > 1
    assert_whole(engine)
    again = engine_of(ctx=64)
    alone = again.add(again.new_request(ids(20), params(150, context_shift=True, n_keep=5)))
    finish(again)
    assert alone.output == shifted.output


def test_answer_does_not_discard_a_snapshot_that_took_its_slot(engine_of):
    engine = engine_of()
    slots, index = engine.scheduler.slots, engine.scheduler.pages.index
    (digest,) = ask(engine, ids(90, 5), 1).digests_to(1)
    assert index.state_after(digest) is None
    request = add(engine, ids(40), 100)
    while len(request.output) < 40:
        engine.step()
    lost = index.state_after(request.digests_to(2)[-1])
    assert lost is not None and slots.n_users(lost) == 0
    index.forget_state(lost)
    assert slots.take() == lost and index.save(digest, lost)  # another text's state takes the slot
    slots.give_back(lost)
    finish(engine)
    assert index.state_after(digest) == lost
