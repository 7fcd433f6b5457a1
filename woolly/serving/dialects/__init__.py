"""One folder per API."""

__all__: list[str] = []
