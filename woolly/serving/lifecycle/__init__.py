"""Start, run and shutdown of the server."""

__all__: list[str] = []
