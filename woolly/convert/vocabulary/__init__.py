"""Checkpoint vocabularies as GGUF metadata, verified against the original tokenizer."""

from woolly.convert.vocabulary.proof import prove_tokens
from woolly.convert.vocabulary.tokens import read_tokens

__all__ = ["prove_tokens", "read_tokens"]
