"""Replacement of typographic characters for terminals that do not support them."""

from __future__ import annotations

import codecs

PLAIN = "woolly-plain"  # name of the error handler, for the `errors` of a stream

# Frequent characters of model output beyond Latin-1, with ASCII replacements.
_TYPED = {
    **dict.fromkeys("\u2018\u2019\u201a\u2032", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    **dict.fromkeys("\u00a0\u2009\u202f", " "),
    "\u2022": "*",
    "\u2026": "...",
    "\u2190": "<-",
    "\u2192": "->",
    "\u00d7": "x",
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return the replacement of characters that cannot be encoded: ASCII, else \u4f60."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    typed = (_TYPED.get(one) or one.encode("ascii", "backslashreplace").decode() for one in characters)
    return "".join(typed), error.end


codecs.register_error(PLAIN, _plain)
