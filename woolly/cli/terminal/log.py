"""The log of a command: lines of standard error, as all its messages are."""

from __future__ import annotations

import logging

from woolly.cli.terminal.progress import tell

__all__ = ["tell_warnings"]


class _Told(logging.Handler):
    """Writes warnings as the command line writes those of Python."""

    def emit(self, record: logging.LogRecord) -> None:
        """One message, and the traceback if it has one; `woolly serve` has a log of its own, which goes before this."""
        tell(f"woolly: {record.levelname.lower()}: {self.format(record)}")


def tell_warnings() -> None:
    """Has warnings of the library written by `tell`, if nobody has set up a log."""
    logging.lastResort = _Told(logging.WARNING)
