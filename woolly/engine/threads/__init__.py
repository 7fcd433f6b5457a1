"""Threads of an engine: the thread that steps it, and callers that wait for tokens."""

__all__: list[str] = []
