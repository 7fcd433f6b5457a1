"""Command line. `commands/` has one file per command."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line. While it is imported, Ctrl-C ends the process without a traceback."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from woolly.cli import app

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app.main()
