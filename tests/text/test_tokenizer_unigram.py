"""Unigram: the best sum of scores, unknown runs, normalization, byte fallback."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.tiny import BYTE, BYTE_NAMES, UNUSED, USER, unigram
from woolly.errors import TokenizerError
from woolly.text import Tokenizer

PIECES = [("▁", -2.0), ("a", -3.0), ("b", -3.0), ("▁a", -2.5), ("ab", -3.5), ("▁ab", -9.0), ("abb", -8.0)]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False)]


def one_replacement(source: bytes, target: bytes) -> np.ndarray:
    """A charsmap with one rule from a single byte to `target`."""
    units = [0] * 512
    units[0] = 256 << 10  # the root: children at 256 ^ byte
    child = 256 ^ source[0]
    units[child] = (child ^ 511) << 10 | 1 << 8 | source[0]  # a leaf, its value at 511
    units[511] = 1 << 31  # offset 0 of the replacements
    blob = struct.pack("<512I", *units)
    return np.frombuffer(struct.pack("<I", len(blob)) + blob + target + b"\0", np.uint8)


def test_the_best_sum_of_scores_wins():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES))
    assert pieces(tokenizer, "ab") == ["▁", "ab"], "of equal sums the one whose last piece starts first"
    assert pieces(tokenizer, "aab") == ["▁a", "ab"]
    assert tokenizer.encode("a") == [6, 1]


def test_a_run_of_unknown_characters_is_one_unknown_token():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES))
    assert pieces(tokenizer, "xyzab") == ["▁", "<unk>", "ab"]


def test_spaces_are_merged_and_trimmed_where_the_file_says_so():
    merged = Tokenizer.from_metadata(unigram(PIECES))
    kept = Tokenizer.from_metadata(unigram(PIECES, remove_extra_whitespaces=False))
    bare = Tokenizer.from_metadata(unigram(PIECES, add_space_prefix=False))
    assert pieces(merged, "  a   b ") == ["▁a", "▁", "b"]
    assert pieces(merged, "   ") == []
    assert pieces(kept, " a  ") == ["▁", "▁a", "▁", "▁"]
    assert pieces(bare, " a b") == ["a", "▁", "b"]
    assert merged.decode(merged.encode("a b", add_special=False)) == "a b"


def test_special_pieces_are_not_spelled_by_text_and_user_defined_ones_are_found():
    tokenizer = Tokenizer.from_metadata(unigram([*PIECES, ("<", -4.0)], [("a|b", USER), ("bb", UNUSED)]))
    assert "</s>" not in [tokenizer.token_text(i) for i in tokenizer.encode("</s>", False, parse_special=False)]
    assert tokenizer.encode("</s>", add_special=False) == [1]
    assert pieces(tokenizer, "ba|bb") == ["▁", "b", "a|b", "▁", "b"]
    assert pieces(tokenizer, "abb")[-1] == "bb"


def test_characters_fall_back_to_bytes_where_there_are_byte_pieces():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, [(name, BYTE) for name in BYTE_NAMES]))
    assert pieces(tokenizer, "aé") == ["▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("aéb\n", add_special=False)) == "aéb\n"


def test_the_charsmap_rewrites_text_before_it_is_cut():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=one_replacement(b"A", b" ab ")))
    assert pieces(tokenizer, "bAb") == pieces(tokenizer, "b ab b")


@pytest.mark.parametrize("blob", [b"\1", b"\xff\xff\xff\x7f" + bytes(8), struct.pack("<I", 4) + b"\0\0\0\0"])
def test_a_charsmap_that_is_cut_short_is_an_error(blob):
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=np.frombuffer(blob, np.uint8)))


@given(st.binary(min_size=4, max_size=300), st.text(max_size=20))
def test_a_hostile_charsmap_does_no_harm(body, text):
    body = body[: len(body) // 4 * 4]
    blob = np.frombuffer(struct.pack("<I", len(body)) + body + b"ab\0", np.uint8)
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=blob))
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert all(0 <= i < tokenizer.n_vocab for i in tokenizer.encode(text))


@given(st.text("ab ", max_size=14))
def test_no_other_cut_scores_higher(text):
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, remove_extra_whitespaces=False))
    scores = dict(PIECES)
    marked = ("▁" + text.replace(" ", "▁")) if text else ""
    best = [0.0] + [-1e9] * len(marked)
    for end in range(1, len(marked) + 1):
        best[end] = max(best[start] + scores.get(marked[start:end], -1e9) for start in range(end))
    found = pieces(tokenizer, text)
    assert "".join(found) == marked
    assert sum(scores[piece] for piece in found) == pytest.approx(best[-1])
