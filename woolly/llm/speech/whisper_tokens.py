"""WhisperTokens: the tokens by which a Whisper model is asked, and those that no transcript has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer

# Signs that annotate an audio clip instead of writing it, such as (applause) and [music]; alone, and after a space.
_SIGNS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
]
_NOTES = "♩♪♫♬♭♮♯"  # of several tokens; the first of them begins nothing else


@dataclass(frozen=True)
class WhisperTokens:
    """Ids. Tokens of text are those before `end`; those of times are the last of the vocabulary."""

    eot: int
    sot: int
    languages: dict[str, int]  # by code; empty if the model knows English alone
    translate: int
    transcribe: int
    sot_prev: int  # begins text that comes before
    no_speech: int
    no_timestamps: int
    timestamp_begin: int
    suppress_tokens: npt.NDArray[np.int64]
    suppress_blank: npt.NDArray[np.int64]  # what a transcript does not begin with

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WhisperTokens:
        """Those of a vocabulary; ModelError if it lacks any."""
        texts = {tokenizer.token_text(id): id for id in sorted(tokenizer.control_ids)}
        try:
            end, start, no_times = (texts[f"<|{x}|>"] for x in ("endoftext", "startoftranscript", "notimestamps"))
            translate, transcribe, before = (texts[f"<|{x}|>"] for x in ("translate", "transcribe", "startofprev"))
            silence = texts["<|nospeech|>"] if "<|nospeech|>" in texts else texts["<|nocaptions|>"]
            first = texts["<|0.00|>"]
        except KeyError as error:
            raise ModelError(f"the vocabulary lacks the token {error.args[0]}, so this is no Whisper model") from None
        codes = {tokenizer.token_text(id)[2:-2]: id for id in range(start + 1, translate)}
        others = [id for text, id in texts.items() if id < first and id not in (end, no_times)]
        words = {tokenizer.token_bytes(id): id for id in range(end)}
        return cls(
            *(end, start, codes if tokenizer.n_vocab > 51864 else {}),
            *(translate, transcribe, before, silence, no_times, first),
            np.array(sorted({*_signs(words), *others} - set(codes.values())), np.int64),
            np.array([end, *([words[b" "]] if b" " in words else [])], np.int64),
        )

    @property
    def n_languages(self) -> int:
        """How many languages the model knows."""
        return len(self.languages) or 1


def _signs(words: dict[bytes, int]) -> set[int]:
    """Ids of the signs, as far as each is one token, and of the first token of notes."""
    found = {words[text] for text in (b" -", b" '") if text in words}
    for sign in _SIGNS:
        found |= {words[text] for text in (sign.encode(), f" {sign}".encode()) if text in words}
    for note in _NOTES:
        for text in (note.encode(), f" {note}".encode()):
            begun = [words[text[:n]] for n in range(len(text), 0, -1) if text[:n] in words and n > 1]
            found |= set(begun[:1])
    return found
