"""Log messages of a command on standard error."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from woolly.cli.terminal.progress import print_status

# The library names an argument and its flag, as in gpu_layers=99 (-ngl 99).
_BOTH = re.compile(r"\b(\w+)(?:=[^\s()]+)? \((--?[a-z][\w-]*)([^()]*)\)")


class _WarningPrinter(logging.Handler):
    """Prints warnings of the library in the format of other messages, and names only the flags in `typed`."""

    def __init__(self, typed: Mapping[str, str]) -> None:
        super().__init__(logging.WARNING)
        self._typed = typed

    def format(self, record: logging.LogRecord) -> str:
        """Return the message with flags instead of arguments of the library, and the traceback if any."""
        return _BOTH.sub(lambda both: self._typed.get(both[1], both[2]) + both[3], super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, unless `woolly serve` has set up logging."""
        print_status(f"woolly: {record.levelname.lower()}: {self.format(record)}")


def print_warnings(typed: Mapping[str, str]) -> None:
    """Print warnings of the library unless logging is configured. `typed` has flags by parameter."""
    logging.lastResort = _WarningPrinter(typed)
