"""The repr of each object fits a line, and a printed plan is its table."""

import pytest

from woolly import LLM
from woolly.plan.show import show


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, ctx=256, threads=1) as llm:
        yield llm


def test_every_repr_fits_a_line(llm):
    plan, tokenizer, engine = map(repr, (llm.plan, llm.tokenizer, llm.engine))
    assert plan == "Plan('llama', 34 steps, 2 layers; print shows them)"
    assert tokenizer == f"Tokenizer('gpt2', pre='{llm.tokenizer.pre}', {llm.n_vocab} tokens)"
    assert engine.startswith("Engine(ctx=256, 0 running, 0 waiting, ") and engine.endswith(" pages free)")
    assert str(llm.plan) == show(llm.plan, fold=True)


def test_stream_repr_shows_its_progress(llm):
    stream = llm.generate("a", max_tokens=200, ignore_eos=True, stream=True)
    assert repr(stream) == "Stream(not read yet, open)"
    list(stream)
    assert repr(stream) == f"Stream({stream.completion.text[:40] + '...'!r}, length)"
    assert repr(llm.chat("a", stream=True)) == "ChatStream(not read yet, open)"


def test_closed_model_repr_says_closed(tiny_model):
    with LLM(tiny_model, ctx=64) as llm:
        assert repr(llm).endswith(", ctx=64)")
    assert repr(llm).endswith(", closed)")


def test_logprobs_repr_shows_their_text(llm):
    answer = llm.generate("hello", max_tokens=3, logprobs=2, prompt_logprobs=0, ignore_eos=True)
    for one in answer.logprobs:
        assert one.text == llm.tokenizer.decode([one.token], strip_prefix=False)
        assert repr(one) == f"TokenLogprob({one.text!r}, {one.logprob:.4g}, token {one.token}, top 2)"
    assert "".join(one.text for one in answer.prompt_logprobs[1:]) == "ello"
