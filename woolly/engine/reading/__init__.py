"""Texts that become one row each: vectors and scores, computed beside the answers."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.engine.reading.reader import ReadingRunner
    from woolly.engine.reading.reading import Reading
    from woolly.engine.reading.rows import TextRows

__all__ = ["Reading", "ReadingRunner", "TextRows"]

__getattr__ = later(
    __name__,
    {
        "reader": "ReadingRunner",
        "reading": "Reading",
        "rows": "TextRows",
    },
)
