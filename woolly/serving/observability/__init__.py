"""Observability: health, metrics, logs and traces."""

__all__: list[str] = []
