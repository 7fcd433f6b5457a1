"""Threads of an engine: the engine thread, and callers that wait for tokens."""

__all__: list[str] = []
