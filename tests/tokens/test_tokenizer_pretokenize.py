"""The table of cuts: every pattern works, stays linear, and cuts where it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tests.tokens.tiny import byte_level
from woolly.errors import UnsupportedError
from woolly.tokens import Tokenizer
from woolly.tokens.pretokenize import PRETOKENIZERS, find_pretokenizer

NUMBERS = st.text("0123456789", max_size=20) | st.text("0123456789²½Ⅷ٣a _-", max_size=20)


def cut(name_or_patterns: str | list[str], text: str) -> list[str]:
    named = isinstance(name_or_patterns, str)
    patterns = PRETOKENIZERS[name_or_patterns].patterns if named else name_or_patterns
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_every_pattern_compiles_and_loses_nothing(name):
    text = "It's 1234567 ÉCOLE école\r\n\n  中文かな 한글 x² 😶\u200d🌫️\t'LL <|end|> ไทย\u00a0\u3000."
    assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "it's  12 a", ["it", "'s", " ", " 12", " a"]),
        ("default", "a.b 1234", ["a", ".", "b", " ", "123", "4"]),
        ("starcoder", "x 12", ["x", " ", "1", "2"]),
        ("llama-bpe", "IT'S 12345\n\n x", ["IT", "'S", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "a 123", ["a", " ", "1", "2", "3"]),
        ("qwen35", "ก\u0e34น", ["ก\u0e34น"]),
        ("qwen2", "ก\u0e34น", ["ก", "\u0e34น"]),
        ("deepseek-v3", "1234漢字かなx", ["123", "4", "漢字かな", "x"]),
        ("gpt-4o", "camelCase'S École", ["camel", "Case'S", " École"]),
        ("gpt-4o", "ÉCOLEéc", ["ÉCOLEéc"]),
        ("tekken", "aB'S", ["a", "B", "'S"]),
        ("kimi-k2", "ab漢字cd", ["ab", "漢字", "cd"]),
        ("jais-2", " " * 7 + "x", ["    ", "  ", " x"]),
        ("bloom", "a b,c", ["a", " b", ",", "c"]),
        ("exaone-moe", "a b c 1", ["a b c", " ", "1"]),
        ("seed-coder", "!!\n", ["!!", "\n"]),
        ("tiny_aya", "1234567 x", ["1", "234", "567", " x"]),
        ("superbpe", "a 1234567 b", ["a ", "1", "234", "567", " b"]),
        ("afmoe", "12345", ["12", "345"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("viking", "ab12", ["ab", "1", "2"]),
        ("falcon", "a``1234", ["a", "``", "123", "4"]),
        ("chameleon", "IMGIMGABCZ  a", ["IMGIMGABCZ", "  ", "a"]),
    ],
)
def test_words_are_split_as_the_vocabulary_was_trained(name, text, expected):
    assert cut(name, text) == expected


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("superbpe", [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
        ("tiny_aya", [r"\d{1,3}(?=(?:\d{3})*\b)", PRETOKENIZERS["tiny_aya"].patterns[-1]]),
        ("afmoe", [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", *PRETOKENIZERS["afmoe"].patterns[3:]]),
    ],
)
@given(NUMBERS)
def test_numbers_are_grouped_like_the_quadratic_pattern(name, plain, text):
    assert cut(name, text) == cut(plain, text)


def test_unknown_name_error_suggests_near_ones():
    with pytest.raises(UnsupportedError, match=r"'llama-bpee'.*llama-bpe"):
        Tokenizer.from_metadata(byte_level(pre="llama-bpee"))
    with pytest.raises(UnsupportedError, match="no known name is near"):
        find_pretokenizer("0123456789")


def test_missing_name_is_the_default():
    metadata = byte_level()
    del metadata["tokenizer.ggml.pre"]
    assert Tokenizer.from_metadata(metadata).pre == "default"
