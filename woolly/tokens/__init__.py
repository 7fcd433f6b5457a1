"""TEXT TO IDS and back: tokenizers, streaming text, stop strings."""

from woolly.tokens.detokenize import StreamDetokenizer
from woolly.tokens.tokenizer import Tokenizer

__all__ = ["StreamDetokenizer", "Tokenizer"]
