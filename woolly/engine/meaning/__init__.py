"""Texts that become one row each: vectors and scores, computed beside the answers."""

from woolly.engine.meaning.reader import Reader
from woolly.engine.meaning.reading import Reading
from woolly.engine.meaning.rows import TextRows

__all__ = ["Reader", "Reading", "TextRows"]
