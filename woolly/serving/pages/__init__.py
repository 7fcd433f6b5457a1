"""Browser pages: the chat page and the API reference."""

__all__: list[str] = []
