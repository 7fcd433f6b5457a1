"""SentencePiece BPE vocabularies, merged by score (`llama`)."""

from __future__ import annotations

from woolly._native import SentencePieceBPE
from woolly.errors import TokenizerError
from woolly.tokens.vocabulary import SPACE_MARK, Vocabulary


class SentencePieceEncoder:
    """Merges the adjacent pair with the highest score, on ties the leftmost pair."""

    def __init__(self, vocabulary: Vocabulary, unknown: int | None, add_space_prefix: bool) -> None:
        self._add_space_prefix = add_space_prefix
        self._model = SentencePieceBPE(
            vocabulary.texts, vocabulary.scores(), vocabulary.kinds, -1 if unknown is None else unknown
        )

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        if self._add_space_prefix and after_special:
            text = " " + text
        try:
            return self._model.encode(text.replace(" ", SPACE_MARK).encode())
        except IndexError as error:
            raise TokenizerError(
                f"the text has {str(error)!r} without a token, and the vocabulary has no unknown token"
            ) from None
