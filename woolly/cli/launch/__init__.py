"""Coding agents that `woolly launch` starts, and a server for them."""

__all__: list[str] = []
