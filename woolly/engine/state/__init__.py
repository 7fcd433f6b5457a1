"""What a request may see of the cache: windows, and slots kept for later."""

__all__: list[str] = []
