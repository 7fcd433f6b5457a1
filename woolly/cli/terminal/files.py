"""Text files as input of commands."""

from __future__ import annotations

import sys
from pathlib import Path

from woolly.errors import RequestError


def read_utf8(name: str) -> str:
    """Return the text of a file, or of standard input for `-`, without a newline at the end, as llama.cpp does."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8 (byte {error.start}); expected a text file") from None
    except OSError as error:
        raise RequestError(f"{name} cannot be read ({error.strerror or error}); expected a text file") from None
    return text.removesuffix("\n")
