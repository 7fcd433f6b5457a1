"""Vocabulary of a checkpoint as GGUF metadata, verified against its tokenizer."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from woolly.convert.checkpoint import Checkpoint
from woolly.convert.json_files import read_json
from woolly.convert.vocabulary.rwkv import find_rwkv, read_rwkv, rwkv_ends
from woolly.convert.vocabulary.sentencepiece import read_sentencepiece
from woolly.convert.vocabulary.special_tokens import special_keys
from woolly.errors import ModelError, UnsupportedError
from woolly.tokens.pretokenize import PRETOKENIZERS
from woolly.tokens.vocabulary import BYTE_NAME, TokenType

Keys = dict[str, Any]
_GPT2 = "gpt-2"


@dataclass(frozen=True)
class Tokens:
    """Vocabulary of a checkpoint folder."""

    keys: Keys  # tokenizer.ggml.*; without tokenizer.ggml.pre if several pre-tokenizers are possible
    splits: tuple[str, ...]  # values of tokenizer.ggml.pre, the likeliest first; empty: no pre-tokenizer
    source: Path | None  # tokenizer.json for verification
    specials: tuple[str, ...] = field(default=())  # added tokens as text


def read_tokens(checkpoint: Checkpoint, n_rows: int) -> Tokens:
    """Read the vocabulary and pad it to the rows of the embedding table."""
    folder = checkpoint.folder
    path = folder / "tokenizer.json"
    fast = read_json(path, optional=True)
    slow = folder / "tokenizer.model"
    world = find_rwkv(folder)
    splits: tuple[str, ...] = ()
    added = {} if world is not None else _added(fast, folder)
    if world is not None:  # the folder's other files are for programs that run its remote code
        fast, tokens = {}, read_rwkv(world)
    elif fast:
        model = _mapping(fast, "model", path)
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        if kind == "BPE" and _is_byte_level(fast):
            tokens, splits = _byte_level(model, path), _splits(fast)
        elif kind == "BPE":
            tokens, splits = _byte_fallback(model, fast, slow, path), ()
        elif kind == "Unigram":
            tokens, splits = _unigram(model, fast, path), ()
        elif kind == "WordPiece":
            tokens, splits = _wordpiece(model, fast, path), ()
        else:
            raise UnsupportedError(f"{path}: tokenizers of type {kind!r:.40} cannot be converted yet")
    elif slow.is_file():
        tokens, splits = _from_sentencepiece(slow), ()
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        tokens, splits = _from_merges(folder), (_GPT2, *_others((_GPT2,)))
    else:
        raise ModelError(f"{folder} has neither tokenizer.json nor tokenizer.model, so there is no vocabulary")
    _add(tokens, added, n_rows, folder)
    texts = tokens["tokenizer.ggml.tokens"]
    tokens |= special_keys(checkpoint, fast, {text: i for i, text in enumerate(texts)})
    tokens |= {} if world is None else rwkv_ends(tokens)
    return Tokens(tokens, splits, path if fast else None, tuple(text for text, _ in added.values()))


def _mapping(values: Keys, name: str, path: Path) -> Keys:
    value = values.get(name)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected an object under {name!r}, found {type(value).__name__}")
    return value


def _added(fast: Keys, folder: Path) -> dict[int, tuple[str, bool]]:
    """Return the added tokens: id to text, and True for control tokens."""
    found: dict[int, tuple[str, bool]] = {}
    listed = fast.get("added_tokens") or []
    if not fast:
        decoder = read_json(folder / "tokenizer_config.json", optional=True).get("added_tokens_decoder") or {}
        listed = [{"id": int(i), **one} for i, one in decoder.items() if str(i).isdecimal() and isinstance(one, dict)]
        texts = {one.get("content") for one in listed}
        for text, index in read_json(folder / "added_tokens.json", optional=True).items():
            if text not in texts:
                listed.append({"id": index, "content": text, "special": False})
    for one in listed:
        place, content = (one.get("id"), one.get("content")) if isinstance(one, dict) else (None, None)
        if type(place) is not int or not isinstance(content, str) or not 0 <= place < 1 << 31:
            raise ModelError(f"{folder}: an added token is {one!r:.60}; expected an id and a string")
        found[place] = (content, bool(one.get("special")))
    return found


def _add(tokens: Keys, added: dict[int, tuple[str, bool]], n_rows: int, folder: Path) -> None:
    """Insert added tokens and pad table rows without a token."""
    texts: list[str] = tokens["tokenizer.ggml.tokens"]
    types: list[int] = tokens["tokenizer.ggml.token_type"]
    scores: list[float] | None = tokens.get("tokenizer.ggml.scores")
    highest = max([len(texts) - 1, *added])
    if highest >= n_rows:
        raise ModelError(f"{folder}: token {highest} has no row in the token embedding, which has {n_rows} rows")
    for i in range(len(texts), n_rows):
        texts.append(f"[PAD{i}]")
        types.append(TokenType.UNUSED)
        if scores is not None:
            scores.append(-10000.0)
    for index, (text, is_special) in added.items():
        texts[index] = text
        if types[index] not in (TokenType.BYTE, TokenType.UNKNOWN):
            types[index] = TokenType.CONTROL if is_special else TokenType.USER_DEFINED
    tokens["tokenizer.ggml.token_type"] = np.asarray(types, np.int32)
    if scores is not None:
        tokens["tokenizer.ggml.scores"] = np.asarray(scores, np.float32)


def _by_id(model: Keys, path: Path) -> list[str]:
    """Return the texts of a vocabulary in id order, empty for gaps."""
    vocab = _mapping(model, "vocab", path)
    ids = list(vocab.values())
    if not ids or not all(type(i) is int and 0 <= i < 1 << 24 for i in ids) or len(set(ids)) != len(ids):
        raise ModelError(f"{path}: expected a vocabulary that maps tokens to distinct ids")
    texts = [f"[PAD{i}]" for i in range(max(ids) + 1)]
    for text, index in vocab.items():
        texts[index] = text
    return texts


def _merges(model: Keys, path: Path) -> list[str]:
    """Return merges as "left right". Spaces within a part are encoded as in byte-level vocabularies."""
    merges = []
    for one in model.get("merges") or []:
        if isinstance(one, list) and len(one) == 2 and all(isinstance(part, str) for part in one):
            merges.append(" ".join(part.replace(" ", chr(256 + ord(" "))) for part in one))
        elif isinstance(one, str) and len(one.split(" ")) == 2:
            merges.append(one)
        else:
            raise ModelError(f"{path}: the merge {one!r:.60} does not have two parts")
    return merges


def _gpt2(texts: list[str], merges: list[str]) -> Keys:
    types = [int(TokenType.UNUSED if re.fullmatch(r"\[PAD\d+\]", text) else TokenType.NORMAL) for text in texts]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }


def _byte_level(model: Keys, path: Path) -> Keys:
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise UnsupportedError(f"{path}: byte pairs with prefixes, suffixes or dropout cannot be converted yet")
    return _gpt2(_by_id(model, path), _merges(model, path))


def _from_merges(folder: Path) -> Keys:
    path = folder / "vocab.json"
    try:
        lines = (folder / "merges.txt").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{folder / 'merges.txt'}: cannot read the file ({error})") from None
    merges = [line for line in lines if line and not line.startswith("#version")]
    return _gpt2(_by_id({"vocab": read_json(path)}, path), _merges({"merges": merges}, folder / "merges.txt"))


def _is_byte_level(fast: Keys) -> bool:
    return any('"type": "ByteLevel"' in str(fast.get(x)).replace("'", '"') for x in ("pre_tokenizer", "decoder"))


def _splits(fast: Keys) -> tuple[str, ...]:
    """Return the names of possible pre-tokenizers; those that match the file's regular expression come first."""
    written = _patterns(fast.get("pre_tokenizer"))
    likely = [name for name, pre in PRETOKENIZERS.items() if pre.byte_level and set(pre.patterns) & set(written)]
    whole = [name for name in likely if set(PRETOKENIZERS[name].patterns) == set(written)]
    first = tuple(dict.fromkeys([*whole, *likely]))
    return (*first, *_others(first))


def _patterns(value: Any) -> list[str]:
    """Return all regular expressions of a pre-tokenizer."""
    if isinstance(value, dict):
        own = value.get("pattern")
        found = [own["Regex"]] if isinstance(own, dict) and isinstance(own.get("Regex"), str) else []
        if value.get("type") == "ByteLevel" and value.get("use_regex", True):
            found.append(PRETOKENIZERS[_GPT2].patterns[0])
        if value.get("type") == "Digits" and value.get("individual_digits"):
            found.append(r"\p{N}")
        return found + [one for inner in value.values() for one in _patterns(inner)]
    return [one for inner in value for one in _patterns(inner)] if isinstance(value, list) else []


def _others(first: tuple[str, ...]) -> tuple[str, ...]:
    """Return one name for each other pre-tokenizer, ending with `default`."""
    seen = {PRETOKENIZERS[name] for name in first}
    names = []
    for name, pre in PRETOKENIZERS.items():
        if pre not in seen and pre.byte_level and name != "default":
            seen.add(pre)
            names.append(name)
    return (*names, "default")


def _byte_fallback(model: Keys, fast: Keys, slow: Path, path: Path) -> Keys:
    """Return byte pairs in SentencePiece's format, with scores from tokenizer.model or from the order of merges."""
    texts = _by_id(model, path)
    if slow.is_file():
        pieces = _from_sentencepiece(slow)
        if pieces["tokenizer.ggml.tokens"][: len(texts)] == texts[: len(pieces["tokenizer.ggml.tokens"])]:
            return pieces
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(_merges(model, path)):
        ranks.setdefault(merge.replace(" ", "").replace(chr(256 + ord(" ")), " "), rank)
    scores = [-float(ranks[text]) if text in ranks else -1e6 for text in texts]
    unknown = model.get("unk_token")
    types = [int(TokenType.BYTE if BYTE_NAME.fullmatch(text) else TokenType.NORMAL) for text in texts]
    types = [int(TokenType.UNKNOWN) if text == unknown else kind for text, kind in zip(texts, types, strict=True)]
    prepends = "Prepend" in str(fast.get("normalizer")) or _metaspace(fast.get("pre_tokenizer"))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": prepends,
    }


def _metaspace(value: Any) -> bool:
    if isinstance(value, dict):
        if value.get("type") == "Metaspace":
            return value.get("prepend_scheme", "always") != "never" and bool(value.get("add_prefix_space", True))
        return any(_metaspace(inner) for inner in value.values())
    return any(_metaspace(inner) for inner in value) if isinstance(value, list) else False


def _from_sentencepiece(path: Path) -> Keys:
    pieces = read_sentencepiece(path)
    out: Keys = {
        "tokenizer.ggml.model": "t5" if pieces.is_unigram else "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces.texts,
        "tokenizer.ggml.scores": pieces.scores,
        "tokenizer.ggml.token_type": pieces.types,
        "tokenizer.ggml.add_space_prefix": pieces.adds_prefix,
    }
    if pieces.is_unigram:
        out["tokenizer.ggml.remove_extra_whitespaces"] = pieces.removes_spaces
        if pieces.charsmap:
            out["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(pieces.charsmap, np.uint8)
    return out


def _unigram(model: Keys, fast: Keys, path: Path) -> Keys:
    vocab = model.get("vocab")
    if not isinstance(vocab, list) or not all(isinstance(one, list) and len(one) == 2 for one in vocab):
        raise ModelError(f"{path}: expected a list of pieces with scores")
    texts, scores = [str(one[0]) for one in vocab], [float(one[1]) for one in vocab]
    types = [int(TokenType.BYTE if BYTE_NAME.fullmatch(text) else TokenType.NORMAL) for text in texts]
    unknown = model.get("unk_id")
    if type(unknown) is int and 0 <= unknown < len(types):
        types[unknown] = TokenType.UNKNOWN
    out: Keys = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": _metaspace(fast.get("pre_tokenizer")),
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    if (charsmap := _charsmap(fast.get("normalizer"))) is not None:
        out["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return out


def _charsmap(value: Any) -> bytes | None:
    if isinstance(value, dict):
        if isinstance(text := value.get("precompiled_charsmap"), str):
            return base64.b64decode(text) or None
        value = list(value.values())
    found = (_charsmap(inner) for inner in value) if isinstance(value, list) else ()
    return next((one for one in found if one), None)


def _wordpiece(model: Keys, fast: Keys, path: Path) -> Keys:
    """Return WordPiece tokens in GGUF's format: marked at the start of words, and not within words."""
    prefix = model.get("continuing_subword_prefix", "##")
    texts = []
    for text in _by_id(model, path):
        if re.fullmatch(r"\[.+\]", text):
            texts.append(text)
        else:
            texts.append(text[len(prefix) :] if text.startswith(prefix) else "\u2581" + text)
    normalizer = fast.get("normalizer")
    lowercase = bool(normalizer.get("lowercase", True)) if isinstance(normalizer, dict) else False
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [int(TokenType.NORMAL)] * len(texts),
        "tokenizer.ggml.normalizer.lowercase": lowercase,
    }
