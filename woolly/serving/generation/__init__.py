"""Request execution: admission, generation and streams."""

__all__: list[str] = []
