"""Tokenizer, configured by GGUF metadata: encoding and decoding."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from woolly.errors import TokenizerError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.tokens.bpe import BYTE_OF_CHARACTER, BytePairEncoder
from woolly.tokens.bpe_ranks import LazyBpeEncoder
from woolly.tokens.pretokenize import Pretokenizer, find_pretokenizer
from woolly.tokens.special_tokens import SpecialTokens, make_splitter, read_special_tokens
from woolly.tokens.vocabulary import BYTE_NAME, SPACE_MARK, TokenType, Vocabulary, read_vocabulary

_BYTE_PAIR_MODELS = ("gpt2", "gemma4", "whitespace")
_MODELS = (*_BYTE_PAIR_MODELS, "llama", "bert", "t5", "rwkv", "plamo2")
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_FOUND = (*_HIDDEN, TokenType.USER_DEFINED)


_MAX_BREAKS = 8  # maximum rounds, because a broken token may leave another token


class _Encoder(Protocol):
    def encode(self, text: str, after_special: bool) -> list[int]: ...


class Tokenizer:
    """Tokenizer of one model. Immutable and thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.model not in _MODELS:
            raise UnsupportedError(
                f"the tokenizer {vocabulary.model!r} (tokenizer.ggml.model) is not supported; expected one of"
                f" {', '.join(_MODELS)}"
            )
        pre: Pretokenizer | None = None
        self.model: str = vocabulary.model
        self.pre: str = vocabulary.text("tokenizer.ggml.pre") or "default"
        if self.model in _BYTE_PAIR_MODELS:
            self.pre = self.pre if self.model == "gpt2" else self.model
            pre = find_pretokenizer(self.pre)
        self._byte_level = pre is not None and pre.byte_level
        self.special: SpecialTokens = read_special_tokens(vocabulary, pre is None or pre.has_default_bos)
        self._texts = vocabulary.texts
        self._types = vocabulary.types.tolist()
        self._bytes: list[bytes | None] = [None] * len(self._texts)
        self._splitter = make_splitter(vocabulary)
        self._path: str | None = None
        self.adds_space_prefix: bool = False
        self._encoder: _Encoder = self._make_encoder(vocabulary, pre)
        self._read_ends(vocabulary, pre)

    def __repr__(self) -> str:
        return f"Tokenizer({self.model!r}, pre={self.pre!r}, {self.n_vocab} tokens)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the file, which is read again."""
        if self._path is None:
            raise TokenizerError("only a tokenizer of Tokenizer.from_gguf(path) can be pickled; create it that way")
        return Tokenizer.from_gguf, (self._path,)

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read the vocabulary of a GGUF file, without its tensors."""
        with open_gguf(path) as file:
            tokenizer = cls.from_metadata(file.metadata)
        tokenizer._path = str(Path(path).resolve())
        return tokenizer

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Create a tokenizer from the `tokenizer.ggml.*` keys of `metadata`."""
        return cls(read_vocabulary(metadata))

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Encode `text`.

        `add_special` adds BOS and EOS tokens as configured in the file. `parse_special` parses control tokens in the
        text; user-defined tokens are always parsed.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"only text (str) can be encoded, not {type(text).__name__}")
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}; "
                "only complete Unicode characters can be encoded"
            ) from None
        out = list(self._first) if add_special else []
        after_special = True
        for begin, end, index in self._splitter.split(data, parse_special):
            after = index >= 0
            if after:
                out.append(index)
            else:
                whole = end - begin == len(data)
                out += self._encoder.encode(text if whole else data[begin:end].decode(), after_special)
            after_special = after
        if add_special:
            out += self._last
        return out

    def break_marks(self, text: str) -> str:
        """Insert a zero-width space into each control token, so that `encode` does not parse it."""
        for _ in range(_MAX_BREAKS):
            data = text.encode("utf-8", "surrogatepass")
            pieces, is_whole = [], True
            for begin, end, index in self._splitter.split(data, True):
                piece = data[begin:end].decode("utf-8", "surrogatepass")
                if index >= 0 and self.is_special(index) and len(piece) > 1:
                    piece, is_whole = f"{piece[0]}\u200b{piece[1:]}", False
                pieces.append(piece)
            if is_whole:
                break
            text = "".join(pieces)
        return text

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Encode a text pair. Return the ids of the first text, and of the second text with the end tokens."""
        return self.encode_first(first), self.encode_second(second)

    def encode_first(self, text: str) -> list[int]:
        """Encode the first text of a pair, up to the second text."""
        return self.encode(text) + list(self._between)

    def encode_second(self, text: str) -> list[int]:
        """Encode the second text of a pair, with the end tokens."""
        return [*self.encode(text, add_special=False), *self._last]

    @property
    def n_end(self) -> int:
        """Number of tokens that `encode` appends to a text."""
        return len(self._last)

    def decode(self, ids: Sequence[int], skip_special: bool = False, *, strip_prefix: bool = True) -> str:
        """Decode `ids`. Bytes that are not UTF-8 become U+FFFD.

        `skip_special` omits control tokens. `strip_prefix` removes the space that `encode` prepends; set it to False
        for text that continues another text.
        """
        # str and bytes are also sequences, but not ids.
        if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
            raise TokenizerError(f"only a sequence of token ids can be decoded, not {type(ids).__name__}")
        strip = strip_prefix and self.adds_space_prefix
        parts = []
        for index in ids:
            data, strip = self.render(index, strip, skip_special)
            parts.append(data)
        return b"".join(parts).decode("utf-8", "replace")

    def render(self, id: int, strip: bool, skip_special: bool) -> tuple[bytes, bool]:
        """Return the bytes of a token at its position, and True if a space before the next token is dropped."""
        data = self.token_bytes(id)
        kind = self._types[id]
        if kind in _FOUND:
            return b"" if skip_special and kind in _HIDDEN else data, self.adds_space_prefix
        return data[1:] if strip and data.startswith(b" ") else data, strip and not data

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token. For a control token, these are the bytes of its text."""
        self._check(id)
        data = self._bytes[id]
        if data is None:
            data = self._bytes[id] = self._make_bytes(id)
        return data

    def token_text(self, id: int) -> str:
        """Return the token as in the vocabulary."""
        self._check(id)
        return self._text(id)

    def is_special(self, id: int) -> bool:
        """Return True if a token is a control or unknown token, which `skip_special` omits."""
        self._check(id)
        return self._types[id] in _HIDDEN

    @property
    def n_vocab(self) -> int:
        """Vocabulary size: ids run from 0 to n_vocab - 1."""
        return len(self._texts)

    @property
    def bos_id(self) -> int | None:
        """BOS token."""
        return self.special.bos

    @property
    def eos_id(self) -> int | None:
        """EOS token."""
        return self.special.eos

    @property
    def eot_id(self) -> int | None:
        """End-of-turn token."""
        return self.special.eot

    @property
    def pad_id(self) -> int | None:
        """Padding token."""
        return self.special.pad

    @property
    def unk_id(self) -> int | None:
        """Unknown token."""
        return self.special.unk

    @property
    def stop_ids(self) -> frozenset[int]:
        """All end-of-generation tokens."""
        return self.special.stop

    @property
    def control_ids(self) -> frozenset[int]:
        """All control tokens."""
        return frozenset(i for i, kind in enumerate(self._types) if kind == TokenType.CONTROL)

    def _check(self, id: int) -> None:
        if type(id) is not int and (isinstance(id, bool) or not isinstance(id, (int, np.integer))):
            raise TokenizerError(f"a token id must be an integer, not {type(id).__name__}")
        if not 0 <= id < len(self._texts):
            raise TokenizerError(f"token id {id} is not in the vocabulary (0 to {self.n_vocab - 1})")

    def _text(self, id: int) -> str:
        return self._texts[int(id)].decode("utf-8", "surrogateescape")

    def _make_bytes(self, id: int) -> bytes:
        text, kind = self._text(id), self._types[id]
        if kind == TokenType.BYTE and (name := BYTE_NAME.fullmatch(text)):
            return bytes([int(name[1], 16)])
        if self.model == "rwkv":
            from woolly.tokens.rwkv import unescaped

            return unescaped(text)
        if kind in _FOUND or self.model == "plamo2":
            return text.encode("utf-8", "surrogateescape")
        if self._byte_level:
            try:
                return bytes([BYTE_OF_CHARACTER[character] for character in text])
            except KeyError:  # an added token in plain text
                return text.encode("utf-8", "surrogateescape")
        return text.encode("utf-8", "surrogateescape").replace(SPACE_MARK.encode(), b" ")

    def _make_encoder(self, vocabulary: Vocabulary, pre: Pretokenizer | None) -> _Encoder:
        unknown = self.special.unk
        lowercase = vocabulary.flag("normalizer.lowercase", self.model == "bert")
        if pre is not None:
            make = partial(BytePairEncoder, vocabulary, pre, unknown, lowercase and self.model == "whitespace")
            return LazyBpeEncoder(make) if vocabulary.is_ranked else make()
        if self.model == "rwkv":
            from woolly.tokens.rwkv import RwkvEncoder  # imported late because a model uses only one encoder

            return RwkvEncoder(vocabulary, unknown)
        if self.model == "plamo2":
            from woolly.tokens.plamo import PlamoEncoder

            return PlamoEncoder(vocabulary)
        if self.model == "bert":
            self.adds_space_prefix = True
            from woolly.tokens.wordpiece import WordPieceEncoder

            return WordPieceEncoder(
                vocabulary, unknown, lowercase, vocabulary.flag("normalizer.strip_accents", lowercase)
            )
        self.adds_space_prefix = vocabulary.flag("add_space_prefix", self.model == "llama")
        if self.model == "llama":
            from woolly.tokens.sentencepiece import SentencePieceEncoder

            return SentencePieceEncoder(vocabulary, unknown, self.adds_space_prefix)
        from woolly.tokens.unigram import UnigramEncoder

        return UnigramEncoder(
            vocabulary, unknown, self.adds_space_prefix, vocabulary.flag("remove_extra_whitespaces", False)
        )

    def _read_ends(self, vocabulary: Vocabulary, pre: Pretokenizer | None) -> None:
        """Read `add_bos`, `add_eos`, and the ids added before and after a text."""
        self.add_bos: bool = vocabulary.flag(
            "add_bos_token", self.model in ("llama", "bert") or (pre is not None and pre.add_bos)
        )
        self.add_eos: bool = vocabulary.flag("add_eos_token", self.model in ("bert", "t5"))
        if pre is not None and pre.always_bos:
            self.add_bos = True
        first = self.special.bos if self.add_bos else None
        last = (self.special.sep if self.model == "bert" else self.special.eos) if self.add_eos else None
        if (self.add_bos and first is None) or (self.add_eos and last is None):
            which = "beginning" if self.add_bos and first is None else "end"
            raise TokenizerError(f"the file requires adding the {which} token, but has no id for it")
        self._first: tuple[int, ...] = () if first is None else (first,)
        self._last: tuple[int, ...] = () if last is None else (last,)
        # XLM-RoBERTa separates a text pair by two tokens. Older files do not have the key.
        is_doubled = vocabulary.flag("add_sep_token", self.model == "t5" and self.add_bos and self.add_eos)
        sep = self.special.eos if self.special.sep is None else self.special.sep
        self._between: tuple[int, ...] = () if sep is None or not is_doubled or self.model == "bert" else (sep,)
