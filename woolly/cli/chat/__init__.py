"""The conversation of `woolly chat`."""

__all__: list[str] = []
