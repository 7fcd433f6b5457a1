"""Default number of concurrent requests."""

from types import SimpleNamespace

import pytest

from tests.cases.rwkv import RWKV
from tests.cases.tiny import write_tiny
from woolly import LLM, RequestError
from woolly.engine import Engine, default_batch_size
from woolly.engine.state.kv_cache_config import KVCacheConfig
from woolly.engine.step.adaptive_batch_size import AdaptiveBatchSize


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(batch_size, clock, seconds_of, n_steps, queued=None):
    """Steps with as many answers as may run while others wait; the time of each follows from their number."""
    for _ in range(n_steps):
        n = batch_size.limit(clock.now if queued is None else queued)
        clock.now += seconds_of(n)
        batch_size.ran(n, n, 1)
    return batch_size.limit(clock.now)


@pytest.mark.parametrize(
    ("seconds_of", "found"),
    [
        (lambda n: 1.0, 256),  # a step takes as long for all: each doubling pays
        (lambda n: float(n), 16),  # every answer takes its own time: none pays
        (lambda n: max(64.0, n), 64),  # pays up to 64
    ],
)
def test_batch_size_grows_while_that_pays(seconds_of, found):
    clock = Clock()
    batch_size = AdaptiveBatchSize(16, 256, clock)
    assert batch_size.limit(0.0) == 16
    assert run(batch_size, clock, seconds_of, 400) == found


def test_nothing_is_measured_without_waiting_requests_or_during_prefill():
    clock = Clock()
    batch_size = AdaptiveBatchSize(16, 256, clock)
    for n_rows, n_waiting in ((16, 0), (512, 3), (12, 2)):
        for _ in range(200):
            clock.now += 1.0
            batch_size.ran(16 if n_rows > 16 else n_rows, n_rows, n_waiting)
    assert batch_size.limit(clock.now) == 16


def test_late_steps_do_not_count_against_the_batch_size():
    clock = Clock()
    batch_size = AdaptiveBatchSize(16, 64, clock)
    clock.now = 2.0
    run(batch_size, clock, lambda n: 1.0, 100, queued=0.0)  # all 64 run
    assert batch_size.limit(clock.now) == 16
    assert run(batch_size, clock, lambda n: 1.0, 60) == 64


def test_batch_size_that_did_not_pay_is_retried_later():
    clock = Clock()
    batch_size = AdaptiveBatchSize(16, 32, clock)
    assert run(batch_size, clock, float, 200) == 16
    assert run(batch_size, clock, lambda n: 1.0, 2000) == 32


def test_waiting_request_gets_a_slot_even_if_that_does_not_pay():
    clock = Clock()
    batch_size = AdaptiveBatchSize(16, 64, clock)
    assert batch_size.limit(queued=0.0) == 16
    clock.now = 2.0
    assert batch_size.limit(queued=0.0) == 64 and batch_size.limit(queued=1.0) == 16


def program(max_rows=2048, memory=10**9, **plan):
    """Fake GPU program whose cache takes 10 bytes per token."""
    found = {
        "bytes_per_sequence": 0,
        "windows": (),
        "draft": None,
        "growth_bytes": lambda _: 1.0,
        "bytes_per_token": lambda _: 1.0,
    }
    return SimpleNamespace(
        max_rows=max_rows,
        about=SimpleNamespace(memory=memory, device="GPU"),
        plan=SimpleNamespace(**{**found, **plan}),
        draft=None,
        new_state=lambda n_pages: SimpleNamespace(page_bytes=320 * n_pages),
    )


@pytest.mark.parametrize(("chunk", "most"), [(None, 256), (4096, 256), (512, 128), (64, 16), (16, 16)])
def test_decode_leaves_three_quarters_of_a_step_to_prefill(chunk, most):
    assert default_batch_size(program(), 10**6, chunk, has_tower=False).most == most


@pytest.mark.parametrize(
    ("memory", "most"),
    [
        (10**9, 256),
        (10**8, 222),
        (17 * 10**6, 16),  # a twentieth of all holds states of 42, but the cache takes 16 of the 17 MB
    ],
)
def test_larger_batches_use_memory_left_by_the_cache(memory, most):
    a_state = program(memory=memory, bytes_per_sequence=10**4)
    assert default_batch_size(a_state, 1_600_000, None, has_tower=False).most == most


def test_minimum_runs_if_state_for_more_cannot_be_allocated(tiny_llm, monkeypatch):
    plain, asked = KVCacheConfig.new_state, []

    def refuses(sizes, program):
        asked.append(sizes)
        if len(asked) == 1:
            raise RequestError("a cache of 512 tokens takes too much", field="kv_tokens")
        return plain(sizes, program)

    monkeypatch.setattr(KVCacheConfig, "new_state", refuses)
    scheduler = Engine(
        tiny_llm.engine.program, tiny_llm.tokenizer, ctx=512, batch_size=AdaptiveBatchSize(64, 256)
    ).scheduler
    assert scheduler.max_running == 16 and scheduler.batch_size.most == 16
    asked.clear()
    with pytest.raises(RequestError, match="takes too much"):
        Engine(tiny_llm.engine.program, tiny_llm.tokenizer, ctx=512)


def test_recurrent_draft_keeps_states_for_the_minimum_only(tmp_path):
    model = write_tiny(RWKV["rwkv7"], tmp_path / "tiny.gguf")
    with LLM(model, threads=1, ctx=512, kv_tokens=1 << 15, speculation=model) as llm:
        assert llm.engine.scheduler.max_running == 64
        assert llm.engine._speculation.draft._slots.n_slots == 3 * 16
