"""Conversations of `woolly chat`."""

__all__: list[str] = []
