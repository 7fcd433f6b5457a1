"""Errors of a vocabulary, a text or an id are one line."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.tokens.tiny import byte_level, raw_bpe, sentencepiece, unigram, wordpiece
from woolly.errors import TokenizerError, UnsupportedError
from woolly.tokens import StreamDetokenizer, Tokenizer

KEY = "tokenizer.ggml."


def without(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != KEY + name}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"no tokenizer\.ggml\.model"),
        (byte_level() | {KEY + "model": 7}, r"no tokenizer\.ggml\.model"),
        (without(byte_level(), "tokens"), r"tokenizer\.ggml\.tokens is missing or empty"),
        (byte_level(tokens=[]), r"tokenizer\.ggml\.tokens is missing or empty"),
        (byte_level(tokens=[1, 2]), "tokens must be an array of strings"),
        (byte_level(tokens="abc"), "tokens must be an array of strings"),
        (without(byte_level(), "merges"), r"no tokenizer\.ggml\.merges"),
        (byte_level(merges=["ab"]), "'ab'; expected two pieces"),
        (byte_level(merges=["ab "]), "'ab '; expected two pieces"),
        (byte_level() | {KEY + "merges": [3]}, "merges must be an array of strings"),
        (byte_level(token_type=[1, 1]), "token_type has 2 values, but the vocabulary has 256 tokens"),
        (byte_level(token_type="no"), "token_type must be an array of numbers"),
        (byte_level(token_type=["a"] * 256), "token_type must be an array of numbers"),
        (byte_level(bos_token_id="<s>"), "bos_token_id is '<s>', but must be a token id"),
        (byte_level(add_bos_token=1), "add_bos_token is 1, but must be true or false"),
        (byte_level(pre=3), "pre is int, but must be a string"),
        (sentencepiece([("a", 0.0)], scores=[0.0]), "scores has 1 values, but the vocabulary has 260 tokens"),
        (sentencepiece([("a", 0.0)], scores=[[0.0]] * 300), "scores must be an array of numbers"),
        (sentencepiece([("a", 0.0)], model="t5", precompiled_charsmap="x"), "precompiled_charsmap must be an array"),
    ],
)
def test_bad_metadata_is_named(metadata, message):
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_metadata(metadata)


@pytest.mark.parametrize("model", ["none", "no_vocab", "hybriddna"])
def test_unsupported_vocabulary_types_are_named(model):
    with pytest.raises(UnsupportedError, match=f"'{model}'"):
        Tokenizer.from_metadata(byte_level() | {KEY + "model": model})


def test_arrays_longer_than_the_tokens_are_tolerated():
    metadata = byte_level(token_type=[1] * 300)
    assert Tokenizer.from_metadata(metadata).encode("a") == [97]


def test_empty_tokens_get_a_name():
    metadata = byte_level()
    metadata[KEY + "tokens"].append("")
    metadata[KEY + "token_type"].append(1)
    assert Tokenizer.from_metadata(metadata).token_text(256) == "[EMPTY_256]"


def test_lone_surrogate_in_a_text_is_an_error():
    with pytest.raises(TokenizerError, match=r"lone surrogate U\+D83D at character 2"):
        Tokenizer.from_metadata(byte_level()).encode("ab\ud83d")


@pytest.mark.parametrize("index", [-1, 256, 2**40])
def test_id_outside_the_vocabulary_is_an_error(index):
    tokenizer = Tokenizer.from_metadata(byte_level())
    for use in (
        lambda: tokenizer.decode([0, index]),
        lambda: tokenizer.token_bytes(index),
        lambda: tokenizer.token_text(index),
    ):
        with pytest.raises(TokenizerError, match=rf"token id {index} is not in the vocabulary \(0 to 255\)"):
            use()


@pytest.mark.parametrize("value", [5, b"x", None, ["a"], 1.5])
def test_non_text_is_not_encoded(value):
    with pytest.raises(TokenizerError, match=rf"only text \(str\) can be encoded, not {type(value).__name__}$"):
        Tokenizer.from_metadata(byte_level()).encode(value)


@pytest.mark.parametrize("value", ["a", 1.5, None, True, np.bool_(True), np.float32(1), b"a", [1], np.zeros(2, int)])
def test_non_integer_is_not_an_id(value):
    tokenizer = Tokenizer.from_metadata(byte_level())
    for use in (
        lambda: tokenizer.decode([0, value]),
        lambda: tokenizer.token_bytes(value),
        lambda: tokenizer.token_text(value),
        lambda: tokenizer.is_special(value),
        lambda: StreamDetokenizer(tokenizer).push(value),
    ):
        with pytest.raises(TokenizerError, match=rf"a token id must be an integer, not {type(value).__name__}$"):
            use()


@pytest.mark.parametrize("value", [5, None, "ab", b"ab", True])
def test_non_sequence_is_not_decoded(value):
    with pytest.raises(TokenizerError, match=rf"only a sequence of token ids .*, not {type(value).__name__}$"):
        Tokenizer.from_metadata(byte_level()).decode(value)


@pytest.mark.parametrize("ids", [np.array([97, 98]), np.array([97, 98], np.uint8), (97, np.int32(98)), range(97, 99)])
def test_numpy_ids_are_accepted(ids):
    assert Tokenizer.from_metadata(byte_level()).decode(ids) == "ab"


@pytest.mark.parametrize(
    "metadata",
    [
        byte_level(["a b", "ab a"]),
        raw_bpe(["a", "b", "ab", "▁"], ["a b"]),
        sentencepiece([("▁a", 0.0)]),
        unigram([("▁", -1.0), ("a", -2.0), ("ab", -2.5), ("▁ab", -4.0)]),
        wordpiece(["ab", "##a", "b"]),
    ],
    ids=["byte-level", "raw", "sentencepiece", "unigram", "wordpiece"],
)
def test_many_threads_may_use_one_tokenizer(metadata):
    texts = [f"{'ab aba b ' * (50 + n)}{n}" for n in range(8)]
    alone = Tokenizer.from_metadata(metadata)
    expected = [(ids := alone.encode(text), alone.decode(ids)) for text in texts]
    # Another one, so that what it remembers of its tokens is made while all threads use it.
    shared = Tokenizer.from_metadata(metadata)
    start = threading.Barrier(4)

    def work(worker: int) -> list[object]:
        start.wait()
        order = [(worker + n) % len(texts) for n in range(3 * len(texts))]
        return [n for n in order if (ids := shared.encode(texts[n]), shared.decode(ids)) != expected[n]]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [[]] * 4
