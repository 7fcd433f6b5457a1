"""Byte-pair vocabularies: merge order, whole words, byte fallback, long texts, round trips."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from tests.tokens.tiny import BYTE, byte_characters, byte_level, in_byte_characters, raw_bpe
from woolly.errors import TokenizerError
from woolly.gguf import GGUFWriter
from woolly.tokens import Tokenizer, bpe
from woolly.tokens.pretokenize import PRETOKENIZERS

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(
    "01 \n\t'sre½²aA中é\u0301.", max_size=60
)
BYTE_LEVEL = sorted(name for name, pre in PRETOKENIZERS.items() if pre.byte_level)
MERGES = ["h e", "l l", "Ġ a", "he ll", "1 2", "Ċ Ċ", "Ġ Ġ", "ä ¸", "ð Ł"]


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


def test_lower_ranks_merge_first():
    first = Tokenizer.from_metadata(byte_level(["a b", "b c"]))
    second = Tokenizer.from_metadata(byte_level(["b c", "a b"]))
    assert texts_of(first, first.encode("abc", add_special=False)) == ["ab", "c"]
    assert texts_of(second, second.encode("abc", add_special=False)) == ["a", "bc"]


def test_first_of_two_equal_merges_sets_the_rank():
    tokenizer = Tokenizer.from_metadata(byte_level(["a b", "b c", "a b"]))
    assert texts_of(tokenizer, tokenizer.encode("abc", add_special=False)) == ["ab", "c"]


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", ["hello"]), ("qwen2", ["he", "l", "l", "o"])])
def test_ignore_merges_takes_a_word_that_is_a_token(pre, expected):
    metadata = byte_level(["h e"], [("hello", 1)], pre=pre, bos_token_id=0)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("hello", add_special=False)) == expected


def test_merge_through_a_non_token_still_reaches_its_token():
    metadata = byte_level(["a b", "ab c"])
    tokens = metadata["tokenizer.ggml.tokens"]
    del metadata["tokenizer.ggml.token_type"][tokens.index("ab")], tokens[tokens.index("ab")]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("abc", add_special=False)) == ["abc"]
    assert texts_of(tokenizer, tokenizer.encode("abd", add_special=False)) == ["a", "b", "d"]


def test_later_id_of_two_equal_tokens_is_used():
    metadata = byte_level([], [("a", 1)])
    assert Tokenizer.from_metadata(metadata).encode("a", add_special=False) == [256]


def test_byte_without_a_token_is_unknown_or_an_error_and_never_dropped():
    metadata = byte_level()
    index = metadata["tokenizer.ggml.tokens"].index("z")
    metadata["tokenizer.ggml.tokens"][index] = "<other>"
    with pytest.raises(TokenizerError, match="without a token"):
        Tokenizer.from_metadata(metadata).encode("az")
    metadata["tokenizer.ggml.unknown_token_id"] = index
    assert Tokenizer.from_metadata(metadata).encode("az") == [97, index]


def test_invalid_utf8_tokens_are_tolerated():
    metadata = byte_level(["a b"], [("\udcff\udcfe", 1)])
    metadata["tokenizer.ggml.merges"].append("\udcff \udcfe")
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("ab", add_special=False)) == ["ab"]
    assert tokenizer.token_bytes(257) == b"\xff\xfe"


def test_token_in_plain_text_decodes_to_that_text():
    tokenizer = Tokenizer.from_metadata(byte_level([], [("end▁of｜text", 1)]))
    assert tokenizer.decode([256]) == "end▁of｜text"


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_any_text_round_trips(name):
    special = [("<|im_start|>", 3), ("<br>", 4)]
    tokenizer = Tokenizer.from_metadata(byte_level(MERGES, special, pre=name, bos_token_id=0))

    @given(TEXT)
    def check(text):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, add_special=False))) == text.encode()

    check()


@pytest.mark.parametrize("name", [name for name in BYTE_LEVEL if PRETOKENIZERS[name].cut])
def test_long_text_encoded_in_parts_gives_the_same_ids(name, monkeypatch):
    words = ["on", "th", "Ġ th", "he", "Ġt he", "Ċ Ċ", "Ġ Ġ", "a Ġ", "e Ċ", "Ġ 1", "1 2"]
    tokenizer = Tokenizer.from_metadata(
        byte_level([w if " " in w else " ".join(w) for w in words], pre=name, bos_token_id=0)
    )
    texts = ["the  on 12 a\n\nthe\n 'tis on's 1234 the", "a b\n\n\nc d  e 'll\tx\r\n", "on the 中 the é\u0301e\n1 the"]
    for text in texts:
        monkeypatch.setattr(bpe, "_PART", 1_000_000)
        whole = tokenizer.encode(text * 5, add_special=False)
        monkeypatch.setattr(bpe, "_PART", 3)
        assert tokenizer.encode(text * 5, add_special=False) == whole


def test_unsplittable_text_has_a_limit(monkeypatch):
    tokenizer = Tokenizer.from_metadata(byte_level())
    monkeypatch.setattr(bpe, "_PART", 10)
    monkeypatch.setattr(bpe, "_MAX_PART_CHARS", 100)
    assert len(tokenizer.encode(" " * 100)) == 100
    with pytest.raises(TokenizerError, match="more than 100 characters"):
        tokenizer.encode(" " * 101)


def test_gemma4_merges_over_spaces_falls_back_to_bytes_and_takes_complete_newlines():
    pieces = ["a", "b", "▁", "\n", "\n\n", "▁b", "a▁b"]
    tokenizer = Tokenizer.from_metadata(raw_bpe(pieces, ["▁ b", "a ▁b"]))
    ids = tokenizer.encode("a b\n\né\n")
    assert texts_of(tokenizer, ids) == ["<bos>", "a▁b", "\n\n", "<0xC3>", "<0xA9>", "\n"]
    assert tokenizer.decode(ids, skip_special=True) == "a b\n\né\n"


def test_gemma4_adds_bos_even_if_the_file_says_not():
    tokenizer = Tokenizer.from_metadata(raw_bpe(["a"], ["a a"], add_bos_token=False))
    assert tokenizer.add_bos
    assert tokenizer.encode("a")[0] == 0


def test_whitespace_words_are_lowercased_and_their_spaces_dropped():
    metadata = raw_bpe(["a", "b", "ab"], ["a b"], model="whitespace", **{"normalizer.lowercase": True})
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("AB \t b", add_special=False)) == ["ab", "b"]


@given(TEXT)
def test_raw_byte_pairs_with_byte_fallback_round_trip(text):
    tokenizer = Tokenizer.from_metadata(raw_bpe(["a", "▁", "▁a", "\n"], ["▁ a"]))
    text = text.replace("▁", "")  # the mark of a space cannot be told from one
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_byte_characters_match_gpt2():
    assert [bpe.BYTE_OF_CHARACTER[c] for c in byte_characters()] == list(range(256))
    assert in_byte_characters(" \n\u00ad") == "ĠĊÂŃ"
    assert BYTE == 6


@given(
    st.lists(st.text("abcé", min_size=2, max_size=5), max_size=30),
    st.text("abcé ", max_size=40),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_merges_match_hugging_face_tokenizers(words, text, ignores, random):
    merges = dict.fromkeys(" ".join(map(in_byte_characters, cut(word, random))) for word in words)
    metadata = byte_level(list(merges), pre="llama-bpe" if ignores else "qwen2", bos_token_id=0)
    for merge in merges:  # every merge makes a token there
        left, right = merge.split(" ")
        for piece in (left, right, left + right):
            if piece not in metadata["tokenizer.ggml.tokens"]:
                metadata["tokenizer.ggml.tokens"].append(piece)
                metadata["tokenizer.ggml.token_type"].append(1)
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    model = models.BPE(ids, [tuple(merge.split(" ")) for merge in merges], ignore_merges=ignores)
    pieces = [in_byte_characters(piece) for piece in text.replace(" ", "\n \n").split("\n") if piece]
    tokenizer = Tokenizer.from_metadata(metadata)
    found = [i for piece in text.replace(" ", "\n \n").split("\n") for i in tokenizer.encode(piece, add_special=False)]
    assert found == [token.id for piece in pieces for token in model.tokenize(piece)]


def cut(word: str, random: Random) -> tuple[str, str]:
    at = random.randrange(1, len(word))
    return word[:at], word[at:]


def test_vocabulary_of_a_file_equals_its_lists(tmp_path):
    metadata = byte_level(["h e", "l l", "he ll"], [("", 1), ("<end>", 3)])
    writer = GGUFWriter(tmp_path / "words.gguf")
    writer.add("general.architecture", "none")
    for key, value in metadata.items():
        writer.add(key, value)
    writer.write()
    ours, theirs = Tokenizer.from_gguf(tmp_path / "words.gguf"), Tokenizer.from_metadata(metadata)
    assert ours.encode("hell o<end>") == theirs.encode("hell o<end>")
    assert texts_of(ours, list(range(ours.n_vocab))) == texts_of(theirs, list(range(theirs.n_vocab)))


def test_non_token_character_is_merged_or_becomes_bytes_or_unknown():
    metadata = byte_level(["c d", "cd e"])
    metadata["tokenizer.ggml.tokens"][metadata["tokenizer.ggml.tokens"].index("c")] = "<unk>"
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("cdexcd")) == ["cde", "x", "cd"]
    with pytest.raises(TokenizerError, match="without a token"):
        tokenizer.encode("cdc")
    tokenizer = Tokenizer.from_metadata(raw_bpe(["\u4e16\u754c", "x"], ["\u4e16 \u754c", "x y"]))
    ids = tokenizer.encode("x\u4e16\u754c\u4e16xy", add_special=False)
    assert texts_of(tokenizer, ids) == ["x", "\u4e16\u754c", "<0xE4>", "<0xB8>", "<0x96>", "x", "<0x79>"]


def test_lone_surrogate_in_a_vocabulary_is_reported():
    metadata = byte_level(["a b"])
    metadata["tokenizer.ggml.merges"] = ["a \ud800"]
    with pytest.raises(TokenizerError, match=r"tokenizer.ggml.merges has .* lone surrogate"):
        Tokenizer.from_metadata(metadata)
