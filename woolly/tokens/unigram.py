"""SentencePiece unigram vocabularies (`t5`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from woolly._native import Unigram
from woolly.errors import TokenizerError

if TYPE_CHECKING:
    from woolly.tokens.vocabulary import Vocabulary


class UnigramEncoder:
    """Viterbi search for the highest sum of scores, after the vocabulary's normalization."""

    def __init__(self, vocabulary: Vocabulary, unknown: int | None, add_space_prefix: bool, merge_spaces: bool) -> None:
        charsmap = _charsmap(vocabulary.metadata.get("tokenizer.ggml.precompiled_charsmap"))
        scores = vocabulary.scores()
        number = -1 if unknown is None else unknown
        try:
            self._model = Unigram(
                vocabulary.texts, scores, vocabulary.kinds, number, charsmap, add_space_prefix, merge_spaces
            )
        except ValueError as error:
            raise TokenizerError(f"cannot build the vocabulary: {error}") from None

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        try:
            return self._model.encode(text.encode())
        except IndexError as error:
            raise TokenizerError(
                f"the text has {str(error)!r} without a token, and the vocabulary has no unknown token"
            ) from None
        except ValueError as error:
            raise TokenizerError(f"cannot encode the text: {error}") from None


def _charsmap(value: Any) -> bytes:
    if value is None:
        return b""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TokenizerError("tokenizer.ggml.precompiled_charsmap must be an array of bytes")
    return array.astype(np.uint8).tobytes()
