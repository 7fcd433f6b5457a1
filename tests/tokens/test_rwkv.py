"""The vocabulary of RWKV: bytes with backslashes, the longest token first."""

import numpy as np
import pytest

from woolly.errors import TokenizerError
from woolly.tokens.rwkv import unescaped
from woolly.tokens.tokenizer import Tokenizer

TOKENS = [
    "<s>",
    *(chr(b) if 32 < b < 127 and b != 92 else f"\\x{b:02x}" for b in range(256)),
    "th",
    "the ",
    "\\n\\n",
    "wolle ",
    "ü",
]


def tokenizer(tokens=TOKENS):
    types = np.array([3] + [1] * (len(tokens) - 1), np.int32)
    metadata = {"model": "rwkv", "tokens": list(tokens), "token_type": types, "bos_token_id": 0, "eos_token_id": 0}
    return Tokenizer.from_metadata({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})


def test_escapes_stand_for_bytes():
    assert unescaped(r"\x00\xff\n\t\r\\a\'") == b"\x00\xff\n\t\r\\a'"
    assert unescaped("ü") == "ü".encode()


def test_longest_token_is_used_and_no_bos_is_added():
    t = tokenizer()
    ids = t.encode("the thx\n\nü")
    assert [t.token_bytes(i) for i in ids] == [b"the ", b"th", b"x", b"\n\n", "ü".encode()]


@pytest.mark.parametrize("text", ["", "wolle und wolle", "\\x00 \\n", "日本 \U0001f411\t", "a\x00b"])
def test_text_round_trips(text):
    t = tokenizer()
    assert t.decode(t.encode(text)) == text


def test_byte_that_starts_no_token_is_an_error():
    with pytest.raises(TokenizerError, match="no token that begins with byte 0x62"):
        tokenizer(["<s>", "a"]).encode("ab")
