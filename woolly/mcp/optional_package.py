"""Check for the optional package `mcp`."""

from __future__ import annotations

from importlib.util import find_spec

from woolly.errors import RequestError
from woolly.machine.optional_packages import install_command


def check_package() -> None:
    """Raise RequestError, without a field, if the package is not installed."""
    if find_spec("mcp") is None:
        raise RequestError(f"MCP needs the package mcp: {install_command('mcp')}")
