"""Contexts whose size no memory bounds, because a recurrent model keeps nothing for each token."""

from dataclasses import replace

import pytest

from tests.cases.rwkv import RWKV
from tests.cases.tiny import write_tiny
from woolly import LLM
from woolly.errors import RequestError

MILLION = 1 << 20


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    tiny = replace(RWKV["rwkv7"], context=2_000_000_000)
    return write_tiny(tiny, tmp_path_factory.mktemp("endless") / "tiny.gguf")


def test_recurrent_file_that_claims_any_context_gets_a_bounded_one(endless):
    with LLM(endless, threads=1) as llm:
        assert llm.ctx == MILLION
        assert llm.engine.scheduler.pages.n_pages == 4 * MILLION // 32


def test_larger_context_is_kept_and_one_beyond_the_page_table_is_rejected(endless):
    with LLM(endless, threads=1, ctx=5 * MILLION) as llm:
        assert llm.engine.scheduler.pages.n_pages == 5 * MILLION // 32
    with pytest.raises(RequestError, match="ctx is 2000000000; the maximum is 134217728"):
        LLM(endless, threads=1, ctx=2_000_000_000)
    with pytest.raises(RequestError, match="kv_tokens is 1000000000000; the maximum is"):
        LLM(endless, threads=1, ctx=512, kv_tokens=10**12)
