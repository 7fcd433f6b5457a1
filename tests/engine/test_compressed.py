"""Compressed keys, windows and slots in one model: what is kept comes back to the same bits, or is computed again."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.engine.test_disk import GREEN, PARAMS, always_worth, ask, home
from woolly import LLM

__all__ = ["always_worth", "home"]  # fixtures

CASE = FAMILIES["deepseek4"]
# Windows have fewer pages than what sees all tokens, and chunks end within blocks.
TIGHT = {"ctx": 512, "kv_tokens": 2048, "chunk": 37, "max_running": 1, "threads": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    every = np.array([0, 4, 128, 4], np.int32)
    extra = CASE.extra | {"attention.sliding_window": 40, "attention.compress_ratios": every}
    return write_tiny(replace(CASE, extra=extra), tmp_path_factory.mktemp("compressed") / "compressed.gguf")


def test_shared_prefix_gives_the_same_text(path):
    longer = [*GREEN, *range(60, 100)]
    with LLM(path, **TIGHT) as llm:
        alone = ask(llm, longer).output
    with LLM(path, **TIGHT) as llm:
        ask(llm)
        second = ask(llm, longer)
        assert second.prefix.hit_tokens == 128
        assert second.output == alone
        assert ask(llm, longer).output == alone


def test_second_process_continues_from_disk_with_the_same_text(path, tmp_path):
    disk = {"cache_disk": "100MB", "cache_disk_folder": tmp_path / "pages"}
    with LLM(path, **TIGHT, **disk) as llm:
        first = ask(llm).output
    with LLM(path, **TIGHT, **disk) as llm:
        again = ask(llm)
        assert (again.output, again.prefix.hit_tokens) == (first, 128)


def test_every_chunk_size_gives_the_bits_of_one_row_at_a_time(path):
    tokens = np.random.RandomState(5).randint(0, 264, 300).tolist()
    found = []
    for chunk, threads in ((1, 1), (7, 2), (512, 3)):
        with LLM(path, **TIGHT | {"chunk": chunk, "threads": threads}) as llm:
            found.append(llm.logits(tokens))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_drafts_change_no_text(path):
    repeated = [*range(40, 60)] * 6
    params = replace(PARAMS, max_tokens=40)
    found = []
    for speculation in (None, "prompt_lookup"):
        with LLM(path, **TIGHT, speculation=speculation) as llm:
            found.append(ask(llm, repeated, params).output)
    assert found[0] == found[1]
