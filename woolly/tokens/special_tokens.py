"""Special tokens: BOS, EOS, separators, end-of-generation tokens, and tokens parsed in text.

GGUF files have some of these ids. The others are detected by the token texts that converters write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from woolly._native import SpecialSplitter
from woolly.errors import TokenizerError
from woolly.tokens.vocabulary import TokenType, Vocabulary

_DEEPSEEK_END = "<｜end▁of▁sentence｜>"

# Token texts per role, used if the file has no id. The first text in the vocabulary wins.
_ROLE_TEXTS: dict[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        _DEEPSEEK_END,
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

# End-of-generation tokens in every vocabulary, regardless of their type in the file. Excludes </s>, which as a normal
# token closes struck-out HTML, for example in Qwen.
_STOP_TEXTS = (
    *_ROLE_TEXTS["eot"],
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<|eom_id|>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
)

# Further ends of files that do not declare them, by architecture: the model would write the user's next turn itself.
_STOP_TEXTS_OF = dict.fromkeys(("glm5next", "glm5-next"), ("<|user|>", "<|observation|>"))

# Channel markers of gpt-oss, which are shown, and parsed in text.
_VISIBLE_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

# Defaults by model, if the file has no id.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "gpt2": {"bos": 11, "eos": 11},
    "whitespace": {"bos": 11, "eos": 11},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "plamo2": {"bos": 1, "eos": 2, "unk": 0, "pad": 3},
}

_KEYS: tuple[tuple[str, str], ...] = (
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),  # spelled like this in the format
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("fim_pre", "prefix_token_id"),
    ("fim_suf", "suffix_token_id"),
    ("fim_mid", "middle_token_id"),
    ("fim_pre", "fim_pre_token_id"),
    ("fim_suf", "fim_suf_token_id"),
    ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"),
    ("fim_rep", "fim_rep_token_id"),
    ("fim_sep", "fim_sep_token_id"),
)


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special roles. An id is None if the vocabulary has no such token."""

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    eom: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None
    stop: frozenset[int] = frozenset()  # end-of-generation ids


def read_special_tokens(vocabulary: Vocabulary, has_default_bos: bool = True) -> SpecialTokens:
    """Return the special tokens. Correct `vocabulary.types` if a token's text contradicts its type."""
    roles: dict[str, int] = {}
    n_tokens = len(vocabulary.texts)
    for role, index in _DEFAULT_IDS.get(vocabulary.model, {}).items():
        if index < n_tokens and (role != "bos" or has_default_bos):
            roles[role] = index
    for role, name in _KEYS:
        value = vocabulary.metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            continue
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise TokenizerError(f"tokenizer.ggml.{name} is {value!r}, but must be a token id")
        # Out-of-range ids are common for unused roles (2^32-1, or one past the end).
        if 0 <= value < n_tokens:
            roles[role] = int(value)
    _find_roles(vocabulary, roles)
    return SpecialTokens(**roles, stop=_find_stops(vocabulary, roles))


def _find_roles(vocabulary: Vocabulary, roles: dict[str, int]) -> None:
    for role, texts in _ROLE_TEXTS.items():
        if role not in roles:
            for index in _present(vocabulary, texts)[:1]:
                roles[role] = index
                vocabulary.types[index] = TokenType.CONTROL


def _find_stops(vocabulary: Vocabulary, roles: dict[str, int]) -> frozenset[int]:
    types = vocabulary.types
    known = _present(vocabulary, _STOP_TEXTS)
    known += [i for i in _present(vocabulary, ["</s>"]) if types[i] != TokenType.NORMAL]
    known += _present(vocabulary, _STOP_TEXTS_OF.get(str(vocabulary.metadata.get("general.architecture")), ()))
    types[known] = TokenType.CONTROL
    types[_present(vocabulary, _VISIBLE_TEXTS)] = TokenType.USER_DEFINED
    stops = {*known, *(roles[r] for r in ("fim_pad", "fim_rep", "fim_sep", "eos", "eot", "eom") if r in roles)}

    def has(text: str) -> bool:
        return vocabulary.find(text) in stops

    # Harmony and solar-open end a message with <|end|> and continue. They stop at <|return|>, <|call|> or <|flush|>.
    calls = has("<|call|>") or has("<|calls|>")
    if has("<|end|>") and calls and (has("<|return|>") or has("<|flush|>")):
        stops -= (end := set(_present(vocabulary, ["<|end|>"])))
        types[list(end)] = TokenType.USER_DEFINED
    # </s> closes struck-out HTML in Gemma 4.
    if has("<|tool_response>") and has("</s>"):
        stops -= (end := set(_present(vocabulary, ["</s>"])))
        types[list(end)] = TokenType.NORMAL
    return frozenset(stops)


def _present(vocabulary: Vocabulary, texts: Iterable[str]) -> list[int]:
    return [index for text in texts if (index := vocabulary.find(text)) is not None]


def make_splitter(vocabulary: Vocabulary) -> SpecialSplitter:
    """Return a splitter that finds control, unknown and user-defined tokens in text."""
    types = vocabulary.types
    found = np.flatnonzero(
        (types == TokenType.CONTROL) | (types == TokenType.USER_DEFINED) | (types == TokenType.UNKNOWN)
    ).tolist()
    lstrip, rstrip = _strip_rules(vocabulary, found)
    return SpecialSplitter(
        [
            (
                vocabulary.texts[i],
                i,
                bool(types[i] == TokenType.USER_DEFINED),
                i in lstrip,
                i in rstrip,
            )
            for i in found
        ]
    )


def _strip_rules(vocabulary: Vocabulary, found: list[int]) -> tuple[set[int], set[int]]:
    """Return tokens that strip whitespace around themselves. GGUF has no key for it; the model name decides."""
    name = vocabulary.text("general.name").lower()
    pre = vocabulary.text("tokenizer.ggml.pre")
    architecture = vocabulary.text("general.architecture")
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in ("nomic-bert-moe", "jina-bert-v3"):
        return set(_present(vocabulary, ["<mask>"])), set()
    if "phi-3" in name or "phi3" in name:
        kept = _present(vocabulary, ["<unk>", "<s>", "<|endoftext|>"])
        return set(), {*found, *_present(vocabulary, ["</s>"])} - set(kept)
    if "modern-bert" in name:
        return set(_present(vocabulary, ["[MASK]"])), set()
    return set(), set()
