"""The disk tier: pages outlive the engine, are those that were computed, and no fault of a disk changes a text."""

import os
import shutil
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.cases import fork_server
from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import write_tiny
from woolly import LLM, RequestError, SamplingParams
from woolly.cache.disk_tier import DiskTier
from woolly.cache.page_folder import PageFolder, stored_pages

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
GREEN = list(range(40, 40 + 150))  # four full pages and a part


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def always_worth(monkeypatch):
    """A tiny model computes faster than any disk reads; one test asks for the decision itself."""
    monkeypatch.setattr(DiskTier, "is_faster_than_recompute", lambda self, n_bytes, n_tokens: True)


@pytest.fixture
def opened(tiny_model, tmp_path):
    def open_model(path=tiny_model, **options):
        more = {"ctx": 512, "threads": 1, "cache_disk": "100MB", "cache_disk_folder": tmp_path / "pages"}
        return LLM(path, **{**more, **options})

    return open_model


def ask(llm, prompt=GREEN, params=PARAMS):
    (request,) = llm.prepare(prompt, params)[0]
    llm.driver.complete([[request]])
    assert request.error is None, request.error
    return request


def answered(opened, prompt=GREEN, **options):
    """Token ids, and the tokens that the cache had, of a first request in a process of its own."""
    with opened(**options) as llm:
        request = ask(llm, prompt)
        return request.output, request.prefix.hit_tokens


def files(tmp_path, kind="page"):
    return [file for file in stored_pages(tmp_path / "pages") if file.kind == kind]


def test_second_process_finds_the_pages_of_the_first_and_gives_the_same_text(opened, tmp_path):
    first, hit = answered(opened)
    assert hit == 0 and len(files(tmp_path)) == 4
    again, hit = answered(opened)
    assert (again, hit) == (first, 128)
    assert {file.path.stat().st_mode & 0o777 for file in files(tmp_path)} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "pages").glob("*")} == {0o700}


def test_page_from_disk_equals_a_computed_one(opened):
    with opened() as llm:
        ask(llm)
        index, state = llm.engine.scheduler.pages.index, llm.engine.state
        computed = {digest: state.read_page(index.page_of(digest)).tobytes() for digest, _ in index.stored()}
    with opened() as llm:
        request = ask(llm)
        index, state = llm.engine.scheduler.pages.index, llm.engine.state
        for digest in request.digests_to(4):
            assert state.read_page(index.page_of(digest)).tobytes() == computed[digest]
        stats = llm.disk_stats()
        assert stats.read_tokens == 128 and stats.n_files >= 4 and stats.n_damaged == 0


def test_longer_prompt_computes_only_its_suffix(opened):
    answered(opened)
    longer = GREEN + list(range(60, 130))
    with opened(cache_disk=None) as llm:
        wanted = ask(llm, longer).output
    assert answered(opened, longer) == (wanted, 128)


def test_different_weights_cache_type_or_salt_are_a_miss(opened, tiny_model, tmp_path):
    answered(opened)
    assert answered(opened, kv_type="q8_0")[1] == 0
    changed = tmp_path / "changed.gguf"
    data = bytearray(tiny_model.read_bytes())
    data[-5] ^= 1
    changed.write_bytes(data)
    assert answered(opened, path=changed)[1] == 0
    with opened() as llm:
        (request,) = llm.prepare(GREEN, PARAMS, salt=b"another client")[0]
        llm.driver.complete([[request]])
        assert request.prefix.hit_tokens == 0


def test_missing_page_in_the_middle_ends_the_prefix(opened, tmp_path):
    first, _ = answered(opened)
    with opened() as llm:
        digests = ask(llm).digests_to(4)
    victim = next(file for file in files(tmp_path) if file.digest == digests[2].hex())
    victim.path.unlink()
    with opened(cache_disk=None) as llm:
        assert ask(llm).output == first
    assert answered(opened) == (first, 64)


@pytest.mark.parametrize("fault", ["empty", "torn", "bit", "head", "swapped", "folder"])
def test_damaged_file_is_a_miss_and_is_deleted(fault, opened, tmp_path):
    first, _ = answered(opened)
    with opened() as llm:
        digests = ask(llm).digests_to(4)
    path = next(file.path for file in files(tmp_path) if file.digest == digests[1].hex())
    other = next(file.path for file in files(tmp_path) if file.digest == digests[3].hex())
    data = bytearray(path.read_bytes())
    if fault == "swapped":
        shutil.copy(other, path)
    elif fault == "folder":
        path.unlink()
        path.mkdir()
    else:
        data[{"bit": -7, "head": 20}.get(fault, 0)] ^= fault in ("bit", "head")
        path.write_bytes(data[: {"empty": 0, "torn": len(data) // 2}.get(fault, len(data))])
    with opened() as llm:
        request = ask(llm)
        assert (request.output, request.prefix.hit_tokens) == (first, 32)
        assert llm.disk_stats().n_damaged == (fault != "folder")
    if fault != "folder":
        assert answered(opened) == (first, 128)  # written anew


def test_recurrent_state_is_restored_with_its_page(opened, tmp_path):
    path = write_tiny(HYBRIDS["qwen35"], tmp_path / "hybrid.gguf")
    first, hit = answered(opened, path=path)
    assert hit == 0 and files(tmp_path, "state")
    assert answered(opened, path=path) == (first, 128)
    for file in files(tmp_path, "state"):
        file.path.unlink()
    assert answered(opened, path=path) == (first, 0)  # pages alone are of no use


def test_folder_stays_within_its_limit_and_ends_of_texts_are_evicted_first(tmp_path):
    folder = PageFolder(tmp_path / "pages", "w1-x", 10_000)
    page = np.zeros(1000, np.uint8)
    digests = [bytes([i]) * 20 for i in range(20)]
    for depth, digest in enumerate(digests[:8]):
        assert folder.write("page", digest, page, depth)
    folder.pin("page", digests[7])
    assert folder.write("page", digests[8], page, 0) and folder.write("page", digests[9], page, 1)
    left = {file.digest for file in stored_pages(tmp_path / "pages")}
    assert sum(file.n_bytes for file in stored_pages(tmp_path / "pages")) <= 10_000
    assert digests[0].hex() in left and digests[7].hex() in left and digests[6].hex() not in left
    assert not folder.write("page", digests[10], np.zeros(20_000, np.uint8))
    assert "but the limit of the folder is 10000" in folder.refusal
    # A second process sees the files, and a file that it lost is a miss.
    other = PageFolder(tmp_path / "pages", "w1-x", 10_000)
    assert other.has("page", digests[0]) and np.array_equal(other.read("page", digests[0]), page)
    shutil.rmtree(tmp_path / "pages" / "w1-x" / digests[0].hex()[:2])
    assert other.read("page", digests[0]) is None and not other.has("page", digests[0])


def test_processes_share_one_limit_and_notice_deletions(tmp_path):
    folders = [PageFolder(tmp_path / "pages", "w1-x", 40_000) for _ in range(3)]
    page = np.zeros(1000, np.uint8)
    for i in range(120):
        assert folders[i % 3].write("page", bytes([i]) * 20, page)
        taken = sum(file.n_bytes for file in stored_pages(tmp_path / "pages"))
        assert taken <= 40_000 * (1 + 3 / 16)  # each looks after a sixteenth of its own
    shutil.rmtree(tmp_path / "pages" / "w1-x")
    (tmp_path / "pages" / "w1-x").mkdir()
    assert folders[0].write("page", bytes([119]) * 20, page)
    assert len(list(stored_pages(tmp_path / "pages"))) == 1


def test_full_or_read_only_disk_is_reported_and_changes_nothing(opened, tmp_path, monkeypatch):
    first, _ = answered(opened, cache_disk=None)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with opened() as llm:
        assert ask(llm).output == first
        assert ask(llm).output == first
        llm.engine.scheduler.tier.flush()
        assert "No space left" in llm.engine.scheduler.tier.stats().refusal
    assert not files(tmp_path) and not list((tmp_path / "pages").glob("*/*/*.tmp"))


def test_missing_folder_is_created_and_impossible_one_is_rejected(opened, tmp_path):
    assert answered(opened, cache_disk_folder=tmp_path / "a" / "b" / "c")[1] == 0
    assert answered(opened, cache_disk_folder=tmp_path / "a" / "b" / "c")[1] == 128
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cache_disk"):
        opened(cache_disk_folder=tmp_path / "file" / "x")


def test_pages_are_written_on_their_second_use(opened, tmp_path):
    with opened() as llm:
        ask(llm)
        ask(llm)
        end = time.monotonic() + 60
        while len(files(tmp_path)) < 4 and time.monotonic() < end:
            ask(llm, [*GREEN, 5])
        assert len(files(tmp_path)) >= 4


def test_disk_is_used_only_if_measured_to_be_faster(opened, monkeypatch):
    monkeypatch.undo()
    with opened() as llm:
        tier = llm.engine.scheduler.tier
        assert tier.stats().disk_rate > 0 and tier.stats().compute_rate > 0
        tier._disk_rate, tier._compute_rate = 1e9, 10.0
        assert tier.is_faster_than_recompute(10**6, 32)
        tier._disk_rate, tier._compute_rate = 1e6, 1e6
        assert not tier.is_faster_than_recompute(10**6, 32)
        tier._disk_rate = 0.0  # it could not be measured
        assert not tier.is_faster_than_recompute(1, 32)


_CHILD = """
import os, sys
from woolly.cache import page_folder
import numpy as np
calls = [int(sys.argv[2])]
def counted(function):
    def call(*given, **options):
        calls[0] -= 1
        if calls[0] < 0:
            os.kill(os.getpid(), 9)
        return function(*given, **options)
    return call
for name in ("open", "fsync", "utime"):
    setattr(os, name, counted(getattr(os, name)))
page_folder.Path.replace = counted(page_folder.Path.replace)
folder = page_folder.PageFolder(page_folder.Path(sys.argv[1]), "w1-x", 10**9)
for i in range(3):
    folder.write("page", bytes([i]) * 20, np.full(5000, i, np.uint8), i)
"""


@pytest.mark.parametrize("n_calls", [0, 1, 2, 3, 5, 6])
def test_writer_killed_between_two_calls_leaves_only_complete_files(n_calls, tmp_path):
    child = fork_server.run([sys.executable, "-c", _CHILD, str(tmp_path / "pages"), str(n_calls)])
    assert child.returncode == -signal.SIGKILL
    found = list(stored_pages(tmp_path / "pages"))
    assert len(found) < 3 and all(file.fault() is None for file in found)
    folder = PageFolder(tmp_path / "pages", "w1-x", 10**9)
    for i in range(3):
        data = folder.read("page", bytes([i]) * 20)
        assert data is None or data.tolist() == [i] * 5000
        assert folder.write("page", bytes([i]) * 20, np.full(5000, i, np.uint8), i)


def test_processes_that_share_a_folder_give_the_text_of_each_alone(opened, tmp_path):
    prompts = [np.random.RandomState(seed).randint(0, 256, 100).tolist() for seed in range(4)]
    with opened(cache_disk=None) as llm:
        alone = [ask(llm, prompt).output for prompt in prompts]
    with opened() as a, opened() as b:
        for order in (prompts, prompts[::-1]):
            for prompt in order:
                for llm in (a, b):
                    assert ask(llm, prompt).output == alone[prompts.index(prompt)]
    with opened() as llm:
        for prompt, wanted in zip(prompts, alone, strict=True):
            request = ask(llm, prompt)
            assert (request.output, request.prefix.hit_tokens) == (wanted, 96)


def test_request_cancelled_while_waiting_for_the_disk_leaves_nothing(opened, monkeypatch):
    answered(opened)
    plain = PageFolder.read
    monkeypatch.setattr(PageFolder, "read", lambda *given: (time.sleep(0.2), plain(*given))[1])
    with opened() as llm:
        (request,) = llm.prepare(GREEN, replace(PARAMS, max_tokens=2))[0]
        llm.driver.add([request], lambda *_: None)
        llm.driver.cancel([request], wait=True)
        assert not llm.driver.call(lambda engine: engine.scheduler.tier.is_loading)
        assert ask(llm, GREEN[:100]).output
        pages = llm.engine.scheduler.pages
        assert pages.n_free == pages.n_pages


def test_erased_text_leaves_the_disk_too(opened, tmp_path):
    first, _ = answered(opened)
    assert files(tmp_path)
    with opened() as llm:
        ask(llm)
        llm.driver.call(lambda engine: engine.forget(GREEN))
    assert not files(tmp_path)
    assert answered(opened) == (first, 0)


def test_system_prompt_outlives_later_pages_from_its_second_use_on(opened, tmp_path):
    other = [*GREEN[:70], *range(200, 280)]

    def used(*prompts, n=1):
        """Returns the ranks of the files of the system prompt, and of all others, after requests of one process."""
        with opened() as llm:
            for prompt in prompts:
                requests = llm.prepare(prompt, replace(PARAMS, n=n), n_shared=70)
                llm.driver.complete(requests)
            names = {digest.hex() for digest in requests[0][0].digests_to(2)}
        found = files(tmp_path)
        assert all(abs(file.used - time.time()) < 3600 for file in found)  # what is shown is the use itself
        return [[f.rank for f in found if (f.digest in names) is is_its] for is_its in (True, False)]

    month = 29 * 86_400
    once, others = used(GREEN, n=2)  # two answers are one use
    assert len(once) == len(others) == 2 and max(once) - max(others) < month
    again, others = used(other)  # read from disk
    assert len(again) == 2 and len(others) == 4 and min(again) - max(others) > month
    shutil.rmtree(tmp_path / "pages")
    written, others = used(GREEN, other)
    assert len(written) == 2 and len(others) == 4 and min(written) - max(others) > month


def test_recomputed_system_prompt_outlives_other_pages_too(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(DiskTier, "is_faster_than_recompute", lambda self, n_bytes, n_tokens: False)
    answered(opened)
    with opened() as llm:
        for prompt in (GREEN, [*GREEN[:70], *range(200, 280)]):
            (request,) = llm.prepare(prompt, PARAMS, n_shared=70)[0]
            llm.driver.complete([[request]])
    found = sorted(file.rank for file in files(tmp_path))
    assert len(found) == 6 and found[4] - found[3] > 29 * 86_400


def test_hybrid_continues_after_the_system_prompt_of_another_chat(opened, tmp_path):
    path = write_tiny(HYBRIDS["qwen35"], tmp_path / "hybrid.gguf")
    other = [*GREEN[:70], *range(200, 280)]
    with opened(path=path, cache_disk=None) as llm:
        alone = ask(llm, other).output
    for n_shared, hit in ((0, 0), (70, 64)):
        with opened(path=path, cache_disk=None) as llm:
            for prompt in (GREEN, other):
                (request,) = llm.prepare(prompt, PARAMS, n_shared=n_shared)[0]
                llm.driver.complete([[request]])
            assert (request.prefix.hit_tokens, request.output) == (hit, alone)
