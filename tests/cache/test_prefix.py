"""Pages are shared by content, counted, and dropped when nobody needs them; a hit changes no bit of the output."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from woolly import SamplingParams
from woolly.cache.pages import PagePool
from woolly.cache.prefix import page_digest
from woolly.engine import Engine, RequestOptions
from woolly.runtime import PAGE_SIZE

SEEDED = SamplingParams(seed=3, max_tokens=20, ignore_eos=True, logprobs=3)


@pytest.fixture
def engine(tiny_llm):
    return Engine(tiny_llm.engine.program, tiny_llm.tokenizer, ctx=256, kv_tokens=1024)


def ids(n, seed=0):
    return np.random.RandomState(seed).randint(0, 256, n).tolist()


def answer(engine, prompt, params=SEEDED):
    request = engine.add(engine.new_request(prompt, params))
    while request.finish_reason is None:
        engine.step()
    return request


def test_finished_request_is_reused_bit_for_bit(engine):
    cold, warm = answer(engine, ids(100)), answer(engine, ids(100))
    assert cold.prefix.hit_tokens == 0
    assert warm.prefix.hit_tokens == 96
    assert warm.output == cold.output
    assert warm.logprobs == cold.logprobs


def test_answer_is_reused_by_the_next_turn_of_its_conversation(engine):
    first = answer(engine, ids(60), SamplingParams(seed=1, max_tokens=50, ignore_eos=True))
    following = answer(engine, [*first.prompt, *first.output, *ids(5, 1)])
    assert following.prefix.hit_tokens == 96


def test_running_requests_share_pages_and_are_counted(engine):
    first = engine.add(engine.new_request(ids(100), SEEDED))
    engine.step()
    second = engine.add(engine.new_request(ids(100), SEEDED))
    engine.step()
    assert second.pages[:3] == first.pages[:3]
    assert second.pages[3] != first.pages[3]
    assert [engine.scheduler.pages.n_users(page) for page in second.pages] == [2, 2, 2, 1]
    engine.cancel(first)
    assert engine.scheduler.pages.n_users(second.pages[0]) == 1
    while second.finish_reason is None:
        engine.step()
    assert second.output == answer(engine, ids(100)).output


def test_concurrent_requests_with_one_prompt_compute_it_once(engine):
    requests = [engine.add(engine.new_request(ids(200), SEEDED, RequestOptions(index=i))) for i in range(4)]
    rows = []
    run = engine.program.run
    try:
        engine.program.run = lambda batch, *rest: (rows.append(batch.n_rows), run(batch, *rest))[1]
        while not engine.is_idle:
            engine.step()
    finally:
        del engine.program.run
    assert [s.prefix.hit_tokens for s in requests] == [0, 192, 192, 192]
    assert sum(rows) == 200 + 3 * 8 + 4 * 19
    assert len({tuple(s.output) for s in requests}) == 4


def test_waiting_duplicate_is_computed_when_the_first_is_cancelled(engine):
    first = engine.add(engine.new_request(ids(200), SEEDED))
    twin = engine.add(engine.new_request(ids(200), SEEDED))
    engine.scheduler.chunk = 40
    engine.step()
    assert twin in engine.scheduler.waiting
    engine.cancel(first)
    while twin.finish_reason is None:
        engine.step()
    assert twin.prefix.hit_tokens == 32


def test_miss_reason_is_reported(engine):
    text = ids(130)
    assert answer(engine, text).prefix.reason == "cold"
    assert answer(engine, text).prefix.reason is None
    assert answer(engine, text[:20]).prefix.reason == "short"
    assert answer(engine, [*text[:70], 255 - text[70], *text[71:]]).prefix.reason == "diverged at token 70"
    assert answer(engine, [*text[:10], 255 - text[10], *text[11:]]).prefix.reason == "diverged at token 10"
    longer = answer(engine, [*text, *answer(engine, text).output, *ids(60, 5)])
    assert longer.prefix.reason == "ended at token 128"
    scored = answer(engine, text, SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert (scored.prefix.reason, scored.prefix.hit_tokens) == ("recomputed", 0)
    for seed in range(10, 20):
        answer(engine, ids(200, seed))
    assert answer(engine, text).prefix.reason == "evicted"


def test_stats_add_up(engine):
    prompts = [ids(100), ids(100), ids(40, 1), ids(70)]
    requests = [answer(engine, prompt) for prompt in prompts]
    stats = engine.prefix_stats()
    assert stats.hit_tokens == sum(s.prefix.hit_tokens for s in requests) == 96 + 64
    assert stats.hit_tokens + stats.miss_tokens == sum(map(len, prompts))
    assert stats.evictions == 0
    assert stats.reasons == {"cold": 2, "complete": 2}
    assert stats.cached_pages == 3 + 1


def test_lru_text_is_evicted_first_from_its_end(tiny_llm):
    engine = Engine(tiny_llm.engine.program, tiny_llm.tokenizer, ctx=128, kv_tokens=256)
    one = SamplingParams(max_tokens=1, temperature=0)
    old, kept = ids(100, 1), ids(100, 2)
    answer(engine, old, one)
    answer(engine, kept, one)
    answer(engine, ids(100, 3), one)  # takes two blank pages, then two of the oldest text
    assert engine.prefix_stats().evictions == 2
    again = answer(engine, old, one)
    assert again.prefix.hit_tokens == 32
    assert again.prefix.reason == "evicted"


def test_prompt_logprobs_are_the_same_after_any_reuse(engine, tiny_llm):
    asked = SamplingParams(max_tokens=1, prompt_logprobs=2, temperature=0)
    first = answer(engine, ids(100), asked)
    again = answer(engine, ids(100), asked)
    assert first.prompt_logprobs == again.prompt_logprobs
    logits = tiny_llm.logits(ids(100)).astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    expected -= logits.max(1, keepdims=True)
    wanted = [row[token] for row, token in zip(expected, ids(100)[1:], strict=False)]
    np.testing.assert_allclose([t.logprob for t in first.prompt_logprobs], wanted, rtol=1e-12, atol=1e-12)


def test_digest_covers_all_tokens_so_far():
    a, b = list(range(PAGE_SIZE)), list(range(1, PAGE_SIZE + 1))
    assert page_digest(page_digest(b"", a), b) != page_digest(page_digest(b"", b), b)
    assert page_digest(b"", a) == page_digest(b"", tuple(a))
    assert len(page_digest(b"", a)) >= 16


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_releasing_all_pages_leaves_all_free(sizes):
    pool = PagePool(40)
    taken = [pool.take(n) for n in sizes]
    assert len({page for pages in taken for page in pages}) == sum(sizes)
    for pages in taken:
        pool.give_back(pages)
    assert pool.n_free == 40


class Pages(RuleBasedStateMachine):
    """A pool beside a plain model of it: who holds which pages, and what text is known."""

    holders = Bundle("holders")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(12)
        self.held = []

    @rule(target=holders, texts=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def hold(self, texts):
        """A sequence of pages, one text each: what is known is shared, the rest taken and made known."""
        parent, digests = b"", []
        for text in texts:
            parent = page_digest(parent, [text] * PAGE_SIZE)
            digests.append(parent)
        found = self.pool.index.find(digests)
        assert len(found) <= len(digests)
        idle = sum(self.pool.n_users(page) == 0 for page in found)
        if len(texts) - len(found) + idle > self.pool.n_free:
            return []
        self.pool.share(found)
        taken = self.pool.take(len(texts) - len(found))
        assert not set(taken) & {page for pages in self.held for page in pages}
        pages = found + taken
        for i in range(len(found), len(texts)):
            self.pool.index.add(pages[i], digests[i - 1] if i else b"", digests[i], [texts[i]] * PAGE_SIZE)
        self.held.append(pages)
        return pages

    @rule(pages=consumes(holders))
    def let_go(self, pages):
        if pages:
            self.pool.give_back(pages)
            self.held.remove(pages)

    @invariant()
    def counts_are_right(self):
        users = [sum(pages.count(page) for pages in self.held) for page in range(12)]
        assert [self.pool.n_users(page) for page in range(12)] == users
        assert self.pool.n_free == users.count(0)


TestPages = Pages.TestCase


def test_miss_reason_needs_few_comparisons(monkeypatch):
    from woolly.cache import prefix

    index = prefix.PrefixIndex(max_ghosts=10)
    for page in range(1000):
        tokens = [page, *range(PAGE_SIZE - 1)]
        index.add(page, b"", page_digest(b"", tokens), tokens)
    compared = []
    common = prefix._common
    monkeypatch.setattr(prefix, "_common", lambda a, b: compared.append(1) or common(a, b))
    tokens = [999, *([7] * PAGE_SIZE)]
    report = index.report(tokens, [page_digest(b"", tokens[:PAGE_SIZE])], 0, True)
    assert report.reason == "diverged at token 1"
    assert len(compared) <= 64


def test_stored_pages_are_listed_by_text_from_its_beginning(engine):
    first, second = answer(engine, ids(70)), answer(engine, ids(70, 1))
    stored = engine.scheduler.pages.index.stored()
    for request in (first, second):
        digests = request.digests_to(2)
        assert [depth for digest, depth in stored if digest in digests] == [0, 1]
    assert stored[0][0] == second.digests_to(1)[0]


def _fill(pool, name, n, is_early):
    """Fills n pages with a text of its own, and gives them back; returns their digests."""
    digests, parent = [], b""
    for page in (pages := pool.take(n, is_early)):
        digest = page_digest(parent, [len(digests)], name)
        pool.publish(page, parent, digest, [len(digests)])
        digests.append(digest)
        parent = digest
    pool.give_back(pages)
    return digests


def test_prefetched_pages_are_evicted_first_last_page_of_a_text_first():
    pool = PagePool(8)
    ahead = _fill(pool, b"ahead", 4, True)
    answer = _fill(pool, b"answer", 4, False)
    pool.take(2)
    assert len(pool.index.find(ahead)) == 2 and len(pool.index.find(answer)) == 4


def test_shared_pages_are_evicted_before_pages_an_answer_owns():
    pool = PagePool(8)
    read, used = _fill(pool, b"read", 2, True), _fill(pool, b"used", 2, True)
    answer = _fill(pool, b"answer", 4, False)
    for digests, is_early in ((used, False), (read, True)):
        pages = pool.index.find(digests)
        pool.share(pages, is_early)
        pool.give_back(pages)
    pool.take(2)
    assert [len(pool.index.find(digests)) for digests in (read, used, answer)] == [0, 2, 4]


def test_prefetch_uses_blank_pages_or_a_quarter_of_all():
    pool = PagePool(16)
    assert pool.room_ahead(()) == 16
    _fill(pool, b"answer", 13, False)
    assert pool.room_ahead(()) == 4
    found = pool.index.find(_fill(pool, b"ahead", 3, True))
    assert pool.room_ahead(found) == 1 and pool.room_ahead(()) == 4
