"""Tokenizers: encoding, decoding, incremental detokenization, stop strings."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.tokens.detokenize import StreamDetokenizer
    from woolly.tokens.tokenizer import Tokenizer

__all__ = ["StreamDetokenizer", "Tokenizer"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "detokenize": "StreamDetokenizer",
        "tokenizer": "Tokenizer",
    },
)
