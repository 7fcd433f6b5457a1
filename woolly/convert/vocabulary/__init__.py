"""Checkpoint vocabularies as GGUF metadata, verified against the original tokenizer."""

from woolly.convert.vocabulary.tokens import read_tokens
from woolly.convert.vocabulary.verification import verify_tokenizer

__all__ = ["read_tokens", "verify_tokenizer"]
