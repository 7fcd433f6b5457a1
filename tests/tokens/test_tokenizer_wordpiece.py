"""WordPiece: longest pieces from the left, BERT's normalization, [CLS] and [SEP]."""

from __future__ import annotations

import pytest

from tests.tokens.tiny import wordpiece
from woolly.errors import TokenizerError
from woolly.tokens import Tokenizer

WORDS = ["un", "##aff", "##able", "##a", "hello", "!", "中", "文", "e", "##e", "Hello", "é", "a", "[", "]", "c", "##ls"]


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False, **options)]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(wordpiece(WORDS))


def test_words_are_split_into_the_longest_pieces_from_the_left(tokenizer):
    assert pieces(tokenizer, "unaffable hello!") == ["▁un", "aff", "able", "▁hello", "▁!"]


def test_unsplittable_word_is_unknown(tokenizer):
    assert pieces(tokenizer, "unaffx hello") == ["[UNK]", "▁hello"]


def test_text_is_lowercased_and_stripped_of_accents_and_control_characters(tokenizer):
    assert pieces(tokenizer, "H\u00c9LLO\x00\u200b \u00e9\u00e9\t") == ["▁hello", "▁e", "e"]


def test_chinese_characters_and_punctuation_are_separate(tokenizer):
    assert pieces(tokenizer, "a中文!a") == ["▁a", "▁中", "▁文", "▁!", "▁a"]


def test_cased_vocabulary_keeps_case_and_accents():
    metadata = wordpiece(WORDS, **{"normalizer.lowercase": False})
    assert pieces(Tokenizer.from_metadata(metadata), "Hello é") == ["▁Hello", "▁é"]
    metadata["tokenizer.ggml.normalizer.strip_accents"] = True
    assert pieces(Tokenizer.from_metadata(metadata), "Hello é") == ["▁Hello", "▁e"]


def test_bos_and_eos_are_cls_and_sep(tokenizer):
    assert tokenizer.encode("hello") == [2, 8, 3]
    assert tokenizer.encode("") == [2, 3]
    bare = Tokenizer.from_metadata(wordpiece(WORDS, add_bos_token=False, add_eos_token=False))
    assert bare.encode("hello") == [8]


def test_control_tokens_in_text_are_parsed_only_on_request(tokenizer):
    assert tokenizer.encode("a[SEP]a", add_special=False) == [16, 3, 16]
    assert 3 not in tokenizer.encode("a[SEP]a", add_special=False, parse_special=False)


def test_decode_joins_the_pieces_and_drops_the_first_space(tokenizer):
    ids = tokenizer.encode("unaffable hello!")
    assert tokenizer.decode(ids, skip_special=True) == "unaffable hello !"
    assert tokenizer.decode(ids) == "[CLS]unaffable hello ![SEP]"


def test_vocabulary_without_an_unknown_token_is_an_error():
    metadata = wordpiece(WORDS)
    del metadata["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(TokenizerError, match="unknown_token_id"):
        Tokenizer.from_metadata(metadata)


def test_non_utf_8_unknown_token_is_supported():
    metadata = wordpiece(["wool"])
    metadata["tokenizer.ggml.tokens"][1] = "[U\udcff]"  # as the reader of the header gives a stray byte
    assert Tokenizer.from_metadata(metadata).encode("wool zzz", add_special=False) == [4, 1]
