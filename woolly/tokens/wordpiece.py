"""WordPiece vocabularies (`bert`) on Hugging Face `tokenizers`."""

from __future__ import annotations

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from woolly.errors import TokenizerError
from woolly.tokens.vocabulary import SPACE_MARK, TokenType, Vocabulary


class WordPieceEncoder:
    """Splits words by greedy longest match from the left. A word that cannot be split is unknown."""

    def __init__(self, vocabulary: Vocabulary, unknown: int | None, lowercase: bool, strip_accents: bool) -> None:
        if unknown is None:
            raise TokenizerError("the 'bert' vocabulary has no tokenizer.ggml.unknown_token_id, which it needs")
        # GGUF marks the start of a word, but BERT marks its continuation.
        control = (vocabulary.types == TokenType.CONTROL) | (vocabulary.types == TokenType.UNKNOWN)
        ids: dict[str, int] = {}
        for index, token in enumerate(vocabulary.tokens):
            text = _clean(token)
            if not control[index] and index != unknown:
                text = text[1:] if text.startswith(SPACE_MARK) else "##" + text
            ids[text] = index
        unknown_text = _clean(vocabulary.tokens[unknown])
        self._model = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown_text, max_input_chars_per_word=100))
        self._model.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
        )
        self._model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        ids: list[int] = self._model.encode(text, add_special_tokens=False).ids
        return ids


def _clean(token: str) -> str:
    """Return a token's text. Bytes that are not UTF-8 become U+FFFD, because `tokenizers` needs valid UTF-8."""
    return token.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
