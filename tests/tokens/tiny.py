"""Vocabularies small enough to reason about, as the metadata that a GGUF file would carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_characters() -> list[str]:
    """The printable character of each byte, as GPT-2 defined it."""
    shown = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def in_byte_characters(text: str) -> str:
    table = byte_characters()
    return "".join(table[byte] for byte in text.encode())


def byte_level(
    merges: Sequence[str] = (), special: Iterable[tuple[str, int]] = (), pre: str = "gpt-2", **keys: Any
) -> dict[str, Any]:
    """256 bytes, the results of `merges`, then `special` tokens."""
    tokens = byte_characters()
    tokens += [token for token in dict.fromkeys(m.replace(" ", "") for m in merges) if token not in tokens]
    types = [NORMAL] * len(tokens)
    for text, kind in special:
        tokens.append(text)
        types.append(kind)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
    } | _named(keys)


def raw_bpe(pieces: Sequence[str], merges: Sequence[str], model: str = "gemma4", **keys: Any) -> dict[str, Any]:
    """Byte pairs on raw UTF-8 with <0xXX> fallback, as Gemma 4 has them: <bos>, the bytes, `pieces`."""
    tokens = ["<bos>", *BYTE_NAMES, *pieces]
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
    } | _named(keys)


def sentencepiece(
    pieces: Sequence[tuple[str, float]],
    special: Iterable[tuple[str, int]] = (),
    has_bytes: bool = True,
    model: str = "llama",
    **keys: Any,
) -> dict[str, Any]:
    """<unk>, <s>, </s>, the bytes, `pieces`, then `special` tokens."""
    rows = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    rows += [(name, 0.0, BYTE) for name in BYTE_NAMES] if has_bytes else []
    rows += [(text, score, NORMAL) for text, score in pieces]
    rows += [(text, 0.0, kind) for text, kind in special]
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.scores": [row[1] for row in rows],
        "tokenizer.ggml.token_type": [row[2] for row in rows],
    } | _named(keys)


def unigram(
    pieces: Sequence[tuple[str, float]], special: Iterable[tuple[str, int]] = (), **keys: Any
) -> dict[str, Any]:
    """<pad>, </s>, <unk> where T5 has them, then `pieces` and `special` tokens."""
    rows = [("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN)]
    rows += [(text, score, NORMAL) for text, score in pieces]
    rows += [(text, -1.0, kind) for text, kind in special]
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.scores": [row[1] for row in rows],
        "tokenizer.ggml.token_type": [row[2] for row in rows],
    } | _named({"add_space_prefix": True, "remove_extra_whitespaces": True} | keys)


def wordpiece(words: Sequence[str], **keys: Any) -> dict[str, Any]:
    """[PAD], [UNK], [CLS], [SEP], then `words` in BERT's notation: ## marks a continuation."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    shown = [word[2:] if word.startswith("##") else "\u2581" + word for word in words]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": special + shown,
        "tokenizer.ggml.token_type": [CONTROL] * 4 + [NORMAL] * len(words),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    } | _named(keys)


def _named(keys: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
