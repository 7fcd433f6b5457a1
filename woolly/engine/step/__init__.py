"""One step of the engine: scheduling, running and output processing."""

__all__: list[str] = []
