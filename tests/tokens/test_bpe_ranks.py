"""Merges of a vocabulary that lists its tokens alone are those that made them."""

import pytest

from woolly.errors import TokenizerError
from woolly.tokens.bpe_ranks import LazyBpeEncoder, merges_by_rank


def test_each_token_is_built_from_earlier_merges():
    tokens = ["a", "b", "c", "ab", "bc", "abc", "aa", "aab", "lost"]
    assert merges_by_rank(tokens) == ["a b", "b c", "ab c", "a a", "a ab"]


def test_unreachable_tokens_cost_no_time():
    long = ["a" * n for n in range(2**20, 2**20 + 4)]
    assert merges_by_rank(["a", "aa", *long, "aaa"]) == ["a a", "aa a"]
    with pytest.raises(TokenizerError, match="too long to compute them"):
        merges_by_rank(["a" * 256] * 300)


def test_encoder_is_built_once_on_first_use():
    made = []

    class Letters:
        def encode(self, text, after_special):
            return list(map(ord, text))

    late = LazyBpeEncoder(lambda: made.append(1) or Letters())
    assert not made
    assert late.encode("ab", False) + late.encode("c", True) == [97, 98, 99]
    assert made == [1]
