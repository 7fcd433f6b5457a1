"""Verification that a converted vocabulary tokenizes text like the original tokenizer."""

from __future__ import annotations

from typing import Any

from woolly.convert.vocabulary.tokens import Tokens
from woolly.convert.vocabulary.verification_text import verification_lines
from woolly.errors import ModelError, UnsupportedError, WoollyError
from woolly.tokens import Tokenizer
from woolly.tokens.pretokenize import PRETOKENIZERS

Proved = tuple[dict[str, Any], int]  # keys with the pre-tokenizer, and the number of compared lines


def verify_tokenizer(tokens: Tokens, about: dict[str, Any]) -> Proved:
    """Choose the pre-tokenizer that yields the original tokens for every line. UnsupportedError shows a difference."""
    if tokens.source is None:
        keys = tokens.keys | ({"tokenizer.ggml.pre": tokens.splits[0]} if tokens.splits else {})
        Tokenizer.from_metadata(about | keys)
        return keys, 0
    lines = verification_lines()
    lines += [f"a{text} b" for text in tokens.specials[:64]]
    wanted = _original(tokens, lines)
    first: tuple[str, str] | None = None
    tried = set()
    for split in tokens.splits or ("",):
        if split and (pre := PRETOKENIZERS[split]) in tried:
            continue
        if split:
            tried.add(pre)
        keys = tokens.keys | ({"tokenizer.ggml.pre": split} if split else {})
        difference = _difference(Tokenizer.from_metadata(about | keys), lines, wanted)
        if difference is None:
            return keys, len(lines)
        first = first or (split, difference)
    assert first is not None
    raise UnsupportedError(
        f"{tokens.source}: no supported pre-tokenizer yields this tokenizer's tokens"
        f"{f' (the closest is {first[0]})' if first[0] else ''}: {first[1]}"
    )


def _original(tokens: Tokens, lines: list[str]) -> list[list[int]]:
    import tokenizers

    try:
        original = tokenizers.Tokenizer.from_file(str(tokens.source))
        original.no_truncation()
        original.no_padding()
        return [one.ids for one in original.encode_batch(lines, add_special_tokens=False)]
    except Exception as error:  # exceptions of tokenizers have no common base class
        raise ModelError(f"{tokens.source}: the tokenizer cannot be built ({str(error)[:120]})") from None


def _difference(tokenizer: Tokenizer, lines: list[str], wanted: list[list[int]]) -> str | None:
    """Describe the first line with different tokens."""
    for line, ids in zip(lines, wanted, strict=True):
        try:
            own = tokenizer.encode(line, add_special=False)
        except WoollyError as error:
            return str(error)
        if own != ids:
            at = next((i for i, (x, y) in enumerate(zip(own, ids, strict=False)) if x != y), min(len(own), len(ids)))
            return f"{line[:40]!r} becomes {own[at : at + 3]} in place of {ids[at : at + 3]}"
    return None
