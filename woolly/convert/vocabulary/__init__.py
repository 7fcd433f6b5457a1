"""Vocabularies of checkpoints as metadata of GGUF files, and the proof that they give the same tokens."""

from woolly.convert.vocabulary.proof import prove_tokens
from woolly.convert.vocabulary.tokens import read_tokens

__all__ = ["prove_tokens", "read_tokens"]
