"""Speculation: proposals for the next tokens."""

__all__: list[str] = []
