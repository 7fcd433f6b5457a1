"""STRINGS: text to tokens and back."""

from woolly.text.detokenize import StreamDetokenizer
from woolly.text.template import ChatTemplate
from woolly.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "StreamDetokenizer", "Tokenizer"]
