"""The log of a command: lines of standard error, as all its messages are."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from woolly.cli.terminal.progress import print_status

# The library writes an argument and its flag, as in gpu_layers=99 (-ngl 99): its log has readers of both kinds.
_BOTH = re.compile(r"\b(\w+)(?:=[^\s()]+)? \((--?[a-z][\w-]*)([^()]*)\)")


class _WarningPrinter(logging.Handler):
    """Writes warnings as the command line writes those of Python, with flags alone as they were `typed`."""

    def __init__(self, typed: Mapping[str, str]) -> None:
        super().__init__(logging.WARNING)
        self._typed = typed

    def format(self, record: logging.LogRecord) -> str:
        """The message, in which a flag stands for an argument of the library, and the traceback if it has one."""
        return _BOTH.sub(lambda both: self._typed.get(both[1], both[2]) + both[3], super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """One message, and the traceback if it has one; `woolly serve` has a log of its own, which goes before this."""
        print_status(f"woolly: {record.levelname.lower()}: {self.format(record)}")


def print_warnings(typed: Mapping[str, str]) -> None:
    """Print warnings of the library unless logging is configured; `typed` has flags by parameter."""
    logging.lastResort = _WarningPrinter(typed)
