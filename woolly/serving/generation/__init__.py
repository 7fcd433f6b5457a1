"""Requests in flight: admission, generation, streams."""

__all__: list[str] = []
