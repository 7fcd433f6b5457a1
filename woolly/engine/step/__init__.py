"""Engine step: scheduling, running and output processing."""

__all__: list[str] = []
