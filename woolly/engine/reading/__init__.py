"""Texts that become one row each: vectors and scores, computed beside the answers."""

from woolly.engine.reading.reader import ReadingRunner
from woolly.engine.reading.reading import Reading
from woolly.engine.reading.rows import TextRows

__all__ = ["Reading", "ReadingRunner", "TextRows"]
