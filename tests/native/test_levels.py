"""Every kernel level that this machine can run says the same."""

import pytest

from woolly import LLM, SamplingParams, _native

CHAT = [{"role": "user", "content": "Name the capital city of France."}]
PLAIN = "The first ten numbers are 1, 2, 3, 4,"


def answers(path) -> tuple[str, str]:
    with LLM(path) as llm:
        chat = llm.chat(CHAT, SamplingParams(temperature=0, max_tokens=10))
        plain = llm.generate(PLAIN, SamplingParams(temperature=0, max_tokens=6))
    return chat.text, plain.text


@pytest.fixture(scope="module")
def best(smollm2):
    return answers(smollm2)


@pytest.mark.parametrize("level", _native.kernel_levels())
def test_smollm2_greedy_text_is_the_same_on_every_isa(level, best, smollm2, monkeypatch):
    monkeypatch.setenv("WOOLLY_ISA", level)
    assert "Paris" in best[0]
    assert answers(smollm2) == best
