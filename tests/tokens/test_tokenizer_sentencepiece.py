"""SentencePiece by scores: ties, byte fallback, the space in front, cuts at spaces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.tiny import CONTROL, USER, sentencepiece
from woolly.errors import TokenizerError
from woolly.tokens import Tokenizer

PIECES = [("▁", -1.0), ("a", -2.0), ("b", -3.0), ("c", -4.0), ("ab", -5.0), ("bc", -5.0), ("▁a", -6.0), ("abc", -9.0)]
LETTERS = [("▁", -1.0), ("a", -1.0), ("b", -1.0)]


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False, **options)]


def reference(scores: dict[str, float], text: str) -> list[str]:
    """Merge the best pair, the leftmost of equals, until none is left."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_equal_scores_merge_from_the_left():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES, add_space_prefix=False))
    assert pieces(tokenizer, "abc") == ["abc"]
    assert pieces(tokenizer, "abab") == ["ab", "ab"]
    tied = sentencepiece([(t, s) for t, s in PIECES if t != "abc"], add_space_prefix=False)
    assert pieces(Tokenizer.from_metadata(tied), "abc") == ["ab", "c"]


def test_higher_score_wins_over_the_left():
    tokenizer = Tokenizer.from_metadata(sentencepiece([*LETTERS, ("aa", -3.0), ("ab", -2.0)], add_space_prefix=False))
    assert pieces(tokenizer, "aab") == ["a", "ab"]


def test_characters_outside_the_vocabulary_become_bytes():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES, add_space_prefix=False))
    assert pieces(tokenizer, "aé😀") == ["a", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert tokenizer.decode(tokenizer.encode("aé😀", add_special=False)) == "aé😀"


def test_without_byte_pieces_a_character_is_unknown_or_an_error():
    metadata = sentencepiece(PIECES, has_bytes=False, add_space_prefix=False)
    assert Tokenizer.from_metadata(metadata).encode("aé中", add_special=False) == [4, 0, 0]
    metadata["tokenizer.ggml.tokens"][0] = "x"
    metadata["tokenizer.ggml.token_type"][0] = 1
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.unknown_token_id": 2**32 - 1})
    assert tokenizer.unk_id == 0, "an id that is out of range leaves the default"


def test_space_prefix_is_added_and_removed():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES))
    assert pieces(tokenizer, "a") == ["▁a"]
    assert pieces(tokenizer, " a") == ["▁", "▁a"]
    assert tokenizer.decode(tokenizer.encode("a a", add_special=False)) == "a a"
    assert tokenizer.decode(tokenizer.encode("a", add_special=False), strip_prefix=False) == " a"
    assert tokenizer.decode(tokenizer.encode("a"), skip_special=True) == "a"
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("", add_special=False) == []


def test_space_is_added_after_each_special_token_and_removed():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES, [("<x>", CONTROL), ("<y>", USER)]))
    assert pieces(tokenizer, "a<x>a<y> a") == ["▁a", "<x>", "▁a", "<y>", "▁", "▁a"]
    for text in ("a<x>a<y> a", "<x><y>", "<x> ", " <x>a"):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    assert tokenizer.decode(tokenizer.encode("a<x>a<y>a"), skip_special=True) == "aa<y>a"


def test_control_and_byte_pieces_are_not_spelled_by_text():
    spelled = [("<", -1.0), ("s", -1.0), (">", -1.0), ("<s", -2.0), ("<0x4", -1.0), ("1>", -1.0), ("0", -1.0)]
    tokenizer = Tokenizer.from_metadata(sentencepiece(spelled, add_space_prefix=False))
    assert pieces(tokenizer, "<s>", parse_special=False) == ["<s", ">"]
    assert tokenizer.encode("<s>", add_special=False) == [1]
    assert tokenizer.decode(tokenizer.encode("<0x41>", add_special=False)) == "<0x41>"


@given(
    st.lists(st.tuples(st.text("ab▁", min_size=2, max_size=4), st.sampled_from([-1.0, -2.0, -3.0]))),
    st.text("ab ", max_size=24),
)
def test_merges_match_the_plain_rule_even_with_spaces_in_pieces(longer, text):
    scores = {"a": 0.0, "b": 0.0, "▁": 0.0} | dict(longer)
    tokenizer = Tokenizer.from_metadata(sentencepiece(list(scores.items()), add_space_prefix=False))
    assert pieces(tokenizer, text) == reference(scores, text.replace(" ", "▁"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=40))
def test_any_text_round_trips(text):
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES))
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_pieces_without_types_are_normal_except_byte_names():
    metadata = sentencepiece(PIECES, add_space_prefix=False)
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode(tokenizer.encode("aé", add_special=False)) == "aé"


def test_missing_or_nan_scores_are_an_error():
    metadata = sentencepiece(PIECES)
    with pytest.raises(TokenizerError, match="the score of token 5 is nan"):
        Tokenizer.from_metadata(metadata | {"tokenizer.ggml.scores": [0.0] * 5 + [float("nan")] + [0.0] * 500})
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(TokenizerError, match=r"no tokenizer\.ggml\.scores"):
        Tokenizer.from_metadata(metadata)
