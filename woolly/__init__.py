"""Woolly: a local LLM inference engine for GGUF models."""

from woolly._native import __version__

__all__ = ["__version__"]
