"""What an operator sees of a server: health, metrics, logs."""

__all__: list[str] = []
