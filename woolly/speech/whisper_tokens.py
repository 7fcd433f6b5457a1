"""WhisperTokens: special tokens of Whisper, and the tokens that are suppressed in transcripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer

# Non-speech symbols, such as in (applause) and [music], suppressed with and without a leading space.
_SIGNS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
]
_NOTES = "♩♪♫♬♭♮♯"  # several tokens each; the first token starts no other symbol


@dataclass(frozen=True)
class WhisperTokens:
    """Token ids. Text tokens come before `eot`, timestamp tokens at the end of the vocabulary."""

    eot: int
    sot: int
    languages: dict[str, int]  # by code; empty for English-only models
    translate: int
    transcribe: int
    sot_prev: int  # starts the previous text
    no_speech: int
    no_timestamps: int
    timestamp_begin: int
    suppress_tokens: npt.NDArray[np.int64]
    suppress_blank: npt.NDArray[np.int64]  # forbidden as the first token

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WhisperTokens:
        """Read the tokens of a vocabulary; raise ModelError if a token is missing."""
        texts = {tokenizer.token_text(id): id for id in sorted(tokenizer.control_ids)}
        try:
            eot, sot, no_timestamps = (texts[f"<|{x}|>"] for x in ("endoftext", "startoftranscript", "notimestamps"))
            translate, transcribe, sot_prev = (texts[f"<|{x}|>"] for x in ("translate", "transcribe", "startofprev"))
            no_speech = texts["<|nospeech|>"] if "<|nospeech|>" in texts else texts["<|nocaptions|>"]
            first = texts["<|0.00|>"]
        except KeyError as error:
            raise ModelError(f"not a Whisper model: the vocabulary has no token {error.args[0]}") from None
        codes = {tokenizer.token_text(id)[2:-2]: id for id in range(sot + 1, translate)}
        others = [id for text, id in texts.items() if id < first and id not in (eot, no_timestamps)]
        words = {tokenizer.token_bytes(id): id for id in range(eot)}
        return cls(
            *(eot, sot, codes if tokenizer.n_vocab > 51864 else {}),
            *(translate, transcribe, sot_prev, no_speech, no_timestamps, first),
            np.array(sorted({*_signs(words), *others} - set(codes.values())), np.int64),
            np.array([eot, *([words[b" "]] if b" " in words else [])], np.int64),
        )

    @property
    def n_languages(self) -> int:
        """Number of languages of the model."""
        return len(self.languages) or 1


def _signs(words: dict[bytes, int]) -> set[int]:
    """Return the ids of single-token symbols, and the first token of musical notes."""
    found = {words[text] for text in (b" -", b" '") if text in words}
    for sign in _SIGNS:
        found |= {words[text] for text in (sign.encode(), f" {sign}".encode()) if text in words}
    for note in _NOTES:
        for text in (note.encode(), f" {note}".encode()):
            begun = [words[text[:n]] for n in range(len(text), 0, -1) if text[:n] in words and n > 1]
            found |= set(begun[:1])
    return found
