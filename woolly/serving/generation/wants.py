"""Wants: what a request wants of the prompt and of its tokens that only the model's vocabulary can say."""

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
class Wants:
    """Tokens that an answer may or may not have, and how much of a prompt counts; under vLLM's names in errors."""

    allowed: tuple[int, ...] | None = None  # ids of the only tokens that may come
    bad_words: tuple[str, ...] = ()  # texts that may not come
    n_last: int | None = None  # tokens of the prompt that are kept, from its end; -1: as many as the context holds

    def bind(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Returns parameters that rule the other tokens out. RequestError for an id that the vocabulary lacks."""
        processors: list[_Only | _Without] = []
        if self.allowed is not None:
            for token in self.allowed:
                if not 0 <= token < tokenizer.n_vocab:
                    expected = f"ids from 0 to {tokenizer.n_vocab - 1} were expected"
                    raise RequestError(f"allowed_token_ids: it holds {token}; {expected}", field="allowed_token_ids")
            processors.append(_Only(np.unique(np.array(self.allowed, np.int64))))
        if self.bad_words:
            processors.append(_Without(_spellings(self.bad_words, tokenizer)))
        return replace(params, logits_processors=(*params.logits_processors, *processors)) if processors else params

    def cut(self, prompt: Sequence[int], most: int) -> Sequence[int]:
        """Returns the last tokens of a prompt, as many as are wanted."""
        if self.n_last is None:
            return prompt
        if self.n_last > most:
            message = f"truncate_prompt_tokens: it is {self.n_last}, and this server takes at most {most} tokens"
            raise RequestError(message, field="truncate_prompt_tokens")
        n = most - 1 if self.n_last < 0 else self.n_last  # one token is left for the answer
        return prompt[max(0, len(prompt) - n) :]


NOTHING = Wants()


@dataclass(frozen=True)
class _Only:
    ids: npt.NDArray[np.int64]

    def __call__(self, history: Sequence[int], logits: Float32) -> None:
        kept = logits[self.ids].copy()
        logits[:] = -np.inf
        logits[self.ids] = kept


@dataclass(frozen=True)
class _Without:
    """Rules out the last token of a word whose other tokens have just come."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, history: Sequence[int], logits: Float32) -> None:
        for word in self.words:
            n = len(word) - 1
            if n == 0 or tuple(history[-n:]) == word[:-1]:
                logits[word[-1]] = -np.inf


def _spellings(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Returns the ids of each word at the beginning of a text, and after a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, f" {word.lstrip()}"):
            ids = tuple(tokenizer.encode(text, add_special=False, parse_special=False))
            if ids:
                found[ids] = None
    return tuple(found)
