"""The disk tier of models with sliding windows: what rows see comes back to the same bits, or is computed again."""

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.engine.test_disk import GREEN, PARAMS, always_worth, answered, ask, files, home
from woolly import LLM

__all__ = ["always_worth", "home"]  # fixtures

WINDOW = 40  # two pages, each in part
CASE = FAMILIES["gemma3-array"]
# A pool of 15 pages for the window, and of 64 for what sees all tokens.
TIGHT = {"ctx": 512, "kv_tokens": 2048, "chunk": 32, "max_running": 1}
ROOMY = {"kv_tokens": 512, "chunk": 512}  # all pages have room in the window


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    tiny = replace(CASE, extra={**CASE.extra, "attention.sliding_window": WINDOW})
    return write_tiny(tiny, tmp_path_factory.mktemp("windowed") / "windowed.gguf")


@pytest.fixture
def opened(path, tmp_path):
    def open_model(**options):
        more = {"threads": 1, "cache_disk": "100MB", "cache_disk_folder": tmp_path / "pages", **TIGHT}
        return LLM(path, **{**more, **options})

    return open_model


def written(llm):
    """Returns when what was handed to the disk is there."""
    end = time.monotonic() + 60
    while not llm.engine.scheduler.tier._writer.is_idle:
        assert time.monotonic() < end, "the writer has stopped"
        time.sleep(0.001)


def kept(llm, digests):
    """Bytes of pages, and of what the window has of them."""
    pages, state, (pool,) = llm.engine.scheduler.pages, llm.engine.state, llm.engine.scheduler.visible_pages.pools
    out = {}
    for i, digest in enumerate(digests):
        page = pages.index.page_of(digest)
        out[i, 0] = state.read_page(page).tobytes()
        if (own := page if pool is None else pool.table[page]) >= 0:
            out[i, 1] = state.read_page(int(own), 1).tobytes()
    return out


def test_second_process_reads_the_window_and_gives_the_same_text(opened, tmp_path):
    with opened() as llm:
        (pool,) = llm.engine.scheduler.visible_pages.pools
        assert pool.window == WINDOW and pool.n_pages < llm.engine.scheduler.pages.n_pages
        first = ask(llm)
        computed = kept(llm, first.digests_to(4))
    assert {i for i, table in computed if table} == {2, 3}  # what the row after four pages sees
    assert len(files(tmp_path)) == 4 and len(files(tmp_path, "window0")) == 2
    assert len({file.n_bytes for kind in ("page", "window0") for file in files(tmp_path, kind)}) == 2
    with opened() as llm:
        again = ask(llm)
        assert (again.output, again.prefix.hit_tokens) == (first.output, 128)
        assert kept(llm, again.digests_to(4)) == computed
        stats = llm.disk_stats()
        assert stats.read_tokens == 128 and stats.n_files == 6 and stats.n_damaged == 0


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_pages_missing_from_a_window_are_recomputed(fault, opened, tmp_path):
    first, _ = answered(opened)
    victim = files(tmp_path, "window0")[0].path
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1
    victim.write_bytes(data) if fault == "damaged" else victim.unlink()
    with opened() as llm:
        request = ask(llm)
        assert (request.output, request.prefix.hit_tokens) == (first, 0)
        assert llm.disk_stats().n_damaged == (fault == "damaged")
    assert answered(opened) == (first, 128)  # written anew


def test_contexts_with_room_for_all_windows_share_the_files(opened, tmp_path):
    first, _ = answered(opened, **ROOMY)
    assert len(files(tmp_path)) == len(files(tmp_path, "window0")) == 4
    assert answered(opened) == (first, 128)
    assert answered(opened, **ROOMY) == (first, 128)
    for file in files(tmp_path, "window0"):
        file.path.unlink()
    assert answered(opened, cache_disk=None) == (first, 0)
    assert answered(opened) == (first, 0)  # and keeps the window before the boundary
    assert len(files(tmp_path, "window0")) == 2
    # Every page of this one has a window: other requests may continue after any of them.
    assert answered(opened, **ROOMY) == (first, 0)


def test_evicted_window_is_restored_to_cached_pages(opened, tmp_path):
    others = [np.random.RandomState(seed).randint(0, 256, 150).tolist() for seed in range(8)]
    with opened() as llm:
        first = ask(llm)
        ask(llm)
        llm.driver.call(lambda engine: [engine.scheduler.tier.work() for _ in range(4)])
        for prompt in others:
            ask(llm, prompt)
        pages, (pool,) = llm.engine.scheduler.pages, llm.engine.scheduler.visible_pages.pools
        known = pages.index.known(first.digests_to(4))
        assert len(known) == 4 and not pages.index.find(first.digests_to(4))
        end = time.monotonic() + 120
        while not llm.engine.scheduler.tier._writer.is_idle:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert llm.disk_stats().read_tokens == 0
        again = ask(llm)
        assert (again.output, again.prefix.hit_tokens) == (first.output, 128)
        assert pages.index.known(first.digests_to(4)) == known and pool.n_free == pool.n_pages


def test_restored_window_takes_no_room_of_other_windows(opened):
    others = iter(np.random.RandomState(seed).randint(0, 256, 150).tolist() for seed in range(8))
    with opened() as llm:
        first = ask(llm)
        ask(llm)
        llm.driver.call(lambda engine: [engine.scheduler.tier.work() for _ in range(4)])
        written(llm)
        pages, (pool,) = llm.engine.scheduler.pages, llm.engine.scheduler.visible_pages.pools
        while pool._blank:
            ask(llm, next(others))
        known = pages.index.find(first.digests_to(4))
        spare = next(page for page in range(pages.n_pages) if pool.table[page] < 0 and page not in known)

        def lose(_):
            pool.drop(known[3])  # the page before it is the next to give way
            pool.put(spare)

        llm.driver.call(lose)
        again = ask(llm)
        assert (again.output, again.prefix.hit_tokens) == (first.output, 128)


def test_processes_with_shared_windows_and_lost_pages_give_the_text_of_each_alone(opened):
    random = np.random.RandomState(5)
    text = random.randint(0, 256, 300).tolist()
    prompts = [text[: 70 * (i % 5)] + random.randint(0, 256, 60).tolist() for i in range(10)]
    with opened(cache_disk=None) as llm:
        alone = [ask(llm, prompt).output for prompt in prompts]
    with opened(kv_tokens=544) as a, opened(kv_tokens=544) as b:
        for _ in range(2):
            for i in random.permutation(len(prompts)):
                for llm in (a, b):
                    assert ask(llm, prompts[i]).output == alone[i]
                    pages, (pool,) = llm.engine.scheduler.pages, llm.engine.scheduler.visible_pages.pools
                    assert pages.n_free == pages.n_pages and pool.n_free == pool.n_pages
                    written(llm)
        assert a.disk_stats().read_tokens + b.disk_stats().read_tokens > 0


def test_erased_text_leaves_no_window(opened, tmp_path):
    first, _ = answered(opened)
    with opened() as llm:
        ask(llm)
        llm.driver.call(lambda engine: engine.forget(GREEN))
    assert not files(tmp_path) and not files(tmp_path, "window0")
    assert answered(opened) == (first, 0)


def test_shared_prefix_of_chats_is_kept_with_its_window(opened):
    other = [*GREEN[:70], *range(200, 280)]
    with opened(cache_disk=None) as llm:
        alone = ask(llm, other).output
    with opened() as llm:
        llm.driver.complete(llm.prepare(GREEN, PARAMS, n_shared=70))
    with opened() as llm:
        (request,) = llm.prepare(other, PARAMS, n_shared=70)[0]
        llm.driver.complete([[request]])
        assert (request.output, request.prefix.hit_tokens) == (alone, 64)
