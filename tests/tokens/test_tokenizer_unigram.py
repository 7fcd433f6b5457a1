"""Unigram: the best sum of scores, unknown runs, normalization, byte fallback."""

from __future__ import annotations

import struct
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.tiny import BYTE, BYTE_NAMES, UNUSED, USER, unigram
from woolly.errors import TokenizerError
from woolly.tokens import Tokenizer

PIECES = [("▁", -2.0), ("a", -3.0), ("b", -3.0), ("▁a", -2.5), ("ab", -3.5), ("▁ab", -9.0), ("abb", -8.0)]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False)]


def one_replacement(source: bytes, target: bytes) -> np.ndarray:
    """A charsmap with one rule from `source` to `target`."""
    units = [0] * 256 * (len(source) + 2)
    base = 256
    units[0] = base << 10  # the root: children at base ^ byte
    for depth, byte in enumerate(source, 2):
        child = base ^ byte
        base = 256 * depth  # of the children of this one
        units[child] = (child ^ base) << 10 | byte
    units[child] |= 1 << 8  # a leaf, its value at base
    units[base] = 1 << 31  # offset 0 of the replacements
    blob = struct.pack(f"<{len(units)}I", *units)
    return np.frombuffer(struct.pack("<I", len(blob)) + blob + target + b"\0", np.uint8)


def test_best_sum_of_scores_wins():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES))
    assert pieces(tokenizer, "ab") == ["▁", "ab"], "of equal sums the one whose last piece starts first"
    assert pieces(tokenizer, "aab") == ["▁a", "ab"]
    assert tokenizer.encode("a") == [6, 1]


def test_run_of_unknown_characters_is_one_unknown_token():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES))
    assert pieces(tokenizer, "xyzab") == ["▁", "<unk>", "ab"]


def test_spaces_are_merged_and_trimmed_if_the_file_says_so():
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


def test_characters_fall_back_to_byte_pieces():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, [(name, BYTE) for name in BYTE_NAMES]))
    assert pieces(tokenizer, "aé") == ["▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("aéb\n", add_special=False)) == "aéb\n"


def test_charsmap_rewrites_text_before_splitting():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=one_replacement(b"A", b" ab ")))
    assert pieces(tokenizer, "bAb") == pieces(tokenizer, "b ab b")


@pytest.mark.parametrize("blob", [b"\1", b"\xff\xff\xff\x7f" + bytes(8), struct.pack("<I", 4) + b"\0\0\0\0"])
def test_truncated_charsmap_is_an_error(blob):
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=np.frombuffer(blob, np.uint8)))


def test_charsmap_with_a_too_long_replacement_is_rejected():
    with pytest.raises(TokenizerError, match="precompiled_charsmap has a replacement of 257 bytes, and at most 256"):
        Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=one_replacement(b"A", b"b" * 257)))


def test_charsmap_rejects_texts_it_would_blow_up():
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=one_replacement(b"A", b"b" * 256)))
    assert pieces(tokenizer, "A") == ["▁", *"b" * 256]
    with pytest.raises(TokenizerError, match="precompiled_charsmap makes it more than 16 times as long"):
        tokenizer.encode("A" * 60)


def test_longest_unicode_form_is_used():
    ligature = "\ufdfa".encode()
    expanded = unicodedata.normalize("NFKC", "\ufdfa")
    assert len(expanded.encode()) == 33
    blob = one_replacement(ligature, expanded.encode())
    tokenizer = Tokenizer.from_metadata(unigram([*PIECES, *((c, -1.0) for c in set(expanded) - {" "})]))
    mapped = Tokenizer.from_metadata(
        unigram([*PIECES, *((c, -1.0) for c in set(expanded) - {" "})], precompiled_charsmap=blob)
    )
    assert pieces(mapped, "\ufdfa" * 100) == pieces(tokenizer, expanded * 100)


def test_prefix_beyond_64_bytes_is_not_followed():
    blob = one_replacement(b"a" * 64, b"b")
    assert pieces(Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=blob)), "a" * 64) == ["▁", "b"]
    blob = one_replacement(b"a" * 65, b"b")
    assert pieces(Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=blob)), "a" * 65) == ["▁a", *"a" * 64]


@given(st.binary(min_size=4, max_size=300), st.text(max_size=20))
def test_hostile_charsmap_does_no_harm(body, text):
    body = body[: len(body) // 4 * 4]
    blob = np.frombuffer(struct.pack("<I", len(body)) + body + b"ab\0", np.uint8)
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, precompiled_charsmap=blob))
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert all(0 <= i < tokenizer.n_vocab for i in tokenizer.encode(text))


@given(st.text("ab ", max_size=14))
def test_no_other_split_scores_higher(text):
    tokenizer = Tokenizer.from_metadata(unigram(PIECES, remove_extra_whitespaces=False))
    scores = dict(PIECES)
    marked = ("▁" + text.replace(" ", "▁")) if text else ""
    best = [0.0] + [-1e9] * len(marked)
    for end in range(1, len(marked) + 1):
        best[end] = max(best[start] + scores.get(marked[start:end], -1e9) for start in range(end))
    found = pieces(tokenizer, text)
    assert "".join(found) == marked
    assert sum(scores[piece] for piece in found) == pytest.approx(best[-1])
