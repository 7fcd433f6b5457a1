"""Coding agents for `woolly launch`, and a server for them."""

__all__: list[str] = []
