"""Token constraints that need the model's vocabulary: allowed tokens, bad words and prompt truncation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.sampling import SamplingParams
from woolly.tokens import Tokenizer

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TokenConstraints:
    """vLLM's `allowed_token_ids`, `bad_words` and `truncate_prompt_tokens`."""

    allowed: tuple[int, ...] | None = None  # None: all tokens
    bad_words: tuple[str, ...] = ()
    truncate_prompt_tokens: int | None = None  # tokens to keep from the end of the prompt; -1: as many as fit

    def bind(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return `params` with logits processors for the constraints. Raises RequestError for an id out of range."""
        processors: list[_AllowedTokens | _BadWords] = []
        if self.allowed is not None:
            for token in self.allowed:
                if not 0 <= token < tokenizer.n_vocab:
                    expected = f"expected ids from 0 to {tokenizer.n_vocab - 1}"
                    raise RequestError(f"allowed_token_ids: {expected}, but got {token}", field="allowed_token_ids")
            processors.append(_AllowedTokens(np.unique(np.array(self.allowed, np.int64))))
        if self.bad_words:
            processors.append(_BadWords(_token_sequences(self.bad_words, tokenizer)))
        return replace(params, logits_processors=(*params.logits_processors, *processors)) if processors else params

    def cut(self, prompt: Sequence[int], most: int) -> Sequence[int]:
        """Return the prompt truncated from the left to at most `most` tokens."""
        n_last = self.truncate_prompt_tokens
        if n_last is None:
            return prompt
        if n_last > most:
            message = f"truncate_prompt_tokens: expected at most {most}, but got {n_last}"
            raise RequestError(message, field="truncate_prompt_tokens")
        n = most - 1 if n_last < 0 else n_last  # leave one token for the answer
        return prompt[max(0, len(prompt) - n) :]


UNCONSTRAINED = TokenConstraints()


@dataclass(frozen=True)
class _AllowedTokens:
    ids: npt.NDArray[np.int64]

    def __call__(self, history: Sequence[int], logits: Float32) -> None:
        kept = logits[self.ids].copy()
        logits[:] = -np.inf
        logits[self.ids] = kept


@dataclass(frozen=True)
class _BadWords:
    """Masks the last token of each word whose other tokens precede it."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, history: Sequence[int], logits: Float32) -> None:
        for word in self.words:
            n = len(word) - 1
            if n == 0 or tuple(history[-n:]) == word[:-1]:
                logits[word[-1]] = -np.inf


def _token_sequences(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each word, both at the start of a text and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, f" {word.lstrip()}"):
            ids = tuple(tokenizer.encode(text, add_special=False, parse_special=False))
            if ids:
                found[ids] = None
    return tuple(found)
