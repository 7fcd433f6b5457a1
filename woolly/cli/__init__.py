"""Command line. `commands/` has one file per command."""

from woolly.cli.app import app, main

__all__ = ["app", "main"]
