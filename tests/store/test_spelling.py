"""Spelling variants and short forms of model names."""

import pytest

from woolly.store.catalogue.spelling import closest_names, is_short_form, normalize_name

FILE = "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ministral-3:8b", "ministral3-8B"),
        ("qwen2.5vl", "Qwen2.5-VL"),
        ("gpt_oss:20b", "gpt-oss-20b"),
        ("gemma-3-1b", "gemma3:1b"),
        ("one.gguf", "ONE"),
    ],
)
def test_names_differ_in_case_and_separators_only(one, other):
    assert normalize_name(one) == normalize_name(other)


@pytest.mark.parametrize(
    ("one", "other"), [("gemma3:1b", "gemma:31b"), ("phi3.5", "phi35"), ("llama3.2:1b", "llama3:21b"), ("o1", "o-11")]
)
def test_different_numbers_are_different_names(one, other):
    assert normalize_name(one) != normalize_name(other)


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("qwen2.5-coder-0.5b", FILE),
        ("qwen2.5-coder", FILE),
        ("qwen2.5-coder:0.5b", FILE),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", FILE),
        ("qwen3-30b", "hf:unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF/Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL.gguf"),
        ("unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M", "Qwen3-30B-A3B-Q4_K_M.gguf"),
        ("llama3.2", "llama3.2:1b"),
        ("mistral-7b", "mistral-7b-instruct-v0.3-q8_0"),
        ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1"),
    ],
)
def test_short_forms_leave_out_details(short, name):
    assert is_short_form(short, name)


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("qwen2.5", FILE),
        ("qwen2.5-coder-1.5b", FILE),
        ("qwen", FILE),
        ("llama3", "llama3.2:1b"),
        ("smol", "smollm2"),
        ("gemma", "gemma-3-1b-it"),
        ("", "1b"),
        ("qwen3:4b", "qwen3-4b-thinking-2507"),
    ],
)
def test_other_models_are_no_short_forms(short, name):
    assert not is_short_form(short, name)


def test_closest_names_differ_by_few_characters():
    assert closest_names("smolm2", ["smollm2", "qwen3", "smollm3"], 0.6) == ["smollm2", "smollm3"]
    assert closest_names("qwen3", ["llama3"], 0.6) == []
